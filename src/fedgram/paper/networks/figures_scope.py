"""Alignment, other architectures, full-model averaging and test error: Appendices F.5 to F.7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import BLUE, GREY, INK
from fedgram.paper.networks.cohorts import (
    ALIGNED,
    ARCHITECTURE,
    CNN,
    CNN_CORRECTED,
    FIVE,
    FULL,
    FULL_CORRECTED,
    FULL_SHORT,
    LARGER,
    LARGER_DATA,
    RESNET34,
    START_PAIRS,
    THREE,
)
from fedgram.paper.networks.figures_panels import (
    LOOKS,
    REFERENCE_COLOURS,
    REFERENCE_NAMES,
    WIDTH,
    Look,
    below,
    finish,
    line,
    seed_dots,
    setting_panels,
    setting_slots,
)
from fedgram.paper.networks.figures_runs import Reference, corrected, pair_values, values
from fedgram.paper.networks.findings import change, direction, endpoint, removed, test_mse
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import IMAGES, TABULAR
from fedgram.paper.networks.shown import Shown
from fedgram.paper.style import not_run, panels, range_band

SELECTION = ("ordinary", "proximal", "aligned")
PREDICTION = ("ordinary", "proximal", "proximal+corrected")
REFERENCE_MARKERS: dict[Reference, str] = {"barycenter": "o", "centralized": "D"}
STARTS = {"common": Look(INK, "o"), "independent": Look(GREY, "^")}
ARCHITECTURES = {
    "residual CNN": CNN,
    "residual CNN, corrected": CNN_CORRECTED,
    "ResNet-34": RESNET34,
    "larger data, ResNet-18": LARGER,
}
"""Conditions by title; each is compared in its cohort's settings."""


def draw_alignment(results: Results) -> Any:
    """Endpoint errors of three ways to select, and what alignment takes off one averaging's objective."""
    shown = Shown.of(results)
    figure, axes = panels(3, 1, (WIDTH, 6.6), sharex=True)
    drawn = _selected(axes[0], shown, "barycenter", SELECTION, FIVE)
    drawn += _selected(axes[1], shown, "centralized", tuple(map(corrected, SELECTION)), THREE)
    drawn += _removed(axes[2], shown)
    looks = {name: LOOKS[name] for name in SELECTION}
    looks |= {f"{name} initial backbones": look for name, look in STARTS.items()}
    handles = [line(name, look.colour, "", look.marker, "none") for name, look in looks.items()]
    return finish(figure, drawn, handles, columns=5)


def draw_architecture(results: Results) -> Any:
    """Direction errors to both references with other networks and with more data."""
    shown, drawn = Shown.of(results), list[Result]()
    figure, axes = panels(2, 2, (WIDTH, 4.8), sharey=True)
    for axis, (title, condition) in zip(axes, ARCHITECTURES.items(), strict=True):
        settings = LARGER_DATA.settings if condition.larger else ARCHITECTURE.settings
        groups = {setting: shown.runs(setting, condition, THREE) for setting in settings}
        for place, group in enumerate(groups.values()):
            _directions(axis, place, group)
            drawn += group
        axis.set_yscale("log")
        axis.set_title(title)
        setting_slots(axis, settings, {setting for setting, group in groups.items() if group})
    figure.supylabel("direction error $d$", fontsize=8)
    return finish(figure, drawn, _reference_handles("", "none"))


def draw_full_model(results: Results) -> Any:
    """Direction errors under full-model averaging as local training grows, and then with correction."""
    shown, drawn = Shown.of(results), list[Result]()
    figure, axes = setting_panels(TABULAR, 2.1, sharex=True, sharey=True)
    conditions = (FULL_SHORT, FULL, FULL_CORRECTED)
    few, many = (shown.scale.epochs(condition.epochs) for condition in (FULL_SHORT, FULL))
    for setting, axis in axes.items():
        groups = [shown.runs(setting, condition, THREE) for condition in conditions]
        _paired_conditions(axis, groups)
        drawn += [run for group in groups for run in group]
        axis.set_xticks(range(3), [f"{few}", f"{many}", f"{many}\n$+\\,C_m$"])
        axis.set_xlim(-0.4, 2.4)
        axis.set_yscale("log")
    below(axes, "local epochs $E$ in a round")
    figure.supylabel("direction error $d$", fontsize=8)
    return finish(figure, drawn, _reference_handles())


def draw_prediction(results: Results) -> Any:
    """Changes of the test error against ordinary training of the same seed, in percent."""
    shown, drawn = Shown.of(results), list[Result]()
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


def _selected(
    axis: Any, shown: Shown, reference: Reference, procedures: Sequence[str], seeds: Sequence[int]
) -> list[Result]:
    """Endpoint errors of procedures side by side in every setting of the alignment experiments."""
    drawn = list[Result]()
    for place, setting in enumerate(ALIGNED):
        for side, name, procedure in zip((-0.24, 0.0, 0.24), SELECTION, procedures, strict=True):
            if group := shown.runs(setting, procedure, seeds):
                seed_dots(axis, place + side, values(group, endpoint), LOOKS[name])
                drawn += group
    axis.set(yscale="log", ylabel=f"$e_F(G_T,\\,${REFERENCE_NAMES[reference]}$)$")
    axis.set_title("without correction" if reference == "barycenter" else "with moment correction")
    setting_slots(axis, ALIGNED, {run.setting for run in drawn})
    return drawn


def _removed(axis: Any, shown: Shown) -> list[Result]:
    """The share of the objective that alignment removes from the first averaging, by initial backbones."""
    drawn = list[Result]()
    for place, setting in enumerate(ALIGNED):
        for side, (start, look) in zip((-0.15, 0.15), STARTS.items(), strict=True):
            raw, aligned = (shown.runs(setting, condition) for condition in START_PAIRS[start])
            if (shares := pair_values(raw, aligned, removed)).size:
                seed_dots(axis, place + side, 100 * shares, look)
                drawn += [*raw, *aligned]
    axis.set(ylabel="% of the objective")
    axis.set_title("what alignment removes from the objective after the first averaging")
    setting_slots(axis, ALIGNED, {run.setting for run in drawn})
    return drawn


def _directions(axis: Any, place: float, group: list[Result]) -> None:
    for side, (reference, colour) in zip((-0.15, 0.15), REFERENCE_COLOURS.items(), strict=True):
        if group:
            look = Look(colour, REFERENCE_MARKERS[reference])
            seed_dots(axis, place + side, values(group, direction(reference)), look)


def _paired_conditions(axis: Any, groups: list[list[Result]]) -> None:
    """Medians over seeds with their range, from condition to condition."""
    present = [(place, group) for place, group in enumerate(groups) if group]
    for reference, colour in REFERENCE_COLOURS.items():
        if present:
            places, errors = zip(
                *((place, values(group, direction(reference))) for place, group in present), strict=True
            )
            range_band(axis, places, list(errors), colour, marker=REFERENCE_MARKERS[reference])
    if not present:
        not_run(axis)


def _draw_changes(axis: Any, changes: dict[int, Array]) -> None:
    """Mean ± sample deviation over seeds at each place."""
    places, mean = list(changes), np.array([change.mean() for change in changes.values()])
    deviation = np.array([change.std(ddof=1) if len(change) > 1 else 0.0 for change in changes.values()])
    axis.fill_between(places, mean - deviation, mean + deviation, color=BLUE, alpha=0.18, lw=0)
    axis.plot(places, mean, "o-", color=BLUE)
    axis.axhline(0, color=GREY, ls="--", lw=0.8, zorder=0)


def _reference_handles(style: str = "-", face: str | None = None) -> list[Any]:
    return [
        line(f"to {REFERENCE_NAMES[reference]}", colour, style, REFERENCE_MARKERS[reference], face)
        for reference, colour in REFERENCE_COLOURS.items()
    ]
