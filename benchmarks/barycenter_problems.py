"""The problems of `barycenter.py`, and their solutions by means that no contestant uses."""

from __future__ import annotations

import mpmath
import numpy as np

SIZES = [(2, 3), (3, 8), (6, 4), (8, 8), (32, 32), (128, 16)]
BATCH, BATCH_SIZE = 4096, (3, 8)


def problems() -> dict[str, np.ndarray]:
    """Grams (M, C, C), or (K, M, C, C) for a batch, under what to call them."""
    rng = np.random.default_rng(0)
    named = {f"({size}, {clients})": benign(rng, (clients,), size) for size, clients in SIZES}
    size, clients = BATCH_SIZE
    named[f"{BATCH} of ({size}, {clients})"] = benign(rng, (BATCH, clients), size)
    for condition in (1e4, 1e8, 1e12):
        values = np.geomspace(1.0, 1 / condition, 4)
        named[f"(4, 5), condition {condition:.0e}"] = rotated(rng, np.tile(values, (5, 1)))
    # Of small integers, so that they are singular to the last bit.
    columns = rng.integers(-3, 4, (4, 4, 2)).astype(float)
    singular = columns @ np.swapaxes(columns, 1, 2)
    named["(4, 5), 4 singular"] = np.concatenate([singular, benign(rng, (1,), 4)])
    return named


def benign(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Grams (*shape, size, size) with eigenvalues between 0.4 and 4."""
    return rotated(rng, rng.uniform(0.4, 4.0, (*shape, size)))


def rotated(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    """Grams (..., C, C) with eigenvalues (..., C), rotated at random."""
    basis = np.linalg.qr(rng.standard_normal((*values.shape, values.shape[-1])))[0]
    grams = (basis * values[..., None, :]) @ np.swapaxes(basis, -1, -2)
    return 0.5 * (grams + np.swapaxes(grams, -1, -2))


def reference(grams: np.ndarray) -> tuple[np.ndarray, float]:
    """The barycenter of grams (M, C, C), and the relative error to be expected in it."""
    if grams.shape[-1] <= 8:
        return multiprecision(grams), 1e-16
    found = [procrustes(grams, np.random.default_rng(seed)) for seed in range(4)]
    mean = np.mean(found, axis=0)
    return mean, float(np.linalg.norm(np.std(found, axis=0)) / np.linalg.norm(mean))


def multiprecision(grams: np.ndarray) -> np.ndarray:
    """G ← G^(-1/2) (Σ p (G^(1/2) G_m G^(1/2))^(1/2))² G^(-1/2) in 40 digits."""
    with mpmath.workdps(40):
        clients = [mpmath.matrix(gram.tolist()) for gram in grams]
        gram = mpmath.matrix(grams.mean(axis=0).tolist())
        change = mpmath.mpf(1)
        while change > mpmath.mpf(10) ** -19:
            root = square_root(gram)
            inner = sum((square_root(root * client * root) for client in clients), mpmath.zeros(gram.rows))
            inverse = root**-1
            moved = inverse * inner * inner * inverse / len(clients) ** 2
            change, gram = mpmath.mnorm(moved - gram, "f") / mpmath.mnorm(gram, "f"), moved
        return np.array(gram.tolist(), dtype=np.float64)


def square_root(matrix: mpmath.matrix) -> mpmath.matrix:
    """Square root of a semidefinite matrix, whose vanishing eigenvalues may come out a little negative."""
    values, basis = mpmath.eigsy(matrix)
    return basis * mpmath.diag([mpmath.sqrt(abs(value)) for value in values]) * basis.T


def procrustes(grams: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A ← Σ p B_m O_m, O_m the polar factor of B_mᵀA, in coordinates turned at random."""
    basis = np.linalg.qr(rng.standard_normal(grams.shape[1:]))[0]
    roots = np.linalg.cholesky(basis.T @ grams @ basis)
    head = roots.mean(axis=0)
    for _ in range(25):
        left, _, right = np.linalg.svd(np.swapaxes(roots, 1, 2) @ head)
        head = (roots @ left @ right).mean(axis=0)
    return basis @ head @ head.T @ basis.T
