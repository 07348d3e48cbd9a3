"""Plan experiments: runs to train, finished runs, and settings without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedgram._util.errors import InputError
from fedgram.data.datasets.dataset import data_directory
from fedgram.paper.launch.costs import estimate_cost
from fedgram.paper.launch.jobs import Job
from fedgram.paper.networks.results import Results, RunKey
from fedgram.paper.networks.scales import Scale
from fedgram.paper.networks.settings import (
    SETTINGS,
    AvailableSources,
    Source,
    Variety,
    check_settings,
    find_sources,
)
from fedgram.paper.networks.studies.registry import Study
from fedgram.runs.procedure import Procedure


@dataclass(frozen=True)
class Request:
    """Part of the experiments to run, and where; an empty tuple selects everything.

    Runs go to `<out>/<scale>/runs`, results to `<out>/<scale>/results`, claims and figures to
    `<out>/<scale>/<experiment>`.
    """

    out: Path
    scale: Scale
    settings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    procedures: tuple[str, ...] = ()
    device: str = "auto"
    engine: str = "local"
    data_dir: Path | None = None

    @property
    def folder(self) -> Path:
        """Folder of this scale."""
        return self.out / self.scale.name

    @property
    def runs_folder(self) -> Path:
        """Folder of runs."""
        return self.folder / "runs"

    @property
    def results_folder(self) -> Path:
        """Folder of results, for `Results.load`."""
        return self.folder / "results"

    @property
    def data_folder(self) -> Path:
        """Folder of datasets."""
        return data_directory(self.data_dir)

    def select(self, keys: Sequence[RunKey]) -> list[RunKey]:
        """Select the requested runs."""
        procedures = {Procedure.parse(words) for words in self.procedures}
        return [
            key
            for key in keys
            if (not self.settings or key.setting in self.settings)
            and (not self.seeds or key.seed in self.seeds)
            and (not procedures or key.procedure in procedures)
        ]


@dataclass(frozen=True)
class ExperimentPlan:
    """Plan of an experiment at a scale.

    keys: its runs that have data or results; wanted: the requested ones; missing: the wanted ones to train;
    total: number of runs with the data of every setting; not_run: why a setting has no data; sources: the
    dataset of each setting; requested: settings that the request names.
    """

    study: Study
    scale: Scale
    keys: tuple[RunKey, ...]
    wanted: tuple[RunKey, ...]
    missing: tuple[RunKey, ...]
    total: int
    not_run: Mapping[Variety, str]
    sources: Mapping[Variety, Source]
    requested: tuple[str, ...] = ()

    @property
    def remaining(self) -> str:
        """Cost of the missing runs, as text."""
        return str(estimate_cost(self.missing)) if self.keys else "no data found"

    def exclude(self, job: Job, reason: str) -> ExperimentPlan:
        """Mark the settings of a job with unusable data as not run; an error if the request names one."""
        if not set(self.requested).isdisjoint(job.settings):
            raise InputError(reason, field="setting")
        varieties = [(name, job.larger) for name in job.settings if (name, job.larger) in self.sources]
        return replace(self, not_run={**self.not_run, **dict.fromkeys(varieties, reason)})

    @property
    def reasons(self) -> list[str]:
        """A sentence for each requested setting that is not run."""
        return [
            f"{SETTINGS[name].title}{', larger,' if larger else ''} is not run: {reason}"
            for (name, larger), reason in self.not_run.items()
            if not self.requested or name in self.requested
        ]


def plan_experiments(studies: Sequence[Study], request: Request, results: Results) -> list[ExperimentPlan]:
    """Plan experiments; rejects unknown names, and requested settings without data."""
    check_settings(request.settings)
    plans = [_plan(study, request, results) for study in studies]
    for plan in plans:
        for (name, _), reason in plan.not_run.items():
            if name in request.settings:
                raise InputError(reason, field="setting")
    if not any(request.select(_all_keys(study, request.scale)) for study in studies):
        names = ", ".join(study.name for study in studies)
        raise InputError(
            f"No run of {names} at the {request.scale.name} scale has these settings, seeds and procedures. "
            "Pass others, or drop --setting, --seeds or --procedure.",
            field="setting",
        )
    return plans


def _plan(study: Study, request: Request, results: Results) -> ExperimentPlan:
    scale = request.scale
    if scale.embedded:
        found = AvailableSources({variety: scale.source(variety[0]) for variety in study.varieties}, {})
    else:
        finished = [(run.setting, run.dataset, run.larger) for run in results]
        found = find_sources(study.varieties, request.data_folder, finished)
    keys = study.keys(scale, found.sources)
    wanted = request.select(keys)
    known = {run.key for run in results if run.scale == scale.name}
    return ExperimentPlan(
        study=study,
        scale=scale,
        keys=tuple(keys),
        wanted=tuple(wanted),
        missing=tuple(key for key in wanted if key not in known),
        total=len(_all_keys(study, scale)),
        not_run=found.missing,
        sources=found.sources,
        requested=request.settings,
    )


def _all_keys(study: Study, scale: Scale) -> list[RunKey]:
    """Runs of a study with the data of every setting."""
    return study.keys(scale, {(name, larger): SETTINGS[name].sources[0] for name, larger in study.varieties})
