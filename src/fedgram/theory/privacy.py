"""How a client's moments were made differentially private.

A private client clips its targets to bounds, maps them to [-1, 1] and releases Σy/N and Σyyᵀ/N once. The
noise is normal, with standard deviation s = 2σ/N in means, and σ/N in squares (off the diagonal σ/(√2 N)).
The covariance is

    Σyyᵀ/N - (Σy/N)(Σy/N)ᵀ + s² I,

projected to the semidefinite matrices; s² I is what the noise of the mean takes away on average.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgram._util.arrays import Array, as_float, as_float_array, outer
from fedgram._util.errors import InputError
from fedgram.theory.geometry import psd

MEAN_WEIGHT = 0.5
"""Factor of Σy in the released sums. The gap is less sensitive to means than to covariances."""


@dataclass(frozen=True, eq=False)
class Privacy:
    """How the moments of a client were made private.

    Parameters
    ----------
    epsilon, delta
        Two datasets that differ in one row are told apart with (ε, δ) at most.
    bounds
        Low and high bound of each target, (C, 2); targets were clipped to them.
    noise
        Standard deviation σ of the noise in the sums Σy/2 and Σyyᵀ of targets mapped to [-1, 1].

    Examples
    --------
    >>> from fedgram.theory.privacy import Privacy
    >>> Privacy(epsilon=1.0, delta=1e-6, bounds=[[0.0, 10.0]], noise=9.0).half_width.tolist()
    [5.0]
    """

    epsilon: float
    delta: float
    bounds: Array
    noise: float

    def __post_init__(self) -> None:
        bounds = as_float_array(self.bounds, "bounds")
        if bounds.ndim != 2 or bounds.shape[1] != 2 or not np.isfinite(bounds).all():
            raise InputError("bounds must be a finite low and high bound for each target.", field="bounds")
        if not (bounds[:, 0] < bounds[:, 1]).all():
            raise InputError("Every low bound must be below its high bound.", field="bounds")
        if not 0 < as_float(self.epsilon) < np.inf:
            raise InputError(f"epsilon must be a positive number, not {self.epsilon}.", field="epsilon")
        if not 0 < as_float(self.delta) < 1:
            raise InputError(f"delta must be between 0 and 1, not {self.delta}.", field="delta")
        if not 0 <= as_float(self.noise) < np.inf:
            raise InputError(f"noise must be a number of 0 or more, not {self.noise}.", field="noise")
        object.__setattr__(self, "bounds", bounds)

    @property
    def center(self) -> Array:
        """Middle of the bounds, (C,)."""
        return self.bounds.mean(axis=1)

    @property
    def half_width(self) -> Array:
        """Half the distance of the bounds, (C,)."""
        return 0.5 * (self.bounds[:, 1] - self.bounds[:, 0])

    def scaled(self, scale: Array) -> Privacy:
        """Divide each target by its scale, (C,)."""
        return replace(self, bounds=self.bounds / scale[:, None])

    def reordered(self, order: list[int]) -> Privacy:
        """Select targets by number."""
        return replace(self, bounds=self.bounds[order])

    def document(self) -> dict[str, Any]:
        """Convert to the JSON object of a moments file."""
        return vars(self) | {"bounds": self.bounds.tolist()}

    def to_moments(self, mean: Array, second: Array, count: float) -> tuple[Array, Array]:
        """Compute mean (..., C) and covariance (..., C, C) from noisy Σy/N and Σyyᵀ/N of mapped targets."""
        variance = (self.noise / MEAN_WEIGHT / count) ** 2
        covariance = second - outer(mean, mean) + variance * np.eye(mean.shape[-1])
        projected = psd.spectral(lambda values: np.maximum(values, 0.0), psd.symmetric(covariance))
        unit = self.half_width
        return self.center + unit * mean, unit[:, None] * projected * unit
