"""Figure 8: error of the shared Gram to G_cen over rounds, with and without the moment correction."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import INK, RED
from fedgram.paper.experiment import Results
from fedgram.paper.style import panels, shades
from fedgram.paper.ufm_correction_claims import DEFICITS, errors_of
from fedgram.ufm.instances import BARYCENTER_SIZES

FLOOR = 1e-16


def draw(results: Results) -> Any:
    """Draw one panel per problem size: columns for C, rows for M."""
    errors = np.maximum(np.median(errors_of(results["rounds"]), axis=-1), FLOOR)
    figure, axes = panels(2, 3, (9.5, 5), sharex=True, sharey=True)
    by_targets = axes.reshape(2, 3).T.ravel()
    for axis, (targets, clients), curves in zip(by_targets, BARYCENTER_SIZES, errors, strict=True):
        _draw_recovery(axis, curves)
        axis.set_title(f"$C={targets}$, $M={clients}$")
    for axis in axes[3:]:
        axis.set(xlabel="round $t$", xticks=range(0, errors.shape[-1], 3))
    for axis in axes[::3]:
        axis.set_ylabel(r"$\|G_t-G_{\rm cen}\|_F\,/\,\|G_{\rm cen}\|_F$")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    return figure


def _draw_recovery(axis: Any, curves: Array) -> None:
    """Curves (deficits, rounds): none red, full dashed, and the scaled corrections between them."""
    rounds = np.arange(curves.shape[-1])
    none, *scaled, full = curves
    axis.plot(rounds, none, "s-", color=RED, label="no correction")
    for deficit, curve, colour in zip(DEFICITS[1:-1], scaled, shades("viridis", len(scaled)), strict=True):
        axis.plot(rounds, curve, "o-", color=colour, label=rf"$1-\gamma=10^{{{np.log10(deficit):.0f}}}$")
    axis.plot(rounds, full, "--", color=INK, label=r"full, $\gamma=1$")
    axis.set(yscale="log", ylim=(FLOOR / 3, 30))
