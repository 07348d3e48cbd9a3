"""Commands for readers of the paper: reproduce and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgram.cli.app import app, print_json
from fedgram.errors import InputError

if TYPE_CHECKING:
    from fedgram.paper.experiment import Scale
    from fedgram.paper.runner import Outcome

Out = Annotated[Path, typer.Option(help="Folder that holds the results.")]


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, or 'ufm' for all six.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer instances: a minute instead of eight.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Redo parts that are finished already.")] = False,
    out: Out = Path("results"),
    list_all: Annotated[
        bool, typer.Option("--list", help="Name all experiments and what each costs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per experiment.")] = False,
) -> None:
    """Redo an experiment of the paper and hold every number beside the paper's.

    Parts that are finished are kept, so a run that was stopped goes on where it was. Exits with 1 if a
    claim of the paper is missed.
    """
    from fedgram.paper import terminal

    scale: Scale = "quick" if quick else "full"
    if list_all:
        terminal.print_list(out)
        return
    if name is None:
        raise InputError("Name an experiment; 'fedgram reproduce --list' names them all.", field="name")
    outcomes = _run(name, out, scale, fresh)
    for outcome in outcomes:
        if as_json:
            print_json(outcome.document())
        else:
            terminal.print_outcome(outcome)
    if any(judged.verdict == "miss" for outcome in outcomes for judged in outcome.judged):
        raise typer.Exit(1)


@app.command()
def report(
    out: Out = Path("results"),
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    runs: Annotated[Path | None, typer.Option(help="Folder of trained runs to show as well.")] = None,
) -> None:
    """Write one self-contained HTML page with every figure, claim and setting of the finished experiments."""
    from fedgram.paper.report import write_report

    summary = write_report(out, output, runs)
    typer.echo(f"Wrote {output}: {summary}.")


def _run(name: str, out: Path, scale: Scale, fresh: bool) -> list[Outcome]:
    from fedgram.paper import registry, runner, terminal

    experiments = [registry.experiment(each) for each in registry.names_of(name)]
    with terminal.progress() as shown:
        try:
            return runner.run(
                experiments, out, scale, fresh=fresh,
                started=shown.started, advanced=shown.advanced, warned=shown.warned,
            )  # fmt: skip
        except KeyboardInterrupt:
            shown.warned("Interrupted: finished parts are kept, and the same command goes on from there.")
            raise typer.Abort from None
