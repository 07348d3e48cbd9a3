"""Split the gap to centralized training into three terms: G_cen - G_⋆ = M_μ + M_Σ + M_A."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgram._util.arrays import EPS, Array
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import check_type
from fedgram._util.text import percent_range
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.weights import average
from fedgram.theory.penalty import Penalty
from fedgram.theory.pooled import Pooled
from fedgram.theory.predict import Prediction

TERMS = ("mean", "covariance", "averaging")

# Largest rounding of the three terms relative to ‖G_cen‖, where φ does not enlarge it.
ROUNDING = 1e-12

# Documents and sentences visit all pairs of clients while M² (6 + C²) is below this: a few seconds.
MAX_PAIR_COST = 1e7


@dataclass(frozen=True, eq=False)
class Gap(DisplayMethods):
    """Gap G_cen - G_⋆ = M_μ + M_Σ + M_A, Proposition 1, split by cause and by client.

    Parameters
    ----------
    mean
        M_μ, because client means differ, (..., C, C).
    covariance
        M_Σ, because client covariances differ and φ is concave in them, (..., C, C).
    averaging
        M_A, because heads are averaged, not Grams, (..., C, C).
    relative
        ‖G_cen - G_⋆‖_F / ‖G_cen‖_F, (...).
    scale
        ‖G_cen‖_F, (...), the unit of rounding.
    variance
        Σ p_m d²(G_⋆, G_m), (...), equal to tr M_A by eq. (12).
    smallest_eigenvalue
        Smallest eigenvalue of each term, (..., 3).
    by_client
        Part of each trace due to each client, (..., 3, M).
    scatter_residual
        Distance of M_A from the scatter of the selected heads, relative to ‖G_cen‖_F, (...).
    prediction
        The explained prediction.

    Examples
    --------
    >>> from fedgram import Moments, Penalty, explain, predict
    >>> moments = Moments(count=[9, 9], mean=[[-1.0], [1.0]], covariance=[[[1.0]], [[1.0]]])
    >>> gap = explain(predict(moments, Penalty(features=0.25, head=0.25)))
    >>> gap.traces.round(4).tolist(), gap.client_shares.round(4).tolist()
    ([0.4142, 0.0, 0.0], [0.5, 0.5])
    >>> gap
    Gap(36%, 2 clients, 1 target)
    >>> gap.to_frame().groupby("cause").part.sum().round(4).to_dict()
    {'averaging': 0.0, 'covariance': 0.0, 'mean': 0.4142}
    """

    mean: Array
    covariance: Array
    averaging: Array
    relative: Array
    scale: Array
    variance: Array
    smallest_eigenvalue: Array
    by_client: Array
    scatter_residual: Array
    prediction: Prediction

    def __repr__(self) -> str:
        return f"Gap({percent_range(self.relative)}, {self.prediction.moments.dimensions})"

    @property
    def total(self) -> Array:
        """G_cen - G_⋆, (..., C, C)."""
        return self.mean + self.covariance + self.averaging

    @property
    def traces(self) -> Array:
        """Traces of the terms mean, covariance and averaging, (..., 3)."""
        return np.stack([psd.trace(getattr(self, term)) for term in TERMS], axis=-1)

    @property
    def trace(self) -> Array:
        """tr(G_cen - G_⋆), (...)."""
        return self.traces.sum(axis=-1)

    @property
    def one_sided(self) -> Array:
        """Whether no trace of a term is negative, so that shares are defined, (...)."""
        return np.all(self.traces >= -self.rounding[..., None], axis=-1)

    @cached_property
    def rounding(self) -> Array:
        """Largest size of the terms due to rounding alone, (...)."""
        moments, penalty = self.prediction.moments, self.prediction.penalty
        operations = len(moments.clients) + 4 * len(moments.targets)
        variance = operations * EPS * psd.frobenius(moments.pooled.covariance)
        least = np.maximum(self.prediction.activity.eigenvalue.min(axis=-1), penalty.threshold)
        # |√(s + v) - √s| is at most v / (2 √s), and at most √v
        moved = penalty.scale * np.minimum(0.5 * variance / np.sqrt(least), np.sqrt(variance))
        return np.maximum(max(ROUNDING, operations * EPS) * self.scale, moved)

    @property
    def negligible(self) -> Array:
        """Whether the gap is rounding, (...)."""
        return self.relative * self.scale <= self.rounding

    @property
    def few_pairs(self) -> bool:
        """Whether visiting all pairs of clients takes a few seconds at most."""
        moments = self.prediction.moments
        return len(moments.clients) ** 2 * (6 + len(moments.targets) ** 2) <= MAX_PAIR_COST

    @cached_property
    def dispersion(self) -> Array:
        """D = Σ_{m<n} p_m p_n d²(G_m, G_n), with D ≤ tr M_A ≤ 2D, eq. (17), (...). Visits all pairs."""
        return pairwise_dispersion(self.prediction.grams, self.prediction.moments.client_weights)

    @property
    def shares(self) -> Array:
        """Fraction of the trace in each term, (..., 3); zero where there is no gap, NaN if not one-sided."""
        return self._shares(self.traces)

    @property
    def client_shares(self) -> Array:
        """Fraction of the trace due to each client, (..., M); zero and NaN as in `shares`."""
        return self._shares(self.by_client.sum(axis=-2))

    @property
    def shares_by_client(self) -> Array:
        """Fraction of the trace due to each term and client, (..., 3, M); zero and NaN as in `shares`."""
        parts = self.by_client.reshape(*self.by_client.shape[:-2], -1)
        return self._shares(parts).reshape(self.by_client.shape)

    @property
    def target_shares(self) -> Array:
        """Fraction of the trace on each target's diagonal entry, (..., C); zero and NaN as in `shares`."""
        return self._shares(np.einsum("...ii->...i", self.total))

    @property
    def directions(self) -> tuple[Array, Array]:
        """Eigenvalues (..., C), largest first, and eigenvectors (..., C, C), as columns, of the gap."""
        values, basis = np.linalg.eigh(self.total)
        return values[..., ::-1], basis[..., ::-1]

    @property
    def chain_holds(self) -> Array:
        """G_⋆ ≼ Σ p_m G_m ≼ G_within ≼ G_cen up to rounding, (...)."""
        return np.all(self.smallest_eigenvalue >= -self.rounding[..., None], axis=-1)

    @property
    def bounds_hold(self) -> Array:
        """D ≤ tr M_A ≤ 2D up to rounding, eq. (17), (...)."""
        spread = self.traces[..., 2]
        below = self.dispersion <= spread + self.rounding
        return below & (spread <= 2 * self.dispersion + self.rounding)

    def _shares(self, parts: Array) -> Array:
        """Divide parts (..., K) of the trace by it; NaN if a term is negative."""
        shares = np.where(self.one_sided[..., None], _fractions(parts, self.trace[..., None]), np.nan)
        return np.where(self.negligible[..., None], 0.0, shares)


def explain(prediction: Prediction) -> Gap:
    """Split the gap to centralized training into its three causes, eq. (11).

    Parameters
    ----------
    prediction
        Result of `predict`.

    Returns
    -------
    Gap
        The three terms, (..., C, C) each, and the part of each client.

    Raises
    ------
    InputError
        If `prediction` is not a Prediction.

    Examples
    --------
    >>> from fedgram import Moments, Penalty, explain, predict
    >>> moments = Moments(count=[9, 9], mean=[[0.0], [0.0]], covariance=[[[1.0]], [[9.0]]])
    >>> gap = explain(predict(moments, Penalty(features=0.25, head=0.25)))
    >>> gap.shares.round(4).tolist()
    [0.0, 0.6007, 0.3993]
    """
    check_type(prediction, Prediction, "explain()", "Build it with predict(moments, penalty)")
    moments, grams, limit = prediction.moments, prediction.grams, prediction.barycenter
    client_weights = moments.client_weights
    arithmetic = average(client_weights, grams)
    terms = {
        "mean": prediction.centralized - prediction.within,
        "covariance": prediction.within - arithmetic,
        "averaging": arithmetic - limit.gram,
    }
    displacement = psd.closest_factor(limit.factor[..., None, :, :], grams) - limit.factor[..., None, :, :]
    scatter = average(client_weights, displacement @ displacement.mT)  # eq. (16) at the limit
    scale = psd.frobenius(prediction.centralized)
    return Gap(
        **terms,
        relative=prediction.relative_gap,
        scale=scale,
        variance=psd.trace(scatter),
        smallest_eigenvalue=np.stack([np.linalg.eigvalsh(term)[..., 0] for term in terms.values()], axis=-1),
        by_client=split_by_client(
            moments.offset,
            moments.covariance,
            grams,
            client_weights,
            moments.pooled,
            prediction.within,
            prediction.centralized,
            prediction.penalty,
            client_weights * psd.frobenius(displacement) ** 2,
        ),
        scatter_residual=psd.frobenius(scatter - terms["averaging"]) / scale,
        prediction=prediction,
    )


def pairwise_dispersion(grams: Array, client_weights: Array) -> Array:
    """D = Σ_{m<n} p_m p_n d²(G_m, G_n), eq. (17): grams (..., M, C, C), client_weights (..., M) -> (...)."""
    factors = psd.factor(grams)
    total = np.zeros(grams.shape[:-3])
    for m in range(grams.shape[-3] - 1):  # all pairs at once need too much memory for many clients
        squared = psd.factor_distance(factors[..., m, None, :, :], factors[..., m + 1 :, :, :]) ** 2
        total += client_weights[..., m] * (client_weights[..., m + 1 :] * squared).sum(axis=-1)
    return total


def split_by_client(
    offset: Array,
    covariance: Array,
    grams: Array,
    client_weights: Array,
    pooled: Pooled,
    within: Array,
    centralized: Array,
    penalty: Penalty,
    averaging: Array,
    nodes: int = 16,
) -> Array:
    """Split the three traces into the parts of M clients, (..., 3, M).

    averaging: p_m d²(G_⋆, G_m). covariance: p_m times the Bregman divergence of -tr φ between Σ_m and
    Σ_within, nonnegative where all are active. mean: the derivative of tr φ along Σ_within -> Σ_cen applied
    to p_m d_m d_mᵀ, averaged over the way (Aumann–Shapley), and scaled to the term's trace: the quadrature
    misses it where a direction becomes active on the way.
    """
    slope = _mean_slope(pooled.within, pooled.between, penalty, nodes)
    mean = np.einsum("...mi,...ij,...mj->...m", offset, slope, offset) * client_weights
    between = psd.trace(centralized - within)[..., None]
    tangent = _trace_slope(pooled.within, penalty)
    step = np.einsum("...ij,...mji->...m", tangent, covariance - pooled.within[..., None, :, :])
    jump = psd.trace(grams) - psd.trace(within)[..., None]
    scaled = between * _fractions(mean, mean.sum(axis=-1, keepdims=True))
    return np.stack([scaled, client_weights * (step - jump), averaging], axis=-2)


def _mean_slope(within: Array, between: Array, penalty: Penalty, nodes: int = 16) -> Array:
    """∫₀¹ (tr φ)'(Σ_within + s Σ_μ) ds by Gauss–Legendre, (..., C, C)."""
    points, masses = np.polynomial.legendre.leggauss(nodes)
    slopes = (0.5 * mass * _trace_slope(within + 0.5 * (1 + point) * between, penalty)
              for point, mass in zip(points, masses, strict=True))  # fmt: skip
    return np.asarray(sum(slopes))


def _trace_slope(covariance: Array, penalty: Penalty) -> Array:
    """(tr φ)'(T) = (α/2) T^(-1/2) on the active directions of T, zero on the others, (..., C, C)."""

    def slope(variance: Array) -> Array:
        active = variance > penalty.threshold
        return np.where(active, 0.5 * penalty.scale / np.sqrt(np.where(active, variance, 1.0)), 0.0)

    return psd.spectral(slope, covariance)


def _fractions(parts: Array, whole: Array) -> Array:
    """parts / whole, zero where the whole is not positive."""
    return np.where(whole > 0, parts / np.where(whole > 0, whole, 1.0), 0.0)
