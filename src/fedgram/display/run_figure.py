"""The picture of trained runs: errors to their targets over rounds, and Grams measured and predicted."""

from __future__ import annotations

from collections.abc import Sequence
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
    figure_suffix,
    mean_band,
    pyplot,
    render,
)
from fedgram.runs.compare import Comparison, Group

GRAM_COLOURS = {"G_star": GREEN, "G_cen": INK}


def draw_comparison(settings: Sequence[Comparison], path: str | Path) -> None:
    """Draw settings, one in a row; write png, svg or pdf."""
    suffix = figure_suffix(path)
    write_bytes(path, render(comparison(settings), suffix))


def comparison(settings: Sequence[Comparison]) -> Any:
    """The figure of settings, one in a row."""
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
    """Mean ± sample deviation over seeds; dotted, the exact recursion from the same starts."""
    floor = 0.5 * min(group.errors.min() for group in setting.groups)
    for group, colour in zip(setting.groups, _colours(setting), strict=True):
        rounds, label = np.arange(group.errors.shape[1]), f"{setting.label(group)}, to {group.target}"
        mean_band(axis, rounds, group.errors.T, colour, marker="o", ms=3.5, label=label)
        predicted = np.maximum(group.predicted_errors.mean(axis=0), 0.1 * floor)  # leaves at the bottom
        axis.plot(rounds, predicted, color=colour, ls=":", lw=1)
    axis.plot([], [], color="0.4", ls=":", lw=1, label="exact recursion")
    axis.set(yscale="log", ylim=(floor, None), xlabel="round", ylabel="relative error of the Gram")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_title(f"{setting.title}\n{setting.scale}", fontsize=7.5, loc="left")
    axis.legend(fontsize=7, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_grams(axis: Any, setting: Comparison) -> None:
    """The first two target coordinates of Grams: predicted ones wide and pale, each first seed's on them."""
    first, targets = setting.groups[0].runs[0], setting.setup.data.targets
    ends = {group.target: group.runs[0].expected.gram for group in setting.groups}
    for name, gram in ({"G_cen": first.prediction.centralized} | ends).items():
        colour = GRAM_COLOURS.get(name, PALE)
        axis.plot(*ellipse(gram[:2, :2]), color=colour, lw=5, alpha=0.25, label=f"predicted {name}")
    for group, colour in zip(setting.groups, _colours(setting), strict=True):
        axis.plot(*ellipse(group.runs[0].grams[-1][:2, :2]), color=colour, lw=1.2, ls=_dashes(group))
    axis.set(xlabel=targets[0], ylabel=targets[1], aspect="equal")
    seeds = describe_seeds({group.seeds[0] for group in setting.groups})
    when = f"Grams after round {setting.setup.settings.rounds}, {seeds}"
    axis.set_title(when, fontsize=7.5, loc="left")
    axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.15))
    axis.spines[["top", "right"]].set_visible(False)


def _dashes(group: Group) -> str:
    """Dashed for what is meant to end at the centralized Gram."""
    return "--" if group.target == "G_cen" else "-"


def _colours(setting: Comparison) -> list[str]:
    return [PALETTE[number % len(PALETTE)] for number in range(len(setting.groups))]
