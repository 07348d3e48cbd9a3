"""Commands for readers of the paper: reproduce and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgram._util.errors import InputError
from fedgram.cli.app import app, print_json
from fedgram.cli.data import DataDir
from fedgram.cli.options import parse_seeds, split_options

if TYPE_CHECKING:
    from fedgram.paper.launch.launch import StudyOutcome
    from fedgram.paper.launch.plan import Request
    from fedgram.paper.ufm.runner import Outcome

Out = Annotated[Path, typer.Option(help="Folder that holds the results.")]
Listed = Annotated[bool, typer.Option("--list", help="Name all experiments and what each costs.")]

EXACT_OPTIONS = ("quick", "fresh")
NETWORK_OPTIONS = ("scale", "setting", "seeds", "procedure", "device", "engine", "data_dir")


@app.command()
def reproduce(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments, or groups: ufm, dnn, beyond or all.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="ufm: fewer instances, under a minute instead of six.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="ufm: redo parts that are finished already.")
    ] = False,
    scale: Annotated[
        str,
        typer.Option(
            help="Networks: paper; reduced, a tenth of the epochs and one seed; or smoke, a minute on a CPU."
        ),
    ] = "paper",
    setting: Annotated[
        list[str] | None, typer.Option(help="Networks: these settings only; several with commas.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Networks: how many seeds (2 is 0 and 1), or which, with commas.")
    ] = None,
    procedure: Annotated[
        list[str] | None, typer.Option(help="Networks: these procedures only; several with commas.")
    ] = None,
    device: Annotated[str, typer.Option(help="Networks: auto, cpu, cuda or cuda:N.")] = "auto",
    engine: Annotated[
        str, typer.Option(help="Networks: local, or ray to use all GPUs of a Ray cluster.")
    ] = "local",
    out: Out = Path("results"),
    data_dir: DataDir = None,
    list_all: Listed = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per experiment.")] = False,
) -> None:
    """Redo experiments of the paper and hold every number beside the paper's.

    What is finished is kept, so a run that was stopped goes on where it was. Experiments with networks say
    what they will cost before they start, and leave out settings whose data is not at hand. Options marked
    ufm or Networks concern these experiments only. Exits with 1 if a claim of the paper is missed.
    """
    from fedgram.paper import registry
    from fedgram.paper.launch.plan import Request
    from fedgram.paper.networks.scales import scale_of

    request = Request(
        out, scale_of(scale), split_options(*setting or ()), parse_seeds(seeds) if seeds is not None else (),
        split_options(*procedure or ()), device, engine, data_dir,
    )  # fmt: skip
    if list_all:
        _list(request, as_json)
        return
    if not names:
        raise InputError("Name an experiment; 'fedgram reproduce --list' names them all.", field="name")
    wanted = dict.fromkeys(each for name in names for each in registry.names_of(name))
    exact = [each for each in wanted if each in registry.MODULES]
    trained = [each for each in wanted if each not in registry.MODULES]
    if not exact:
        _refuse(context, EXACT_OPTIONS, "experiments on the unconstrained feature model")
    if not trained:
        _refuse(context, NETWORK_OPTIONS, "experiments with networks")
    missed = _shown(_run(exact, out, quick, fresh), as_json) if exact else False
    missed |= _shown(_train(trained, request), as_json) if trained else False
    if missed:
        raise typer.Exit(1)


@app.command()
def report(
    out: Out = Path("results"),
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    runs: Annotated[Path | None, typer.Option(help="Folder of trained runs to show as well.")] = None,
) -> None:
    """Write one self-contained HTML page with every figure, claim and setting of the finished experiments."""
    from fedgram.paper.report.page import write_report

    summary = write_report(out, output, runs)
    typer.echo(f"Wrote {output}: {summary}.")


def _run(names: list[str], out: Path, quick: bool, fresh: bool) -> list[Outcome]:
    from fedgram.cli.progress import progress_bar
    from fedgram.paper import registry
    from fedgram.paper.ufm import runner

    experiments = [registry.experiment(each) for each in names]
    with progress_bar(kept="finished parts") as progress:
        return runner.run(
            experiments, out, "quick" if quick else "full", fresh=fresh,
            on_start=progress.on_start, on_part=progress.on_part, on_warning=progress.log,
        )  # fmt: skip


def _train(names: list[str], request: Request) -> list[StudyOutcome]:
    from fedgram.cli.progress import progress_bar
    from fedgram.paper.launch import launch
    from fedgram.paper.networks.studies.registry import STUDIES
    from fedgram.paper.printing import cost_lines

    with progress_bar(kept="finished rounds") as progress:
        return launch.run(
            [STUDIES[name] for name in names], request, on_epoch=progress.on_epoch, on_warning=progress.log,
            on_start=lambda plans: progress.log("\n".join(cost_lines(plans))),
        )  # fmt: skip


def _shown(outcomes: Any, as_json: bool) -> bool:
    """Print outcomes, and say whether a claim is missed."""
    from fedgram.paper import printing
    from fedgram.paper.ufm.runner import Outcome

    for outcome in outcomes:
        if as_json:
            print_json(outcome.document())
        elif isinstance(outcome, Outcome):
            printing.print_outcome(outcome)
        else:
            printing.print_network_outcome(outcome)
    return any(judged.verdict == "miss" for outcome in outcomes for judged in outcome.judged)


def _list(request: Request, as_json: bool) -> None:
    from fedgram.paper import printing

    experiments = printing.listed(request.out, printing.list_rows(request))
    if as_json:
        print_json({"experiments": experiments})
    else:
        printing.print_list(experiments)


def _refuse(context: typer.Context, options: tuple[str, ...], concerned: str) -> None:
    """Refuse options that were given for experiments none of which is named."""
    for option in options:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            flag = option.replace("_", "-")
            raise InputError(f"--{flag} is for {concerned}, and none is named.", field=option)
