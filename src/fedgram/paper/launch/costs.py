"""Estimate the cost of runs: models x steps x the measured time of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from fedgram._util.text import pluralize
from fedgram.paper.networks.results import RunKey
from fedgram.paper.networks.settings import SETTINGS
from fedgram.runs.train_config import TrainConfig

RESMLP_STEP = 0.118e-3
"""Seconds of one step of one ResMLP on 256 rows, measured in a stack on one H200."""

RESNET18_STEP = {40 * 40: 1.59e-3, 64 * 64: 2.66e-3}
"""The same for ResNet-18, by pixels of an image."""

MULTIPLY_ADDS = {"resnet18": 1.0, "resnet34": 2.02, "residual-cnn": 15.0}
"""Multiply-adds at 64 x 64 pixels relative to ResNet-18, the only one measured."""

BATCH = TrainConfig().batch


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
        time = (
            "a minute on a CPU"
            if self.hours is None
            else f"{self.model_steps:.2g} model-steps, about {_format_hours(self.hours)} of one H200"
        )
        return f"{runs} to train{shared}, {time}"


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
    if key.backbone == "resmlp":
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
