"""Verdicts of the advice: does joining pay, for every site and in total?

`benchmarks/advice.py` measures how often they are right on rows that they have not seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr

from fedgram._util.arrays import Array
from fedgram.data.problem import Problem
from fedgram.runs.advice import ALONE, AUTO, LEAST_GAIN, SiteAdvice, Verdict
from fedgram.runs.paired_bootstrap import (
    LEVEL,
    block_count,
    interval,
    is_decisive,
    relative_change,
    resample_means,
)

# Without a clear difference, joining is recommended up to this relative change of the mean squared error,
# because a few test rows with large errors often decide the estimate. Of 30 such problems of
# benchmarks/advice.py, with estimates up to +45 %, the error fell on unseen rows on 24, and on all seven with
# estimates above +10 %.
TOLERATED_CHANGE = 0.5


def total_change(
    problem: Problem, alone: Sequence[Array], joined: Sequence[Array]
) -> tuple[float, float, float]:
    """Return the relative change of the mean squared error by joining, over all sites, with its interval.

    `alone` and `joined` have the squared errors (N_m, C) of every site's test rows.
    """
    before, after = (float(np.concatenate(each).mean()) for each in (alone, joined))
    low, high = relative_change(alone, joined, in_time_order=problem.is_in_time_order).tolist()
    return after / before - 1 if before else np.nan, low, high


def recommend(change: tuple[float, float, float]) -> str:
    """Recommend joining, unless it clearly gains too little or its estimate is above the tolerated change."""
    gains_too_little = change[1] > -LEAST_GAIN
    return AUTO if change[0] <= TOLERATED_CHANGE and not gains_too_little else ALONE


def judge_sites(
    problem: Problem, alone: Sequence[Array], joined: Sequence[Array], scale: Array
) -> tuple[SiteAdvice, ...]:
    """Compare squared errors (N_m, C) of every site's test rows; scale (C,) converts to the targets' units.

    A site gains clearly if its own interval is above 0. A loss must be clearer the more sites are tested
    (Bonferroni correction), because some of many intervals are below 0 by chance.
    """
    in_time_order = problem.is_in_time_order
    tested = sum(is_decisive(len(each), in_time_order=in_time_order) for each in alone)
    return tuple(
        _judge_site(name, problem, alone[m], joined[m], scale, seed=m, tested=tested)
        for m, name in enumerate(problem.clients)
    )


def _judge_site(
    name: str, problem: Problem, alone: Array, joined: Array, scale: Array, *, seed: int, tested: int
) -> SiteAdvice:
    rows, fitted = len(alone), len(problem.train[name]) + len(problem.validation[name])
    if not rows:
        nothing = np.full(len(scale), np.nan)
        return SiteAdvice(name, fitted, 0, (np.nan,) * 3, nothing, nothing, nothing, "untested")

    def difference(own: Array, ours: Array) -> Array:
        return (own - ours).mean(axis=-1)

    def rmse_change(own: Array, ours: Array) -> Array:
        return scale * (np.sqrt(own) - np.sqrt(ours))

    in_time_order = problem.is_in_time_order
    rng = np.random.default_rng(seed)
    means = resample_means(np.stack([alone, joined], axis=1), rng, in_time_order=in_time_order)
    resampled, blocks = (means[:, 0], means[:, 1]), block_count(rows, in_time_order=in_time_order)
    observed = alone.mean(axis=0), joined.mean(axis=0)
    gain, gains = float(difference(*observed)), difference(*resampled)
    low, high = interval(gains, blocks)
    verdict: Verdict = "undecided"
    if not is_decisive(rows, in_time_order=in_time_order):
        verdict = "untested"
    elif low > 0:
        verdict = "join"
    elif high < 0 and _loss_probability(gain, gains, blocks) < (1 - LEVEL) / 2 / tested:
        verdict = "alone"
    low_change, high_change = interval(rmse_change(*resampled), blocks)
    return SiteAdvice(
        name, fitted, rows, (gain, float(low), float(high)), rmse_change(*observed), low_change, high_change,
        verdict,
    )  # fmt: skip


def _loss_probability(gain: float, resampled: Array, blocks: int) -> float:
    """Return the probability of a gain as low as this if there is none, by Student's distribution."""
    freedom = max(blocks - 1, 1)
    deviation = float(resampled.std()) * np.sqrt(1 + 1 / freedom)  # few rows vary less than the population
    return float(stdtr(freedom, gain / deviation)) if deviation else 0.0
