"""First-order theory of finite profiled steps (Theorem 2): displacement and contraction.

The fixed point moves by η(E - 1) Δ, and a round contracts Gram errors by 1 - 2 η E θ_min. Functions take
Grams (..., C, C) and client covariances (..., M, C, C), and keep leading batch axes.
"""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.penalty import Penalty


def slope(gram: Array, covariance: Array, penalty: Penalty) -> Array:
    """Λ_T(G) = λ_W/2 I - λ_H/2 (G + λ_H I)⁻¹ T (G + λ_H I)⁻¹, so that ∇F(W; T) = 2 Λ_T(W Wᵀ) W.

    gram (..., C, C), covariance (..., C, C) -> (..., C, C).
    """
    inverse = _inverse(gram, penalty)
    identity = np.eye(gram.shape[-1])
    return 0.5 * penalty.head * identity - 0.5 * penalty.features * (inverse @ covariance @ inverse)


def slope_derivative(gram: Array, covariance: Array, direction: Array, penalty: Penalty) -> Array:
    """DΛ_T(G)[X], self-adjoint in X: gram, covariance and symmetric direction (..., C, C) -> (..., C, C)."""
    inverse = _inverse(gram, penalty)
    half = inverse @ direction @ (inverse @ covariance @ inverse)
    return 0.5 * penalty.features * (half + half.mT)


def commuting_displacement(eigenvalues: Array, client_weights: Array, penalty: Penalty) -> Array:
    """Δ_i = s (s - ¾ √λ̄_i) Σ_m p_m (λ_mi/λ̄_i - 1)², eq. (24), with s = √(λ_H λ_W).

    The diagonal of Δ in the common eigenbasis of commuting clients: eigenvalues λ_mi (..., M, C),
    client_weights (..., M) -> (..., C). Positive exactly where λ̄_i < 16 λ_H λ_W / 9.
    """
    mean = np.einsum("...m,...mi->...i", client_weights, eigenvalues)
    deviation = eigenvalues / mean[..., None, :] - 1.0
    spread = np.einsum("...m,...mi->...i", client_weights, deviation**2)
    root = np.sqrt(penalty.threshold)
    return root * (root - 0.75 * np.sqrt(mean)) * spread


def contraction_rates(within: Array, penalty: Penalty) -> Array:
    """θ_ij = λ_W/(2α) (β_i + β_j)(1/r_i + 1/r_j), the eigenvalues of T = S_{G_within} ∘ H (Appendix G.2).

    r_i and β_i = α r_i - λ_H are the eigenvalues of R = Σ_within^(1/2) and of G_within, in ascending order:
    within (..., C, C) -> (..., C, C), symmetric in i and j.
    """
    root = np.sqrt(np.linalg.eigvalsh(within))
    gram = penalty.scale * root - penalty.features
    return penalty.head / (2.0 * penalty.scale) * _pair_sums(gram) * _pair_sums(1.0 / root)


def contraction(within: Array, penalty: Penalty) -> Array:
    """θ_min = min_ij θ_ij = 2 λ_W (1 - √(λ_H λ_W / λ_min(Σ_within))), Theorem 2: within (..., C, C) -> (...).

    A round of h = ηE contracts Gram errors by 1 - 2 h θ_min + O(h²).
    """
    return contraction_rates(within, penalty).min(axis=(-1, -2))


def _inverse(gram: Array, penalty: Penalty) -> Array:
    return np.linalg.inv(gram + penalty.features * np.eye(gram.shape[-1]))


def _pair_sums(values: Array) -> Array:
    """v_i + v_j: (..., C) -> (..., C, C)."""
    return values[..., :, None] + values[..., None, :]
