"""Beyond the paper: solved returns for less training, and predictions as good as centralized ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import BLUE, GREEN, GREY, INK, ORANGE
from fedgram.paper.networks.cohorts import BUDGETS, THREE, Condition
from fedgram.paper.networks.comparable import TITLES, ComparableRuns
from fedgram.paper.networks.metrics import endpoint
from fedgram.paper.networks.panels import LOOKS, below, epoch_ticks, few_ticks, finish, line, setting_panels
from fedgram.paper.networks.provenance import PREDICTING, late_test_errors, values
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.plots import not_run, range_band
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
"""Runs that have test rows, by procedure."""


def draw_solved(results: Results) -> dict[str, Any]:
    """Endpoint errors of four ways to return heads, against local epochs and against time."""
    shown = ComparableRuns.from_results(results)
    return {against: _error_figure(shown, against) for against in AXES}


def draw_predictions(results: Results) -> Any:
    """Test error of procedures under each rule for the bias, and of centralized training.

    Over the last rounds, not the last one: single rows can make a round's error what no other round's is.
    """
    shown, drawn = ComparableRuns.from_results(results), list[Result]()
    figure, axes = setting_panels(shown.settings, 2.4, sharey=True)
    for setting, axis in axes.items():
        groups = {name: _tested(shown, setting, name) for name in PREDICTING}
        _test_errors(axis, groups)
        drawn += [run for group in groups.values() for run in group]
    below(axes, "test MSE in the last half of the rounds: median and range")
    handles = [line(f"{rule} bias", colour, "", marker) for rule, (colour, marker) in RULE_LOOKS.items()]
    return finish(
        figure, drawn, handles, note=" ".join(filter(None, (_without_reference(drawn), shown.left_out)))
    )


def _tested(shown: ComparableRuns, setting: str, procedure: str) -> list[Result]:
    return [run for run in shown.runs(setting, procedure, THREE) if len(late_test_errors([run], "shared"))]


def _without_reference(drawn: list[Result]) -> str:
    """Where centralized training, which the others are held against, was not run; nothing if nowhere."""
    settings = dict.fromkeys(run.setting for run in drawn)
    pooled = {run.setting for run in drawn if run.procedure.centralized}
    missing = [TITLES[setting] for setting in settings if setting not in pooled]
    where = f" on {', '.join(missing)}" if pooled else ""
    return f"Centralized training was not run{where}." if missing else ""


def _error_figure(shown: ComparableRuns, against: Against) -> Any:
    figure, axes = setting_panels(shown.settings, 1.6, sharex=True, sharey=True)
    drawn = list[Result]()
    for setting, axis in axes.items():
        curves = {procedure: _by_budget(shown, setting, procedure) for procedure in LOOKS}
        _errors(axis, curves, against)
        drawn += [run for groups in curves.values() for group in groups for run in group]
    if against == "epochs":
        epoch_ticks(axes[shown.settings[0]], drawn)  # which all panels share
    figure.supylabel("$e_F$ to the target at the end", fontsize=8)
    handles = [line(name, look.colour, "-", look.marker, "none") for name, look in LOOKS.items()]
    below(axes, AXES[against])
    return finish(figure, drawn, handles, note=shown.left_out)


def _by_budget(shown: ComparableRuns, setting: str, procedure: str) -> list[list[Result]]:
    """The runs of a procedure in one setting, a group for each number of local epochs, ascending."""
    conditions = {shown.scale.epochs(budget): Condition(procedure, budget) for budget in BUDGETS}
    groups = [shown.runs(setting, condition, THREE) for condition in conditions.values()]
    return [group for group in groups if group]


def _errors(axis: Any, curves: dict[str, list[list[Result]]], against: Against) -> None:
    for name, groups in curves.items():
        if groups:
            x = [float(np.median([getattr(run, against) for run in group])) for group in groups]
            look = LOOKS[name]
            errors = [values(group, endpoint) for group in groups]
            range_band(axis, x, errors, look.colour, **look.open)
    if not any(curves.values()):
        not_run(axis)
    axis.set(xscale="log", yscale="log")
    axis.minorticks_off()


def _test_errors(axis: Any, groups: Tested) -> None:
    """A row for each procedure; each marker is the median over late rounds and seeds, its line the range."""
    for place, (name, group) in enumerate(groups.items()):
        looks = ONE_BIAS if name == CENTRALIZED else RULE_LOOKS
        for number, (rule, look) in enumerate(looks.items()):
            beside = 0.2 * (number - (len(looks) - 1) / 2)  # so that a single one stands in the middle
            _row(axis, place + beside, late_test_errors(group, rule), look)
    axis.set_xscale("log")
    if any(groups.values()):
        _name_empty_rows(axis, groups)
        few_ticks(axis.xaxis)
    else:
        not_run(axis, shared=False)
    axis.set_yticks(range(len(PREDICTING)), [name.replace("+", "\n+ ") for name in PREDICTING], fontsize=7)
    axis.set_ylim(len(PREDICTING) - 0.5, -0.5)


def _name_empty_rows(axis: Any, groups: Tested) -> None:
    for place, group in enumerate(groups.values()):
        if not group:
            across = axis.get_yaxis_transform()
            axis.text(
                0.5, place, "not run", transform=across, ha="center", va="center", color=GREY, fontsize=7
            )


def _row(axis: Any, place: float, errors: Array, look: tuple[str, str]) -> None:
    colour, marker = look
    if errors.size:
        axis.plot([errors.min(), errors.max()], [place, place], color=colour, lw=0.8)
        axis.plot(np.median(errors), place, marker, color=colour)
