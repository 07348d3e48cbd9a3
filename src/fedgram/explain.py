"""Why federated averaging ends away from centralized training: three positive-semidefinite terms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram import psd
from fedgram.averaging import average
from fedgram.predict import Prediction
from fedgram.psd import Array, transpose

TERMS = ("mean", "covariance", "averaging")

# Loewner order is checked to this multiple of ‖G_cen‖: what rounding of the three differences can reach.
LOEWNER_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Gap:
    """G_cen - G_⋆ = M_μ + M_Σ + M_A, Proposition 1, and where it comes from.

    mean M_μ (client means differ), covariance M_Σ (client covariances differ, and the optimal Gram is
    concave in them), averaging M_A (heads are averaged, not Grams), (..., C, C) each.
    relative ‖G_cen - G_⋆‖_F / ‖G_cen‖_F (...). variance Σ p_m d²(G_⋆, G_m) (...), equal to tr M_A by
    eq. (12). dispersion D (...), with D ≤ tr M_A ≤ 2D, eq. (17). smallest_eigenvalue (..., 3) of each
    term. by_client (..., 3, M): the part of each trace that is due to each client. scatter_residual (...):
    how far M_A is from the scatter of the selected heads, relative to ‖G_cen‖_F.
    """

    mean: Array
    covariance: Array
    averaging: Array
    relative: Array
    scale: Array
    variance: Array
    dispersion: Array
    smallest_eigenvalue: Array
    by_client: Array
    scatter_residual: Array

    @property
    def total(self) -> Array:
        """G_cen - G_⋆, (..., C, C)."""
        return self.mean + self.covariance + self.averaging

    @property
    def traces(self) -> Array:
        """Traces of the three terms in the order mean, covariance, averaging, (..., 3)."""
        return np.stack([psd.trace(getattr(self, term)) for term in TERMS], axis=-1)

    @property
    def trace(self) -> Array:
        """tr(G_cen - G_⋆), (...)."""
        return self.traces.sum(axis=-1)

    @property
    def shares(self) -> Array:
        """Fraction of the trace in each term, (..., 3); zero where there is no gap."""
        return _fractions(self.traces, self.trace[..., None])

    @property
    def client_shares(self) -> Array:
        """Fraction of the trace due to each client, (..., M)."""
        return _fractions(self.by_client.sum(axis=-2), self.trace[..., None])

    @property
    def target_shares(self) -> Array:
        """Fraction of the trace on each target's diagonal entry, (..., C)."""
        return _fractions(np.einsum("...ii->...i", self.total), self.trace[..., None])

    @property
    def directions(self) -> tuple[Array, Array]:
        """Eigenvalues (..., C), largest first, and eigenvectors (..., C, C), as columns, of the gap."""
        values, basis = np.linalg.eigh(self.total)
        return values[..., ::-1], basis[..., ::-1]

    @property
    def chain_holds(self) -> Array:
        """G_⋆ ≼ Σ p_m G_m ≼ G_within ≼ G_cen up to rounding, (...)."""
        return np.all(self.smallest_eigenvalue >= -LOEWNER_ROUNDING * self.scale[..., None], axis=-1)

    @property
    def bounds_hold(self) -> Array:
        """D ≤ tr M_A ≤ 2D up to rounding, eq. (17), (...)."""
        rounding = LOEWNER_ROUNDING * self.scale
        spread = self.traces[..., 2]
        return (self.dispersion <= spread + rounding) & (spread <= 2 * self.dispersion + rounding)


def explain(prediction: Prediction) -> Gap:
    """Split the distance to centralized training into its three causes, eq. (11)."""
    weights, grams, star = prediction.moments.client_weights, prediction.grams, prediction.barycenter
    arithmetic = average(weights, grams)
    terms = {
        "mean": prediction.centralized - prediction.within,
        "covariance": prediction.within - arithmetic,
        "averaging": arithmetic - star.gram,
    }
    displacement = psd.closest_factor(star.factor[..., None, :, :], grams) - star.factor[..., None, :, :]
    scatter = average(weights, displacement @ transpose(displacement))  # eq. (16) at the limit
    scale = psd.frobenius(prediction.centralized)
    return Gap(
        **terms,
        relative=prediction.relative_gap,
        scale=scale,
        variance=psd.trace(scatter),
        dispersion=pairwise_dispersion(grams, weights),
        smallest_eigenvalue=np.stack([np.linalg.eigvalsh(term)[..., 0] for term in terms.values()], axis=-1),
        by_client=_client_parts(prediction, weights * psd.frobenius(displacement) ** 2),
        scatter_residual=psd.frobenius(scatter - terms["averaging"]) / scale,
    )


def pairwise_dispersion(grams: Array, client_weights: Array) -> Array:
    """D = Σ_{m<n} p_m p_n d²(G_m, G_n), eq. (17): grams (..., M, C, C), client_weights (..., M) -> (...)."""
    first, second = np.triu_indices(grams.shape[-3], k=1)
    squared = psd.distance(grams[..., first, :, :], grams[..., second, :, :]) ** 2
    return (client_weights[..., first] * client_weights[..., second] * squared).sum(axis=-1)


def _client_parts(prediction: Prediction, averaging: Array) -> Array:
    """Nonnegative parts of the three traces due to each client, (..., 3, M).

    averaging: p_m d²(G_⋆, G_m). covariance: p_m times the Bregman divergence of -tr φ between Σ_m and
    Σ_within. mean: the derivative of tr φ along Σ_within -> Σ_cen applied to p_m d_m d_mᵀ, averaged over
    the way (Aumann–Shapley). Each row is scaled to sum to its term's trace, which it does up to rounding
    in the fully active regime.
    """
    moments, penalty = prediction.moments, prediction.penalty
    weights, pooled = moments.client_weights, moments.pooled
    slope = _mean_slope(pooled.within, pooled.between, penalty.scale)
    mean = weights * np.einsum("...mi,...ij,...mj->...m", moments.offset, slope, moments.offset)
    tangent = 0.5 * penalty.scale * _inverse_sqrt(pooled.within)
    step = np.einsum("...ij,...mji->...m", tangent, moments.covariance - pooled.within[..., None, :, :])
    jump = psd.trace(prediction.grams) - psd.trace(prediction.within)[..., None]
    parts = np.stack([mean, np.maximum(weights * (step - jump), 0.0), averaging], axis=-2)
    between = psd.trace(prediction.centralized - prediction.within)
    within = psd.trace(prediction.within - average(weights, prediction.grams))
    totals = np.stack([between, within, averaging.sum(axis=-1)], axis=-1)
    return totals[..., None] * _fractions(parts, parts.sum(axis=-1, keepdims=True))


def _mean_slope(within: Array, between: Array, scale: float) -> Array:
    """∫₀¹ (α/2) (Σ_within + s Σ_μ)^(-1/2) ds by Gauss–Legendre, (..., C, C)."""
    nodes, masses = np.polynomial.legendre.leggauss(16)
    slopes = (0.25 * scale * mass * _inverse_sqrt(within + 0.5 * (1 + node) * between)
              for node, mass in zip(nodes, masses, strict=True))  # fmt: skip
    return np.asarray(sum(slopes))


def _inverse_sqrt(matrix: Array) -> Array:
    """T^(-1/2) on the range of semidefinite T, zero elsewhere."""
    values, basis = np.linalg.eigh(matrix)
    kept = values > 1e-12 * values[..., -1:]
    inverse = np.where(kept, 1.0 / np.sqrt(np.where(kept, values, 1.0)), 0.0)
    return (basis * inverse[..., None, :]) @ transpose(basis)


def _fractions(parts: Array, whole: Array) -> Array:
    """parts / whole, zero where the whole is not positive."""
    return np.where(whole > 0, parts / np.where(whole > 0, whole, 1.0), 0.0)
