"""Measure how far the first round of local training has come.

The prediction assumes that client m returns the head Π_m(W_t) that it selects at the broadcast W_t: its local
optimum closest to W_t. A round of few epochs ends earlier, at the returned head W̃_m. The share of the way is

    1 - ‖W̃_m - Π_m(W_t)‖_F / ‖W_t - Π_m(W_t)‖_F,

and zero or less for a head that left W_t in another direction. All rotations of Π_m(W_t) are local optima.
The distance to the nearest of them is the Bures–Wasserstein distance of W̃_m W̃_mᵀ from G_m. It replaces the
numerator in the share of the way to any optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import escape_text
from fedgram.runs.procedure import Procedure
from fedgram.theory.geometry import psd

NAMED = 10  # clients that one sentence names, those that have come least far
# Difference of both shares, at the median client, from which a rotation is worth a sentence.
ROTATED = 0.2


@dataclass(frozen=True, eq=False)
class LocalProgress:
    """Shares (M,) of the way from the broadcast to the selected head, and to the nearest local optimum."""

    to_selected: Array
    to_optimum: Array


def has_selected_heads(procedure: Procedure) -> bool:
    """Whether the clients of a procedure return heads that the prediction names."""
    return not (procedure.full_model or procedure.local or procedure.centralized)


def measure_progress(broadcast: Array, returned: Array, grams: Array) -> LocalProgress:
    """Compute the shares for broadcast (C, P), returned (M, C, P) and the local optima's Grams (M, C, C)."""
    selected = psd.closest_factor(broadcast, grams)
    way = psd.frobenius(broadcast - selected)
    to_selected = psd.frobenius(returned - selected)
    to_optimum = psd.distance(psd.gram(returned), grams)
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN or -inf if the broadcast is optimal
        return LocalProgress(1 - to_selected / way, 1 - to_optimum / way)


def describe_progress(name: str, clients: Sequence[str], runs: Sequence[LocalProgress]) -> str:
    """Describe the progress of a procedure's runs, averaged over seeds."""
    share = np.mean([run.to_selected for run in runs], axis=0)
    order = np.argsort(share, kind="stable")
    listed = ", ".join(f"{escape_text(clients[m])} {_percent(share[m])}" for m in order[:NAMED])
    more = f", {len(clients) - NAMED} more up to {_percent(share[order[-1]])}" if len(clients) > NAMED else ""
    nearest = float(np.median(np.mean([run.to_optimum for run in runs], axis=0)))
    rotated = (
        f" Returned heads came {_percent(nearest)} of the way to a local optimum (median), but not to the "
        "selected one: they rotated. Returning them 'aligned' undoes that."
        if nearest - max(0.0, float(np.median(share))) > ROTATED
        else ""
    )
    return (
        f"{name}: progress of local training in round 1 from the broadcast head to the selected one: "
        f"{listed}{more}. The prediction assumes 100 %.{rotated}"
    )


def _percent(share: float) -> str:
    """Format a share in percent, rounded down, so that only what has arrived shows 100 %."""
    return "unknown" if not np.isfinite(share) else f"{max(0, int(100 * share))} %"
