"""Pieces that the figures of network experiments have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from textwrap import fill
from typing import Any

import numpy as np

from fedgram.display.plotting import BLUE, GREEN, GREY, INK, ORANGE, RED, ellipse, mean_band, pyplot
from fedgram.paper.networks.comparable import TITLES
from fedgram.paper.networks.provenance import Reference, provenance
from fedgram.paper.networks.results import Result
from fedgram.paper.plots import not_run, panels
from fedgram.theory.geometry import psd

WIDTH = 7.0  # inches, so that 8-point type is 11 pixels high where the page shows a figure 700 pixels wide
Limits = tuple[float, float] | None
STAR, CEN = r"$G_{\bigstar}$", r"$G_{cen}$"
REFERENCE_COLOURS: dict[Reference, str] = {"barycenter": GREEN, "centralized": INK}
REFERENCE_NAMES: dict[Reference, str] = {"barycenter": STAR, "centralized": CEN}


@dataclass(frozen=True)
class Look:
    """How a procedure is drawn: the same in every figure."""

    colour: str
    marker: str
    size: float = 3.5

    @property
    def open(self) -> dict[str, Any]:
        """How its markers are drawn on curves: through each of them others are seen."""
        return {"marker": self.marker, "ms": self.size, "mfc": "none", "mew": 0.8}


# Where procedures end at the same place the cross is in the diamond, and the diamond in the square.
LOOKS = {
    "ordinary": Look(RED, "x", 3.5),
    "proximal": Look(ORANGE, "D", 5.0),
    "aligned": Look(BLUE, "s", 7.5),
    "solved": Look(GREEN, "o", 3.5),
}


def setting_panels(settings: Sequence[str], height: float, columns: int = 5, **keywords: Any) -> Any:
    """A figure and its panels by setting, titled, `columns` in a row of `height` inches; one row has more."""
    rows = -(-len(settings) // columns)
    figure, axes = panels(rows, columns, (WIDTH, height * max(rows, 1.5) + 0.9), **keywords)
    for axis, setting in zip(axes, settings, strict=True):
        axis.set_title(TITLES[setting])
    return figure, dict(zip(settings, axes, strict=True))


def below(axes: Mapping[str, Any], label: str) -> None:
    """Name the horizontal axis once, under the middle of the last row of panels."""
    list(axes.values())[-3].set_xlabel(label)


def few_ticks(scale: Any) -> None:
    """Two or three labelled values on the x or y axis of a panel, whose logarithms are drawn.

    By itself it would label too many or none. Where it has fewer than two of 1, 2, 5, 10, ... it is extended.
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


def label_logs(axis: Any) -> None:
    """Label logarithmic axes of a panel of which fewer than two decades would be labelled."""
    from matplotlib.ticker import LogLocator

    for scale in (axis.xaxis, axis.yaxis):
        low, high = sorted(scale.get_view_interval())
        decades = [tick for tick in scale.get_majorticklocs() if low <= tick <= high]
        if isinstance(scale.get_major_locator(), LogLocator) and len(decades) < 2:
            few_ticks(scale)


def epoch_ticks(axis: Any, runs: Iterable[Result]) -> None:
    """Local epochs along a logarithmic axis: those of the runs, or every third of them if there are many."""
    present = sorted({run.epochs for run in runs})
    labelled = present if len(present) < 4 else present[::3]
    axis.set_xticks(labelled, [f"{number}" for number in labelled])
    axis.minorticks_off()


def finish(
    figure: Any, shown: Iterable[Result], handles: Sequence[Any] = (), columns: int = 4, note: str = ""
) -> Any:
    """Put the legend above a figure and, below it, what data it is from and at what scale, after a note.

    None for a figure without anything in any of its panels.
    """
    drawn = [axis for axis in figure.axes if axis.has_data()]
    if not drawn:
        pyplot().close(figure)
        return None
    for axis in drawn:
        label_logs(axis)
    if handles:
        figure.legend(handles=handles, loc="outside upper center", ncols=columns)
    lines = [fill(line, 125) for line in filter(None, [note, *provenance(shown)])]
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=6.5, color="0.35")
    return figure


def line(label: str, colour: str, style: str = "-", marker: str = "", face: str | None = None) -> Any:
    """An entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, ls=style, marker=marker, mfc=face or colour, label=label)


def round_curve(axis: Any, runs: Sequence[Result], reference: Reference, **keywords: Any) -> None:
    """Mean ± deviation over seeds of e_F to a reference over rounds, in its colour."""
    if runs:
        samples = np.stack([run.error[reference] for run in runs], axis=1)
        mean_band(axis, np.arange(len(samples)), samples, REFERENCE_COLOURS[reference], **keywords)


def over_rounds(axis: Any, limits: Limits) -> None:
    """A log axis of errors over rounds, once the curves are drawn."""
    if not axis.lines:
        not_run(axis)
    axis.set(yscale="log", ylim=limits)
    axis.minorticks_off()
    axis.xaxis.get_major_locator().set_params(integer=True, nbins=5)


def error_limits(groups: Iterable[Sequence[Result]]) -> Limits:
    """Limits of a log axis that hold the mean errors of all groups of runs to both references."""
    means = [
        np.mean([run.error[reference] for run in group], axis=0)
        for group in groups if group
        for reference in REFERENCE_COLOURS
    ]  # fmt: skip
    return (0.4 * float(np.min(means)), 2.5 * float(np.max(means))) if means else None


def planes(run: Result) -> list[tuple[int, int]]:
    """Pairs of the first three target coordinates."""
    return list(combinations(range(min(3, len(run.barycenter))), 2))


def outline(axis: Any, gram: Any, plane: tuple[int, int], line: str = "-", **keywords: Any) -> None:
    """The shadow of a Gram's ellipsoid on a coordinate plane."""
    axis.plot(*ellipse(gram[np.ix_(plane, plane)], keywords.pop("points", 181)), line, **keywords)


def square(axis: Any, reach: float) -> None:
    """Equal units, the same on both axes, with ticks at zero and at one round number."""
    tick = float(f"{0.7 * reach:.0e}")
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axis.set(xticks=(-tick, 0, tick), yticks=(-tick, 0, tick))
    axis.tick_params(labelsize=6)


def widest_plane(run: Result) -> tuple[int, int]:
    """The two targets in which the predictions G_⋆ and G_cen differ most, relative to G_cen."""

    def difference(plane: tuple[int, int]) -> float:
        block = np.ix_(plane, plane)
        return float(psd.relative_error(run.barycenter[block], run.centralized[block]))

    return max(combinations(range(len(run.barycenter)), 2), key=difference)


def reach_of(runs: Sequence[Result], targets: Iterable[int], *, with_start: bool = False) -> float:
    """Half the width of a square that holds the ellipses of the references and last Grams of runs."""
    grams = [gram for run in runs for gram in (run.barycenter, run.centralized, run.grams[-1])]
    grams += [run.grams[0] for run in runs if with_start]
    return 1.12 * float(np.sqrt(max(np.diagonal(gram)[list(targets)].max() for gram in grams)))


def seed_dots(axis: Any, place: float, values: Any, look: Look, **keywords: Any) -> None:
    """A dot for each seed and a bar at their median."""
    axis.plot(np.full(len(values), place), values, look.marker, color=look.colour, mfc="none", **keywords)
    axis.plot([place - 0.09, place + 0.09], [np.median(values)] * 2, color=look.colour, lw=2)


def setting_slots(axis: Any, settings: Sequence[str], run: set[str]) -> None:
    """Settings along the horizontal axis, with 'not run' in the place of those that were not."""
    axis.set_xticks(range(len(settings)), [TITLES[setting] for setting in settings], fontsize=7)
    axis.set_xlim(-0.5, len(settings) - 0.5)
    if not run:
        not_run(axis)
        return
    for place, setting in enumerate(settings):
        if setting not in run:
            axis.text(
                place, 0.5, "not run", transform=axis.get_xaxis_transform(),
                ha="center", va="center", rotation=90, color=GREY, fontsize=7,
            )  # fmt: skip
