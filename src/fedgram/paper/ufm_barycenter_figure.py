"""Figure 6: error of the shared Gram to the barycenter over rounds, in six sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import INK, RED
from fedgram.paper.columns import concatenated
from fedgram.paper.experiment import Results
from fedgram.paper.style import panels, shades
from fedgram.paper.tables import Table


def by_size(results: Results) -> dict[tuple[int, int], Table]:
    """The parts of each size (C, M) as one table, smallest size first."""
    sizes: dict[tuple[int, int], list[Table]] = {}
    for table in results.values():
        sizes.setdefault((int(table["targets"][0]), int(table["clients"][0])), []).append(table)
    return {size: concatenated(sizes[size]) for size in sorted(sizes)}


def median_curve(table: Table, procedure: str, weight: float = 0.0) -> Array:
    """Median error over instances after rounds 0..T of one procedure, (T + 1,)."""
    chosen = (table["procedure"] == procedure) & (table["weight"] == weight)
    rounds = np.unique(table["round"])
    return np.array([np.median(table["error"][chosen & (table["round"] == t)]) for t in rounds])


def draw(results: Results) -> Any:
    """Draw one panel for each size."""
    figure, axes = panels(2, 3, (10, 6), sharex=True, sharey=True)
    for axis, ((targets, clients), table) in zip(axes, by_size(results).items(), strict=True):
        _curves(axis, table)
        axis.set_title(f"$C={targets}$, $M={clients}$")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=8)
    for axis in axes[3:]:
        axis.set_xlabel("round")
    for axis in axes[::3]:
        axis.set_ylabel(r"relative error to $G_{\bigstar}$")
    return figure


def _curves(axis: Any, table: Table) -> None:
    """Dashed: exact selection. Circles: proximal returns. Red squares: unregularised joint training."""
    rounds = np.unique(table["round"])
    if "adam" in table["procedure"]:
        axis.plot(rounds, median_curve(table, "adam"), "s-", color=RED, label=r"Adam, $\rho=0$")
        weights = np.unique(table["weight"][table["procedure"] == "proximal"])[::-1]
        for weight, colour in zip(weights, shades("viridis", len(weights)), strict=True):
            label = rf"$\rho=10^{{{round(np.log10(weight))}}}$"
            axis.plot(rounds, median_curve(table, "proximal", weight), "o-", color=colour, label=label)
    axis.plot(rounds, median_curve(table, "exact"), "--", color=INK, label="exact selection")
    axis.set(yscale="log", ylim=(1e-16, 20), xticks=range(0, 19, 3))
