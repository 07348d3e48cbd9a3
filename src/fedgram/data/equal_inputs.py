"""Rows with equal inputs, for which a network predicts the same: what it can reach of their targets."""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array


def attainable_targets(inputs: Array, targets: Array) -> Array:
    """Targets (N, C) with those of rows that have equal inputs (N, ...) replaced by their mean.

    Inputs are equal if single precision does not tell them apart, in which networks see them.
    """
    wide = inputs.dtype.kind == "f" or inputs.dtype.itemsize > 2
    rows = inputs.astype(np.float32) + 0 if wide else inputs  # -0 becomes 0
    rows = np.ascontiguousarray(rows.reshape(len(rows), -1))
    _, group, count = np.unique(
        rows.view(f"V{rows.itemsize * rows.shape[1]}"), return_inverse=True, return_counts=True
    )
    group = group.ravel()
    sums = np.zeros((len(count), targets.shape[1]))
    np.add.at(sums, group, targets)
    return sums[group] / count[group, None]


def unattainable_part(inputs: Array, targets: Array) -> float:
    """The part of the variance of targets (N, C) that lies within rows with equal inputs (N, ...)."""
    missed = targets - attainable_targets(inputs, targets)
    return float((missed**2).sum() / ((targets - targets.mean(axis=0)) ** 2).sum())
