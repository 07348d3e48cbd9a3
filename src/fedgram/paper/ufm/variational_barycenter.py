"""Barycenter of 2 x 2 Grams by minimization, eq. (10)."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize, root

from fedgram._util.arrays import Array
from fedgram.theory.geometry import psd


def variational_barycenter(grams: Array, client_weights: Array) -> Array:
    """argmin Σ p_m d²(L Lᵀ, G_m) over lower-triangular L, eq. (10), for grams (M, 2, 2) -> (2, 2).

    Independent of `barycenter`: a 2 x 2 matrix has tr X^(1/2) = (tr X + 2 √det X)^(1/2), which gives
    d²(G, G_m) = tr G + tr G_m - 2 r_m with r_m² = tr G_m G + 2 √(det G_m det G).
    """
    root_determinants = np.sqrt(np.linalg.det(grams))

    def factor(point: Array) -> Array:
        return np.array([[point[0], 0.0], [point[1], point[2]]])

    def fidelity(point: Array) -> Array:
        inner = np.einsum("ij,mik,kj->m", factor(point), grams, factor(point))
        return np.sqrt(inner + 2 * root_determinants * point[0] * point[2])

    def value(point: Array) -> float:
        return float(client_weights @ (point @ point + psd.trace(grams) - 2 * fidelity(point)))

    def gradient(point: Array) -> Array:
        cofactor = np.diag([point[2], point[0]])
        pull = grams @ factor(point) + root_determinants[:, None, None] * cofactor
        slope = factor(point) - np.einsum("m,mij->ij", client_weights / fidelity(point), pull)
        return 2 * slope[np.tril_indices(2)]

    found = minimize(value, np.array([1.0, 0.0, 1.0]), jac=gradient, method="BFGS")
    # The value resolves a minimizer to √eps only; the root of the gradient has all digits.
    return psd.gram(factor(root(gradient, found.x, tol=1e-15).x))
