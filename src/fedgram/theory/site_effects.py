"""Site effects: an intercept and a deviation of the head per site, both shrunk.

A shared head (W, b) leaves the residual r = y - W u - b at site m. The site adds

    r ≈ a_m + D_m (u - ū),   a_m ~ N(0, τ²),   D_m ~ N(0, κ⁻¹ diag(σ_u²)⁻¹)

where ū and σ_u² are the pooled mean and variances of the features. Each site solves its own ridge problem
from its own rows and the shared totals:

    min Σ‖r - a - D (u - ū)‖² + s_a ‖a‖² + s_D Σ_d σ_ud² ‖D_d‖²,   eq. (B7).

s_a and s_D count rows: a site with s_a rows moves its intercept half of the way. With one row the effect is
near zero, with many rows it is the site's own. All strengths are chosen on validation rows, from sums alone;
the heads are then fitted again on training and validation rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from fedgram._util.arrays import Array, outer
from fedgram.theory.geometry.psd import symmetric
from fedgram.theory.moment_head import FeatureSums, LinearHead

# Searched strengths, in rows; inf switches an effect off.
STRENGTHS: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0, np.inf)

# Searched ridges of the shared head, as ratios of the variances of noise and signal.
RIDGES: tuple[float, ...] = (1e3, 1e2, 10.0, 1.0, 0.1)


@dataclass(frozen=True)
class EffectStrengths:
    """Shrinkage of intercepts and of head deviations, in rows; inf switches an effect off."""

    intercept: float = np.inf
    deviation: float = np.inf

    def document(self) -> dict[str, float | None]:
        """Convert to JSON values; None for an effect that is off."""
        return {name: value if np.isfinite(value) else None for name, value in vars(self).items()}


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
    variance = np.diagonal(pooled.resolved_scatter()) / pooled.count
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
    intercept, deviation = solution[..., 0, :], solution[..., 1:, :].mT
    return LinearHead(head.weight + deviation, head.bias + intercept - deviation @ mean)


@dataclass(frozen=True)
class Trial:
    """Strengths to be tried: the noise ratio of the shared head's ridge, and those of the site effects."""

    ridge: float
    strengths: EffectStrengths = EffectStrengths()


TrialErrors = Callable[[Sequence[Trial]], Array]
"""Returns squared errors (trials, M) on each site's validation rows, summed over targets."""


def search_strengths(
    errors_of: TrialErrors, *, effects: bool, deviations: bool = True
) -> tuple[Trial, Array]:
    """Choose every strength by the squared error on validation rows of all sites.

    First the ridge with the intercept and without deviations, then the deviation with that intercept, then
    the intercept again. Ties go to the stronger shrinkage. Deviations have many parameters and fit what is
    particular to the training rows, for example their season. Deviations get the strongest shrinkage whose
    error is within one standard error (over sites) of the least.

    Parameters
    ----------
    errors_of : function
        Errors of trials, here or at the sites. Called once, or three times with deviations.
    effects : bool
        Whether sites have effects; without, all use the shared head.
    deviations : bool
        Whether effects include deviations of the head, which take most of the time.

    Returns
    -------
    Trial, array (M,)
        The chosen strengths and each site's error with them.
    """
    candidates = STRENGTHS[::-1] if effects else (np.inf,)
    trials = [Trial(ridge, EffectStrengths(each)) for ridge in RIDGES for each in candidates]
    chosen, errors = _choose(trials, errors_of(trials))
    for field in ("deviation", "intercept") if effects and deviations else ():
        trials = [
            replace(chosen, strengths=replace(chosen.strengths, **{field: each})) for each in candidates
        ]
        chosen, errors = _choose(trials, errors_of(trials), is_strict=field == "deviation")
    return chosen, errors


def _choose(trials: Sequence[Trial], errors: Array, is_strict: bool = False) -> tuple[Trial, Array]:
    """Return the first trial with the least total error, or within one standard error of it."""
    totals = errors.sum(axis=1)
    at = int(np.argmax(totals <= totals.min() + (_standard_error(errors) if is_strict else 0.0)))
    return trials[at], errors[at]


def trial_errors(
    training: FeatureSums,
    validation: FeatureSums,
    pooled: FeatureSums,
    trials: Sequence[Trial],
    toward: Array | float = 0.0,
) -> Array:
    """Squared errors (trials, M) on validation rows of heads that were fitted on training rows.

    Parameters
    ----------
    training, validation : FeatureSums with leading axis M
        Sums over each site's training rows, and over its validation rows.
    pooled : FeatureSums without leading axes
        Totals over all sites' training rows.
    trials : sequence of Trial
    toward : array (C, D)
        Weight to which the shared head shrinks.
    """
    return np.concatenate(
        [
            _errors_with_head(
                training,
                validation,
                pooled,
                pooled.moment_head(ridge, toward),
                [each.strengths for each in same],
            )
            for ridge, same in groupby(trials, lambda each: each.ridge)
        ]
    )


def _errors_with_head(
    training: FeatureSums,
    validation: FeatureSums,
    pooled: FeatureSums,
    head: LinearHead,
    strengths: Sequence[EffectStrengths],
) -> Array:
    if all(each.deviation == np.inf for each in strengths):
        return _errors_of_intercepts(training, validation, head, [each.intercept for each in strengths])
    fits = (fit_site_effects(training, head, pooled, each) for each in strengths)
    return np.stack([validation.squared_error(fit).sum(axis=-1) for fit in fits])


def _errors_of_intercepts(
    training: FeatureSums, validation: FeatureSums, head: LinearHead, strengths: Sequence[float]
) -> Array:
    """Squared errors (strengths, M) with intercepts alone: Σ‖r - a‖² = Σ‖r‖² - 2 a·Σr + n ‖a‖²."""
    trained, held_out = (sites.count[:, None] * sites.residual_mean(head) for sites in (training, validation))
    intercepts = trained / (training.count[:, None] + np.asarray(strengths)[:, None, None])
    change = (validation.count[:, None] * intercepts - 2 * held_out) * intercepts
    return np.asarray(validation.squared_error(head).sum(axis=-1) + change.sum(axis=-1))


def _standard_error(errors: Array) -> Array:
    """Standard error (candidates,) of how far each candidate's total is above the least; errors (., M)."""
    excess = errors - errors[errors.sum(axis=1).argmin()]
    return (
        np.sqrt(errors.shape[1] * excess.var(axis=1, ddof=1))
        if errors.shape[1] > 1
        else np.zeros(len(errors))
    )


@dataclass(frozen=True, eq=False)
class SiteHeads:
    """Shared head (C, D) and the heads of M sites (M, C, D), with the strengths that gave them.

    shared_unseen, unseen: the same from training rows alone, to be judged on validation rows.
    validation_error (M,): their squared error on each site's validation rows, summed over targets.
    """

    shared: LinearHead
    sites: LinearHead
    shared_unseen: LinearHead
    unseen: LinearHead
    ridge: float
    strengths: EffectStrengths
    validation_error: Array


def choose_strengths(
    training: FeatureSums,
    validation: FeatureSums,
    *,
    effects: bool,
    deviations: bool,
    toward: Array | float = 0.0,
) -> tuple[Trial, Array]:
    """Choose every strength from the sums of all sites; parameters as in `fit_site_heads`.

    Also return each site's error with them, as `search_strengths` does.
    """
    totals = training.total()
    return search_strengths(
        lambda trials: trial_errors(training, validation, totals, trials, toward),
        effects=effects,
        deviations=deviations,
    )


def fit_site_heads(
    training: FeatureSums,
    validation: FeatureSums,
    *,
    effects: bool,
    deviations: bool = True,
    toward: Array | float = 0.0,
) -> SiteHeads:
    """Fit the moment head and the heads of all sites; choose every strength on validation rows.

    Parameters
    ----------
    training, validation : FeatureSums with leading axis M
        Sums over each site's training rows, and over its validation rows.
    effects : bool
        Whether sites have effects; without, all use the shared head.
    deviations : bool
        Whether effects include deviations of the head, which take most of the time.
    toward : array (C, D)
        Weight to which the shared head shrinks.

    Returns
    -------
    SiteHeads
        Fitted on training and validation rows with the chosen strengths; `shared_unseen` and `unseen` on
        training rows alone.
    """
    chosen, errors = choose_strengths(
        training, validation, effects=effects, deviations=deviations, toward=toward
    )
    totals, rows = training.total(), training + validation
    shared, shared_unseen = (each.moment_head(chosen.ridge, toward) for each in (rows.total(), totals))
    return SiteHeads(
        shared=shared,
        sites=fit_site_effects(rows, shared, rows.total(), chosen.strengths),
        shared_unseen=shared_unseen,
        unseen=fit_site_effects(training, shared_unseen, totals, chosen.strengths),
        ridge=chosen.ridge,
        strengths=chosen.strengths,
        validation_error=errors,
    )


def _residual_sums(sites: FeatureSums, head: LinearHead, mean: Array) -> FeatureSums:
    """Sums of u - mean and of the residuals r = y - W u - b; those of r rᵀ are not needed."""
    count = sites.count[..., None]
    features = sites.features - count * mean
    products = sites.features_features - outer(sites.features, mean) - outer(mean, features)
    residuals = sites.targets - sites.features @ head.weight.T - count * head.bias
    cross = (
        sites.features_targets
        - sites.features_features @ head.weight.T
        - outer(sites.features, head.bias)
        - outer(mean, residuals)
    )
    return FeatureSums(sites.count, features, residuals, products, cross, sites.targets_targets)


def _penalties(strengths: EffectStrengths, variance: Array) -> tuple[float, Array]:
    # A feature without variance has no slope to deviate.
    with np.errstate(invalid="ignore"):
        deviation = np.where(variance > 0, strengths.deviation * variance, np.inf)
    return strengths.intercept, deviation
