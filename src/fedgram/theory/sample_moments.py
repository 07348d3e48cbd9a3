"""Mean and covariance (1/N) of a sample, and of two samples merged."""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array

SampleMoments = tuple[float, Array, Array]
"""N, μ (C,) and Σ (C, C)."""


def mean_and_covariance(targets: Array) -> tuple[Array, Array]:
    """Compute mean (C,) and covariance (1/N) (C, C) of rows (N, C).

    Center twice: the mean of many rows with a large offset is off by more than rounding.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # the caller rejects values that are not finite
        first = targets.mean(axis=0)
        centered = targets - first
        rest = centered.mean(axis=0)
        centered -= rest
        return first + rest, centered.T @ centered / len(targets)


def merge_samples(one: SampleMoments, other: SampleMoments) -> SampleMoments:
    """Merge two samples by Chan's update, from the larger one: its step rounds less."""
    (most, large, wide), (least, small, narrow) = (one, other) if one[0] >= other[0] else (other, one)
    total = most + least
    share, rest, step = least / total, most / total, small - large
    return total, large + share * step, rest * wide + share * narrow + share * rest * np.outer(step, step)
