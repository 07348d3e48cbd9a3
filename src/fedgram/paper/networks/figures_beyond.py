"""Beyond the paper: solved returns for less training, and predictions as good as centralized ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from fedgram.nets.procedure import BIAS_RULES
from fedgram.paper.networks.cohorts import BETTER_PREDICTION, BUDGETS, THREE, Condition
from fedgram.paper.networks.figures_panels import (
    LOOKS,
    below,
    epoch_ticks,
    few_ticks,
    finish,
    line,
    setting_panels,
)
from fedgram.paper.networks.figures_runs import Shown, values
from fedgram.paper.networks.findings import endpoint
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import ALL
from fedgram.paper.style import BLUE, GREEN, INK, ORANGE, not_run, range_band
from fedgram.psd import Array

Against = Literal["epochs", "seconds"]
AXES: dict[Against, str] = {
    "epochs": "local epochs $E$ in a round",
    "seconds": "a run's share of its stack's time, seconds",
}
CENTRALIZED = "centralized"
FEDERATED = tuple(each.procedure for each in BETTER_PREDICTION.conditions if each.procedure != CENTRALIZED)
RULE_LOOKS = dict(zip(BIAS_RULES, ((ORANGE, "o"), (BLUE, "s"), (GREEN, "^")), strict=True))


def draw_solved(results: Results) -> dict[str, Any]:
    """Endpoint errors of four ways to return heads, against local epochs and against time."""
    shown = Shown.of(results)
    return {against: _error_figure(shown, against) for against in AXES}


def draw_predictions(results: Results) -> Any:
    """Test error of procedures under each rule for the bias, with centralized training as a line.

    Over the last rounds, not the last one: single rows can make a round's error what no other round's is.
    """
    shown, drawn = Shown.of(results), list[Result]()
    figure, axes = setting_panels(ALL, 2.2, sharey=True)
    for setting, axis in axes.items():
        groups = {name: _tested(shown, setting, name) for name in (*FEDERATED, CENTRALIZED)}
        _test_errors(axis, groups)
        drawn += [run for group in groups.values() for run in group]
    below(axes, "test MSE in the last half of the rounds: median and range")
    handles = [line(f"{rule} bias", colour, "", marker) for rule, (colour, marker) in RULE_LOOKS.items()]
    if any(run.procedure.centralized for run in drawn):
        handles.append(line("test MSE of centralized training", INK, "--"))
    return finish(figure, drawn, handles)


def _tested(shown: Shown, setting: str, procedure: str) -> list[Result]:
    """Runs that have test rows."""
    return [run for run in shown.runs(setting, procedure, THREE) if np.isfinite(run.test_mse[-1]).all()]


def _error_figure(shown: Shown, against: Against) -> Any:
    figure, axes = setting_panels(ALL, 1.6, sharex=True, sharey=True)
    drawn = list[Result]()
    for setting, axis in axes.items():
        curves = {procedure: _by_budget(shown, setting, procedure) for procedure in LOOKS}
        _errors(axis, curves, against)
        drawn += [run for groups in curves.values() for group in groups for run in group]
    if against == "epochs":
        epoch_ticks(axes[ALL[0]], drawn)  # which all panels share
    figure.supylabel("$e_F$ to the target after the last round", fontsize=8)
    handles = [line(name, look.colour, "-", look.marker) for name, look in LOOKS.items()]
    below(axes, AXES[against])
    return finish(figure, drawn, handles)


def _by_budget(shown: Shown, setting: str, procedure: str) -> list[list[Result]]:
    """The runs of a procedure in one setting, a group for each number of local epochs, ascending."""
    conditions = {shown.scale.epochs(budget): Condition(procedure, budget) for budget in BUDGETS}
    groups = [shown.runs(setting, condition, THREE) for condition in conditions.values()]
    return [group for group in groups if group]


def _errors(axis: Any, curves: dict[str, list[list[Result]]], against: Against) -> None:
    for name, groups in curves.items():
        if groups:
            x = [float(np.median([getattr(run, against) for run in group])) for group in groups]
            look = LOOKS[name]
            range_band(
                axis, x, [values(group, endpoint) for group in groups], look.colour, marker=look.marker
            )
    if not any(curves.values()):
        not_run(axis)
    axis.set(xscale="log", yscale="log")
    axis.minorticks_off()


def _test_errors(axis: Any, groups: dict[str, list[Result]]) -> None:
    """A row for each procedure; each marker is the median over late rounds and seeds, its line the range."""
    for place, name in enumerate(FEDERATED):
        for side, (rule, look) in zip((-0.2, 0.0, 0.2), RULE_LOOKS.items(), strict=True):
            if group := groups[name]:
                _row(axis, place + side, group, rule, look)
    if pooled := groups[CENTRALIZED]:
        axis.axvline(float(np.median(_late_errors(pooled, "shared"))), color=INK, ls="--", lw=1)
    axis.set_xscale("log")
    if any(groups.values()):
        few_ticks(axis.xaxis)
    else:
        not_run(axis, shared=False)
    axis.set_yticks(range(len(FEDERATED)), [name.replace("+", "\n+ ") for name in FEDERATED], fontsize=7)
    axis.set_ylim(len(FEDERATED) - 0.5, -0.5)


def _row(axis: Any, place: float, group: Sequence[Result], rule: str, look: tuple[str, str]) -> None:
    errors, (colour, marker) = _late_errors(group, rule), look
    axis.plot([errors.min(), errors.max()], [place, place], color=colour, lw=0.8)
    axis.plot(np.median(errors), place, marker, color=colour)


def _late_errors(group: Sequence[Result], rule: str) -> Array:
    """Test MSE under a rule for the bias after each round of the last half, of all runs: (errors,)."""
    return np.concatenate([run.test_mse[run.rounds // 2 :, BIAS_RULES.index(rule)] for run in group])
