"""Site effects: an intercept and a deviation of the head per site, both shrunk.

A shared head (W, b) leaves the residual r = y - W u - b at site m. The site adds

    r ≈ a_m + D_m (u - ū),   a_m ~ N(0, τ²),   D_m ~ N(0, κ⁻¹ diag(σ_u²)⁻¹)

where ū and σ_u² are the pooled mean and variances of the features. Each site solves its own ridge problem
from its own rows and the shared totals:

    min Σ‖r - a - D (u - ū)‖² + s_a ‖a‖² + s_D Σ_d σ_ud² ‖D_d‖².

s_a and s_D count rows: a site with s_a rows moves its intercept half of the way. With one row the effect is
near zero, with many rows it is the site's own. Both strengths are chosen on held-out rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.geometry.psd import symmetric
from fedgram.theory.moment_head import FeatureSums, LinearHead

# Searched strengths, in rows; inf switches an effect off.
STRENGTHS: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0, np.inf)


@dataclass(frozen=True)
class EffectStrengths:
    """Shrinkage of intercepts and of head deviations, in rows; inf switches an effect off."""

    intercept: float = np.inf
    deviation: float = np.inf


def fit_site_effects(
    sites: FeatureSums, head: LinearHead, pooled: FeatureSums, strengths: EffectStrengths
) -> LinearHead:
    """Fit the head of every site.

    Parameters
    ----------
    sites : FeatureSums with leading axis M
        Sums over each site's training rows.
    head : LinearHead
        The shared head, weight (C, D) and bias (C,).
    pooled : FeatureSums without leading axes
        The totals; they fix the mean and the scale of every feature.
    strengths : EffectStrengths

    Returns
    -------
    LinearHead with weight (M, C, D) and bias (M, C)
    """
    mean = pooled.feature_mean
    variance = np.diagonal(pooled.feature_scatter) / pooled.count
    centered = _residual_sums(sites, head, mean)
    intercept_penalty, deviation_penalty = _penalties(strengths, variance)
    size = len(mean)
    normal = np.zeros((*sites.count.shape, size + 1, size + 1))
    normal[..., 0, 0] = sites.count
    normal[..., 0, 1:] = normal[..., 1:, 0] = centered.features
    normal[..., 1:, 1:] = centered.features_features
    right = np.concatenate([centered.targets[..., None, :], centered.features_targets], axis=-2)
    penalty = np.concatenate([[intercept_penalty], deviation_penalty])
    free = np.isfinite(penalty)
    solution = np.zeros_like(right)
    if free.any():
        system = symmetric(normal[..., free, :][..., :, free] + np.diag(penalty[free]))
        solution[..., free, :] = np.linalg.solve(system, right[..., free, :])
    intercept, deviation = solution[..., 0, :], solution[..., 1:, :].swapaxes(-1, -2)
    return LinearHead(head.weight + deviation, head.bias + intercept - deviation @ mean)


def choose_strengths(
    training: FeatureSums,
    validation: FeatureSums,
    head: LinearHead,
    candidates: Sequence[float] = STRENGTHS,
) -> EffectStrengths:
    """Choose both strengths by the squared error on validation rows of all sites.

    First the intercept without deviations, then the deviation with that intercept, then the intercept again.
    Ties go to the stronger shrinkage.
    """
    pooled = training.total()
    strengths = EffectStrengths()
    for field in ("intercept", "deviation", "intercept"):
        trials = [
            EffectStrengths(**{**vars(strengths), field: candidate}) for candidate in reversed(candidates)
        ]
        errors = [
            validation.squared_error(fit_site_effects(training, head, pooled, trial)).sum()
            for trial in trials
        ]
        strengths = trials[int(np.argmin(errors))]
    return strengths


def _residual_sums(sites: FeatureSums, head: LinearHead, mean: Array) -> FeatureSums:
    """Sums of u - mean and of the residuals r = y - W u - b; those of r rᵀ are not needed."""
    count = sites.count[..., None]
    features = sites.features - count * mean
    outer = sites.features_features - _cross(sites.features, mean) - _cross(mean, features)
    residuals = sites.targets - sites.features @ head.weight.T - count * head.bias
    cross = (
        sites.features_targets
        - sites.features_features @ head.weight.T
        - sites.features[..., :, None] * head.bias
        - mean[:, None] * residuals[..., None, :]
    )
    return FeatureSums(sites.count, features, residuals, outer, cross, sites.targets_targets)


def _cross(first: Array, second: Array) -> Array:
    return first[..., :, None] * second[..., None, :]


def _penalties(strengths: EffectStrengths, variance: Array) -> tuple[float, Array]:
    # A feature without variance has no slope to deviate.
    with np.errstate(invalid="ignore"):
        deviation = np.where(variance > 0, strengths.deviation * variance, np.inf)
    return strengths.intercept, deviation
