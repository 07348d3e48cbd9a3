"""Linear algebra for batches of small matrices, (C, C, M, K) or (C, C, K).

LAPACK takes microseconds to start on each matrix, NumPy a nanosecond per entry of a long axis. Hence the
matrix axes come first, and operations run along the batch, in the precision of their input.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.geometry.psd import BENIGN

# Smallest normal number in single precision; avoids 0 / 0.
TINY = float(np.finfo(np.float32).tiny)
# Jacobi sweeps. Barycenters of matrices with condition numbers up to 1e8 needed at most 4.
SWEEPS = 20


def products(one: Array, two: Array) -> Array:
    """Matrix products: (C, P, M, K), (P, Q, M, K) -> (C, Q, M, K)."""
    return np.einsum("ijmk,jlmk->ilmk", one, two)


def inner(one: Array, two: Array) -> Array:
    """Frobenius inner products: (C, C, K) twice -> (K,)."""
    return np.einsum("ijk,ijk->k", one, two)


def cholesky(matrix: Array) -> tuple[Array, Array]:
    """Lower triangular factors (C, C, M, K), and whether each matrix is well-conditioned (M, K).

    Factors of ill-conditioned and indefinite matrices are the identity.
    """
    root, benign = np.zeros_like(matrix), np.ones(matrix.shape[2:], dtype=bool)
    for j in range(len(matrix)):
        column = matrix[j:, j] - np.einsum("iamk,amk->imk", root[j:, :j], root[j, :j])
        benign &= column[0] > BENIGN * matrix[j, j]
        root[j:, j] = column / np.sqrt(np.where(benign, column[0], 1.0))
    return np.where(benign, root, np.eye(len(matrix))[:, :, None, None]), benign


def inverse(matrix: Array) -> Array:
    """Invert positive definite matrices (n, n, K) in place by Gauss–Jordan elimination."""
    for i in range(len(matrix)):
        column = matrix[:, i].copy()
        matrix[:, i] = 0
        matrix[i, i] = 1
        matrix[i] /= column[i]
        column[i] = 0
        matrix -= column[:, None] * matrix[i]
    return matrix


def orthogonalize(matrix: Array) -> Array:
    """Orthogonalize nearly orthogonal matrices (C, C, M, K): three times as many correct digits."""
    square = np.einsum("jimk,jlmk->ilmk", matrix, matrix)
    identity = np.eye(len(matrix))[:, :, None, None]
    return products(matrix, 1.875 * identity - 1.25 * square + 0.375 * products(square, square))


def svd(matrix: Array, right: Array, cosine: float) -> tuple[Array, Array, Array]:
    """X = U diag(s) Vᵀ: (C, C, M, K) -> U (C, C, M, K), s (C, M, K), V (C, C, M, K).

    One-sided Jacobi rotations start from orthogonal matrices `right` near V. They end after a sweep in which
    no two columns had a larger cosine; it leaves about its square.
    """
    size, scale = len(matrix), np.abs(matrix).max(axis=(0, 1)) + TINY  # fourth powers would underflow
    columns = np.concatenate((products(matrix / scale, right), right))  # X V above V, rotated together
    for _ in range(SWEEPS):
        if sweep(columns) <= cosine:
            break
    left, right = columns[:size], columns[size:]
    singular = np.sqrt(np.einsum("ijmk,ijmk->jmk", left, left))
    return left / (singular + TINY), scale * singular, right


def sweep(columns: Array) -> float:
    """Orthogonalize the upper halves of each pair of columns (2C, C, M, K); return the largest cosine."""
    size, largest = columns.shape[1], 0.0
    for first, second in combinations(range(size), 2):
        one, two = columns[:, first], columns[:, second]
        cross, square_one, square_two = (
            np.einsum("imk,imk->mk", x[:size], y[:size]) for x, y in ((one, two), (one, one), (two, two))
        )
        largest = max(largest, float((cross * cross / (square_one * square_two + TINY)).max()))
        # tan(2θ) = 2 cross / (square_two - square_one), |θ| ≤ π/4
        double, difference = 2 * cross, square_two - square_one
        diagonal = np.sqrt(double * double + difference * difference + TINY)
        tangent = double / (difference + np.copysign(diagonal, difference))
        cosine = 1 / np.sqrt(1 + tangent * tangent)
        turned = tangent * one
        one -= tangent * two
        two += turned
        one *= cosine
        two *= cosine
    return largest**0.5
