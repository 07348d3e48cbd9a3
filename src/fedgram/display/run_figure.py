"""Draw trained runs: errors over rounds, and measured and predicted Grams."""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.errors import InputError
from fedgram._util.files import write_bytes
from fedgram._util.text import describe_seeds
from fedgram.display.plotting import (
    GREEN,
    INK,
    PALE,
    PALETTE,
    draw_seeds,
    ellipse,
    escape_label,
    figure_suffix,
    new_axes,
    pyplot,
    render,
    tag_runs,
)
from fedgram.runs import Setup
from fedgram.runs.compare import Comparison, Group
from fedgram.runs.expectation import SYMBOLS

GRAM_COLORS = {SYMBOLS["barycenter"]: GREEN, SYMBOLS["centralized"]: INK}
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<")  # one more than colors, so that 56 styles differ
STEPS = 3.0  # styles in full steps of width and size; more styles share the same range
MOST_INSIDE = 4  # groups in a legend inside the axes; a longer one would hide curves


def draw_comparison(settings: Sequence[Comparison], path: str | Path) -> None:
    """Draw one row of panels per setting; write png, svg or pdf."""
    suffix = figure_suffix(path)
    write_bytes(path, render(plot_comparison(settings), suffix))


def plot_comparison(settings: Sequence[Comparison]) -> Any:
    """Return a figure with one row of panels per setting."""
    figure, axes = pyplot().subplots(
        len(settings), 2, figsize=(9, 4.2 * len(settings)), width_ratios=[5, 4], squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for (errors, grams), setting in zip(axes, settings, strict=True):
        _draw_errors(errors, setting)
        if len(setting.setup.data.targets) > 1:
            _draw_grams(grams, setting)
        else:
            grams.set_axis_off()
    return figure


def plot_settings(settings: Sequence[Comparison], ax: Any = None) -> Any:
    """Draw errors over rounds on an array of Axes, one per setting."""
    panels = max(len(settings), 1)
    axes = np.atleast_1d(new_axes(6, 4 * panels, panels) if ax is None else ax)
    if len(axes) < len(settings):
        raise InputError(
            f"plot() needs {len(settings)} Axes, one per setting, not {len(axes)}. Pass an array of Axes.",
            field="ax",
        )
    for axis, setting in zip(axes, settings, strict=False):
        _draw_errors(axis, setting)
    return axes


def plot_errors(comparison: Comparison, ax: Any = None) -> Any:
    """Draw errors over rounds on one Axes."""
    ax = new_axes(6, 4) if ax is None else ax
    _draw_errors(ax, comparison)
    return ax


def run_id(setup: Setup) -> str:
    """Name a run in the SVG of a figure."""
    return f"{zlib.crc32(repr(setup).encode()):08x}"


def style_groups(
    groups: Sequence[Group], drawn: Container[Group]
) -> Iterator[tuple[Group, dict[str, Any], dict[str, Any]]]:
    """Groups that are drawn, with the style of their lines and markers.

    All figures of a setting pass the same groups, so that a procedure looks the same in each. Later ones are
    thinner and smaller, because procedures that end at the same place hide each other.
    """
    below = (len(groups) - 1 - np.arange(len(groups))) * min(1.0, STEPS / max(len(groups) - 1, 1))
    for group, color, marker, number in zip(groups, cycle(PALETTE), cycle(MARKERS), below, strict=False):
        line = {"color": color, "lw": 1.2 + 1.4 * number}
        if group in drawn:
            yield group, line, {"marker": marker, "ms": 3.5 + 2.2 * number, "mfc": "none", "mew": 0.9}


def _draw_errors(axis: Any, setting: Comparison) -> None:
    """Draw every seed and their median, and dotted the exact recursion from the same starts."""
    floor = 0.5 * min((group.errors.min() for group in setting.limited), default=1.0)
    for group, line, markers in style_groups(setting.groups, setting.limited):
        rounds, label = np.arange(group.errors.shape[1]), f"{setting.label(group)}, to {group.target}"
        names = [run_id(run.setup) for run in group.runs]
        draw_seeds(axis, rounds, group.errors.T, runs=names, label=label, **line, **markers)
        predicted = np.maximum(group.predicted_errors.mean(axis=0), 0.1 * floor)  # stays below the axis
        axis.plot(rounds, predicted, color=line["color"], ls=":", lw=1)
    axis.plot([], [], color="0.4", ls=":", lw=1, label="exact recursion")
    if any(len(group.runs) > 1 for group in setting.groups):
        axis.plot([], [], color="0.4", lw=0.6, label="a seed each; thicker: their median")
    axis.set(yscale="log", ylim=(floor, None), xlabel="round", ylabel="relative error of the Gram")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_title(f"{escape_label(setting.title)}\n{setting.scale}", fontsize=7.5, loc="left")
    outside = {"loc": "upper left", "bbox_to_anchor": (0, -0.2), "ncols": 2}
    axis.legend(fontsize=7, frameon=False, **outside if len(setting.limited) > MOST_INSIDE else {})
    axis.spines[["top", "right"]].set_visible(False)


def _draw_grams(axis: Any, setting: Comparison) -> None:
    """Draw the first two targets of the Grams: predicted wide and pale, measured (first seed) on top."""
    first, targets = setting.groups[0].runs[0], setting.setup.data.targets
    ends = {group.target: group.runs[0].expected.gram for group in setting.limited}
    for name, gram in ({SYMBOLS["centralized"]: first.prediction.centralized} | ends).items():
        color = GRAM_COLORS.get(name, PALE)
        axis.plot(*ellipse(gram[:2, :2]), color=color, lw=7, alpha=0.2, label=f"predicted {name}")
    for group, style, _ in style_groups(setting.groups, setting.limited):
        dashes = "--" if group.target == SYMBOLS["centralized"] else "-"
        (line,) = axis.plot(*ellipse(group.runs[0].grams[-1][:2, :2]), ls=dashes, **style)
        tag_runs(line, [run_id(group.runs[0].setup)])
    axis.set(xlabel=escape_label(targets[0]), ylabel=escape_label(targets[1]), aspect="equal")
    seeds = describe_seeds({group.seeds[0] for group in setting.groups})
    when = f"Grams after round {setting.setup.settings.rounds}, {seeds}"
    axis.set_title(when, fontsize=7.5, loc="left")
    axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.15))
    axis.spines[["top", "right"]].set_visible(False)
