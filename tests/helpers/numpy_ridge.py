"""Ridge map of one model in NumPy, which `federation.ridge.fit_ridges` must agree with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram.federation.ridge import (
    DIRECTIONS,
    FEWEST_ROWS,
    INADMISSIBLE,
    NOISE_FREE,
    STANDARD_ERRORS,
    STRENGTHS,
)


@dataclass(frozen=True, eq=False)
class RidgeMap:
    """Map B (D, C) from centered inputs to centered targets.

    strength: κ as a fraction of the mean eigenvalue, inf for the trained map; share: how far a head should
    move from the trained to the solved one; is_exact: the rows are free of noise.
    """

    weight: Array
    strength: float
    share: float
    is_exact: bool


def fit_ridge(inputs: Array, targets: Array, start: Array) -> RidgeMap:
    """Choose the strength with the least leave-one-out error.

    Shapes: centered inputs (N, D), centered targets (N, C), trained map (D, C).
    """
    rows = len(inputs)
    gram, residual = inputs.T @ inputs, targets - inputs @ start
    mean = np.trace(gram) / len(gram) or 1.0
    least = kept = _row_errors(residual, np.full(rows, 1 / rows))
    change, strength, directions = np.zeros_like(start), np.inf, 0.0
    for each in STRENGTHS:
        found, leverage = _solve(inputs, gram, residual, each * mean)
        errors = _row_errors(residual - inputs @ found, leverage + 1 / rows)
        if errors.sum() < least.sum():
            least, change, strength = errors, found, each
        if each == DIRECTIONS:
            directions = leverage.sum()
    gain = kept - least if np.isfinite(kept).all() else np.zeros(rows)
    if rows < FEWEST_ROWS or not gain.sum() > STANDARD_ERRORS * np.sqrt(rows * gain.var()):
        change, strength = np.zeros_like(start), np.inf
    total, error = float((targets**2).sum()), float(least.sum())
    noise, signal = error / max(rows - directions, 1.0), (total - error) / max(directions, 1.0)
    share = 1 - noise / signal if signal > noise and rows >= FEWEST_ROWS else 0.0
    return RidgeMap(start + change, strength, float(share), error <= NOISE_FREE * total)


def _solve(inputs: Array, gram: Array, residual: Array, strength: float) -> tuple[Array, Array]:
    """Return (XᵀX + κ I)⁻¹ Xᵀ R (D, C) and leverages x_iᵀ (XᵀX + κ I)⁻¹ x_i (N,)."""
    system = gram + strength * np.eye(len(gram))
    change = np.linalg.solve(system, inputs.T @ residual)
    # A second pass recovers digits that squaring the inputs lost.
    rest = inputs.T @ (residual - inputs @ change) - strength * change
    leverage = np.einsum("nd,dn->n", inputs, np.linalg.solve(system, inputs.T))
    return change + np.linalg.solve(system, rest), leverage


def _row_errors(residual: Array, leverage: Array) -> Array:
    """Squared leave-one-out error of each row (N,); inf if a row is interpolated."""
    if (1 - leverage).min() < INADMISSIBLE:
        return np.full(len(residual), np.inf)
    return np.asarray(((residual / (1 - leverage)[:, None]) ** 2).sum(axis=1))
