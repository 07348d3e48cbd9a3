"""Shared pieces of the figures of network experiments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from textwrap import fill
from typing import Any

import numpy as np

from fedgram.display.plotting import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    RED,
    draw_seeds,
    ellipse,
    pyplot,
    tag_runs,
)
from fedgram.paper.networks.comparable import TITLES, describe_runs
from fedgram.paper.networks.metrics import Metric, Reference
from fedgram.paper.networks.results import Result
from fedgram.paper.plots import format_power, label_powers, make_panels
from fedgram.theory.geometry import psd

WIDTH = 7.0  # inches, so that 8-point type is 11 pixels high where the page shows a figure 700 pixels wide
NARROWEST, PANEL = 4.6, 2.3  # inches: a legend needs the first, and few panels are not wider than the second
TICKS = ((1,), (1, 3), (1, 2, 5), range(1, 10), np.arange(1, 10, 0.5), np.arange(1, 10, 0.1))
Limits = tuple[float, float] | None
STAR, CEN = r"$G_{\bigstar}$", r"$G_{cen}$"
REFERENCE_COLORS: dict[Reference, str] = {"barycenter": GREEN, "centralized": INK}
REFERENCE_NAMES: dict[Reference, str] = {"barycenter": STAR, "centralized": CEN}
# Markers at the edge of a panel stay whole; the layout need not measure them.
UNCLIPPED = {"clip_on": False, "in_layout": False}
SEEDS = "a marker for each run, a line through medians over seeds"


@dataclass(frozen=True)
class Look:
    """Color and marker of a procedure, the same in every figure and in its legend."""

    color: str
    marker: str
    size: float = 3.5

    @property
    def open(self) -> dict[str, Any]:
        """Keywords for open markers, through which other markers are visible."""
        return {"color": self.color, "marker": self.marker, "ms": self.size, "mfc": "none", "mew": 0.8}

    def handle(self, label: str, line: str = "-") -> Any:
        """Make the entry of a legend."""
        from matplotlib.lines import Line2D

        return Line2D([], [], ls=line, label=label, **self.open)


# Where procedures end at the same place, the cross is inside the diamond, and the diamond inside the square.
LOOKS = {
    "ordinary": Look(RED, "x", 3.5),
    "proximal": Look(ORANGE, "D", 5.0),
    "aligned": Look(BLUE, "s", 7.5),
    "solved": Look(GREEN, "o", 3.5),
}


def make_setting_panels(
    settings: Sequence[str], height: float, xlabel: str = "", ylabel: str = "", sharex: bool = True
) -> Any:
    """Make a figure and its titled panels by setting, in rows of at most five and `height` inches.

    A single row is half as high again. Labels are those of all panels.
    """
    rows = max(1, -(-len(settings) // 5))
    columns = max(1, -(-len(settings) // rows))
    width = max(NARROWEST, min(WIDTH, PANEL * columns))
    size = (width, height * max(rows, 1.5) + 0.9)
    figure, axes = make_panels(rows, columns, size, sharex=sharex, sharey=True)
    for axis in axes[len(settings) :]:
        axis.remove()
    for axis, setting in zip(axes, settings, strict=False):
        axis.set_title(TITLES[setting])
    for axis in axes[(rows - 1) * columns - (rows * columns - len(settings)) : (rows - 1) * columns]:
        axis.xaxis.set_tick_params(labelbottom=True)  # above an empty place
    if xlabel and settings:  # once, under the middle of the last row
        last = axes[(rows - 1) * columns : len(settings)]
        last[(len(last) - 1) // 2].set_xlabel(xlabel, x=0.5 if len(last) % 2 else 1.05)
    if ylabel:
        figure.supylabel(ylabel, fontsize=8)
    return figure, dict(zip(settings, axes, strict=False))


def _describe_missing(settings: Iterable[str], drawn: Iterable[Result]) -> str:
    """Sentence about the settings of an experiment without runs in a figure; empty if there are none."""
    run = {each.setting for each in drawn}
    names = [TITLES[setting] for setting in settings if setting not in run]
    return f"Not shown: {', '.join(names)}." if names else ""


def draw_runs(
    axis: Any, places: Iterable[float], groups: Iterable[Sequence[Result]], metric: Metric, look: Look
) -> None:
    """Draw a marker for each run of the group at each place, and a line through the groups' medians."""
    pairs = [(place, group) for place, group in zip(places, groups, strict=True) if group]
    medians = [np.median([metric(run) for run in group]) for _, group in pairs]
    if pairs:  # an empty line would count as data of the panel
        axis.plot([place for place, _ in pairs], medians, color=look.color)
    for place, group in pairs:
        draw_run_markers(axis, place, [(metric(run), [run]) for run in group], look)


def draw_run_markers(
    axis: Any, place: float, values: Iterable[tuple[float, Sequence[Result]]], look: Look
) -> None:
    """Draw a marker for each value; each names the runs that it is of. None is clipped at the edge."""
    for value, runs in values:
        (marker,) = axis.plot([place], [value], ls="", **UNCLIPPED, **look.open)
        tag_runs(marker, [run.id for run in runs])


def set_few_ticks(scale: Any) -> None:
    """Label three values on a logarithmic axis of a panel, or up to five on a vertical one.

    By default matplotlib labels too many or none. The coarsest of several grids with three values is taken.
    """
    from matplotlib.ticker import NullFormatter, NullLocator

    low, high = sorted(scale.get_view_interval())
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in TICKS:
        ticks = np.outer(powers, steps).ravel()
        inside = ticks[(low <= ticks) & (ticks <= high)]
        if len(inside) >= 3:
            break
    else:
        inside = np.linspace(low, high, 3)
    inside = inside[:: -(-len(inside) // (5 if scale.axis_name == "y" else 3))]
    scale.set_minor_locator(NullLocator())
    scale.set_minor_formatter(NullFormatter())
    scale.set_ticks(inside, [_format_tick(tick) for tick in inside])


def _format_tick(value: float) -> str:
    return f"{value:.4g}" if 1e-3 <= value < 1e4 else format_power(value)


def label_log_axes(axis: Any) -> None:
    """Label logarithmic axes of a panel that show fewer than three decades."""
    from matplotlib.ticker import LogLocator

    for scale in (axis.xaxis, axis.yaxis):
        low, high = sorted(scale.get_view_interval())
        decades = [tick for tick in scale.get_majorticklocs() if low <= tick <= high]
        if isinstance(scale.get_major_locator(), LogLocator) and len(decades) < 3:
            set_few_ticks(scale)


def set_epoch_ticks(axis: Any, runs: Iterable[Result]) -> None:
    """Label local epochs on a logarithmic axis: those of the runs, or every third if there are many."""
    present = sorted({run.epochs for run in runs})
    labelled = present if len(present) < 4 else present[::3]
    axis.set_xticks(labelled, [f"{number}" for number in labelled])
    axis.minorticks_off()


def finish_figure(
    figure: Any,
    shown: Sequence[Result],
    handles: Sequence[Any] = (),
    columns: int = 4,
    note: str = "",
    settings: Iterable[str] = (),
) -> Any:
    """Put the legend above a figure; below it a note, those of the settings without runs, and provenance.

    Returns None, and closes the figure, if all panels are empty.
    """
    drawn = [axis for axis in figure.axes if axis.has_data()]
    if not drawn:
        pyplot().close(figure)
        return None
    for axis in drawn:
        label_log_axes(axis)
        label_powers(axis)
    for axis in figure.axes:
        _fix_empty_labels(axis)
    if handles:
        columns = _fit_columns(figure, handles, columns)
        figure.legend(handles=handles, loc="outside upper center", ncols=columns)
    letters = int(18 * figure.get_figwidth())
    notes = " ".join(filter(None, (note, _describe_missing(settings, shown))))
    lines = [fill(line, letters) for line in filter(None, (notes, *describe_runs(shown)))]
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=6.5, color="0.35")
    return figure


def _fit_columns(figure: Any, handles: Sequence[Any], columns: int) -> int:
    """Reduce the columns of a legend until its widest row fits; 0.06 inches per letter of 7 points."""
    lengths = [0.06 * len(handle.get_label().replace("$", "")) + 0.5 for handle in handles]
    while (
        columns > 1
        and columns * max(lengths) > figure.get_figwidth()
        and sum(lengths) > figure.get_figwidth()
    ):
        columns -= 1
    return columns


def _fix_empty_labels(axis: Any) -> None:
    """Fix the place of empty axis labels; matplotlib would measure all ticks to place them."""
    for scale in (axis.xaxis, axis.yaxis):
        if not scale.get_label_text():
            scale.set_label_coords(0.5, 0.5)


def legend_line(label: str, color: str, style: str = "-") -> Any:
    """Make an entry of a legend for a line without markers."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, ls=style, label=label)


def draw_round_curve(axis: Any, runs: Sequence[Result], reference: Reference, **keywords: Any) -> None:
    """Draw e_F to a reference over rounds: every seed, and their median."""
    if runs:
        samples = np.stack([run.error[reference] for run in runs], axis=1)
        color, names = REFERENCE_COLORS[reference], [run.id for run in runs]
        draw_seeds(axis, np.arange(len(samples)), samples, color, names, **UNCLIPPED, **keywords)


def style_rounds(axis: Any, limits: Limits) -> None:
    """Style a log axis of errors over rounds, after the curves are drawn."""
    axis.set(yscale="log", ylim=limits)
    axis.minorticks_off()
    axis.xaxis.get_major_locator().set_params(integer=True, nbins=5)


def error_limits(groups: Iterable[Sequence[Result]]) -> Limits:
    """Limits of a log axis that include the errors of all runs to both references."""
    errors = [run.error[name] for group in groups for run in group for name in REFERENCE_COLORS]
    return (0.6 * float(np.min(errors)), 1.6 * float(np.max(errors))) if errors else None


def coordinate_planes(run: Result) -> list[tuple[int, int]]:
    """Pairs of the first three target coordinates."""
    return list(combinations(range(min(3, len(run.barycenter))), 2))


def draw_outline(
    axis: Any, gram: Any, plane: tuple[int, int], run: Result | None = None, points: int = 73, **keywords: Any
) -> None:
    """Draw the projection of a Gram's ellipsoid onto a coordinate plane; run: whose Gram it is."""
    (line,) = axis.plot(*ellipse(gram[np.ix_(plane, plane)], points), **keywords)
    tag_runs(line, [run.id] if run else [])


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


def draw_seed_dots(
    axis: Any, place: float, values: Sequence[float], runs: Sequence[Sequence[Result]], look: Look
) -> None:
    """Draw a marker for each value, which is of some runs, and a bar at their median."""
    draw_run_markers(axis, place, zip(values, runs, strict=True), look)
    axis.plot([place - 0.09, place + 0.09], [np.median(values)] * 2, color=look.color, lw=2, alpha=0.6)


def mark_settings(axis: Any, settings: Sequence[str]) -> None:
    """Put settings along the horizontal axis."""
    axis.set_xticks(range(len(settings)), [TITLES[setting] for setting in settings], fontsize=7)
    beside = max(0.5, 2 - len(settings) / 2)  # few settings do not fill the width
    axis.set_xlim(-beside, len(settings) - 1 + beside)
