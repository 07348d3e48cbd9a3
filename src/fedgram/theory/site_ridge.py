"""Ridge regression on the rows of one site: the linear way to work alone.

With centered targets R and standardized inputs Z = U diag(d) Vᵀ of N rows, the map of strength γ is
V diag(d / (d² + γN)) Uᵀ R. Its error on a row that was left out of the fit is r_i / (1 - h_i), with residual
r and leverage h_i = Σ_k u_ik² f_k + 1/N, f = d² / (d² + γN). The strength with the least error is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.moment_head import LinearHead

STRENGTHS = (np.inf, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""The first is the mean of the targets. Ties go to the stronger."""


@dataclass(frozen=True, eq=False)
class SiteRidge:
    """Linear head on inputs minus `origin` (D,)."""

    head: LinearHead
    origin: Array

    def predict(self, inputs: Any) -> Array:
        """Predict targets (N, C) of inputs (N, D)."""
        return self.head.predict(np.asarray(inputs, float) - self.origin)


def fit_site_ridge(inputs: Any, targets: Any) -> SiteRidge:
    """Fit rows (N, D) and (N, C); leave-one-out chooses the strength.

    Examples
    --------
    >>> x = np.arange(12.0)[:, None]
    >>> ridge = fit_site_ridge(x, 2 * x + 1)
    >>> ridge.predict([[5.5], [100.0]]).round(1).tolist()
    [[12.0], [200.8]]
    """
    x, y = (np.asarray(each, float) for each in (inputs, targets))
    origin = x[0]
    x = x - origin  # a column that is constant at the site becomes exactly 0
    scale = x.std(axis=0)
    scale[scale == 0] = 1.0
    z, r = (x - x.mean(axis=0)) / scale, y - y.mean(axis=0)
    u, d, vt = np.linalg.svd(z, full_matrices=False)
    maps = [d / (d**2 + strength * len(x)) for strength in STRENGTHS]
    best = maps[int(np.argmin([_left_out_error(u, d * each, r) for each in maps]))] if len(x) > 2 else maps[0]
    weight = ((vt.T * best) @ (u.T @ r)).T / scale
    return SiteRidge(LinearHead(weight, y.mean(axis=0) - weight @ x.mean(axis=0)), origin)


def _left_out_error(u: Array, shrinkage: Array, r: Array) -> float:
    """Return Σ ‖r_i‖² / (1 - h_i)² of the residuals with this shrinkage f (K,) of the directions u (N, K)."""
    residual = r - (u * shrinkage) @ (u.T @ r)
    leverage = (u**2) @ shrinkage + 1 / len(u)
    return float(((residual / (1 - leverage)[:, None]) ** 2).sum())
