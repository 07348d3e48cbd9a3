"""Positive-semidefinite matrices: square roots, factors, Bures–Wasserstein distance.

Functions act on the last two axes and keep leading batch axes. Distances and maps use factors G = A Aᵀ and an
orthogonal polar factor. They keep full normwise accuracy for ill-conditioned and singular matrices, where
G^(-1/2) loses half the digits. Eigenvalues below 4 C eps times the largest are rounding and count as zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedgram._util.arrays import Array, as_finite_array
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize

# Tolerance for symmetry and semidefiniteness relative to the largest entry: rounding of a matrix product.
ROUNDING = 1e-10
# Smallest ratio of the least to the largest eigenvalue at which a plain factorization is accurate.
BENIGN = 1e-4


def symmetric(matrix: Array) -> Array:
    """Symmetric part of (..., C, C)."""
    return 0.5 * (matrix + matrix.mT)


def gram(head: Array) -> Array:
    """G = W Wᵀ: head (..., C, P) -> (..., C, C)."""
    return symmetric(head @ head.mT)


def frobenius(matrix: Array) -> Array:
    """Frobenius norm over the last two axes: (..., C, P) -> (...)."""
    return np.sqrt(np.einsum("...ij,...ij->...", matrix, matrix))


def relative_error(matrix: Array, reference: Array) -> Array:
    """e_F(G, G') = ‖G - G'‖_F / ‖G'‖_F over the last two axes; NaN where G' is zero."""
    size = frobenius(reference)
    return frobenius(matrix - reference) / np.where(size > 0, size, np.nan)


def trace(matrix: Array) -> Array:
    """Trace over the last two axes."""
    return np.einsum("...ii->...", matrix)


def spectral(function: Callable[[Array], Array], matrix: Array) -> Array:
    """Apply a scalar function to the eigenvalues of symmetric matrices (..., C, C)."""
    eigenvalues, basis = np.linalg.eigh(matrix)
    return symmetric((basis * function(eigenvalues)[..., None, :]) @ basis.mT)


def sqrt(matrix: Array) -> Array:
    """Symmetric square root of semidefinite matrices (..., C, C)."""
    return spectral(lambda values: np.sqrt(np.maximum(values, 0.0)), matrix)


def check_symmetric(matrix: Any, name: str) -> Array:
    """Return `matrix` as symmetric float64 (..., C, C)."""
    array = as_finite_array(matrix, name)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.shape[-1] == 0:
        raise InputError(f"{name} must be square, but its shape is {array.shape}.", field=name)
    if (array == array.mT).all():
        return array
    scale = np.abs(array).max(axis=(-1, -2), keepdims=True)
    if (np.abs(array - array.mT) > ROUNDING * scale).any():
        raise InputError(f"{name} is not symmetric. Pass a covariance or Gram matrix.", field=name)
    return symmetric(array)


def check_psd(matrix: Any, name: str, *, definite: bool = False) -> Array:
    """Return `matrix` as symmetric semidefinite float64 (..., C, C)."""
    array = check_symmetric(matrix, name)
    values = np.linalg.eigvalsh(array)
    require_semidefinite(values, name)
    if definite and (values[..., 0] <= 0.0).any():
        raise InputError(f"{name} must be positive definite, but its smallest eigenvalue is 0.", field=name)
    return array


def require_semidefinite(values: Array, name: str) -> None:
    """Raise InputError if ascending eigenvalues (..., C) are negative by more than rounding."""
    if (values[..., 0] < -ROUNDING * np.abs(values).max(axis=-1)).any():
        raise InputError(f"{name} has a negative eigenvalue, {values.min():.6g}.", field=name)


def factor(matrix: Array) -> Array:
    """Square factor B with B Bᵀ = matrix, for semidefinite (..., C, C)."""
    try:
        root = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return spectral_factor(matrix)[0]
    pivots = np.einsum("...ii->...i", root) ** 2
    benign = pivots.min(axis=-1) > BENIGN * pivots.max(axis=-1)
    return root if benign.all() else spectral_factor(matrix)[0]


def spectral_factor(matrix: Array, name: str = "The matrix") -> tuple[Array, Array]:
    """Factor B with B Bᵀ = matrix, and orthogonal basis with B basisᵀ = √matrix, (..., C, C) each.

    Two Newton steps make B accurate for ill-conditioned matrices: an error eps in an eigenvalue λ would be an
    error eps / (2 √λ) in B.
    """
    values, basis = np.linalg.eigh(matrix)
    if (values[..., 0] > BENIGN * values[..., -1]).all():
        return basis * np.sqrt(values)[..., None, :], basis
    require_semidefinite(values, name)
    # Rounding of eigenvalues would enter the factor as its square root.
    floor = 4 * matrix.shape[-1] * np.finfo(float).eps * values[..., -1:]
    roots = np.sqrt(np.where(values > floor, values, 0.0))[..., None, :]
    inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0)
    root = basis * roots
    for _ in range(2):  # Newton's method for B Bᵀ = matrix
        root = root + 0.5 * remainder(matrix, root) @ (basis * inverse)
    return root, basis


def remainder(matrix: Array, root: Array) -> Array:
    """matrix - root rootᵀ to twice the working precision, (..., C, C).

    The leading 22 bits of root, on one scale per row, multiply without rounding (Ozaki's splitting).
    """
    shift = 2.0**31 * np.abs(root).max(axis=-1, keepdims=True)
    lead = (root + shift) - shift
    rest = root - lead
    cross = lead @ rest.mT
    return (matrix - lead @ lead.mT) - (cross + cross.mT) - rest @ rest.mT


def polar(matrix: Array) -> Array:
    """Orthogonal polar factor of X (..., C, P), P ≥ C: the O with O Oᵀ = I that maximizes tr(Oᵀ X).

    It is unique if X has full rank.
    """
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    return left @ right


def check_head(head: Array, targets: int) -> None:
    """Raise InputError unless the head is (..., C, P), P ≥ C, for C targets."""
    if head.ndim < 2 or head.shape[-2] != targets:
        raise InputError(
            f"The head must have shape (..., {targets}, features), one row per target, not {head.shape}.",
            field="head",
        )
    if head.shape[-1] < targets:
        raise InputError(
            f"The head has {pluralize(head.shape[-1], 'feature')} for {targets} targets. It needs at least "
            "as many features as targets.",
            field="head",
        )


def closest_factor(head: Array, gram: Array) -> Array:
    """The U with U Uᵀ = gram closest to head: Π(W) of Lemma 1, eq. (8), for any P ≥ C.

    head (..., C, P), gram (..., C, C) -> (..., C, P). With gram = B Bᵀ, it is B times the polar factor of
    Bᵀ W. This equals T(W Wᵀ) W of Lemma 1 (i) and is a hundred times more accurate near singular Grams.
    """
    check_head(head, gram.shape[-1])
    root = factor(gram)
    return root @ polar(root.mT @ head)


def distance(first: Array, second: Array) -> Array:
    """Bures–Wasserstein distance between semidefinite matrices (..., C, C) -> (...)."""
    return factor_distance(factor(first), factor(second))


def factor_distance(first: Array, second: Array) -> Array:
    """Bures–Wasserstein distance between A Aᵀ and B Bᵀ, from factors (..., C, C).

    The Procrustes form ‖A O - B‖_F loses no digits when both are close; the trace formula loses half.
    """
    return frobenius(first @ polar(first.mT @ second) - second)
