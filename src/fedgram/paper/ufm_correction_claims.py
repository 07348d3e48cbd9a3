"""One-round recovery by the moment correction (Appendix D.5): numbers for its claims.

Plateaus are held against 16 other groups of 32 instances of each size, numbers of the one fixed instance
against 32 others of its kind.
"""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.claims import ROUNDING, Measured
from fedgram.paper.columns import extent
from fedgram.paper.experiment import Results
from fedgram.paper.style import log_slope
from fedgram.paper.tables import Table
from fedgram.ufm.instances import BARYCENTER_SIZES

PER_SIZE, IDENTITIES, REDRAWN = 32, 512, 32  # instances of each size, of eq. (13), and beside the fixed one

DEFICITS = [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 0.0]
"""1 - γ: no correction first, then the scaled ones, the full one last."""

FIXED = {
    "correction-fixed-error": (1.0, "error"),
    "correction-half-error": (0.5, "error"),
    "correction-half-heads": (0.5, "head_distance"),
}
"""Claims that depend on the draw of the fixed instance: strength γ and column."""


def measure(results: Results) -> dict[str, Measured]:
    """Numbers for the claims about the correction."""
    return (
        _recovery(errors_of(results["rounds"]), results["gap_redraws"]["relative"])
        | _noncommuting(results["commutators"]["commutator"])
        | _returns(results["returns"], float(errors_of(results["rounds"])[:, -1, 1].max()))
        | _fixed(results["fixed"], results["fixed_redraws"])
        | _identities(results["identities"])
    )


def errors_of(table: Table) -> Array:
    """Errors to G_cen as (sizes, deficits, rounds, instances)."""
    rounds = int(table["round"].max()) + 1
    return table["error"].reshape(len(BARYCENTER_SIZES), len(DEFICITS), rounds, -1)


def _recovery(errors: Array, redrawn_gaps: Array) -> dict[str, Measured]:
    """Where the medians settle: at the gap without correction, in proportion to the deficit with it."""
    sizes, _, _, instances = errors.shape
    settled, run = np.median(errors[:, :, -1], axis=-1), sizes * instances
    redrawn = np.median(redrawn_gaps.reshape(sizes, -1, instances), axis=-1)
    spread = extent(redrawn.min(axis=0)), extent(redrawn.max(axis=0))
    slopes = np.array([log_slope(np.array(DEFICITS[1:-1]), left) for left in settled[:, 1:-1]])
    return {
        "correction-instances": _of_all(run, run),
        "correction-plateau": _of_all(extent(settled[:, 0]), run, spread),
        "correction-deficit-slope": _of_all(extent(slopes), run),
    }


def _noncommuting(commutator: Array) -> dict[str, Measured]:
    return {"correction-noncommuting": _of_all(bool((commutator > ROUNDING).all()), len(commutator))}


def _returns(table: Table, shared_error: float) -> dict[str, Measured]:
    """The first corrected round: one head for all clients, the pooled mean, and G_cen."""
    error, head, bias = (float(table[name].max()) for name in ("error", "head", "bias"))
    run = len(table["error"])
    return {
        "correction-one-round": _of_all(max(error, shared_error), run),
        "correction-heads": _of_all(head, run),
        "correction-bias": _of_all(bias, run),
    }


def _of_all(
    value: float | tuple[float, float], run: int, spread: tuple[tuple[float, float], ...] = ()
) -> Measured:
    """A number over all instances of the six sizes."""
    return Measured(value, spread, run, needed=len(BARYCENTER_SIZES) * PER_SIZE)


def _fixed(table: Table, redraws: Table) -> dict[str, Measured]:
    """Numerical solves of the full and of half the correction."""
    # How far the returned heads differ is the solver's accuracy, not the draw's: it has no spread.
    full = table["strength"] == 1.0
    measured = {"correction-fixed-heads": Measured(float(table["head_distance"][full][0]))}
    for claim, (strength, column) in FIXED.items():
        ours, others = (each[column][each["strength"] == strength] for each in (table, redraws))
        measured[claim] = Measured(float(ours[0]), (extent(others),), run=len(others), needed=REDRAWN)
    return measured


def _identities(table: Table) -> dict[str, Measured]:
    """The corrected profile is the pooled one, in value and in gradient."""
    value, gradient, run = float(table["value"].max()), float(table["gradient"].max()), len(table["value"])
    return {
        "correction-identities": Measured(run, run=run, needed=IDENTITIES),
        "correction-identity-value": Measured(value, run=run, needed=IDENTITIES),
        "correction-identity-gradient": Measured(gradient, run=run, needed=IDENTITIES),
    }
