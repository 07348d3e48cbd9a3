"""Alignment, other architectures, full-model averaging and test error: Appendices F.5 to F.7."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import BLUE, GREY
from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import (
    THREE,
)
from fedgram.paper.networks.comparable import ComparableRuns, Row
from fedgram.paper.networks.metrics import (
    Findings,
    Found,
    Metric,
    _by_setting,
    change,
    error,
    smaller,
    test_mse,
    train_mse,
)
from fedgram.paper.networks.panels import (
    finish,
    line,
    setting_panels,
)
from fedgram.paper.networks.provenance import pair_values
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import IMAGES
from fedgram.paper.plots import not_run

PREDICTION = ("ordinary", "proximal", "proximal+corrected")


def draw_prediction(results: Results) -> Any:
    """Changes of the test error against ordinary training of the same seed, in percent."""
    shown, drawn = ComparableRuns.from_results(results), list[Result]()
    figure, axes = setting_panels(IMAGES, 2.1, sharex=True, sharey=True)
    for setting, axis in axes.items():
        groups = [shown.runs(setting, procedure, THREE) for procedure in PREDICTION]
        changes = [100 * pair_values(group, groups[0], change(test_mse)) for group in groups]
        compared = {place: change for place, change in enumerate(changes) if change.size}
        if len(compared) > 1:  # ordinary training alone says nothing
            _draw_changes(axis, compared)
            drawn += [run for group in groups for run in group]
        else:
            not_run(axis)
        axis.set_xticks(range(3), ["O", "P", "C"])
        axis.set_xlim(-0.3, 2.3)
    figure.supylabel("change of test MSE, %", fontsize=8)
    label = "O ordinary, P proximal, C proximal with moment correction; mean ± deviation over seeds"
    return finish(figure, drawn, [line(label, BLUE, "-", "o")])


def _draw_changes(axis: Any, changes: dict[int, Array]) -> None:
    """Mean ± sample deviation over seeds at each place."""
    places, mean = list(changes), np.array([change.mean() for change in changes.values()])
    deviation = np.array([change.std(ddof=1) if len(change) > 1 else 0.0 for change in changes.values()])
    axis.fill_between(places, mean - deviation, mean + deviation, color=BLUE, alpha=0.18, lw=0)
    axis.plot(places, mean, "o-", color=BLUE)
    axis.axhline(0, color=GREY, ls="--", lw=0.8, zorder=0)


def measure_prediction(shown: ComparableRuns) -> Found:
    """Test error, Table 9 and Figure 16."""
    found = Findings(cohorts.PREDICTION, shown)
    measured: Found = {}
    procedures = {"ordinary": "ordinary", "proximal": "proximal", "corrected": "proximal+corrected"}
    for name, words in procedures.items():
        measured[f"prediction-{name}-barycenter"] = found.fair_median(words, error("barycenter"))
        measured[f"prediction-{name}-centralized"] = found.fair_median(words, error("centralized"))
    for name in ("proximal", "corrected"):
        pair = procedures[name], "ordinary"
        measured |= {
            f"prediction-{name}-train": found.over(pair, lambda rows: _fall(rows, train_mse)),
            f"prediction-{name}-test": found.over(pair, lambda rows: _fall(rows, test_mse)),
            f"prediction-{name}-train-always": found.always(smaller(train_mse), *pair),
            f"prediction-{name}-test-share": found.share(smaller(test_mse), *pair),
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
    return [change(metric)(*row) for row in rows]


def _fall(rows: list[Row], metric: Metric) -> float:
    """By how much a loss falls, median over pairs; negative if it rises."""
    return -float(np.median(_changes(rows, metric)))


def _largest_change(rows: list[Row]) -> float:
    return float(np.max(np.abs(_changes(rows, test_mse))))


def _mean_changes(rows: list[Row]) -> tuple[float, float]:
    """The least and the largest mean change of a setting."""
    means = [_mean_change(group) for group in _by_setting(rows)]
    return min(means), max(means)


def _mean_change(rows: list[Row]) -> float:
    return float(np.mean(_changes(rows, test_mse)))
