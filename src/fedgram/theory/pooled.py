"""Moments of the pooled data: mean μ_g, Σ_within and Σ_μ, eqs. (3)-(5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.text import pluralize


@dataclass(frozen=True, eq=False)
class Pooled(DisplayMethods):
    """Moments of the pooled data, eqs. (3)-(5); read them from `Moments.pooled`.

    Parameters
    ----------
    mean
        μ_g, (..., C).
    within
        Σ_within = Σ_m p_m Σ_m, (..., C, C).
    between
        Σ_μ = Σ_m p_m d_m d_mᵀ with d_m = μ_m - μ_g, (..., C, C).

    Examples
    --------
    >>> from fedgram import Moments
    >>> moments = Moments(count=[50, 50], mean=[[0.0], [2.0]], covariance=[[[1.0]], [[3.0]]])
    >>> pooled = moments.pooled
    >>> pooled.mean.tolist(), pooled.within.tolist(), pooled.between.tolist()
    ([1.0], [[2.0]], [[1.0]])
    >>> pooled.covariance.tolist()
    [[3.0]]
    >>> pooled
    Pooled(1 target)
    >>> print(pooled.summary())
    Share of the pooled variance that is due to different client means: target 1 33%.
    """

    mean: Array
    within: Array
    between: Array

    def __repr__(self) -> str:
        return f"Pooled({pluralize(self.mean.shape[-1], 'target')})"

    @property
    def covariance(self) -> Array:
        """Σ_cen = Σ_within + Σ_μ, eq. (5), (..., C, C)."""
        return self.within + self.between

    @property
    def deviation(self) -> Array:
        """Pooled standard deviation of each target, (..., C)."""
        return np.sqrt(np.einsum("...ii->...i", self.covariance))
