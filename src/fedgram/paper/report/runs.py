"""Numbers of every run, for the tooltips, filters and the table of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from fedgram.display.run_figure import run_id
from fedgram.paper.networks import metrics
from fedgram.paper.networks.comparable import TITLES
from fedgram.paper.networks.results import Result
from fedgram.runs.compare import METRICS, Comparison
from fedgram.runs.expectation import SYMBOLS, Reference

COLUMNS = (
    "id", "setting", "procedure", "seed", "E", "scale", "error", "to", "trajectory", "δ", "objective gap",
    "test MSE", "seconds",
)  # fmt: skip
"""Columns of a run. error: e_F to the Gram named in `to`; the last ones may be null."""


def list_results(results: Iterable[Result]) -> list[list[Any]]:
    """List the runs of the paper's experiments, in the order of COLUMNS; test MSE with the shared bias."""
    return [
        [
            run.id, TITLES[run.setting], run.procedure.name, run.seed, run.epochs, run.scale,
            *_numbers(metrics.endpoint(run)), SYMBOLS[cast(Reference, run.target)],
            *_numbers(
                metrics.trajectory(run), metrics.last_delta(run), metrics.objective_gap(run),
                metrics.test_mse(run), run.seconds,
            ),
        ]
        for run in results
    ]  # fmt: skip


def list_own(settings: Sequence[Comparison]) -> list[list[Any]]:
    """List trained runs of the reader, in the order of COLUMNS; test MSE under the procedure's bias rule."""
    named = ("trajectory", "delta", "objective gap", "test MSE")
    return [
        [
            run_id(run.setup), setting.title, group.name, run.setup.seed, run.setup.settings.epochs, "yours",
            *_numbers(METRICS["error"](run)), group.target,
            *_numbers(*(METRICS[name](run) for name in named)), None,
        ]
        for setting in settings
        for group in setting.groups
        for run in group.runs
    ]  # fmt: skip


def _numbers(*values: float) -> list[float | None]:
    """Three digits are enough to read; JSON has no NaN."""
    return [float(f"{value:.3g}") if np.isfinite(value) else None for value in values]
