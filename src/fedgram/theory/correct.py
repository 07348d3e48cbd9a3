"""What removes the gap: one exchange of target moments, and what it still leaves to predictions."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Literal, get_args

import numpy as np

from fedgram._util.arrays import Array, as_finite_array, as_float, common_batch
from fedgram._util.errors import InputError, check_type
from fedgram.theory.activity import Activity
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import next_head
from fedgram.theory.moments import MADE, Moments, check_federation
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import phi, refuse_if_zero, regularized_gram

# Variance beside the second moment about the origin: below this fraction half of its digits are lost.
LEAST_KEPT = 1e-8

# A head counts as centralized if its Gram is G_cen to this, relative to it: heads in single precision are.
SAME_GRAM = 1e-6

BiasRule = Literal["shared", "private", "offset"]


@dataclass(frozen=True, eq=False)
class Correction:
    """The moment correction γ C_m of every client, eq. (13), and its consequences.

    strength γ in [0, 1]; deficit Σ_cen - Σ_m (..., M, C, C); covariance (..., M, C, C), what γ C_m puts in
    the place of Σ_m; grams (..., M, C, C), each client's optimal Gram under γ C_m; centralized G_cen
    (..., C, C). With γ = 1 all grams are G_cen.
    """

    moments: Moments
    penalty: Penalty
    strength: float
    deficit: Array
    covariance: Array
    grams: Array
    centralized: Array

    @property
    def notes(self) -> tuple[str, ...]:
        """What the numbers do not say by themselves, in sentences; empty in the fully active regime."""
        targets = self.moments.targets
        if self.strength == 1:
            pooled = Activity.from_covariance(self.moments.pooled.covariance[..., None, :, :], self.penalty)
            return pooled.notes(["The pooled data are"], targets)
        clients = [f"With the correction client '{name}' is" for name in self.moments.clients]
        return Activity.from_covariance(self.covariance, self.penalty).notes(clients, targets)

    def value(self, head: Array) -> Array:
        """γ C_m(W) = γ λ_H/2 tr((Σ_cen - Σ_m) A⁻¹): head (..., C, P) -> (..., M)."""
        head = self._checked(head)
        return correction_value(head[..., None, :, :], self.strength * self.deficit, self.penalty)

    def gradient(self, head: Array) -> Array:
        """-γ λ_H A⁻¹ (Σ_cen - Σ_m) A⁻¹ W: head (..., C, P) -> (..., M, C, P)."""
        head = self._checked(head)
        inverse = np.linalg.inv(self._gram(head))
        return (
            -self.strength * self.penalty.features * inverse @ self.deficit @ inverse @ head[..., None, :, :]
        )

    def after_round(self, head: Array) -> Array:
        """Gram of the shared head after one corrected round with exact selection, Proposition 2.

        head (..., C, P) -> (..., C, C); equal to G_cen when γ = 1, whatever the head.
        """
        moved = next_head(self._checked(head), self.grams, self.moments.client_weights)
        return psd.gram(moved)

    def feature_offset(self, head: Array) -> Array:
        """Wᵀ A⁻¹ d_m: what corrected features miss, eq. (18). head (..., C, P) -> (..., M, P).

        At a head with W Wᵀ = G_cen, a client that adds this to the bias of its last feature layer predicts,
        with the shared bias, as centralized training does; d_m is known to it after the same exchange.
        """
        head = self._checked(head)
        return np.einsum("...cp,...mc->...mp", head, self._solved_offset(head))

    def prediction_difference(self, head: Array, bias: BiasRule) -> Array:
        """Corrected minus centralized predictions on client m, constant over its samples: (..., M, C).

        The head must have W Wᵀ = G_cen; at others predictions differ by more than a constant. The difference
        is -G A⁻¹ d_m with the shared bias μ_g, λ_H A⁻¹ d_m with the client's private bias μ_m, and zero with
        the shared bias and the feature offset (Appendix C.3).
        """
        if bias not in get_args(BiasRule):
            rules = ", ".join(get_args(BiasRule))
            raise InputError(f"There is no bias rule '{bias}'; there are {rules}.", field="bias")
        head = self._checked(head)
        self._refuse_other_gram(head)
        return self._mean_prediction(head, bias) - self._centralized_mean_prediction()

    def _mean_prediction(self, head: Array, bias: BiasRule) -> Array:
        """The mean of client m's predictions, minus μ_g, (..., M, C); its own features have mean zero."""
        moved = np.einsum("...cp,...mp->...mc", head, self.feature_offset(head))
        if bias == "offset":
            return moved
        return np.broadcast_to(self.moments.offset if bias == "private" else 0.0, moved.shape)

    def _centralized_mean_prediction(self) -> Array:
        """The mean of centralized predictions on client m, minus μ_g: G_cen A⁻¹ d_m, (..., M, C)."""
        regularised = self.centralized + self.penalty.features * np.eye(len(self.moments.targets))
        return self.moments.offset @ np.linalg.solve(regularised, self.centralized)  # A⁻¹ G_cen is symmetric

    def _refuse_other_gram(self, head: Array) -> None:
        away = psd.frobenius(psd.gram(head) - self.centralized)
        if (away > SAME_GRAM * psd.frobenius(self.centralized)).any():
            raise InputError(
                f"The head's Gram matrix is not G_cen but up to {away.max():.3g} away from it, so "
                "predictions differ by more than a constant; after a round with strength 1 it is G_cen.",
                field="head",
            )

    def _checked(self, head: Array) -> Array:
        array = as_finite_array(head, "head")
        psd.check_head(array, len(self.moments.targets))
        common_batch(head=array.shape[:-2], moments=self.moments.mean.shape[:-2])
        return array

    def _gram(self, head: Array) -> Array:
        return regularized_gram(head, self.penalty)[..., None, :, :]

    def _solved_offset(self, head: Array) -> Array:
        return np.linalg.solve(self._gram(head), self.moments.offset[..., None])[..., 0]


def correct(moments: Moments, penalty: Penalty | None = None, strength: float = 1.0) -> Correction:
    """The correction that turns every client's profiled objective into that of the pooled data.

    Pooled data that are active in no direction are refused: their centralized Gram is zero.
    """
    check_federation(moments)
    penalty = Penalty.or_default(penalty)
    if not 0.0 <= as_float(strength) <= 1.0:
        raise InputError(f"strength must be a number between 0 and 1, not {strength}.", field="strength")
    correction = correction_toward_pooled(moments, penalty, float(strength))
    refuse_if_zero(correction.centralized, moments, penalty)
    return correction


def correction_toward_pooled(moments: Moments, penalty: Penalty, strength: float) -> Correction:
    """The same without a look at what it leads to."""
    pooled = moments.pooled.covariance
    # F is affine in T, so γ C_m moves client m's covariance the fraction γ of the way to Σ_cen. The
    # convex combination, unlike Σ_m + γ (Σ_cen - Σ_m), is exactly Σ_cen at γ = 1.
    covariance = (1 - strength) * moments.covariance + strength * pooled[..., None, :, :]
    return Correction(
        moments=moments,
        penalty=penalty,
        strength=strength,
        deficit=pooled[..., None, :, :] - moments.covariance,
        covariance=covariance,
        grams=phi(covariance, penalty),
        centralized=phi(pooled, penalty),
    )


def correction_value(head: Array, deficit: Array, penalty: Penalty) -> Array:
    """λ_H/2 tr(deficit A⁻¹), what a covariance deficit (..., C, C) adds to F at a head (..., C, P): (...)."""
    return 0.5 * penalty.features * psd.trace(np.linalg.solve(regularized_gram(head, penalty), deficit))


def contributions(moments: Moments, origin: Array | float = 0.0) -> Array:
    """What each client adds to the sum that the server needs: (M, 1 + C + C²).

    With μ_m taken from an origin (C,), rows hold N_m, N_m μ_m and N_m (Σ_m + μ_m μ_mᵀ), which a client knows
    by itself. Only their sum over clients is needed to know μ_g and Σ_cen (Appendix C.2), so the exchange
    can run through secure aggregation. All agree on the origin, a guess of the mean: far from it second
    moments lose the digits of the covariance. Clients count by their rows.
    """
    check_type(moments, Moments, MADE)
    if not moments.weighed_by_rows:
        raise InputError(
            "A sum over rows weighs clients by their rows, but these moments have client weights of their "
            "own; leave those out.",
            field="client_weights",
        )
    mean = moments.mean - origin
    second = moments.covariance + mean[..., :, None] * mean[..., None, :]
    flat = second.reshape(*second.shape[:-2], -1)
    ones = np.ones((*mean.shape[:-1], 1))
    return moments.count[..., None] * np.concatenate([ones, mean, flat], axis=-1)


def pooled_from_sum(total: Array, origin: Array | float = 0.0) -> tuple[Array, Array]:
    """μ_g (..., C) and Σ_cen (..., C, C) from the sum of `contributions` over clients (..., 1 + C + C²)."""
    total = np.atleast_1d(as_finite_array(total, "total"))
    size = isqrt(total.shape[-1])  # C of 1 + C + C², which is below (C + 1)²
    if total.shape[-1] != 1 + size + size**2:
        raise InputError(
            f"The total must have shape (..., 1 + C + C²) for C targets, not {total.shape}; it is the sum of "
            "the clients' contributions.",
            field="total",
        )
    scaled = total[..., 1:] / total[..., :1]
    mean, second = scaled[..., :size], scaled[..., size:].reshape(*total.shape[:-1], size, size)
    covariance = psd.symmetric(second - mean[..., :, None] * mean[..., None, :])
    variance, square = (np.einsum("...ii->...i", matrix) for matrix in (covariance, second))
    if (variance < LEAST_KEPT * square).any():
        raise InputError(
            "The targets lie so far from the origin of this sum that their covariance is lost in it; agree "
            "on an origin near their mean.",
            field="origin",
        )
    return mean + origin, covariance
