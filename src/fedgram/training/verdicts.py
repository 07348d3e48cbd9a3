"""Verdicts of the advice: does joining pay, for every site and in total?

`benchmarks/advice.py` measures how often they are right on rows that they have not seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr, stdtrit

from fedgram._util.arrays import Array
from fedgram.data.problem import Problem
from fedgram.runs.advice import ALONE, AUTO, LEAST_GAIN, SiteAdvice, Verdict
from fedgram.runs.paired_bootstrap import (
    FEWEST_ROWS,
    LEVEL,
    block_count,
    interval,
    is_decisive,
    relative_change,
    resample_means,
)


def total_change(
    problem: Problem, alone: Sequence[Array], joined: Sequence[Array]
) -> tuple[float, float, float]:
    """Return the relative change of the mean squared error by joining, over all sites, with its interval.

    `alone` and `joined` have the squared errors (N_m, C) of every site's test rows.
    """
    before, after = (float(np.concatenate(each).mean()) for each in (alone, joined))
    low, high = relative_change(alone, joined, in_time_order=problem.is_in_time_order).tolist()
    return after / before - 1 if before else np.nan, low, high


def lowest_over_sites(alone: Sequence[Array], joined: Sequence[Array]) -> float:
    """Return the lower end of the interval of the total change with sites as the sample, not their rows.

    Site m with n_m of N test rows adds c_m to the change c = Σ c_m. Student's interval has the variance
    M / (M - 1) Σ (c_m - c n_m / N)². With fewer tested sites than FEWEST_ROWS the end is infinite: rows alone
    then decide.

    Examples
    --------
    >>> alone = [np.ones((9, 1))] * 6
    >>> alike, varied = ([f * each for f, each in zip(fs, alone)] for fs in ([1.2] * 6, [1] * 5 + [2.2]))
    >>> round(lowest_over_sites(alone, alike), 2), round(lowest_over_sites(alone, varied), 2)
    (0.2, -0.31)
    """
    tested = [m for m, each in enumerate(alone) if len(each)]
    if len(tested) < FEWEST_ROWS:
        return np.inf
    rows = np.array([len(alone[m]) for m in tested])
    before, after = (np.array([each[m].sum() for m in tested]) for each in (alone, joined))
    if not before.sum():
        return np.nan
    parts = (after - before) / before.sum()
    change, freedom = parts.sum(), len(tested) - 1
    variance = (1 + 1 / freedom) * ((parts - change * rows / rows.sum()) ** 2).sum()
    return float(change - stdtrit(freedom, 0.5 + LEVEL / 2) * np.sqrt(variance))


def recommend(change: tuple[float, float, float], over_sites: float) -> str:
    """Recommend joining unless it clearly gains too little, over rows and `lowest_over_sites`.

    Few test rows with large errors often make joining look worse. Of 187 trials of benchmarks/advice.py with
    seeds 3 to 5, 7 had a loss that was clear over rows, and on new rows the error rose in 2. Now 4 of the 7
    count: on new rows the error changed by 0.1 % in 2, rose by 7 % in one, and fell in one with 10 test rows.
    """
    gains_too_little = min(change[1], over_sites) > -LEAST_GAIN
    return ALONE if np.isnan(change[0]) or gains_too_little else AUTO


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
