"""Other architectures, larger data and full-model averaging (Appendix F.6, Table 8)."""

from __future__ import annotations

from functools import partial
from typing import Any

from fedgram.paper.networks import cohorts, metrics, panels, tables
from fedgram.paper.networks.cohorts import THREE
from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.metrics import Reference
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import TABULAR
from fedgram.paper.plots import draw_range_band, make_panels, mark_not_run

REFERENCE_MARKERS: dict[Reference, str] = {"barycenter": "o", "centralized": "D"}
ARCHITECTURES = {
    "residual CNN": cohorts.CNN,
    "residual CNN, corrected": cohorts.CNN_CORRECTED,
    "ResNet-34": cohorts.RESNET34,
    "larger data, ResNet-18": cohorts.LARGER,
}
"""Conditions by title."""


# Each row of Table 8 is measured over all of its runs.
measure_architecture = partial(tables.ARCHITECTURE.measure, fair=False)
measure_full_model = partial(tables.FULL_MODEL.measure, fair=False)


def draw_architecture(results: Results) -> Any:
    """Draw direction errors to both references with other networks and with more data."""
    shown, drawn = ComparableRuns.from_results(results), list[Result]()
    figure, axes = make_panels(2, 2, (panels.WIDTH, 4.8), sharey=True)
    for axis, (title, condition) in zip(axes, ARCHITECTURES.items(), strict=True):
        settings = cohorts.LARGER_DATA.settings if condition.larger else cohorts.ARCHITECTURE.settings
        groups = {setting: shown.runs(setting, condition, THREE) for setting in settings}
        for place, group in enumerate(groups.values()):
            _draw_directions(axis, place, group)
            drawn += group
        axis.set_yscale("log")
        axis.set_title(title)
        panels.mark_settings(axis, settings, {setting for setting, group in groups.items() if group})
    figure.supylabel("direction error $d$", fontsize=8)
    return panels.finish_figure(figure, drawn, _reference_handles("", "none"))


def draw_full_model(results: Results) -> Any:
    """Draw direction errors under full-model averaging: more local training, then correction."""
    shown, drawn = ComparableRuns.from_results(results), list[Result]()
    figure, axes = panels.make_setting_panels(TABULAR, 2.1, sharex=True, sharey=True)
    conditions = (cohorts.FULL_SHORT, cohorts.FULL, cohorts.FULL_CORRECTED)
    few, many = (shown.scale.epochs(condition.epochs) for condition in (cohorts.FULL_SHORT, cohorts.FULL))
    for setting, axis in axes.items():
        groups = [shown.runs(setting, condition, THREE) for condition in conditions]
        for reference, color in panels.REFERENCE_COLORS.items():
            errors = [metrics.values(group, metrics.direction(reference)) for group in groups]
            draw_range_band(axis, range(3), errors, color, marker=REFERENCE_MARKERS[reference])
        if not any(groups):
            mark_not_run(axis)
        drawn += [run for group in groups for run in group]
        axis.set_xticks(range(3), [f"{few}", f"{many}", f"{many}\n$+\\,C_m$"])
        axis.set_xlim(-0.4, 2.4)
        axis.set_yscale("log")
    panels.label_below(axes, "local epochs $E$ in a round")
    figure.supylabel("direction error $d$", fontsize=8)
    return panels.finish_figure(figure, drawn, _reference_handles())


def _draw_directions(axis: Any, place: float, group: list[Result]) -> None:
    for side, (reference, color) in zip((-0.15, 0.15), panels.REFERENCE_COLORS.items(), strict=True):
        if group:
            errors = metrics.values(group, metrics.direction(reference))
            panels.draw_seed_dots(
                axis, place + side, errors, panels.Look(color, REFERENCE_MARKERS[reference])
            )


def _reference_handles(style: str = "-", face: str | None = None) -> list[Any]:
    names = {reference: f"to {name}" for reference, name in panels.REFERENCE_NAMES.items()}
    return [
        panels.legend_line(names[reference], color, style, REFERENCE_MARKERS[reference], face)
        for reference, color in panels.REFERENCE_COLORS.items()
    ]
