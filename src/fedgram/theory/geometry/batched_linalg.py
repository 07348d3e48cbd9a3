"""Linear algebra for stacks of many small matrices, with the matrix axes first: (C, C, M, K) or (C, C, K).

LAPACK costs microseconds to start on each little matrix, NumPy a nanosecond for each entry of a long axis.
So here every operation runs along the stack, in the precision of its input.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.geometry.psd import BENIGN

# The least normal number in single precision, which keeps 0 / 0 away.
TINY = float(np.finfo(np.float32).tiny)
SWEEPS = 20


def products(one: Array, two: Array) -> Array:
    """Matrix products: (C, P, M, K), (P, Q, M, K) -> (C, Q, M, K)."""
    return np.einsum("ijmk,jlmk->ilmk", one, two)


def inner(one: Array, two: Array) -> Array:
    """Frobenius inner products: (C, C, K) twice -> (K,)."""
    return np.einsum("ijk,ijk->k", one, two)


def cholesky(matrix: Array) -> tuple[Array, Array]:
    """Lower triangular factors of matrices (C, C, M, K), and which of these are well-conditioned (M, K).

    The others, the indefinite ones among them, get the identity.
    """
    root, benign = np.zeros_like(matrix), np.ones(matrix.shape[2:], dtype=bool)
    for j in range(len(matrix)):
        column = matrix[j:, j] - np.einsum("iamk,amk->imk", root[j:, :j], root[j, :j])
        benign &= column[0] > BENIGN * matrix[j, j]
        root[j:, j] = column / np.sqrt(np.where(benign, column[0], 1.0))
    return np.where(benign, root, np.eye(len(matrix))[:, :, None, None]), benign


def inverse(matrix: Array) -> Array:
    """Inverses of positive definite matrices (n, n, K), by Gauss–Jordan elimination in place."""
    for i in range(len(matrix)):
        column = matrix[:, i].copy()
        matrix[:, i] = 0
        matrix[i, i] = 1
        matrix[i] /= column[i]
        column[i] = 0
        matrix -= column[:, None] * matrix[i]
    return matrix


def orthogonal(matrix: Array) -> Array:
    """Matrices (C, C, M, K) that are orthogonal to some digits, made so to three times as many."""
    square = np.einsum("jimk,jlmk->ilmk", matrix, matrix)
    identity = np.eye(len(matrix))[:, :, None, None]
    return products(matrix, 1.875 * identity - 1.25 * square + 0.375 * products(square, square))


def svd(matrix: Array, right: Array, cosine: float) -> tuple[Array, Array, Array]:
    """X = U diag(s) Vᵀ: (C, C, M, K) -> U (C, C, M, K), s (C, M, K), V (C, C, M, K).

    By one-sided Jacobi rotations from orthogonal matrices right, the fewer the nearer these are to V, until
    a sweep has met no two columns at a larger cosine. That leaves about its square.
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
    """Make the upper halves of each two columns (2C, C, M, K) orthogonal; the largest cosine met."""
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
