"""Rows with equal inputs, whose targets no network can tell apart."""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array


def average_equal_inputs(inputs: Array, targets: Array) -> Array:
    """Replace targets (N, C) by their mean over rows with equal inputs (N, ...).

    Inputs are compared in single precision, as networks receive them.
    """
    is_wide = inputs.dtype.kind == "f" or inputs.dtype.itemsize > 2
    rows = inputs.astype(np.float32) + 0 if is_wide else inputs  # + 0 turns -0 into 0
    rows = np.ascontiguousarray(rows.reshape(len(rows), -1))
    _, group, count = np.unique(
        rows.view(f"V{rows.itemsize * rows.shape[1]}"), return_inverse=True, return_counts=True
    )
    group = group.ravel()
    sums = np.zeros((len(count), targets.shape[1]))
    np.add.at(sums, group, targets)
    return sums[group] / count[group, None]


def unattainable_fraction(inputs: Array, targets: Array) -> float:
    """Fraction of the variance of targets (N, C) within rows that have equal inputs (N, ...)."""
    residual = targets - average_equal_inputs(inputs, targets)
    return float((residual**2).sum() / ((targets - targets.mean(axis=0)) ** 2).sum())
