"""Test error on images (Appendix F.7, Table 9 and Figure 16)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import BLUE, GREY
from fedgram.paper.networks import cohorts, metrics, panels, tables
from fedgram.paper.networks.cohorts import THREE
from fedgram.paper.networks.comparable import ComparableRuns, Row
from fedgram.paper.networks.metrics import Findings, Found, Metric
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import IMAGES
from fedgram.paper.plots import mark_not_run

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
    return measured | {
        "prediction-proximal-test-largest": found.over(("proximal", "ordinary"), _largest_change),
        "prediction-corrected-test-range": found.over(("proximal+corrected", "ordinary"), _mean_changes),
        **{
            f"prediction-corrected-test-{setting}": Findings(cohorts.PREDICTION.at(setting), shown).over(
                ("proximal+corrected", "ordinary"), _mean_change
            )
            for setting in ("dsprites", "mpiigaze")
        },
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


def draw_prediction(results: Results) -> Any:
    """Draw changes of the test error against ordinary training of the same seed, in percent."""
    shown, drawn = ComparableRuns.from_results(results), list[Result]()
    figure, axes = panels.make_setting_panels(IMAGES, 2.1, sharex=True, sharey=True)
    for setting, axis in axes.items():
        groups = [shown.runs(setting, procedure, THREE) for procedure in PREDICTION.values()]
        changes = [
            100 * metrics.pair_values(group, groups[0], metrics.change(metrics.test_mse)) for group in groups
        ]
        compared = {place: change for place, change in enumerate(changes) if change.size}
        if len(compared) > 1:  # ordinary training alone shows nothing
            _draw_changes(axis, compared)
            drawn += [run for group in groups for run in group]
        else:
            mark_not_run(axis)
        axis.set_xticks(range(3), ["O", "P", "C"])
        axis.set_xlim(-0.3, 2.3)
    figure.supylabel("change of test MSE, %", fontsize=8)
    label = "O ordinary, P proximal, C proximal with moment correction; mean ± deviation over seeds"
    return panels.finish_figure(figure, drawn, [panels.legend_line(label, BLUE, "-", "o")])


def _draw_changes(axis: Any, changes: dict[int, Array]) -> None:
    """Draw mean ± sample deviation over seeds at each place."""
    places, mean = list(changes), np.array([change.mean() for change in changes.values()])
    deviation = np.array([change.std(ddof=1) if len(change) > 1 else 0.0 for change in changes.values()])
    axis.fill_between(places, mean - deviation, mean + deviation, color=BLUE, alpha=0.18, lw=0)
    axis.plot(places, mean, "o-", color=BLUE)
    axis.axhline(0, color=GREY, ls="--", lw=0.8, zorder=0)
