"""Random problems with known structure, shared by the tests."""

from __future__ import annotations

import mpmath
import numpy as np

from fedgram import Moments
from fedgram.theory.geometry import psd


def rotations(rng, *shape, size):
    """Random orthogonal matrices (*shape, size, size)."""
    return np.linalg.qr(rng.standard_normal((*shape, size, size)))[0]


def covariances(rng, *shape, size, low=0.3, high=3.0):
    """Randomly rotated covariances with eigenvalues uniform in [low, high]."""
    basis = rotations(rng, *shape, size=size)
    values = rng.uniform(low, high, (*shape, size))
    matrix = (basis * values[..., None, :]) @ np.swapaxes(basis, -1, -2)
    return 0.5 * (matrix + np.swapaxes(matrix, -1, -2))


def random_moments(rng, clients=4, size=3, batch=(), low=0.3, high=3.0):
    """Moments of random clients with uneven weights."""
    return Moments(
        count=np.full(clients, 50),
        mean=rng.standard_normal((*batch, clients, size)),
        covariance=covariances(rng, *batch, clients, size=size, low=low, high=high),
        client_weights=rng.uniform(0.5, 1.5, (*batch, clients)),
    )


def transport(gram, target):
    """T(G) = G^(-1/2) (G^(1/2) target G^(1/2))^(1/2) G^(-1/2), Lemma 1 (i): T G T = target.

    gram must be positive definite; (..., C, C) each.
    """
    root = np.linalg.cholesky(gram)
    moved = psd.closest_factor(root, target)
    return psd.symmetric(np.linalg.solve(root.mT, moved.mT).mT)


def mp_sqrt(matrix):
    """Square root of a symmetric mpmath matrix."""
    values, basis = mpmath.eigsy(matrix)
    return basis * mpmath.diag([mpmath.sqrt(abs(value)) for value in values]) * basis.T


def mp_phi(covariance, features, head):
    """φ in mpmath from a float64 covariance."""
    features, head = mpmath.mpf(features), mpmath.mpf(head)
    root = mp_sqrt(mpmath.matrix(covariance.tolist()))
    return mpmath.sqrt(features / head) * root - features * mpmath.eye(len(covariance))


def mp_barycenter(grams, weights, rounds=400):
    """The recursion of eq. (9) in mpmath until it stops moving."""
    weights = [mpmath.mpf(weight) for weight in weights]
    total = sum(weights)
    gram = sum((w / total * g for w, g in zip(weights, grams, strict=True)), mpmath.zeros(grams[0].rows))
    for _ in range(rounds):
        root = mp_sqrt(gram)
        inner = mpmath.zeros(gram.rows)
        for weight, client in zip(weights, grams, strict=True):
            inner += weight / total * mp_sqrt(root * client * root)
        inverse = root**-1
        moved = inverse * inner * inner * inverse
        step = mpmath.mnorm(moved - gram, "f")
        gram = moved
        if step < mpmath.mpf(10) ** (-mpmath.mp.dps + 8):
            return gram
    raise AssertionError("the reference recursion did not converge")


def to_float(matrix):
    """An mpmath matrix as float64."""
    return np.array(matrix.tolist(), dtype=np.float64)
