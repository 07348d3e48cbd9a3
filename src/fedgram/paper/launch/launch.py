"""Run network experiments: train what is missing, then measure, judge and draw."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fedgram
from fedgram._util.errors import InputError
from fedgram._util.files import write_bytes, write_json
from fedgram._util.locks import wait_for_lock
from fedgram.display.plotting import pyplot
from fedgram.paper.claims import Judged, judge_all, load_claims
from fedgram.paper.launch.costs import Cost, cost_of
from fedgram.paper.launch.jobs import Place, Progress, Warned, engine_of, jobs_of
from fedgram.paper.launch.plan import ExperimentPlan, Request, plan_experiments
from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.results import Result, Results, can_be_kept, file_name
from fedgram.paper.networks.studies.registry import Study

MOST_HOURS = 0.001
"""Hours of one H200 beyond which a CPU has to be named: two cores take 1,800 times as long for ResMLP."""


@dataclass(frozen=True, eq=False)
class StudyOutcome:
    """An experiment as far as it was run: its results, its verdicts, and the files it wrote."""

    plan: ExperimentPlan
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
    on_start: Callable[[Sequence[ExperimentPlan]], None] = lambda plans: None,
    on_epoch: Progress = lambda status: None,
    on_warning: Warned = lambda sentence: None,
) -> list[StudyOutcome]:
    """Train the runs that are missing, then measure, judge and draw every experiment.

    `started` hears what will be trained before anything is, `progress` every epoch, and `warned` what a
    person should know. Results are saved after every call of `train`.
    """
    pyplot()  # better to miss matplotlib now than after hours of work
    engine, keeper = engine_of(request.engine), Keeper(request, on_warning)
    results = keeper.merged(keeper.collected())
    plans = plan_experiments(studies, request, results)
    missing = dict.fromkeys(key for plan in plans for key in plan.missing)
    on_start(plans)
    _check_device(request, cost_of(missing))
    sources = {variety: source for plan in plans for variety, source in plan.sources.items()}
    jobs = jobs_of(missing, sources, request.scale)
    place = Place(request.runs_folder, request.data_folder, request.device, on_epoch, on_warning)
    for number, (job, ran) in enumerate(engine(jobs, place), start=1):
        results = keeper.merged(ran.results)
        if ran.refused:
            plans = [plan.refused(job, ran.refused) for plan in plans]
        on_warning(f"{number} of {len(jobs)}: {job.name}: {ran}.")
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


def finish(plan: ExperimentPlan, results: Results, request: Request) -> StudyOutcome:
    """Measure, judge and draw an experiment from the results that there are."""
    study, scale, keys = plan.study, plan.scale, set(plan.keys)
    own = Results(each for each in results if each.scale == scale.name and each.key in keys)
    measured = study.measure(ComparableRuns.from_results(own)) if own else {}
    judged = judge_all(load_claims(study.name), measured)
    folder = request.folder / study.name
    folder.mkdir(parents=True, exist_ok=True)
    figures = _draw(plan, own, folder)
    outcome = StudyOutcome(plan, own, judged, [*figures, folder / "claims.json", folder / "manifest.json"])
    write_json(folder / "claims.json", outcome.document())
    write_json(folder / "manifest.json", _manifest(outcome, figures))
    return outcome


def _draw(plan: ExperimentPlan, results: Results, folder: Path) -> list[Path]:
    """The figures of an experiment of which something was run, each as png and pdf."""
    from fedgram.display.plotting import render
    from fedgram.paper.networks.studies.registry import figures_of

    paths = []
    for name, figure in figures_of(plan.study.name, results).items() if results else ():
        for suffix in ("png", "pdf") if figure is not None else ():
            paths.append(folder / f"figure{name and f'-{name}'}.{suffix}")
            write_bytes(paths[-1], render(figure, suffix))
    return paths


def _manifest(outcome: StudyOutcome, figures: list[Path]) -> dict[str, Any]:
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


class Keeper:
    """The results of a scale on disk, or in memory where they cannot be kept.

    A machine for training may lack DuckDB. Its runs are kept all the same, and the same command collects
    them where DuckDB is.
    """

    def __init__(self, request: Request, on_warning: Warned) -> None:
        self.request, self.kept, self.held = request, can_be_kept(), Results()
        if not self.kept:
            on_warning(
                "Results are not saved, which needs DuckDB; the runs are, and the same command collects them "
                "on a machine that has it."
            )

    def merged(self, new: Iterable[Result]) -> Results:
        """All results with new ones, saved; read anew, as another process may have added others meanwhile."""
        folder, found = self.request.results_folder, list(new)
        if not self.kept:
            self.held = self.held.merged(found)
        elif not found:
            self.held = Results.load(folder)
        else:
            with wait_for_lock(folder):
                self.held = Results.load(folder).merged(found)
                self.held.save(folder)
        return self.held

    def collected(self) -> Results:
        """What complete runs found that is not among the results: they were stopped, or brought here."""
        if not self.request.runs_folder.exists():
            return Results()
        from fedgram.paper.launch.collect import collect  # needs safetensors

        scale = self.request.scale
        known = {run.key for run in self.merged(()) if run.scale == scale.name}
        return collect(self.request.runs_folder, scale, known)
