"""Parts of the unconstrained feature model that only tests compare with: losses, steps, derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.correct import correction_value
from fedgram.theory.derivatives import fit_gradient, fit_hessian
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.weights import average
from fedgram.theory.predict import phi
from fedgram.theory.select import align
from fedgram.ufm.displacement import slope, slope_derivative
from fedgram.ufm.joint import Joint
from fedgram.ufm.profiled import Profiled
from fedgram.ufm.solvers import Solution


@dataclass(frozen=True, eq=False, kw_only=True)
class CorrectedJoint(Joint):
    """`Joint` + γ C_m(W), eq. (13); deficit γ (Σ_cen - Σ_m) (..., C, C)."""

    deficit: Array

    @cached_property
    def profile(self):
        """Eq. (6) with T = Σ_m + γ (Σ_cen - Σ_m), because F is affine in T."""
        covariance = self.sample.covariance + self.deficit
        return Profiled(covariance, self.penalty, self.broadcast, self.proximal)

    def value(self, point):
        return super().value(point) + correction_value(self.head(point), self.deficit, self.penalty)

    def gradient(self, point):
        gradient = super().gradient(point)
        correction = fit_gradient(self.head(point), self.deficit, self.penalty)
        gradient[..., self._blocks[0]] += self.profile.start(correction)
        return gradient

    def hessian(self, point):
        hessian, head = super().hessian(point), self._blocks[0]
        hessian[..., head, head] += fit_hessian(self.head(point), self.deficit, self.penalty)
        return hessian


def gradient_descent(loss, start, steps, rate):
    """Gradient descent with a fixed rate from points (..., n); on `Profiled`, E profiled steps."""
    point = start
    for _ in range(steps):
        point = point - rate * loss.gradient(point)
    return Solution.from_point(loss, point)


def aligned(local):
    """Rotate the heads of `local` training toward the broadcast."""

    def train(broadcast):
        heads = local(broadcast)
        return align(heads, np.broadcast_to(broadcast[..., None, :, :], heads.shape)).head

    return train


def next_gram(update, gram):
    """Φ^G(G) = Φ(W) Φ(W)ᵀ for any factor W of G: gram (..., C, C) -> (..., C, C)."""
    return psd.gram(update.next_head(psd.factor(gram)))


def psi(gram, covariance, client_weights, penalty):
    """ψ(G) = 2 Σ_m p_m tr(Λ_m G Λ_m), eq. (19): the weighted squared norm of the local head gradients."""
    gram = gram[..., None, :, :]
    local = slope(gram, covariance, penalty)
    return 2.0 * psd.trace(average(client_weights, local @ gram @ local))


def hessian(within, direction, penalty):
    """H[X] = λ_W/(2α) (R⁻¹ X + X R⁻¹), eq. (19), with R = Σ_within^(1/2), in an eigenbasis of R."""
    curvature, basis = _curvature(within, penalty)
    return basis @ (curvature * (basis.mT @ direction @ basis)) @ basis.mT


def psi_gradient(gram, covariance, client_weights, penalty):
    """∇ψ(G) = 2 Σ_m p_m (Λ_m² + DΛ_m(G)[G Λ_m + Λ_m G]) of ψ(G) = 2 Σ_m p_m tr(Λ_m G Λ_m), eq. (19).

    ψ is the weighted squared norm of the local head gradients. gram (..., C, C), covariance (..., M, C, C),
    client_weights (..., M) -> (..., C, C).
    """
    gram = gram[..., None, :, :]
    local = slope(gram, covariance, penalty)
    moved = slope_derivative(gram, covariance, gram @ local + local @ gram, penalty)
    return 2.0 * psd.symmetric(average(client_weights, local @ local + moved))


def inverse_hessian(within, gradient, penalty):
    """H⁻¹[Y] of H[X] = λ_W/(2α) (R⁻¹ X + X R⁻¹), eq. (19), with R = Σ_within^(1/2).

    within Σ_within and symmetric gradient Y (..., C, C) -> (..., C, C).
    """
    curvature, basis = _curvature(within, penalty)
    return basis @ ((basis.mT @ gradient @ basis) / curvature) @ basis.mT


def _curvature(within, penalty):
    """Entries λ_W/(2α) (1/r_i + 1/r_j) of H in an eigenbasis of R, and that basis."""
    variance, basis = np.linalg.eigh(within)
    inverse = 1.0 / np.sqrt(variance)
    return penalty.head / (2.0 * penalty.scale) * (inverse[..., :, None] + inverse[..., None, :]), basis


def displacement(covariance, client_weights, penalty):
    """Δ = ½ H⁻¹[∇ψ(G_within)], Theorem 2: the fixed point moves by η(E - 1) Δ + O((ηE)²).

    covariance (..., M, C, C), client_weights (..., M) -> (..., C, C).
    """
    within = average(client_weights, covariance)
    gradient = psi_gradient(phi(within, penalty), covariance, client_weights, penalty)
    return 0.5 * inverse_hessian(within, gradient, penalty)
