"""Other architectures and full-model averaging (Appendix F.7): claims and figures."""

from __future__ import annotations

from typing import Any

from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import (
    ARCHITECTURE,
    CNN,
    CNN_CORRECTED,
    FULL,
    FULL_CORRECTED,
    FULL_SHORT,
    LARGER,
    LARGER_DATA,
    RESNET34,
    THREE,
    Condition,
)
from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.metrics import (
    Findings,
    Found,
    closer_in_direction,
    direction,
)
from fedgram.paper.networks.panels import (
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
from fedgram.paper.networks.provenance import Reference, values
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import TABULAR
from fedgram.paper.plots import not_run, panels, range_band

REFERENCE_MARKERS: dict[Reference, str] = {"barycenter": "o", "centralized": "D"}


ARCHITECTURES = {
    "residual CNN": CNN,
    "residual CNN, corrected": CNN_CORRECTED,
    "ResNet-34": RESNET34,
    "larger data, ResNet-18": LARGER,
}
"""Conditions by title; each is compared in its cohort's settings."""


def draw_architecture(results: Results) -> Any:
    """Direction errors to both references with other networks and with more data."""
    shown, drawn = ComparableRuns.from_results(results), list[Result]()
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
    shown, drawn = ComparableRuns.from_results(results), list[Result]()
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


def _reference_handles(style: str = "-", face: str | None = None) -> list[Any]:
    return [
        line(f"to {REFERENCE_NAMES[reference]}", colour, style, REFERENCE_MARKERS[reference], face)
        for reference, colour in REFERENCE_COLOURS.items()
    ]


def measure_architecture(shown: ComparableRuns) -> Found:
    """Other networks and larger data, first half of Table 8."""
    networks = Findings(cohorts.ARCHITECTURE, shown)
    larger = Findings(cohorts.LARGER_DATA, shown)
    return {
        **_robustness("cnn", networks, cohorts.CNN),
        **_robustness("cnn-corrected", networks, cohorts.CNN_CORRECTED),
        **_robustness("resnet34", networks, cohorts.RESNET34),
        **_robustness("larger", larger, cohorts.LARGER),
    }


def measure_full_model(shown: ComparableRuns) -> Found:
    """Full-model averaging, second half of Table 8."""
    found = Findings(cohorts.FULL_MODEL, shown)
    return {
        **_robustness("full-400", found, cohorts.FULL_SHORT),
        **_robustness("full-4000", found, cohorts.FULL),
        **_robustness("full-corrected", found, cohorts.FULL_CORRECTED),
    }


def _robustness(name: str, found: Findings, condition: Condition) -> Found:
    """A row of Table 8: direction errors, and the share of runs closer in direction to G_⋆."""
    return {
        f"{name}-to-barycenter": found.median(condition, direction("barycenter")),
        f"{name}-to-centralized": found.median(condition, direction("centralized")),
        f"{name}-closer": found.share(closer_in_direction, condition),
    }
