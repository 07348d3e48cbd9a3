"""Gradient and Hessian of the profiled loss of eq. (6) with respect to the head."""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.geometry import psd
from fedgram.theory.penalty import Penalty


def regularized_gram(head: Array, penalty: Penalty) -> Array:
    """A = W Wᵀ + λ_H I: head (..., C, P) -> (..., C, C)."""
    return psd.gram(head) + penalty.features * np.eye(head.shape[-2])


def fit_gradient(head: Array, covariance: Array, penalty: Penalty) -> Array:
    """Gradient of λ_H/2 tr(T A⁻¹), which is -λ_H A⁻¹ T A⁻¹ W: head (..., C, P) -> (..., C, P)."""
    inverse = np.linalg.inv(regularized_gram(head, penalty))
    return -penalty.features * (inverse @ covariance @ inverse @ head)


def fit_hessian(head: Array, covariance: Array, penalty: Penalty) -> Array:
    """Hessian of λ_H/2 tr(T A⁻¹) as a matrix (..., C P, C P) on row-major heads.

    With B = A⁻¹ and K = B T B, it maps δW to λ_H (B δW WᵀKW + BW δWᵀ KW + K δW WᵀBW + KW δWᵀ BW - K δW).
    """
    inverse = np.linalg.inv(regularized_gram(head, penalty))
    curved = inverse @ covariance @ inverse
    solved, bent = inverse @ head, curved @ head
    return penalty.features * (
        two_sided(inverse, head.mT @ bent)
        + two_sided_transposed(solved, bent.mT)
        + two_sided(curved, head.mT @ solved - np.eye(head.shape[-1]))
        + two_sided_transposed(bent, solved.mT)
    )


def two_sided(left: Array, right: Array) -> Array:
    """Matrix of X ↦ left X rightᵀ on row-major X, the Kronecker product: X (..., j, l).

    left (..., i, j), right (..., k, l) -> (..., i k, j l).
    """
    product = left[..., :, None, :, None] * right[..., None, :, None, :]
    *batch, i, k, j, m = product.shape
    return product.reshape(*batch, i * k, j * m)


def two_sided_transposed(left: Array, right: Array) -> Array:
    """Matrix of X ↦ left Xᵀ rightᵀ on row-major X (..., l, j): as `two_sided`, with columns (l, j)."""
    product = left[..., :, None, None, :] * right[..., None, :, :, None]
    *batch, i, k, m, j = product.shape
    return product.reshape(*batch, i * k, m * j)
