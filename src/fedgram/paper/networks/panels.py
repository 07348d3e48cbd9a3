"""Shared pieces of the figures of network experiments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from textwrap import fill
from typing import Any

import numpy as np

from fedgram.display.plotting import BLUE, GREEN, GREY, INK, ORANGE, RED, ellipse, mean_band, pyplot
from fedgram.paper.networks.comparable import TITLES, describe_runs
from fedgram.paper.networks.metrics import Reference
from fedgram.paper.networks.results import Result
from fedgram.paper.plots import make_panels, mark_not_run
from fedgram.theory.geometry import psd

WIDTH = 7.0  # inches, so that 8-point type is 11 pixels high where the page shows a figure 700 pixels wide
Limits = tuple[float, float] | None
STAR, CEN = r"$G_{\bigstar}$", r"$G_{cen}$"
REFERENCE_COLORS: dict[Reference, str] = {"barycenter": GREEN, "centralized": INK}
REFERENCE_NAMES: dict[Reference, str] = {"barycenter": STAR, "centralized": CEN}


@dataclass(frozen=True)
class Look:
    """Color and marker of a procedure, the same in every figure."""

    color: str
    marker: str
    size: float = 3.5

    @property
    def open(self) -> dict[str, Any]:
        """Keywords for open markers, through which other markers are visible."""
        return {"marker": self.marker, "ms": self.size, "mfc": "none", "mew": 0.8}


# Where procedures end at the same place, the cross is inside the diamond, and the diamond inside the square.
LOOKS = {
    "ordinary": Look(RED, "x", 3.5),
    "proximal": Look(ORANGE, "D", 5.0),
    "aligned": Look(BLUE, "s", 7.5),
    "solved": Look(GREEN, "o", 3.5),
}


def make_setting_panels(settings: Sequence[str], height: float, columns: int = 5, **keywords: Any) -> Any:
    """Make a figure and its titled panels by setting: `columns` per row of `height` inches.

    A single row is half as high again.
    """
    rows = -(-len(settings) // columns)
    figure, axes = make_panels(rows, columns, (WIDTH, height * max(rows, 1.5) + 0.9), **keywords)
    for axis, setting in zip(axes, settings, strict=True):
        axis.set_title(TITLES[setting])
    return figure, dict(zip(settings, axes, strict=True))


def label_below(axes: Mapping[str, Any], label: str) -> None:
    """Label the horizontal axis once, under the middle of the last row of panels."""
    list(axes.values())[-3].set_xlabel(label)


def set_few_ticks(scale: Any) -> None:
    """Label two or three values on a logarithmic axis of a panel.

    By default matplotlib labels too many or none. Axes with fewer than two of 1, 2, 5, 10, ... grow.
    """
    from matplotlib.ticker import NullFormatter, NullLocator

    low, high = sorted(scale.get_view_interval())
    powers = 10.0 ** np.arange(np.floor(np.log10(low)) - 1, np.ceil(np.log10(high)) + 1)
    steps = np.outer(powers, (1, 2, 5)).ravel()
    if ((low <= steps) & (steps <= high)).sum() < 2:
        low, high = steps[steps <= low][-1], steps[steps >= high][0]
        scale.axes.set(**{f"{scale.axis_name}lim": (low, high)})
    inside = steps[(low <= steps) & (steps <= high)]
    ticks = inside[:: max(1, -(-len(inside) // 3))]
    scale.set_minor_locator(NullLocator())
    scale.set_minor_formatter(NullFormatter())
    scale.set_ticks(ticks, [f"{tick:g}" for tick in ticks])


def label_log_axes(axis: Any) -> None:
    """Label logarithmic axes of a panel that show fewer than two decades."""
    from matplotlib.ticker import LogLocator

    for scale in (axis.xaxis, axis.yaxis):
        low, high = sorted(scale.get_view_interval())
        decades = [tick for tick in scale.get_majorticklocs() if low <= tick <= high]
        if isinstance(scale.get_major_locator(), LogLocator) and len(decades) < 2:
            set_few_ticks(scale)


def set_epoch_ticks(axis: Any, runs: Iterable[Result]) -> None:
    """Label local epochs on a logarithmic axis: those of the runs, or every third if there are many."""
    present = sorted({run.epochs for run in runs})
    labelled = present if len(present) < 4 else present[::3]
    axis.set_xticks(labelled, [f"{number}" for number in labelled])
    axis.minorticks_off()


def finish_figure(
    figure: Any, shown: Iterable[Result], handles: Sequence[Any] = (), columns: int = 4, note: str = ""
) -> Any:
    """Put the legend above a figure, and a note and its provenance below.

    Returns None, and closes the figure, if all panels are empty.
    """
    drawn = [axis for axis in figure.axes if axis.has_data()]
    if not drawn:
        pyplot().close(figure)
        return None
    for axis in drawn:
        label_log_axes(axis)
    for axis in figure.axes:
        _fix_empty_labels(axis)
    if handles:
        figure.legend(handles=handles, loc="outside upper center", ncols=columns)
    lines = [fill(line, 125) for line in filter(None, [note, *describe_runs(shown)])]
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=6.5, color="0.35")
    return figure


def _fix_empty_labels(axis: Any) -> None:
    """Fix the place of empty axis labels; matplotlib would measure all ticks to place them."""
    for scale in (axis.xaxis, axis.yaxis):
        if not scale.get_label_text():
            scale.set_label_coords(0.5, 0.5)


def legend_line(label: str, color: str, style: str = "-", marker: str = "", face: str | None = None) -> Any:
    """Make an entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, ls=style, marker=marker, mfc=face or color, label=label)


def draw_round_curve(axis: Any, runs: Sequence[Result], reference: Reference, **keywords: Any) -> None:
    """Draw mean ± deviation over seeds of e_F to a reference over rounds."""
    if runs:
        samples = np.stack([run.error[reference] for run in runs], axis=1)
        mean_band(axis, np.arange(len(samples)), samples, REFERENCE_COLORS[reference], **keywords)


def style_rounds(axis: Any, limits: Limits) -> None:
    """Style a log axis of errors over rounds, after the curves are drawn."""
    if not axis.lines:
        mark_not_run(axis)
    axis.set(yscale="log", ylim=limits)
    axis.minorticks_off()
    axis.xaxis.get_major_locator().set_params(integer=True, nbins=5)


def error_limits(groups: Iterable[Sequence[Result]]) -> Limits:
    """Limits of a log axis that include the mean errors of all groups to both references."""
    means = [
        np.mean([run.error[reference] for run in group], axis=0)
        for group in groups if group
        for reference in REFERENCE_COLORS
    ]  # fmt: skip
    return (0.4 * float(np.min(means)), 2.5 * float(np.max(means))) if means else None


def coordinate_planes(run: Result) -> list[tuple[int, int]]:
    """Pairs of the first three target coordinates."""
    return list(combinations(range(min(3, len(run.barycenter))), 2))


def draw_outline(axis: Any, gram: Any, plane: tuple[int, int], line: str = "-", **keywords: Any) -> None:
    """Draw the projection of a Gram's ellipsoid onto a coordinate plane."""
    axis.plot(*ellipse(gram[np.ix_(plane, plane)], keywords.pop("points", 181)), line, **keywords)


def set_square_limits(axis: Any, reach: float) -> None:
    """Set the same limits and units on both axes, with ticks at zero and at one round number."""
    tick = float(f"{0.7 * reach:.0e}")
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axis.set(xticks=(-tick, 0, tick), yticks=(-tick, 0, tick))
    axis.tick_params(labelsize=6)


def widest_plane(run: Result) -> tuple[int, int]:
    """Find the two targets in which G_⋆ and G_cen differ most, relative to G_cen."""

    def difference(plane: tuple[int, int]) -> float:
        block = np.ix_(plane, plane)
        return float(psd.relative_error(run.barycenter[block], run.centralized[block]))

    return max(combinations(range(len(run.barycenter)), 2), key=difference)


def reach_of(runs: Sequence[Result], targets: Iterable[int], *, with_start: bool = False) -> float:
    """Half width of a square around the ellipses of the references and last Grams of runs."""
    grams = [gram for run in runs for gram in (run.barycenter, run.centralized, run.grams[-1])]
    grams += [run.grams[0] for run in runs if with_start]
    return 1.12 * float(np.sqrt(max(np.diagonal(gram)[list(targets)].max() for gram in grams)))


def draw_seed_dots(axis: Any, place: float, values: Any, look: Look, **keywords: Any) -> None:
    """Draw a dot for each seed and a bar at their median."""
    axis.plot(np.full(len(values), place), values, look.marker, color=look.color, mfc="none", **keywords)
    axis.plot([place - 0.09, place + 0.09], [np.median(values)] * 2, color=look.color, lw=2)


def mark_settings(axis: Any, settings: Sequence[str], run: set[str]) -> None:
    """Put settings along the horizontal axis, with 'not run' over those that were not run."""
    axis.set_xticks(range(len(settings)), [TITLES[setting] for setting in settings], fontsize=7)
    axis.set_xlim(-0.5, len(settings) - 0.5)
    if not run:
        mark_not_run(axis)
        return
    for place, setting in enumerate(settings):
        if setting not in run:
            axis.text(
                place, 0.5, "not run", transform=axis.get_xaxis_transform(),
                ha="center", va="center", rotation=90, color=GREY, fontsize=7,
            )  # fmt: skip
