"""Run network experiments: train missing runs, then measure, judge and draw."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedgram._util.cluster import check_engine
from fedgram._util.files import write_bytes, write_json
from fedgram._util.locks import wait_for_lock
from fedgram._util.version import __version__
from fedgram.display.plotting import pyplot
from fedgram.paper.claims import Judged, judge_all, load_claims
from fedgram.paper.launch.jobs import JobContext, OnEpoch, OnWarning, make_jobs, run_jobs
from fedgram.paper.launch.plan import Cost, ExperimentPlan, Request, estimate_cost, plan_experiments
from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.results import Result, Results, file_name
from fedgram.paper.networks.studies import registry
from fedgram.paper.networks.studies.registry import Study
from fedgram.paper.storage import import_pyarrow

CPU_HOURS = 1800
"""Hours of two CPU cores per hour of one H200, measured with ResMLP."""


@dataclass(frozen=True, eq=False)
class StudyOutcome:
    """Results, verdicts and files of an experiment, perhaps of only a part of its runs."""

    plan: ExperimentPlan
    results: Results
    judged: list[Judged]
    files: list[Path]

    @property
    def data(self) -> str:
        """Kinds of the training data."""
        return ", ".join(sorted({run.kind for run in self.results})) or "no"

    def document(self) -> dict[str, Any]:
        """JSON document that `fedgram reproduce --json` prints."""
        return self._common() | {
            "claims": [judged.document() for judged in self.judged],
            "files": [str(path) for path in self.files],
        }

    def manifest(self) -> dict[str, Any]:
        """Settings and provenance for manifest.json."""
        files = sorted({file_name(run) for run in self.results})
        figures = [path.name for path in self.files if path.suffix != ".json"]
        return self._common() | {
            "where": self.plan.study.where,
            "datasets": sorted({f"{run.setting}: {run.dataset} ({run.kind})" for run in self.results}),
            "hardware": sorted({run.hardware for run in self.results}),
            "precisions": sorted({run.precision for run in self.results}),
            "results": [f"../results/{name}" for name in files],
            "figure": {"files": figures, "drawn_from": files},
            "versions": {"fedgram": __version__, "python": platform.python_version()}
            | {name: version(name) for name in ("numpy", "scipy", "matplotlib")},
        }

    def _common(self) -> dict[str, Any]:
        return {
            "experiment": self.plan.study.name,
            "scale": self.plan.scale.name,
            "description": self.plan.scale.description,
            "data": self.data,
            "runs": {"finished": len(self.results), "in_all": self.plan.total},
            "not_run": self.plan.reasons,
        }


def add_results(folder: Path, new: Sequence[Result]) -> Results:
    """Save new results and return all; reads the files again because other processes may add to them."""
    if not new:
        return Results.load(folder)
    with wait_for_lock(folder):
        results = Results.load(folder).merge(new)
        results.save(folder)
    return results


def load_and_collect(request: Request) -> Results:
    """Load the results, and add complete runs that are not among them."""
    results, scale = Results.load(request.results_folder), request.scale
    if not request.runs_folder.exists():
        return results
    from fedgram.paper.launch.collect import collect  # needs safetensors

    known = {run.key for run in results if run.scale == scale.name}
    return add_results(request.results_folder, collect(request.runs_folder, scale, known))


def _save_moments(request: Request) -> None:
    """Keep the moments beside the results: the report's explorer opens with them."""
    if request.runs_folder.exists() and request.results_folder.exists():
        from fedgram.paper.launch.collect import save_moments  # needs safetensors

        save_moments(request.runs_folder, request.results_folder)


def run(
    studies: Sequence[Study],
    request: Request,
    *,
    on_start: Callable[[Sequence[ExperimentPlan]], None] = lambda plans: None,
    on_epoch: OnEpoch = lambda status: None,
    on_warning: OnWarning = lambda message: None,
) -> list[StudyOutcome]:
    """Train the missing runs, then measure, judge and draw every experiment.

    `on_start` receives the plans before training starts. Results are saved after every job.
    """
    pyplot()  # fail before the training if matplotlib or pyarrow is missing
    import_pyarrow()
    check_engine(request.engine)
    results = load_and_collect(request)
    plans = plan_experiments(studies, request, results)
    missing = dict.fromkeys(key for plan in plans for key in plan.missing)
    on_start(plans)
    _check_device(request, estimate_cost(missing))
    sources = {variety: source for plan in plans for variety, source in plan.sources.items()}
    jobs = make_jobs(missing, sources, request.scale)
    context = JobContext(request.runs_folder, request.data_folder, request.device, on_epoch, on_warning)
    for number, (job, outcome) in enumerate(run_jobs(request.engine, jobs, context), start=1):
        results = add_results(request.results_folder, outcome.results)
        if outcome.data_error:
            plans = [plan.exclude(job, outcome.data_error) for plan in plans]
        on_warning(f"{number} of {len(jobs)}: {job.name}: {outcome}.")
    _save_moments(request)
    return [finish(plan, results, request) for plan in plans]


def _check_device(request: Request, cost: Cost) -> None:
    """Reject GPU work on a CPU unless the CPU was named; a Ray cluster has its own GPUs."""
    if request.engine != "local" or not cost.hours:
        return
    from fedgram.training import devices  # needs torch

    remedy = "Pass --scale smoke, narrow the runs with --setting, --seeds or --procedure"
    devices.check_cpu_hours(request.device, CPU_HOURS * cost.hours, str(cost), remedy)


def finish(plan: ExperimentPlan, results: Results, request: Request) -> StudyOutcome:
    """Measure, judge and draw an experiment from the results so far."""
    study, scale, keys = plan.study, plan.scale, set(plan.keys)
    own = Results(each for each in results if each.scale == scale.name and each.key in keys)
    measured = study.measure(ComparableRuns.from_results(own)) if own else {}
    judged = judge_all(load_claims(study.name), measured)
    folder = request.folder / study.name
    folder.mkdir(parents=True, exist_ok=True)
    figures = _draw(study.name, own, folder) if own else []
    outcome = StudyOutcome(plan, own, judged, [*figures, folder / "claims.json", folder / "manifest.json"])
    write_json(folder / "claims.json", outcome.document())
    write_json(folder / "manifest.json", outcome.manifest())
    return outcome


def _draw(study: str, results: Results, folder: Path) -> list[Path]:
    """Draw the figures of an experiment as SVG and PDF."""
    paths = []
    for name, figure in registry.figures_of(study, results).items():
        for suffix in ("svg", "pdf") if figure is not None else ():
            paths.append(folder / f"figure{name and f'-{name}'}.{suffix}")
            write_bytes(paths[-1], registry.render_styled(figure, suffix))
    return paths
