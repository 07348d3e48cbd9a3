"""Commands on trained runs: runs list, runs show, runs compare, runs predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgram._util.errors import InputError
from fedgram.cli.app import app, print_json
from fedgram.cli.options import Client, Json, Site, output_option

runs_app = typer.Typer(
    no_args_is_help=True,
    help="List, show and compare trained runs, and predict new rows with them. Only `predict` needs PyTorch.",
)
app.add_typer(runs_app, name="runs")

Root = Annotated[Path, typer.Argument(help="Folder with runs, or the folder of one run.")]


@runs_app.command("list")
def list_runs(root: Root = Path("runs"), as_json: Json = False) -> None:
    """List all runs with their data, network, procedure, seed, state and cost."""
    from fedgram.display import run_tables
    from fedgram.runs import Runs

    found = Runs(root).require()
    if as_json:
        print_json(run_tables.list_document(found))
    else:
        run_tables.print_list(found)


@runs_app.command()
def show(root: Root = Path("runs"), as_json: Json = False) -> None:
    """Show the measurements of each run, round by round.

    error: relative error of the shared head's Gram to the procedure's target. error to recursion: to the
    exact recursion from the same start. delta: distance of the returned heads from the selected heads.
    objective gap: relative excess of the clients' objectives over their minimum. test MSE: with the shared
    head, under each bias rule.
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
        Path | None, output_option(help="Write a figure to this .png, .svg or .pdf file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare procedures with each other and with the prediction: mean ± standard deviation over seeds.

    error: relative error of the last Gram to the procedure's target. predicted gap, measured gap: of the
    target and of the last Gram to centralized training. trajectory: median error to the exact recursion from
    the same start. delta: distance of the returned heads from the selected heads. objective gap: relative
    excess of the clients' objectives over their minimum.
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
                f"Nothing to draw: none of the {pluralize(len(found))} in '{root}' is finished.",
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
    data: Annotated[str, typer.Argument(help="CSV, TSV or Parquet file with the run's input columns.")],
    client: Client = None,
    site: Site = None,
    output: Annotated[Path | None, output_option("-o", "--output", help="CSV file to write.")] = None,
    as_json: Json = False,
) -> None:
    """Predict the targets of new rows with the final networks of a run.

    The network of a row's client predicts it. A centralized run has one network for all rows and needs
    neither --client nor --site. The output keeps the order of the rows.
    """
    from fedgram._util.text import pluralize
    from fedgram.cli.inputs import check_not_overwritten
    from fedgram.training.inference import predict_table

    check_not_overwritten(output, [data])
    if output is not None and output.suffix.lower() not in ("", ".csv"):
        raise InputError(f"The output must be a CSV file: '{output}'. Use {output.stem}.csv.", field="output")
    rows = predict_table(folder, data, client, site)
    if as_json:
        print_json(rows.document())
    elif output is None:
        typer.echo(rows.csv(), nl=False)
    if output is not None:
        rows.save(output)
        typer.echo(f"Wrote {output}: {pluralize(len(rows.clients), 'row')}.", err=True)
