"""Sampling intervals of the gap, and the gap that chance alone leaves.

The gap of the given rows is exact. As an estimate for the population that the rows come from it is too large:
sampling noise makes clients differ. K resamples of the moments show by how much. They come from rows, or from
the moments alone (parametric bootstrap): μ*_m is normal with covariance Σ_m / (N_m - 1), and N_m Σ*_m is
Wishart with covariance Σ_m and N_m - 1 degrees of freedom.

An interval for θ is basic and symmetric: 2θ̂ - avg θ* ± the quantile of |θ* - avg θ*|. It corrects the bias
of θ̂, which percentile intervals double. docs/benchmarks.md has its coverage. A gap of zero is on the boundary
of the parameter space: intervals are clipped there, and they contain zero more often than the level says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array, as_float, is_whole_number
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import InputError, check_type
from fedgram._util.text import percent, percent_range
from fedgram.theory.explain import Gap, explain
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments
from fedgram.theory.predict import Prediction
from fedgram.theory.resamples import gap_statistics, relative_gaps
from fedgram.theory.validation import check_one_problem, check_scale

RESAMPLES, LEAST_RESAMPLES = 1000, 100
# One resample takes about M C³ times 0.3 µs, and ten times as long with singular Grams (measured). By default
# all take at most about 0.3 s.
MAX_COST, SINGULAR_COST = 6e5, 10
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Resamples:
    """Resampled moments: mean (K, M, C), root (K, M, C, C) with covariance root rootᵀ."""

    mean: Array
    root: Array


Sampler = Callable[[int, bool], Resamples]
"""(resamples K, pooled) -> moments; `pooled` draws every client from the pooled population."""


@dataclass(frozen=True, eq=False)
class Intervals(DisplayMethods):
    """Intervals for the population, and the test whether the gap is more than chance.

    Parameters
    ----------
    level
        Nominal coverage.
    relative
        Of the relative gap, (2,); NaN if it is not defined in all resamples.
    traces
        Of the traces of the terms mean, covariance and averaging, (3, 2).
    client_shares
        Of each client's fraction of the trace, (M, 2).
    mean_error
        Of each client's mean error with the shared bias, μ_g - μ_m, (M, C, 2).
    chance_median
        Median relative gap of samples as large as these, if all clients had the pooled population; NaN if
        it is not defined in half of them.
    p_value
        (1 + n) / (1 + K), if n of K such samples have at least the observed gap, or no defined one.
    resamples
        Their number K.
    undefined
        Number of resamples without a relative gap: centralized training ends at a zero head.
    gap
        The gap of the given rows.
    scale
        Unit of each target in the prediction, (C,).
    is_parametric
        Whether resamples were drawn from the moments.

    Examples
    --------
    >>> from fedgram import Moments, intervals, predict
    >>> moments = Moments(count=[50, 50], mean=[[-1.0], [1.0]], covariance=[[[1.0]], [[1.0]]])
    >>> found = intervals(predict(moments), seed=0)
    >>> bool(found.relative[0] < predict(moments).relative_gap < found.relative[1]), found.p_value < 0.01
    (True, True)
    >>> found.to_frame().query("quantity == 'mean error'")[["client", "target", "estimate"]]
         client    target  estimate
    6  client 1  target 1       1.0
    7  client 2  target 1      -1.0
    """

    level: float
    relative: Array
    traces: Array
    client_shares: Array
    mean_error: Array
    chance_median: float
    p_value: float
    resamples: int
    undefined: int
    gap: Gap
    scale: Array
    is_parametric: bool

    def __repr__(self) -> str:
        return (
            f"Intervals({percent(self.level)}: gap {percent_range(self.relative)}, p = {self.p_value:.2g}, "
            f"{self.resamples:,} resamples)"
        )


def intervals(
    prediction: Prediction,
    *,
    sampler: Sampler | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    scale: Array | None = None,
    seed: int = 0,
) -> Intervals:
    """Estimate intervals for the gap in the population that the rows come from.

    Parameters
    ----------
    prediction
        Result of `predict` for one problem.
    sampler
        Draws resampled moments, for example `fedgram.data.resampling.row_sampler`. By default they are
        drawn from the moments, which assumes normal targets and independent rows.
    resamples
        Number K of resamples, at least 100.
    level
        Nominal coverage between 0 and 1.
    scale
        Unit of each target in the prediction, (C,), as in `effects`; a sampler's moments have this unit, too.
    seed
        Seed of the draws from moments.

    Returns
    -------
    Intervals
        Of the relative gap, the three terms, the share of each client, and each mean error.

    Raises
    ------
    InputError
        If `prediction` has leading axes, or a number is out of range.

    Examples
    --------
    >>> from fedgram import Moments, intervals, predict
    >>> same = Moments(count=[50, 50], mean=[[-0.1], [0.1]], covariance=[[[1.0]], [[1.2]]])
    >>> found = intervals(predict(same), seed=0)
    >>> float(found.relative[0]), found.p_value > 0.05
    (0.0, True)
    """
    check_type(prediction, Prediction, "intervals()", "Build it with predict(moments, penalty)")
    moments = prediction.moments
    check_one_problem(moments.mean.shape[:-2], "resampled")
    _check_numbers(resamples, level, seed)
    resamples = int(resamples)  # 200.0 is a whole number, too
    unit = moments.scale if scale is None else check_scale(scale, len(moments.targets))
    draw = sampler or moments_sampler(moments, int(seed))
    client_weights, penalty, gap = moments.client_weights, prediction.penalty, explain(prediction)
    drawn, null = draw(resamples, False), draw(resamples, True)
    found = gap_statistics(drawn.mean, drawn.root, client_weights, penalty)
    chance = relative_gaps(null.mean, null.root, client_weights, penalty)
    smallest = 0.0 if prediction.fully_active else -np.inf  # terms of clipped Grams may be negative
    return Intervals(
        level=level,
        relative=basic_interval(gap.relative, found.relative, level, 0.0),  # NaN if one of them is
        traces=basic_interval(gap.traces, found.traces, level, smallest),
        client_shares=_share_intervals(gap, found.by_client, level),
        mean_error=unit[:, None] * basic_interval(-moments.offset, found.mean_error, level),
        chance_median=_median(chance),
        p_value=float((1 + np.count_nonzero(~(chance < gap.relative))) / (1 + resamples)),
        resamples=resamples,
        undefined=int(np.isnan(found.relative).sum()),
        gap=gap,
        scale=unit,
        is_parametric=sampler is None,
    )


def basic_interval(
    estimate: Array, replicates: Array, level: float, low: float = -np.inf, high: float = np.inf
) -> Array:
    """Symmetric basic interval within bounds: estimate (...), replicates (K, ...) -> (..., 2)."""
    center = replicates.mean(axis=0)
    half = np.quantile(np.abs(replicates - center), level, axis=0)
    middle = 2 * estimate - center
    return np.clip(np.stack([middle - half, middle + half], axis=-1), low, high)


def default_resamples(prediction: Prediction) -> int:
    """Choose the number of resamples that takes about 0.3 s at most, or 0 if fewer than 100 do."""
    *_, clients, targets = prediction.moments.mean.shape
    cost = clients * targets**3 * (1 if prediction.fully_active else SINGULAR_COST)
    affordable = int(MAX_COST / cost)
    return min(RESAMPLES, affordable) if affordable >= LEAST_RESAMPLES else 0


def moments_sampler(moments: Moments, seed: int = 0) -> Sampler:
    """Draw moments of normal targets: a normal mean and a Wishart covariance per client."""
    rng = np.random.default_rng(seed)
    pooled = moments.pooled
    shape = moments.mean.shape
    populations = {
        False: (moments.mean, psd.factor(moments.covariance)),
        True: (
            np.broadcast_to(pooled.mean, shape),
            np.broadcast_to(psd.factor(pooled.covariance), (*shape, shape[-1])),
        ),
    }

    def draw(resamples: int, is_pooled: bool) -> Resamples:
        mean, factor = populations[is_pooled]
        return draw_normal(rng, mean, factor, moments.count, resamples)

    return draw


def draw_normal(
    rng: np.random.Generator, mean: Array, factor: Array, count: Array, resamples: int
) -> Resamples:
    """Moments of N_m normal rows: mean (M, C), factor (M, C, C) of the covariance, count (M,).

    The covariance is factor T Tᵀ factorᵀ / N with Bartlett's triangular T: normal below the diagonal, and
    roots of chi-squares with N - 1, N - 2, ... degrees of freedom on it.
    """
    clients, targets = mean.shape
    triangle = np.zeros((resamples, clients, targets, targets))
    row, column = np.tril_indices(targets, -1)
    triangle[..., row, column] = rng.standard_normal((resamples, clients, len(row)))
    index = np.arange(targets)
    freedom = count[:, None] - 1 - index
    triangle[..., index, index] = np.sqrt(rng.chisquare(freedom, (resamples, clients, targets)))
    noise = rng.standard_normal((resamples, clients, targets)) / np.sqrt(count - 1)[:, None]
    return Resamples(
        mean + np.einsum("mij,kmj->kmi", factor, noise), factor @ triangle / np.sqrt(count)[:, None, None]
    )


def _median(gaps: Array) -> float:
    """Median of relative gaps (K,) where NaN counts as the largest; NaN if it would be one of these."""
    median = float(np.median(np.where(np.isnan(gaps), np.inf, gaps)))
    return median if np.isfinite(median) else np.nan


def _share_intervals(gap: Gap, by_client: Array, level: float) -> Array:
    """Intervals of the clients' shares, (M, 2); NaN if the gap has a negative term."""
    total = by_client.sum(axis=-1, keepdims=True)
    shares = by_client / np.where(total > 0, total, np.nan)
    if np.isnan(shares).any() or np.isnan(gap.client_shares).any():
        return np.full((by_client.shape[-1], 2), np.nan)
    return basic_interval(gap.client_shares, shares, level, 0.0, 1.0)


def _check_numbers(resamples: int, level: float, seed: int) -> None:
    if not is_whole_number(resamples, LEAST_RESAMPLES):
        raise InputError(
            f"resamples must be a whole number, {LEAST_RESAMPLES} or more, not {resamples}.",
            field="resamples",
        )
    if not 0 < as_float(level) < 1:
        raise InputError(f"level must be between 0 and 1, not {level}.", field="level")
    if not is_whole_number(seed):
        raise InputError(f"seed must be a whole number, 0 or more, not {seed}.", field="seed")
