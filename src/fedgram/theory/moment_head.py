"""Ridge head of pooled training, from sums over sites.

With u the output of a shared backbone (D numbers) and y the targets (C numbers), every site sends

    n, Σu, Σy, Σuuᵀ, Σuyᵀ, Σyyᵀ

over its rows: the upper triangle of Σzzᵀ with z = (1, u, y). The totals give the ridge head of the pooled
rows, eq. (B6), whatever the partition, and the squared error of any head on them. Only totals are needed, so
the exchange can run under secure aggregation.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np

from fedgram._util.arrays import Array, as_finite_array, as_float, outer
from fedgram._util.errors import InputError
from fedgram.theory.geometry.psd import symmetric


@dataclass(frozen=True, eq=False)
class LinearHead:
    """Predict y = weight u + bias.

    Parameters
    ----------
    weight : array (..., C, D)
    bias : array (..., C)
    """

    weight: Array
    bias: Array

    def predict(self, features: Array) -> Array:
        """Predict targets (..., N, C) of features (..., N, D)."""
        return features @ self.weight.mT + self.bias[..., None, :]

    def __getitem__(self, site: Any) -> LinearHead:
        """Select the head of a site, if there are leading axes."""
        return LinearHead(self.weight[site], self.bias[site])


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """Sums of features u and targets y over the rows of a site, with leading axes for several sites.

    Parameters
    ----------
    count : array (...,)
        Number of rows n.
    features : array (..., D)
        Σu.
    targets : array (..., C)
        Σy.
    features_features : array (..., D, D)
        Σuuᵀ.
    features_targets : array (..., D, C)
        Σuyᵀ.
    targets_targets : array (..., C, C)
        Σyyᵀ.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram.theory.moment_head import FeatureSums
    >>> rng = np.random.default_rng(0)
    >>> u = rng.standard_normal((50, 3))
    >>> y = u @ np.array([[1.0], [2.0], [0.0]]) + 4.0
    >>> parts = [FeatureSums.from_rows(u[:20], y[:20]), FeatureSums.from_rows(u[20:], y[20:])]
    >>> sites = FeatureSums.stack(parts)
    >>> head = sites.total().ridge(0.0)
    >>> (head.weight.round(6) + 0.0).tolist(), head.bias.round(6).tolist()
    ([[1.0, 2.0, 0.0]], [4.0])
    """

    count: Array
    features: Array
    targets: Array
    features_features: Array
    features_targets: Array
    targets_targets: Array

    @classmethod
    def from_rows(cls, features: Any, targets: Any) -> FeatureSums:
        """Sum over rows: features (N, D), targets (N, C), both converted to double precision."""
        u, y = as_finite_array(features, "features"), as_finite_array(targets, "targets")
        if u.ndim != 2 or y.ndim != 2 or len(u) != len(y):
            raise InputError(
                f"features and targets must have shapes (N, D) and (N, C), not {u.shape} and {y.shape}.",
                field="features",
            )
        return cls(np.array(float(len(u))), u.sum(0), y.sum(0), u.T @ u, u.T @ y, y.T @ y)

    @classmethod
    def from_triangle(cls, triangle: Array, targets: int) -> FeatureSums:
        """Read what `to_triangle` returned for C targets."""
        size = (isqrt(8 * triangle.shape[-1] + 1) - 1) // 2
        rows, columns = np.triu_indices(size)
        matrix = np.empty((*triangle.shape[:-1], size, size))
        matrix[..., rows, columns] = matrix[..., columns, rows] = triangle
        u, y = slice(1, size - targets), slice(size - targets, size)
        parts = ((0, 0), (0, u), (0, y), (u, u), (u, y), (y, y))
        return cls(*(matrix[..., row, column] for row, column in parts))

    @classmethod
    def stack(cls, sites: list[FeatureSums]) -> FeatureSums:
        """Put the sums of several sites along a new first axis."""
        return cls(*(np.stack(parts) for parts in zip(*(vars(site).values() for site in sites), strict=True)))

    def total(self) -> FeatureSums:
        """Sum over the first axis: all that the server needs."""
        return FeatureSums(*(part.sum(axis=0) for part in vars(self).values()))

    def __add__(self, other: FeatureSums) -> FeatureSums:
        """Add the sums over other rows of the same sites."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return FeatureSums(*(first + second for first, second in pairs))

    def __getitem__(self, site: Any) -> FeatureSums:
        return FeatureSums(*(part[site] for part in vars(self).values()))

    @property
    def matrix(self) -> Array:
        """Σzzᵀ with z = (1, u, y), (..., 1 + D + C, 1 + D + C)."""
        n, u, y = self.count[..., None, None], self.features[..., None, :], self.targets[..., None, :]
        uy = self.features_targets
        return np.block(
            [
                [n, u, y],
                [u.mT, self.features_features, uy],
                [y.mT, uy.mT, self.targets_targets],
            ]
        )

    def to_triangle(self) -> Array:
        """Return the upper triangle of the matrix: every sum once, (1 + D + C)(2 + D + C)/2 numbers."""
        matrix = self.matrix
        rows, columns = np.triu_indices(matrix.shape[-1])
        return np.asarray(matrix[..., rows, columns])

    @property
    def feature_mean(self) -> Array:
        """Mean features ū (..., D); zero for a site without rows."""
        return self.features / np.maximum(self.count, 1)[..., None]

    @property
    def target_mean(self) -> Array:
        """Mean targets ȳ (..., C); zero for a site without rows."""
        return self.targets / np.maximum(self.count, 1)[..., None]

    @property
    def feature_scatter(self) -> Array:
        """Σ(u - ū)(u - ū)ᵀ, (..., D, D)."""
        mean = self.feature_mean
        return symmetric(self.features_features - outer(self.features, mean))

    @property
    def cross_scatter(self) -> Array:
        """Σ(u - ū)(y - ȳ)ᵀ, (..., D, C)."""
        return self.features_targets - outer(self.features, self.target_mean)

    def ridge(self, strength: float, toward: Array | float = 0.0) -> LinearHead:
        """Solve min Σ‖y - W u - b‖² + strength · n · Σ_d s_d² ‖W_d - V_d‖², with s_d the deviation of u_d.

        The penalty is invariant to the scale of every feature; the bias is not penalized. `toward` is V
        (C, D). Directions without variance keep its weight.

        Raises
        ------
        InputError
            If the strength is negative or there are no rows.
        """
        if not 0 <= as_float(strength) < np.inf:
            raise InputError(f"strength must be a number of 0 or more, not {strength}.", field="strength")
        if not (self.count > 0).all():
            raise InputError("The moment head needs at least one row.", field="count")
        shape = (*self.targets.shape, self.features.shape[-1])
        scatter, toward = self.resolved_scatter(), np.broadcast_to(toward, shape)
        missing = self.cross_scatter - self.feature_scatter @ toward.mT
        weight = toward + solve_scaled(scatter, missing, strength).mT
        return LinearHead(weight, self.fit_bias(weight))

    def moment_head(self, noise_ratio: float, toward: Array | float = 0.0) -> LinearHead:
        """Solve the ridge head for a given ratio of the variance of the noise to that of the signal.

        The strength is ratio · D / n. It is optimal if the D features are uncorrelated and their scaled
        weights, less those of `toward`, are drawn independently with equal variance.
        """
        return self.ridge(noise_ratio * self.features.shape[-1] / float(self.count), toward)

    def resolved_scatter(self) -> Array:
        """Return the feature scatter, with variance 0 for features whose variance is a rounding error."""
        scatter = self.feature_scatter
        variance = np.einsum("...ii->...i", scatter)  # a view
        # n eps bounds the error of a sum of n squares; constant features had a quarter (5 to 100,000 rows)
        rounding = (
            np.finfo(float).eps * self.count[..., None] * np.einsum("...ii->...i", self.features_features)
        )
        variance[variance <= rounding] = 0.0
        return scatter

    def fit_bias(self, weight: Array) -> Array:
        """Return the bias (..., C) with the least squared error for weight W (..., C, D): ȳ - W ū."""
        return self.target_mean - (weight @ self.feature_mean[..., None])[..., 0]

    def residual_mean(self, head: LinearHead) -> Array:
        """Mean of y - W u - b, (..., C)."""
        return self.fit_bias(head.weight) - head.bias

    def squared_error(self, head: LinearHead) -> Array:
        """Σ(y - W u - b)² of each target, (..., C), from the sums alone."""
        cross = head.weight @ self.cross_scatter
        scatter = symmetric(self.targets_targets - outer(self.targets, self.target_mean))
        around = scatter - cross - cross.mT + head.weight @ self.feature_scatter @ head.weight.mT
        mean = self.residual_mean(head)
        return np.maximum(np.einsum("...ii->...i", around), 0.0) + self.count[..., None] * mean**2


def solve_scaled(scatter: Array, cross: Array, strength: float | Array) -> Array:
    """Solve (S + strength · diag S) X = cross for scatter S (..., D, D) and cross (..., D, C).

    Features are scaled to unit variance first. Eigenvalues below D eps of the largest are dropped, so that
    repeated or constant features cost nothing.
    """
    # rounding can make the variance of a constant feature negative
    scale = np.sqrt(np.maximum(np.einsum("...ii->...i", scatter), 0.0))
    inverse = np.divide(
        1.0, scale, out=np.zeros_like(scale), where=scale > 1e-12 * scale.max(-1, keepdims=True)
    )
    correlation = scatter * inverse[..., :, None] * inverse[..., None, :]
    values, basis = np.linalg.eigh(symmetric(correlation))
    floor = scatter.shape[-1] * np.finfo(float).eps * values[..., -1:]
    gains = np.divide(1.0, values + strength, out=np.zeros_like(values), where=values > floor)
    solution = basis @ (gains[..., None] * (basis.mT @ (inverse[..., None] * cross)))
    return inverse[..., None] * solution
