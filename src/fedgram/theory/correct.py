"""Moment correction that removes the gap after one exchange of target moments, eq. (13)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Literal, get_args

import numpy as np

from fedgram._util.arrays import Array, as_finite_array, as_float, common_batch, outer
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import InputError, check_type
from fedgram.theory.activity import Activity
from fedgram.theory.derivatives import regularized_gram
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import next_head
from fedgram.theory.moments import BUILD_HINT, Moments, check_federation
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import check_centralized, phi

# Smallest ratio of variance to second moment; below it, half the digits of the variance are lost.
LEAST_VARIANCE_RATIO = 1e-8

# Largest relative distance from G_cen of a centralized head's Gram; heads in single precision pass.
SAME_GRAM = 1e-6

BiasRule = Literal["shared", "private", "offset"]


@dataclass(frozen=True, eq=False)
class Correction(DisplayMethods):
    """Moment correction γ C_m of every client, eq. (13), and its effect.

    Parameters
    ----------
    moments, penalty, strength
        The input of `correct`; strength γ in [0, 1].
    deficit
        Σ_cen - Σ_m, (..., M, C, C).
    covariance
        (1 - γ) Σ_m + γ Σ_cen, which replaces Σ_m, (..., M, C, C).
    grams
        Optimal Gram of each client under γ C_m, (..., M, C, C); all are G_cen for γ = 1.
    centralized
        G_cen, (..., C, C).

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram import Moments, Penalty, correct
    >>> moments = Moments(count=[9, 9], mean=[[0.0], [0.0]], covariance=[[[1.0]], [[7.0]]])
    >>> correction = correct(moments, Penalty(features=1.0, head=1.0))
    >>> head = np.array([[1.0]])
    >>> correction.value(head).tolist(), correction.gradient(head).ravel().tolist()
    ([0.75, -0.75], [-0.75, 0.75])
    >>> correction.after_round(head).round(4).tolist()
    [[1.0]]
    >>> correction
    Correction(2 clients, 1 target, strength 1)
    >>> print(correction.summary().splitlines()[0])
    Each client sends 3 numbers once: its row count, mean and covariance.
    """

    moments: Moments
    penalty: Penalty
    strength: float
    deficit: Array
    covariance: Array
    grams: Array
    centralized: Array

    def __repr__(self) -> str:
        return f"Correction({self.moments.dimensions}, strength {self.strength:g})"

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats as sentences; empty in the fully active regime."""
        targets = self.moments.targets
        if self.strength == 1:
            pooled = Activity.from_covariance(self.moments.pooled.covariance[..., None, :, :], self.penalty)
            return pooled.notes(["The pooled data are"], targets)
        clients = [f"With the correction client '{name}' is" for name in self.moments.clients]
        return Activity.from_covariance(self.covariance, self.penalty).notes(clients, targets)

    def value(self, head: Array) -> Array:
        """γ C_m(W) = γ λ_H/2 tr((Σ_cen - Σ_m) A⁻¹): head (..., C, P) -> (..., M)."""
        head = self._check_head(head)
        return correction_value(head[..., None, :, :], self.strength * self.deficit, self.penalty)

    def gradient(self, head: Array) -> Array:
        """-γ λ_H A⁻¹ (Σ_cen - Σ_m) A⁻¹ W: head (..., C, P) -> (..., M, C, P)."""
        head = self._check_head(head)
        inverse = np.linalg.inv(self._gram(head))
        factor = -self.strength * self.penalty.features
        return factor * inverse @ self.deficit @ inverse @ head[..., None, :, :]

    def after_round(self, head: Array) -> Array:
        """Gram of the shared head after one corrected round with exact selection, Proposition 2.

        head (..., C, P) -> (..., C, C); G_cen for every head when γ = 1.

        Examples
        --------
        >>> from fedgram import Moments, Penalty, correct
        >>> moments = Moments(count=[9, 9], mean=[[0.0], [0.0]], covariance=[[[1.0]], [[7.0]]])
        >>> correction = correct(moments, Penalty(features=0.25, head=0.25))
        >>> correction.after_round([[3.0]]).round(9).tolist(), correction.centralized.tolist()
        ([[1.75]], [[1.75]])
        """
        return psd.gram(next_head(self._check_head(head), self.grams, self.moments.client_weights))

    def feature_offset(self, head: Array) -> Array:
        """Offset Wᵀ A⁻¹ d_m of corrected features, eq. (18): head (..., C, P) -> (..., M, P).

        At a head with W Wᵀ = G_cen, a client that adds this to the bias of its last feature layer predicts
        like centralized training with the shared bias.

        Examples
        --------
        >>> from fedgram import Moments, Penalty, correct
        >>> moments = Moments(count=[9, 9], mean=[[-3.0], [3.0]], covariance=[[[7.0]], [[7.0]]])
        >>> correct(moments, Penalty(features=0.25, head=0.25)).feature_offset([[0.5]]).tolist()
        [[-3.0], [3.0]]
        """
        head = self._check_head(head)
        solved = np.linalg.solve(self._gram(head), self.moments.offset[..., None])[..., 0]
        return np.einsum("...cp,...mc->...mp", head, solved)

    def prediction_difference(self, head: Array, bias: BiasRule) -> Array:
        """Corrected minus centralized predictions on client m, constant over its samples: (..., M, C).

        The head must have W Wᵀ = G_cen, because others differ by more than a constant. The difference is
        -G A⁻¹ d_m with the shared bias μ_g, λ_H A⁻¹ d_m with the client's private bias μ_m, and zero with
        the shared bias and the feature offset (Appendix C.3).
        """
        if bias not in get_args(BiasRule):
            rules = ", ".join(get_args(BiasRule))
            raise InputError(f"Unknown bias rule '{bias}'. Choose one of {rules}.", field="bias")
        head = self._check_head(head)
        self._check_gram(head)
        return self._mean_prediction(head, bias) - self._centralized_mean_prediction()

    def _mean_prediction(self, head: Array, bias: BiasRule) -> Array:
        """Mean prediction on client m minus μ_g, (..., M, C)."""
        moved = np.einsum("...cp,...mp->...mc", head, self.feature_offset(head))
        if bias == "offset":
            return moved
        return np.broadcast_to(self.moments.offset if bias == "private" else 0.0, moved.shape)

    def _centralized_mean_prediction(self) -> Array:
        """Mean centralized prediction on client m minus μ_g: G_cen A⁻¹ d_m, (..., M, C)."""
        regularized = self.centralized + self.penalty.features * np.eye(len(self.moments.targets))
        return self.moments.offset @ np.linalg.solve(regularized, self.centralized)  # A⁻¹ G_cen is symmetric

    def _check_gram(self, head: Array) -> None:
        away = psd.frobenius(psd.gram(head) - self.centralized)
        if (away > SAME_GRAM * psd.frobenius(self.centralized)).any():
            raise InputError(
                f"The head's Gram is up to {away.max():.3g} away from G_cen, so predictions differ by more "
                "than a constant. Pass a head after a corrected round with strength 1.",
                field="head",
            )

    def _check_head(self, head: Array) -> Array:
        array = as_finite_array(head, "head")
        psd.check_head(array, len(self.moments.targets))
        common_batch(head=array.shape[:-2], moments=self.moments.mean.shape[:-2])
        return array

    def _gram(self, head: Array) -> Array:
        return regularized_gram(head, self.penalty)[..., None, :, :]


def correct(moments: Moments, penalty: Penalty | None = None, strength: float = 1.0) -> Correction:
    """Compute the correction that makes each client's objective that of the pooled data, eq. (13).

    Parameters
    ----------
    moments
        Target moments of at least two clients.
    penalty
        λ_H and λ_W; `Penalty()` by default.
    strength
        γ in [0, 1]; 1 removes the gap in one round.

    Returns
    -------
    Correction
        The correction γ C_m of each of M clients.

    Raises
    ------
    InputError
        If the strength is out of range, or the centralized Gram is zero.

    Examples
    --------
    >>> from fedgram import Moments, Penalty, correct
    >>> moments = Moments(count=[9, 9], mean=[[0.0], [0.0]], covariance=[[[1.0]], [[7.0]]])
    >>> correction = correct(moments, Penalty(features=0.25, head=0.25), strength=0.5)
    >>> correction.deficit.ravel().tolist(), correction.covariance.ravel().tolist()
    ([3.0, -3.0], [2.5, 5.5])
    """
    check_federation(moments, "correct()")
    penalty = Penalty.or_default(penalty)
    check_strength(strength)
    correction = build_correction(moments, penalty, float(strength))
    check_centralized(correction.centralized, moments, penalty)
    return correction


def check_strength(strength: float) -> None:
    """Reject a strength that is out of range."""
    if not 0.0 <= as_float(strength) <= 1.0:
        raise InputError(f"strength must be a number between 0 and 1, not {strength}.", field="strength")


def build_correction(moments: Moments, penalty: Penalty, strength: float) -> Correction:
    """Compute the correction without the checks of `correct`."""
    pooled = moments.pooled.covariance
    # F is affine in T. Unlike Σ_m + γ (Σ_cen - Σ_m), the convex combination is exactly Σ_cen at γ = 1.
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
    """λ_H/2 tr(deficit A⁻¹): head (..., C, P), deficit (..., C, C) -> (...)."""
    return 0.5 * penalty.features * psd.trace(np.linalg.solve(regularized_gram(head, penalty), deficit))


def contributions(moments: Moments, origin: Array | float = 0.0) -> Array:
    """Contribution of each client to the sum that the server needs: (M, 1 + C + C²).

    Rows are N_m, N_m μ_m and N_m (Σ_m + μ_m μ_mᵀ), eq. (B2), with μ_m relative to a common origin (C,). The
    server needs only their sum to compute μ_g and Σ_cen, so secure aggregation can compute it. The
    origin is a guess of the mean: far from it, second moments lose the digits of the covariance.
    """
    check_type(moments, Moments, "contributions()", BUILD_HINT)
    if not moments.is_weighted_by_rows:
        raise InputError(
            "A sum over rows weights clients by their rows, but these moments have other client weights. "
            "Drop the weights.",
            field="client_weights",
        )
    mean = moments.mean - origin
    second = moments.covariance + outer(mean, mean)
    flat = second.reshape(*second.shape[:-2], -1)
    ones = np.ones((*mean.shape[:-1], 1))
    return moments.count[..., None] * np.concatenate([ones, mean, flat], axis=-1)


def pooled_from_sum(total: Array, origin: Array | float = 0.0) -> tuple[Array, Array]:
    """Compute μ_g (..., C) and Σ_cen (..., C, C) from the sum (..., 1 + C + C²) of `contributions`."""
    total = np.atleast_1d(as_finite_array(total, "total"))
    size = isqrt(total.shape[-1])  # C of 1 + C + C², which is below (C + 1)²
    if total.shape[-1] != 1 + size + size**2:
        raise InputError(
            f"total must have shape (..., 1 + C + C²) for C targets, not {total.shape}. Pass the sum of the "
            "clients' contributions.",
            field="total",
        )
    if not (total[..., 0] > 0).all():
        raise InputError(
            "The total weight of this sum is not positive. Add a client with rows.", field="total"
        )
    scaled = total[..., 1:] / total[..., :1]
    mean, second = scaled[..., :size], scaled[..., size:].reshape(*total.shape[:-1], size, size)
    covariance = psd.symmetric(second - outer(mean, mean))
    variance, square = (np.einsum("...ii->...i", matrix) for matrix in (covariance, second))
    if (variance < LEAST_VARIANCE_RATIO * square).any():
        raise InputError(
            "The targets are so far from the origin of this sum that their covariance is lost. Choose an "
            "origin near their mean.",
            field="origin",
        )
    return mean + origin, covariance
