"""Test error on images (Appendix F.7, Table 9 and Figure 16)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram.display.plotting import BLUE, GREY
from fedgram.paper.networks import cohorts, metrics, panels, tables
from fedgram.paper.networks.cohorts import THREE
from fedgram.paper.networks.comparable import ComparableRuns, Row, pair_runs
from fedgram.paper.networks.metrics import Findings, Found, Metric
from fedgram.paper.networks.results import Result
from fedgram.paper.networks.settings import IMAGES

LOOK = panels.Look(BLUE, "o")
PREDICTION = {"ordinary": "ordinary", "proximal": "proximal", "corrected": "proximal+corrected"}
"""Procedures by their name in claims."""


def measure_prediction(shown: ComparableRuns) -> Found:
    """Measure training and test errors."""
    found = Findings(cohorts.PREDICTION, shown)
    measured = tables.PREDICTION.measure(shown)
    for name in ("proximal", "corrected"):
        pair = PREDICTION[name], "ordinary"
        measured |= {
            f"prediction-{name}-train": found.over(pair, lambda rows: _fall(rows, metrics.train_mse)),
            f"prediction-{name}-test": found.over(pair, lambda rows: _fall(rows, metrics.test_mse)),
            f"prediction-{name}-train-always": found.always(metrics.smaller(metrics.train_mse), *pair),
            f"prediction-{name}-test-share": found.share(metrics.smaller(metrics.test_mse), *pair),
        }
    corrected = PREDICTION["corrected"], "ordinary"
    for setting in ("dsprites", "mpiigaze"):
        measured[f"prediction-corrected-test-{setting}"] = found.at(setting).over(corrected, _mean_change)
    return measured | {
        "prediction-proximal-test-largest": found.over(("proximal", "ordinary"), _largest_change),
        "prediction-corrected-test-range": found.over(corrected, _mean_changes),
    }


def _changes(rows: list[Row], metric: Metric) -> list[float]:
    return [metrics.change(metric)(*row) for row in rows]


def _fall(rows: list[Row], metric: Metric) -> float:
    """Median fall of a loss over pairs; negative if it rises."""
    return -float(np.median(_changes(rows, metric)))


def _largest_change(rows: list[Row]) -> float:
    return float(np.max(np.abs(_changes(rows, metrics.test_mse))))


def _mean_changes(rows: list[Row]) -> tuple[float, float]:
    """Smallest and largest mean change of a setting."""
    means = [_mean_change(group) for group in metrics.by_setting(rows)]
    return min(means), max(means)


def _mean_change(rows: list[Row]) -> float:
    return float(np.mean(_changes(rows, metrics.test_mse)))


def draw_prediction(shown: ComparableRuns) -> Any:
    """Draw changes of the test error against ordinary training of the same seed, in percent."""
    drawn = list[Result]()
    groups = {
        setting: [shown.runs(setting, procedure, THREE) for procedure in PREDICTION.values()]
        for setting in IMAGES
    }
    # ordinary training alone shows nothing
    groups = {
        name: three for name, three in groups.items() if any(pair_runs(three[0], each) for each in three[1:])
    }
    figure, axes = panels.make_setting_panels(tuple(groups), 2.1, ylabel="change of test MSE, %")
    for axis, three in zip(axes.values(), groups.values(), strict=True):
        _draw_changes(axis, three)
        drawn += [run for group in three for run in group]
        axis.set_xticks(range(3), ["O", "P", "C"])
        axis.set_xlim(-0.3, 2.3)
    label = "O ordinary, P proximal, C proximal with moment correction; a line for each seed"
    return panels.finish_figure(figure, drawn, [LOOK.handle(label)], settings=IMAGES)


def _draw_changes(axis: Any, groups: list[list[Result]]) -> None:
    """Draw the changes of each seed, joined by a line."""
    change = metrics.change(metrics.test_mse)
    for base in groups[0]:
        found = [(place, run) for place, group in enumerate(groups) for run in group if run.seed == base.seed]
        changes = [100 * change(run, base) for _, run in found]
        axis.plot([place for place, _ in found], changes, color=LOOK.color, lw=0.8)
        for (place, run), value in zip(found, changes, strict=True):
            panels.draw_run_markers(axis, place, [(value, [run])], LOOK)
    axis.axhline(0, color=GREY, ls="--", lw=0.8, zorder=0)
