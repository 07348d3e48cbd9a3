"""Commands on the paper's experiments: reproduce and report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from fedgram._util.errors import InputError
from fedgram._util.files import check_folder_of
from fedgram.cli.app import app, print_json
from fedgram.cli.options import DataDir, Device, Engine, Seeds
from fedgram.cli.parsing import parse_epochs, parse_seeds, split_values

if TYPE_CHECKING:
    from fedgram.paper.launch.launch import StudyOutcome
    from fedgram.paper.launch.plan import Request
    from fedgram.paper.ufm.runner import Outcome


FLAGS = ("--quick", "--fresh", "--json", "--help")
"""Options without a value."""


class ExperimentGroup(TyperGroup):
    """A command group that accepts experiment names: `dnn-main` is short for `networks dnn-main`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the command that runs the named experiments, then parse as usual."""
        return super().parse_args(ctx, _insert_command(args))


def _insert_command(args: list[str]) -> list[str]:
    if not args or args[0] in ("ufm", "networks", "all", "list", "--help"):
        return args
    from fedgram.paper import registry

    places = list(_find_names(args))
    named = [args[n] for n in places if args[n] in registry.GROUPS or args[n] in registry.GROUPS["all"]]
    if not named:
        for n in places:
            registry.expand_name(args[n])  # raises an error that suggests a name
        return args
    if "all" in named:
        return ["all", *(arg for n, arg in enumerate(args) if arg != "all" or n not in places)]
    return ["ufm" if named[0] == "ufm" or named[0] in registry.MODULES else "networks", *args]


def _find_names(args: list[str]) -> Iterator[int]:
    """Yield the places of arguments that are neither options nor the values of options."""
    is_value = False
    for place, arg in enumerate(args):
        is_option = arg.startswith("-")
        if not (is_option or is_value):
            yield place
        is_value = is_option and "=" not in arg and arg not in FLAGS


reproduce_app = typer.Typer(cls=ExperimentGroup, invoke_without_command=True)
app.add_typer(reproduce_app, name="reproduce")

Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer instances: under a minute instead of six.")]
Scale = Annotated[
    str,
    typer.Option(
        help="paper; preactivated (the same with another ResMLP); reduced (a tenth of the epochs, one seed); "
        "or smoke (a minute on a CPU)."
    ),
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per experiment.")]


@reproduce_app.callback()
def reproduce(context: typer.Context) -> None:
    """Repeat the paper's experiments and compare each number with the paper's.

    Finished work is kept, so the same command resumes a stopped run. It exits with 1 if a number misses the
    paper's claim. An experiment's name also works as a command, for example 'fedgram reproduce dnn-main'.
    """
    if context.invoked_subcommand is None:
        raise InputError("Name an experiment. Run 'fedgram reproduce list' to see all names.", field="name")


@reproduce_app.command()
def ufm(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments. Default: all six.")] = None,
    quick: Quick = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard finished parts and start over.")] = False,
    out: Out = Path("results"),
    as_json: JsonLines = False,
) -> None:
    """Run the exact experiments on the unconstrained feature model."""
    _exit_with(_run_ufm(names or ["ufm"], out, quick, fresh), as_json)


@reproduce_app.command()
def networks(
    names: Annotated[list[str], typer.Argument(help="Experiments, or the groups dnn and beyond.")],
    scale: Scale = "paper",
    setting: Annotated[
        list[str] | None, typer.Option(help="Only these settings, separated by commas; repeatable.")
    ] = None,
    seeds: Seeds = "",
    procedure: Annotated[
        list[str] | None, typer.Option(help="Only these procedures, separated by commas; repeatable.")
    ] = None,
    epochs: Annotated[str, typer.Option(help="Only these local epochs E, separated by commas.")] = "",
    backbone: Annotated[
        list[str] | None, typer.Option(help="Only these networks, separated by commas; repeatable.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Precision of new runs: tf32; fp16, which is faster on a GPU; fp32; or fp64.")
    ] = "tf32",
    device: Device = "auto",
    engine: Engine = "local",
    out: Out = Path("results"),
    data_dir: DataDir = None,
    as_json: JsonLines = False,
) -> None:
    """Run the experiments that train networks.

    The command prints the cost before it starts, and skips settings without data.
    """
    chosen = {
        "settings": split_values(*setting or ()),
        "procedures": split_values(*procedure or ()),
        "backbones": split_values(*backbone or ()),
    }
    request = _request(
        out, scale, precision, **chosen, seeds=parse_seeds(seeds) if seeds else (),
        epochs=parse_epochs(epochs), device=device, engine=engine, data_dir=data_dir,
    )  # fmt: skip
    _exit_with(_run_networks(names, request), as_json)


@reproduce_app.command("all")
def run_all(
    quick: Quick = False,
    scale: Scale = "paper",
    device: Device = "auto",
    engine: Engine = "local",
    out: Out = Path("results"),
    data_dir: DataDir = None,
    as_json: JsonLines = False,
) -> None:
    """Run all experiments, first those on the unconstrained feature model, then those with networks."""
    request = _request(out, scale, device=device, engine=engine, data_dir=data_dir)
    exact = _run_ufm(["ufm"], out, quick)
    _exit_with([*exact, *_run_networks(["dnn", "beyond"], request)], as_json)


@reproduce_app.command("list")
def list_experiments(
    scale: Scale = "paper",
    out: Out = Path("results"),
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List all experiments with their cost and their finished runs."""
    from fedgram.paper import printing

    experiments = printing.list_experiments(_request(out, scale, data_dir=data_dir))
    if as_json:
        print_json({"experiments": experiments})
    else:
        printing.print_list(experiments)


@app.command()
def report(
    out: Annotated[Path, typer.Option(help="Folder with the results.")] = Path("results"),
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML file to write.")] = Path("report.html"),
    runs: Annotated[Path | None, typer.Option(help="Folder of trained runs to include.")] = None,
) -> None:
    """Write a self-contained HTML page with all figures and claims of the finished experiments."""
    from fedgram.cli.checks import check_suffix
    from fedgram.paper.report.page import write_report

    check_suffix(output, "A report", ".html", ".htm")
    check_folder_of(output)
    summary = write_report(out, output, runs)
    typer.echo(f"Wrote {output}: {summary}.")


def _request(out: Path, scale: str, precision: str = "tf32", **more: Any) -> Request:
    from fedgram.paper.launch.plan import Request
    from fedgram.paper.networks.scales import get_scale

    return Request(out, get_scale(scale, precision), **more)


def _run_ufm(names: Sequence[str], out: Path, quick: bool, fresh: bool = False) -> list[Outcome]:
    from fedgram.cli.progress import progress_bar
    from fedgram.paper import registry
    from fedgram.paper.ufm import runner

    experiments = [registry.load_experiment(name) for name in _expand(names, "ufm")]
    with progress_bar(kept="finished parts") as progress:
        return runner.run(
            experiments, out, "quick" if quick else "full", fresh=fresh,
            on_start=progress.on_start, on_part=progress.on_part, on_warning=progress.log,
        )  # fmt: skip


def _run_networks(names: Sequence[str], request: Request) -> list[StudyOutcome]:
    from fedgram.cli.progress import progress_bar
    from fedgram.paper.launch import launch
    from fedgram.paper.networks.studies.registry import STUDIES
    from fedgram.paper.printing import cost_lines

    studies = [STUDIES[name] for name in _expand(names, "networks")]
    with progress_bar(kept="finished rounds") as progress:
        return launch.run(
            studies, request, on_epoch=progress.on_epoch, on_warning=progress.log,
            on_start=lambda plans: progress.log("\n".join(cost_lines(plans))),
        )  # fmt: skip


def _expand(names: Sequence[str], command: str) -> list[str]:
    """Expand groups to experiments; reject experiments of the other command."""
    from fedgram.paper import registry

    experiments = list(dict.fromkeys(each for name in names for each in registry.expand_name(name)))
    for name in experiments:
        if (name in registry.MODULES) != (command == "ufm"):
            message = f"'{name}' is not a '{command}' experiment. Run 'fedgram reproduce {name}'."
            raise InputError(message, field="name")
    return experiments


def _exit_with(outcomes: Sequence[Outcome | StudyOutcome], as_json: bool) -> None:
    """Print outcomes, and exit with 1 if a claim is missed."""
    from fedgram.paper.printing import print_outcome

    for outcome in outcomes:
        if as_json:
            print_json(outcome.document())
        else:
            print_outcome(outcome)
    if any(judged.verdict == "miss" for outcome in outcomes for judged in outcome.judged):
        raise typer.Exit(1)
