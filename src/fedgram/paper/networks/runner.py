"""Run network experiments: train what is missing, then measure, judge and draw."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fedgram
from fedgram._util.errors import InputError
from fedgram._util.files import write_bytes, write_json
from fedgram.display.plotting import pyplot
from fedgram.paper.claims import load_claims
from fedgram.paper.judging import Judged, judge_all
from fedgram.paper.networks.costs import Cost, cost_of
from fedgram.paper.networks.engines import Place, engine_of
from fedgram.paper.networks.files import file_name
from fedgram.paper.networks.jobs import Progress, Warned, jobs_of
from fedgram.paper.networks.keeping import Keeper
from fedgram.paper.networks.plan import Plan, Request, planned
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.shown import Shown
from fedgram.paper.networks.studies import Study

MOST_HOURS = 0.001
"""Hours of one H200 beyond which a CPU has to be named: two cores take 1,800 times as long for ResMLP."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """An experiment as far as it was run: its results, its verdicts, and the files it wrote."""

    plan: Plan
    results: Results
    judged: list[Judged]
    files: list[Path]

    @property
    def data(self) -> str:
        """The kinds of data that were trained on."""
        return ", ".join(sorted({run.kind for run in self.results})) or "no"

    def document(self) -> dict[str, Any]:
        """What `fedgram reproduce --json` prints for one experiment."""
        return {
            "experiment": self.plan.study.name,
            "scale": self.plan.scale.name,
            "words": self.plan.scale.words,
            "data": self.data,
            "runs": {"finished": len(self.results), "in_all": self.plan.in_all},
            "not_run": self.plan.reasons,
            "claims": [judged.document() for judged in self.judged],
            "files": [str(path) for path in self.files],
        }


def run(
    studies: Sequence[Study],
    request: Request,
    *,
    started: Callable[[Sequence[Plan]], None] = lambda plans: None,
    progress: Progress = lambda status: None,
    warned: Warned = lambda sentence: None,
) -> list[Outcome]:
    """Train the runs that are missing, then measure, judge and draw every experiment.

    `started` hears what will be trained before anything is, `progress` every epoch, and `warned` what a
    person should know. Results are saved after every call of `train`.
    """
    pyplot()  # better to miss matplotlib now than after hours of work
    engine, keeper = engine_of(request.engine), Keeper(request, warned)
    results = keeper.merged(keeper.collected())
    plans = planned(studies, request, results)
    missing = dict.fromkeys(key for plan in plans for key in plan.missing)
    started(plans)
    _check_device(request, cost_of(missing))
    sources = {variety: source for plan in plans for variety, source in plan.sources.items()}
    jobs = jobs_of(missing, sources, request.scale)
    place = Place(request.runs_folder, request.data_folder, request.device, progress, warned)
    for number, (job, ran) in enumerate(engine(jobs, place), start=1):
        results = keeper.merged(ran.results)
        if ran.refused:
            plans = [plan.refused(job, ran.refused) for plan in plans]
        warned(f"{number} of {len(jobs)}: {job.name}: {ran}.")
    return [finish(plan, results, request) for plan in plans]


def _check_device(request: Request, cost: Cost) -> None:
    """Refuse hours of a GPU's work on a CPU that nobody asked for; a Ray cluster has its own GPUs."""
    if request.device != "auto" or request.engine != "local" or (cost.hours or 0) <= MOST_HOURS:
        return
    from fedgram.training import devices  # needs torch

    if devices.named("auto").type == "cpu":
        raise InputError(
            f"There is no GPU here for {cost}: say --scale smoke, narrow it by --setting, --seeds or "
            "--procedure, or say --device cpu to train on the CPU all the same.",
            field="device",
        )


def finish(plan: Plan, results: Results, request: Request) -> Outcome:
    """Measure, judge and draw an experiment from the results that there are."""
    study, scale, keys = plan.study, plan.scale, set(plan.keys)
    own = Results(each for each in results if each.scale == scale.name and each.key in keys)
    measured = study.measure(Shown.of(own)) if own else {}
    judged = judge_all(load_claims(study.name), measured)
    folder = request.folder / study.name
    folder.mkdir(parents=True, exist_ok=True)
    figures = _draw(plan, own, folder)
    outcome = Outcome(plan, own, judged, [*figures, folder / "claims.json", folder / "manifest.json"])
    write_json(folder / "claims.json", outcome.document())
    write_json(folder / "manifest.json", _manifest(outcome, figures))
    return outcome


def _draw(plan: Plan, results: Results, folder: Path) -> list[Path]:
    """The figures of an experiment of which something was run, each as png and pdf."""
    from fedgram.paper.networks.figures import figures_of, rendered

    paths = []
    for name, figure in figures_of(plan.study.name, results).items() if results else ():
        for suffix in ("png", "pdf") if figure is not None else ():
            paths.append(folder / f"figure{name and f'-{name}'}.{suffix}")
            write_bytes(paths[-1], rendered(figure, suffix))
    return paths


def _manifest(outcome: Outcome, figures: list[Path]) -> dict[str, Any]:
    plan, results = outcome.plan, outcome.results
    files = sorted({file_name(run) for run in results})
    return {
        "experiment": plan.study.name,
        "where": plan.study.where,
        "scale": plan.scale.name,
        "words": plan.scale.words,
        "data": outcome.data,
        "datasets": sorted({f"{run.setting}: {run.dataset} ({run.kind})" for run in results}),
        "hardware": sorted({run.hardware for run in results}),
        "runs": {"finished": len(results), "in_all": plan.in_all},
        "not_run": plan.reasons,
        "results": [f"../results/{name}" for name in files],
        "figure": {"files": [path.name for path in figures], "drawn_from": files},
        "versions": {"fedgram": fedgram.__version__, "python": platform.python_version()}
        | {name: version(name) for name in ("numpy", "scipy", "matplotlib")},
    }
