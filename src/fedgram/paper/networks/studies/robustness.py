"""Other architectures, larger data and full-model averaging (Appendix F.6, Table 8)."""

from __future__ import annotations

from typing import Any

from fedgram.paper.networks import cohorts, metrics, panels
from fedgram.paper.networks.cohorts import THREE, Condition
from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.metrics import Findings, Found, Reference
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


def measure_architecture(shown: ComparableRuns) -> Found:
    """Measure other networks and larger data, first half of Table 8."""
    networks = Findings(cohorts.ARCHITECTURE, shown)
    larger = Findings(cohorts.LARGER_DATA, shown)
    return {
        **_measure_row("cnn", networks, cohorts.CNN),
        **_measure_row("cnn-corrected", networks, cohorts.CNN_CORRECTED),
        **_measure_row("resnet34", networks, cohorts.RESNET34),
        **_measure_row("larger", larger, cohorts.LARGER),
    }


def measure_full_model(shown: ComparableRuns) -> Found:
    """Measure full-model averaging, second half of Table 8."""
    found = Findings(cohorts.FULL_MODEL, shown)
    return {
        **_measure_row("full-400", found, cohorts.FULL_SHORT),
        **_measure_row("full-4000", found, cohorts.FULL),
        **_measure_row("full-corrected", found, cohorts.FULL_CORRECTED),
    }


def _measure_row(name: str, found: Findings, condition: Condition) -> Found:
    """Measure a row of Table 8: direction errors, and the share of runs closer in direction to G_⋆."""
    return {
        f"{name}-to-barycenter": found.median(condition, metrics.direction("barycenter")),
        f"{name}-to-centralized": found.median(condition, metrics.direction("centralized")),
        f"{name}-closer": found.share(metrics.closer_in_direction, condition),
    }


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
        _draw_conditions(axis, groups)
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
            look = panels.Look(color, REFERENCE_MARKERS[reference])
            panels.draw_seed_dots(
                axis, place + side, metrics.values(group, metrics.direction(reference)), look
            )


def _draw_conditions(axis: Any, groups: list[list[Result]]) -> None:
    """Draw medians over seeds with their range, from condition to condition."""
    present = [(place, group) for place, group in enumerate(groups) if group]
    for reference, color in panels.REFERENCE_COLORS.items():
        if present:
            places, errors = zip(
                *((place, metrics.values(group, metrics.direction(reference))) for place, group in present),
                strict=True,
            )
            draw_range_band(axis, places, list(errors), color, marker=REFERENCE_MARKERS[reference])
    if not present:
        mark_not_run(axis)


def _reference_handles(style: str = "-", face: str | None = None) -> list[Any]:
    return [
        panels.legend_line(
            f"to {panels.REFERENCE_NAMES[reference]}", color, style, REFERENCE_MARKERS[reference], face
        )
        for reference, color in panels.REFERENCE_COLORS.items()
    ]
