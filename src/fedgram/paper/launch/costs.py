"""What runs cost before they are on_start: models x steps x the measured time of one."""

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
"""Seconds of one model and step of 256 rows in a stack, measured on one H200."""

RESNET18_STEP = {40 * 40: 1.59e-3, 64 * 64: 2.66e-3}
"""The same for ResNet-18, by the pixels of an image."""

MULTIPLY_ADDS = {"resnet18": 1.0, "resnet34": 2.02, "residual-cnn": 15.0}
"""Of networks for images at 64 x 64 pixels, in units of ResNet-18's, whose step alone was measured."""

BATCH = TrainConfig().batch


@dataclass(frozen=True)
class Cost:
    """How many runs, how many steps of one model in all, and an estimate of the time on one H200.

    trainings are fewer than runs where settings share a dataset, and so its runs. hours is None where no
    estimate is known: at the smoke scale, which is for a CPU.
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
            else f"{self.model_steps:.2g} model-steps, about {_hours(self.hours)} of one H200"
        )
        return f"{runs} to train{shared}, {time}"


def cost_of(keys: Iterable[RunKey]) -> Cost:
    """What it costs to train these runs, at the sizes of the paper's datasets."""
    distinct = list(dict.fromkeys(keys))
    steps = [model_steps(key) for key in distinct]
    times = [seconds_per_step(key) for key in distinct]
    counts = len(distinct), len({replace(key, setting="") for key in distinct}), sum(steps)
    if any(time is None for time in times):
        return Cost(*counts, None)
    seconds = sum(step * time for step, time in zip(steps, times, strict=True) if time)
    return Cost(*counts, seconds / 3600)


def model_steps(key: RunKey) -> int:
    """Steps of all models of a run: clients x rounds x epochs x minibatches."""
    setting = SETTINGS[key.setting]
    size = (setting.larger if key.larger else None) or setting.size
    clients = 1 if key.procedure.centralized else size.clients
    return clients * key.rounds * key.epochs * ceil(size.rows / clients / BATCH)


def seconds_per_step(key: RunKey) -> float | None:
    """The time of one model and step on one H200, measured or scaled; None at the smoke scale."""
    if key.backbone == "resmlp":
        return RESMLP_STEP
    if key.backbone not in MULTIPLY_ADDS:
        return None
    height, width, _ = SETTINGS[key.setting].inputs
    step = np.interp(height * width, list(RESNET18_STEP), list(RESNET18_STEP.values()))
    return MULTIPLY_ADDS[key.backbone] * float(step)


def _hours(hours: float) -> str:
    if hours < 1:
        return f"{max(60 * hours, 1):.0f} min"
    return f"{hours:,.0f} h" if hours >= 10 else f"{hours:.1f} h"
