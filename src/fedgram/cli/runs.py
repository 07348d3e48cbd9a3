"""Commands for trained runs: runs list, runs show, runs compare, runs predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgram._util.errors import InputError
from fedgram.cli.app import Json, app, print_json

runs_app = typer.Typer(
    no_args_is_help=True,
    help="Trained runs: which there are, what each found round by round, all of them beside the prediction, "
    "and what their networks predict for new rows. What they found is measured from the files that training "
    "wrote, without data or networks.",
)
app.add_typer(runs_app, name="runs")

Root = Annotated[Path, typer.Argument(help="Folder with runs; of a single run, too.")]


@runs_app.command("list")
def list_runs(root: Root = Path("runs"), as_json: Json = False) -> None:
    """Name all runs: data, network, procedure, seed, how far each is and what it took."""
    from fedgram.display import run_tables
    from fedgram.runs import Runs

    found = Runs(root).require()
    if as_json:
        print_json(run_tables.list_document(found))
    else:
        run_tables.print_list(found)


@runs_app.command()
def show(root: Root = Path("runs"), as_json: Json = False) -> None:
    """Show what every run found, round by round.

    Errors of the shared head's Gram: to the procedure's target, and to the exact recursion from the same
    start; delta, how far the returned heads are from the selected ones; the clients' objectives above their
    least values; test MSE with the shared head under each bias rule.
    """
    from fedgram.display import run_tables
    from fedgram.runs import Runs
    from fedgram.runs.measure import measure

    found = Runs(root).require()
    if as_json:
        print_json({"runs": [measure(run).document() for run in found if run.account.rounds]})
        return
    for run in found:
        run_tables.print_run(run)


@runs_app.command()
def compare(
    root: Root = Path("runs"),
    figure: Annotated[
        Path | None, typer.Option(help="Draw errors over rounds and Grams to this .png, .svg or .pdf.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Hold procedures beside each other and beside the prediction, over all seeds.

    error: of the last Gram, to the procedure's target. gap: of the target (predicted) and of the last Gram
    (measured) to centralized training. trajectory: error to the exact recursion from the same start, median
    over rounds. delta: of the returned heads to the selected ones. objective gap: of clients, above their
    least values. Means over seeds ± sample deviation.
    """
    from fedgram.display import run_tables
    from fedgram.runs import Runs

    found = Runs(root).require()
    if figure is not None:
        from fedgram._util.text import pluralize
        from fedgram.display.run_figure import draw_comparison
        from fedgram.runs.compare import compare_runs

        if not (settings := compare_runs(found)):
            raise InputError(
                f"No run in '{root}' is finished ({pluralize(len(found))} in all), so there is nothing "
                "to draw; finish training first.",
                field="figure",
            )
        draw_comparison(settings, figure)
        typer.echo(f"Wrote {figure}.", err=True)
    if as_json:
        print_json(run_tables.comparison_document(found))
    else:
        run_tables.print_comparison(found)


@runs_app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="Folder of one run that was trained on a table.")],
    data: Annotated[str, typer.Argument(help="CSV, TSV or Parquet file with the columns of its inputs.")],
    client: Annotated[str | None, typer.Option(help="Column that names the client of each row.")] = None,
    site: Annotated[str | None, typer.Option(help="The client of all rows, if no column names it.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="CSV file to write.")] = None,
    as_json: Json = False,
) -> None:
    """Predict the targets of new rows with the networks that a run ended with.

    Each row is predicted by the network of its client; of a centralized run all are by the one that it has,
    and need none. The rows stay in their order.
    """
    from fedgram._util.text import pluralize
    from fedgram.cli.inputs import check_not_overwritten
    from fedgram.training.inference import predict_table

    check_not_overwritten(output, [data])
    if output is not None and output.suffix.lower() not in ("", ".csv"):
        raise InputError(f"What is written is CSV: name it so, {output.stem}.csv.", field="output")
    rows = predict_table(folder, data, client, site)
    if as_json:
        print_json(rows.document())
    elif output is None:
        typer.echo(rows.csv(), nl=False)
    if output is not None:
        rows.save(output)
        typer.echo(f"Wrote {output}: {pluralize(len(rows.clients), 'row')}.", err=True)
