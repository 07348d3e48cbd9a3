"""Other architectures, larger data and full-model averaging (Appendix F.6, Table 8)."""

from __future__ import annotations

from functools import partial
from typing import Any

from fedgram.paper.networks import cohorts, metrics, panels, tables
from fedgram.paper.networks.cohorts import THREE
from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.metrics import Reference
from fedgram.paper.networks.results import Result
from fedgram.paper.networks.settings import IMAGES, TABULAR
from fedgram.paper.plots import make_panels

REFERENCE_LOOKS: dict[Reference, panels.Look] = {
    "barycenter": panels.Look(panels.REFERENCE_COLORS["barycenter"], "o"),
    "centralized": panels.Look(panels.REFERENCE_COLORS["centralized"], "D"),
}
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


def draw_architecture(shown: ComparableRuns) -> Any:
    """Draw direction errors to both references with other networks and with more data."""
    drawn = list[Result]()
    groups = {
        title: {name: runs for name in IMAGES if (runs := shown.runs(name, condition, THREE))}
        for title, condition in ARCHITECTURES.items()
    }
    groups = {title: found for title, found in groups.items() if found}
    if not groups:
        return None
    rows = -(-len(groups) // 2)
    figure, axes = make_panels(rows, 2, (panels.WIDTH, 2 * rows + 0.8), sharey=True)
    for axis, (title, found) in zip(axes, groups.items(), strict=False):
        for place, group in enumerate(found.values()):
            _draw_directions(axis, place, group)
            drawn += group
        axis.set_yscale("log")
        axis.set_title(title)
        panels.mark_settings(axis, list(found))
    for axis in axes[len(groups) :]:
        axis.remove()
    figure.supylabel("direction error $d$", fontsize=8)
    without = ", ".join(title for title in ARCHITECTURES if title not in groups)
    note = f"Without runs: {without}." if without else ""
    return panels.finish_figure(figure, drawn, _reference_handles(""), note=note)


def draw_full_model(shown: ComparableRuns) -> Any:
    """Draw direction errors under full-model averaging: more local training, then correction."""
    drawn = list[Result]()
    settings = tuple(name for name in TABULAR if name in shown.settings)
    epochs, error = "local epochs $E$ in a round", "direction error $d$"
    figure, axes = panels.make_setting_panels(settings, 2.1, epochs, error)
    few, many = (shown.scale.epochs(condition.epochs) for condition in (cohorts.FULL_SHORT, cohorts.FULL))
    labels = {
        cohorts.FULL_SHORT: f"{few}",
        cohorts.FULL: f"{many}",
        cohorts.FULL_CORRECTED: f"{many}\n$+\\,C_m$",
    }
    ran = [each for each in labels if any(shown.runs(setting, each, THREE) for setting in axes)]
    for setting, axis in axes.items():
        groups = [shown.runs(setting, condition, THREE) for condition in ran]
        for reference, look in REFERENCE_LOOKS.items():
            panels.draw_runs(axis, range(len(ran)), groups, metrics.direction(reference), look)
        drawn += [run for group in groups for run in group]
        axis.set_xticks(range(len(ran)), [labels[condition] for condition in ran])
        axis.set_xlim(-0.4, len(ran) - 0.6)
        axis.set_yscale("log")
    return panels.finish_figure(figure, drawn, _reference_handles(), settings=TABULAR)


def _draw_directions(axis: Any, place: float, group: list[Result]) -> None:
    for side, (reference, look) in zip((-0.15, 0.15), REFERENCE_LOOKS.items(), strict=True):
        errors = [metrics.direction(reference)(run) for run in group]
        panels.draw_seed_dots(axis, place + side, errors, [[run] for run in group], look)


def _reference_handles(line: str = "-") -> list[Any]:
    return [
        look.handle(f"to {panels.REFERENCE_NAMES[reference]}", line)
        for reference, look in REFERENCE_LOOKS.items()
    ]
