"""Beyond the paper: solved returns, and test errors beside centralized training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgram.display.plotting import BLUE, GREEN, INK, ORANGE, tag_runs
from fedgram.paper.networks import metrics, panels
from fedgram.paper.networks.cohorts import FIVE, PREDICTING, THREE
from fedgram.paper.networks.comparable import TITLES, ComparableRuns
from fedgram.paper.networks.results import Result
from fedgram.paper.networks.settings import ALL
from fedgram.paper.networks.studies.sweeps import AXES, draw_budgets
from fedgram.runs.procedure import BIAS_RULES

CENTRALIZED = "centralized"
RULE_LOOKS = dict(zip(BIAS_RULES, map(panels.Look, (ORANGE, BLUE, GREEN), ("o", "s", "^")), strict=True))
ONE_BIAS = {"shared": panels.Look(INK, "D")}  # centralized training has no clients: every rule is the same
Tested = Mapping[str, list[Result]]
"""Runs with test rows, by procedure."""


def draw_solved(shown: ComparableRuns) -> dict[str, Any]:
    """Draw endpoint errors of four procedures, against local epochs and against time."""
    label = "$e_F$ to the target at the end"
    handles = [look.handle(name) for name, look in panels.LOOKS.items()]
    return {
        against: draw_budgets(shown, panels.LOOKS, metrics.endpoint, label, handles, against, FIVE)
        for against in AXES
    }


def draw_predictions(shown: ComparableRuns) -> Any:
    """Draw the test error of procedures under each bias rule, and of centralized training.

    It covers the last half of the rounds, because single rows can make one round an outlier.
    """
    drawn = list[Result]()
    tested = {name: {each: _tested(shown, name, each) for each in PREDICTING} for name in shown.settings}
    tested = {name: groups for name, groups in tested.items() if any(groups.values())}
    # rows of procedures that ran nowhere are left out
    procedures = [each for each in PREDICTING if any(groups[each] for groups in tested.values())]
    label = "test MSE in the last half of the rounds: median and range"
    figure, axes = panels.make_setting_panels(tuple(tested), 0.4 * len(procedures), label, sharex=False)
    for axis, groups in zip(axes.values(), tested.values(), strict=True):
        _draw_test_errors(axis, {name: groups[name] for name in procedures})
        drawn += [run for group in groups.values() for run in group]
    handles = [look.handle(f"{rule} bias", "") for rule, look in RULE_LOOKS.items()]
    return panels.finish_figure(figure, drawn, handles, note=_without_reference(drawn), settings=ALL)


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
            if group:
                _draw_row(axis, place + beside, group, rule, look)
    axis.set_xscale("log")
    axis.set_yticks(range(len(groups)), [name.replace("+", "\n+ ") for name in groups], fontsize=7)
    axis.set_ylim(len(groups) - 0.5, -0.5)


def _draw_row(axis: Any, place: float, group: list[Result], rule: str, look: panels.Look) -> None:
    errors = metrics.late_test_errors(group, rule)
    axis.plot([errors.min(), errors.max()], [place, place], color=look.color, lw=0.8)
    (marker,) = axis.plot([np.median(errors)], [place], ls="", **look.open)
    tag_runs(marker, [run.id for run in group])
