"""Beyond the paper: solved returns, and test errors beside centralized training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import BLUE, GREEN, GREY, INK, ORANGE
from fedgram.paper.networks import metrics, panels
from fedgram.paper.networks.cohorts import BUDGETS, PREDICTING, THREE, Condition
from fedgram.paper.networks.comparable import TITLES, ComparableRuns
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.plots import draw_range_band, mark_not_run
from fedgram.runs.procedure import BIAS_RULES

Against = Literal["epochs", "seconds"]
AXES: dict[Against, str] = {
    "epochs": "local epochs $E$ in a round",
    "seconds": "a run's share of its stack's time, seconds",
}
CENTRALIZED = "centralized"
RULE_LOOKS = dict(zip(BIAS_RULES, ((ORANGE, "o"), (BLUE, "s"), (GREEN, "^")), strict=True))
ONE_BIAS = {"shared": (INK, "D")}  # centralized training has no clients: every rule is the same
Tested = Mapping[str, list[Result]]
"""Runs with test rows, by procedure."""


def draw_solved(results: Results) -> dict[str, Any]:
    """Draw endpoint errors of four procedures, against local epochs and against time."""
    shown = ComparableRuns.from_results(results)
    return {against: _draw_error_figure(shown, against) for against in AXES}


def _draw_error_figure(shown: ComparableRuns, against: Against) -> Any:
    figure, axes = panels.make_setting_panels(shown.settings, 1.6, sharex=True, sharey=True)
    drawn = list[Result]()
    for setting, axis in axes.items():
        curves = {procedure: _by_budget(shown, setting, procedure) for procedure in panels.LOOKS}
        for name, groups in curves.items():
            places = [float(np.median([getattr(run, against) for run in group])) for group in groups]
            errors = [metrics.values(group, metrics.endpoint) for group in groups]
            look = panels.LOOKS[name]
            draw_range_band(axis, places, errors, look.color, **look.open)
            drawn += [run for group in groups for run in group]
        if not any(curves.values()):
            mark_not_run(axis)
        axis.set(xscale="log", yscale="log")
        axis.minorticks_off()
    if against == "epochs":
        panels.set_epoch_ticks(axes[shown.settings[0]], drawn)  # shared by all panels
    figure.supylabel("$e_F$ to the target at the end", fontsize=8)
    handles = [
        panels.legend_line(name, look.color, "-", look.marker, "none") for name, look in panels.LOOKS.items()
    ]
    panels.label_below(axes, AXES[against])
    return panels.finish_figure(figure, drawn, handles, note=shown.not_shown)


def _by_budget(shown: ComparableRuns, setting: str, procedure: str) -> list[list[Result]]:
    """Runs of a procedure in one setting, grouped by local epochs, ascending."""
    conditions = {shown.scale.epochs(budget): Condition(procedure, budget) for budget in BUDGETS}
    groups = [shown.runs(setting, condition, THREE) for condition in conditions.values()]
    return [group for group in groups if group]


def draw_predictions(results: Results) -> Any:
    """Draw the test error of procedures under each bias rule, and of centralized training.

    It covers the last half of the rounds, because single rows can make one round an outlier.
    """
    shown, drawn = ComparableRuns.from_results(results), list[Result]()
    figure, axes = panels.make_setting_panels(shown.settings, 2.4, sharey=True)
    for setting, axis in axes.items():
        groups = {name: _tested(shown, setting, name) for name in PREDICTING}
        _draw_test_errors(axis, groups)
        drawn += [run for group in groups.values() for run in group]
    panels.label_below(axes, "test MSE in the last half of the rounds: median and range")
    handles = [
        panels.legend_line(f"{rule} bias", color, "", marker) for rule, (color, marker) in RULE_LOOKS.items()
    ]
    return panels.finish_figure(
        figure, drawn, handles, note=" ".join(filter(None, (_without_reference(drawn), shown.not_shown)))
    )


def _tested(shown: ComparableRuns, setting: str, procedure: str) -> list[Result]:
    return [
        run for run in shown.runs(setting, procedure, THREE) if len(metrics.late_test_errors([run], "shared"))
    ]


def _without_reference(drawn: list[Result]) -> str:
    """Sentence about settings without centralized training; empty if there are none."""
    settings = dict.fromkeys(run.setting for run in drawn)
    pooled = {run.setting for run in drawn if run.procedure.centralized}
    missing = [TITLES[setting] for setting in settings if setting not in pooled]
    where = f" on {', '.join(missing)}" if pooled else ""
    return f"Centralized training was not run{where}." if missing else ""


def _draw_test_errors(axis: Any, groups: Tested) -> None:
    """Draw a row for each procedure: the median over late rounds and seeds, and the range."""
    for place, (name, group) in enumerate(groups.items()):
        looks = ONE_BIAS if name == CENTRALIZED else RULE_LOOKS
        for number, (rule, look) in enumerate(looks.items()):
            beside = 0.2 * (number - (len(looks) - 1) / 2)  # a single one is in the middle
            _draw_row(axis, place + beside, metrics.late_test_errors(group, rule), look)
    axis.set_xscale("log")
    if any(groups.values()):
        _mark_empty_rows(axis, groups)
        panels.set_few_ticks(axis.xaxis)
    else:
        mark_not_run(axis, shared=False)
    axis.set_yticks(range(len(PREDICTING)), [name.replace("+", "\n+ ") for name in PREDICTING], fontsize=7)
    axis.set_ylim(len(PREDICTING) - 0.5, -0.5)


def _mark_empty_rows(axis: Any, groups: Tested) -> None:
    for place, group in enumerate(groups.values()):
        if not group:
            style = {"ha": "center", "va": "center", "color": GREY, "fontsize": 7}
            axis.text(0.5, place, "not run", transform=axis.get_yaxis_transform(), **style)


def _draw_row(axis: Any, place: float, errors: Array, look: tuple[str, str]) -> None:
    color, marker = look
    if errors.size:
        axis.plot([errors.min(), errors.max()], [place, place], color=color, lw=0.8)
        axis.plot(np.median(errors), place, marker, color=color)
