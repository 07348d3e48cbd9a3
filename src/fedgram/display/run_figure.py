"""Draw trained runs: errors over rounds, and measured and predicted Grams."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.files import write_bytes
from fedgram._util.text import describe_seeds
from fedgram.display.plotting import (
    GREEN,
    INK,
    PALE,
    PALETTE,
    ellipse,
    escape_label,
    figure_suffix,
    mean_band,
    pyplot,
    render,
)
from fedgram.runs.compare import Comparison
from fedgram.runs.expectation import SYMBOLS

GRAM_COLORS = {SYMBOLS["barycenter"]: GREEN, SYMBOLS["centralized"]: INK}


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


def _draw_errors(axis: Any, setting: Comparison) -> None:
    """Draw mean ± standard deviation over seeds, and dotted the exact recursion from the same starts."""
    floor = 0.5 * min(group.errors.min() for group in setting.groups)
    for group, color in zip(setting.groups, cycle(PALETTE), strict=False):
        rounds, label = np.arange(group.errors.shape[1]), f"{setting.label(group)}, to {group.target}"
        mean_band(axis, rounds, group.errors.T, color, marker="o", ms=3.5, label=label)
        predicted = np.maximum(group.predicted_errors.mean(axis=0), 0.1 * floor)  # stays below the axis
        axis.plot(rounds, predicted, color=color, ls=":", lw=1)
    axis.plot([], [], color="0.4", ls=":", lw=1, label="exact recursion")
    axis.set(yscale="log", ylim=(floor, None), xlabel="round", ylabel="relative error of the Gram")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_title(f"{escape_label(setting.title)}\n{setting.scale}", fontsize=7.5, loc="left")
    axis.legend(fontsize=7, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_grams(axis: Any, setting: Comparison) -> None:
    """Draw the first two targets of the Grams: predicted wide and pale, measured (first seed) on top."""
    first, targets = setting.groups[0].runs[0], setting.setup.data.targets
    ends = {group.target: group.runs[0].expected.gram for group in setting.groups}
    for name, gram in ({SYMBOLS["centralized"]: first.prediction.centralized} | ends).items():
        color = GRAM_COLORS.get(name, PALE)
        axis.plot(*ellipse(gram[:2, :2]), color=color, lw=5, alpha=0.25, label=f"predicted {name}")
    for group, color in zip(setting.groups, cycle(PALETTE), strict=False):
        dashes = "--" if group.target == SYMBOLS["centralized"] else "-"
        axis.plot(*ellipse(group.runs[0].grams[-1][:2, :2]), color=color, lw=1.2, ls=dashes)
    axis.set(xlabel=escape_label(targets[0]), ylabel=escape_label(targets[1]), aspect="equal")
    seeds = describe_seeds({group.seeds[0] for group in setting.groups})
    when = f"Grams after round {setting.setup.settings.rounds}, {seeds}"
    axis.set_title(when, fontsize=7.5, loc="left")
    axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.15))
    axis.spines[["top", "right"]].set_visible(False)
