"""Figure 5: errors of returned heads against the proximal weight, in six sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import BLUE, GREY, INK, ORANGE, RED
from fedgram.paper.columns import concatenated
from fedgram.paper.experiment import Results
from fedgram.paper.style import guide, median_band, panels
from fedgram.paper.tables import Table

SLOT = 10**-6.6  # where ρ = 0 stands, left of the axis break
BREAK = 10**-6.15
FLOOR = 1e-8  # exact optima, at 1e-15, are drawn here: eight empty decades would hide the quartiles


def by_size(results: Results) -> dict[tuple[int, int], Table]:
    """The parts of each size (C, P) as one table, smallest size first."""
    sizes: dict[tuple[int, int], list[Table]] = {}
    for name, table in results.items():
        if name != "redraws":
            sizes.setdefault((int(table["targets"][0]), int(table["width"][0])), []).append(table)
    return {size: concatenated(sizes[size]) for size in sorted(sizes)}


def by_weight(table: Table, name: str) -> tuple[Array, Array]:
    """Weights (W,), largest first, and a column of proximal training at each, (instances, W)."""
    chosen = table["kind"] == "proximal"
    weights = np.unique(table["weight"][chosen])[::-1]
    return weights, table[name][chosen].reshape(-1, len(weights))


def at_zero(table: Table, kind: str, name: str) -> Array:
    """A column over all heads of one kind returned at ρ = 0, (instances x starts,)."""
    return table[name][table["kind"] == kind]


def draw(results: Results) -> Any:
    """Draw one panel for each size."""
    figure, axes = panels(2, 3, (10, 6), sharex=True, sharey=True)
    for axis, ((targets, width), table) in zip(axes, by_size(results).items(), strict=True):
        _path(axis, table)
        _zero_slot(axis, table)
        axis.set_title(f"$C={targets}$, $P={width}$")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    for axis in axes[3:]:
        axis.set_xlabel(r"$\rho$")
    for axis in axes[::3]:
        axis.set_ylabel("relative error")
    return figure


def _path(axis: Any, table: Table) -> None:
    for name, marker, colour, label in (
        ("gram_error", "o", BLUE, r"$e_G(\rho)$"),
        ("selection_error", "s", ORANGE, r"$e_\Pi(\rho)$"),
    ):
        weights, errors = by_weight(table, name)
        median_band(axis, weights, errors.T, colour, marker=marker, ms=2.5, lw=0.8, label=label)
    guide(axis, weights, (1e-3, 2e-5), 1, ls="-", label="slope one")
    axis.set(xscale="log", yscale="log", xlim=(SLOT / 2.5, 2), ylim=(FLOOR, 5))


def _zero_slot(axis: Any, table: Table) -> None:
    """What is returned at ρ = 0, left of a break in the axis: medians, for L-BFGS with quartiles."""
    exact = np.median(at_zero(table, "exact", "gram_error"))
    low, free, high = np.quantile(at_zero(table, "L-BFGS", "selection_error"), (0.25, 0.5, 0.75))
    label = r"exact optima, $e_G$ (drawn at the floor)"
    axis.plot([SLOT], [np.maximum(exact, FLOOR)], "o", color=INK, ms=5, ls="", clip_on=False, label=label)
    axis.errorbar([SLOT], [free], [[free - low], [high - free]], fmt="s", color=RED, ms=4.5, lw=1,
                  label=r"L-BFGS from random starts, $e_\Pi$")  # fmt: skip
    axis.axvline(BREAK, color=GREY, lw=0.7, ls=(0, (2, 2)))
    axis.set_xticks([SLOT, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1], ["0", *(f"$10^{{{k}}}$" for k in range(-5, 1))])
    axis.minorticks_off()
