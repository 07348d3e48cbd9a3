"""Plan experiments: runs to train, their cost, finished runs, and settings without data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np

from fedgram._util.errors import InputError
from fedgram._util.text import pluralize
from fedgram.data.datasets.dataset import data_directory
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
from fedgram.runs.train_config import TrainConfig

RESMLP_STEP = 0.118e-3
"""Seconds of one step of one ResMLP on 256 rows, measured in a stack on one H200 in TF32."""

RESNET18_STEP = {40 * 40: 1.59e-3, 64 * 64: 1.94e-3}
"""The same for ResNet-18, by pixels of an image; the first was measured one model at a time."""

MULTIPLY_ADDS = {"resnet18": 1.0, "resnet34": 2.02, "residual-cnn": 15.0}
"""Multiply-adds at 64 x 64 pixels relative to ResNet-18, the only one measured."""

BATCH = TrainConfig().batch


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
    epochs: tuple[int, ...] = ()
    backbones: tuple[str, ...] = ()
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
            and (not self.epochs or key.epochs in self.epochs)
            and (not self.backbones or key.backbone in self.backbones)
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
        where = f"{', '.join(study.name for study in studies)} at the {request.scale.name} scale"
        message = f"No run of {where} has these settings, seeds, procedures, epochs and backbones."
        remedy = "Pass others, or drop --setting, --seeds, --procedure, --epochs or --backbone."
        raise InputError(f"{message} {remedy}", field="setting")
    return plans


def _plan(study: Study, request: Request, results: Results) -> ExperimentPlan:
    scale = request.scale
    if scale.embedded:
        found = AvailableSources({variety: scale.source(variety[0]) for variety in study.varieties}, {})
    else:
        finished = [(run.setting, run.dataset, run.larger) for run in results]
        found = find_sources(study.varieties, request.data_folder, finished)
    keys = study.keys(scale, found.sources)
    wanted, known = request.select(keys), {run.key for run in results if run.scale == scale.name}
    missing, total = tuple(key for key in wanted if key not in known), len(_all_keys(study, scale))
    return ExperimentPlan(
        study=study, scale=scale, keys=tuple(keys), wanted=tuple(wanted), missing=missing, total=total,
        not_run=found.missing, sources=found.sources, requested=request.settings,
    )  # fmt: skip


def _all_keys(study: Study, scale: Scale) -> list[RunKey]:
    """Runs of a study with the data of every setting."""
    return study.keys(scale, {(name, larger): SETTINGS[name].sources[0] for name, larger in study.varieties})


@dataclass(frozen=True)
class Cost:
    """Number of runs and of steps of one model, and the estimated time on one H200.

    There are fewer trainings than runs if settings share a dataset. hours is None at the smoke scale.
    """

    runs: int
    trainings: int
    model_steps: int
    hours: float | None

    def __str__(self) -> str:
        if not self.runs:
            return "nothing left to train"
        small = "small " if self.hours is None else ""
        shared = f" ({self.trainings:,} trainings: settings share data)" if self.trainings < self.runs else ""
        runs = pluralize(self.runs, f"{small}run")
        if self.hours is None:
            return f"{runs} to train{shared}, a minute on a CPU"
        time = f"about {_format_hours(self.hours)} of one H200 in TF32"
        return f"{runs} to train{shared}, {self.model_steps:.2g} model-steps, {time}"


def estimate_cost(keys: Iterable[RunKey]) -> Cost:
    """Estimate the cost of training these runs, at the sizes of the paper's datasets."""
    distinct = list(dict.fromkeys(keys))
    steps = [count_steps(key) for key in distinct]
    times = [estimate_step_time(key) for key in distinct]
    counts = len(distinct), len({replace(key, setting="") for key in distinct}), sum(steps)
    if any(time is None for time in times):
        return Cost(*counts, None)
    seconds = sum(step * time for step, time in zip(steps, times, strict=True) if time)
    return Cost(*counts, seconds / 3600)


def count_steps(key: RunKey) -> int:
    """Count the steps of all models of a run: clients x rounds x epochs x minibatches."""
    setting = SETTINGS[key.setting]
    size = (setting.larger if key.larger else None) or setting.size
    clients = 1 if key.procedure.centralized else size.clients
    return clients * key.rounds * key.epochs * ceil(size.rows / clients / BATCH)


def estimate_step_time(key: RunKey) -> float | None:
    """Estimate the seconds of one step of one model on one H200; None at the smoke scale."""
    if key.backbone in ("resmlp", "resmlp-preactivated"):
        return RESMLP_STEP
    if key.backbone not in MULTIPLY_ADDS:
        return None
    height, width, _ = SETTINGS[key.setting].inputs
    step = np.interp(height * width, list(RESNET18_STEP), list(RESNET18_STEP.values()))
    return MULTIPLY_ADDS[key.backbone] * float(step)


def _format_hours(hours: float) -> str:
    if hours < 1:
        return f"{max(60 * hours, 1):.0f} min"
    return f"{hours:,.0f} h" if hours >= 10 else f"{hours:.1f} h"
