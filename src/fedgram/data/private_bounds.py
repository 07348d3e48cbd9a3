"""Estimate bounds of targets with differential privacy, from two medians.

The median a of a target, and the median b of |y - a|, are each one of a fixed grid of numbers, drawn by the
exponential mechanism with a part of ε (Smith, 2011; OpenDP's `make_private_quantile`). The bounds are

    a ± WIDTH · 1.4826 b,

where 1.4826 b is the standard deviation of a normal target. Medians are drawn because every number far from
the rows has the rank distance N/2, so that it is drawn with probability e^(-ε N / 4) at most. They need
fewer rows than other quantiles.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize

WIDTH = 4.0
"""Half the distance of the bounds in standard deviations of a normal target."""
MAD_TO_DEVIATION = 1.4826  # of a normal target
SMALLEST, LARGEST, RATIO = 1e-6, 1e9, 1.01
"""The grid of absolute values. A target's median is known to 1 % of it: subtract what is known of a target
that is farther from zero than a hundred of its standard deviations."""
REPLACED = 2
"""Distance of tables that differ in one row: one is removed and one added."""
MISSED = 0.05
"""Largest bound on the probability that a median is far from all rows."""


def private_bounds(rows: Array, epsilon: float) -> Array:
    """Estimate a low and a high bound for each target with ε-differential privacy, once.

    Parameters
    ----------
    rows
        Targets of one client, (N, C).
    epsilon
        Privacy loss; each of the 2 C medians takes an equal part of it.

    Returns
    -------
    array (C, 2)

    Raises
    ------
    InputError
        If OpenDP is not installed, or ε is too small for so few rows.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram.data.private_bounds import private_bounds
    >>> rows = np.random.default_rng(0).normal(40, 10, (20000, 1))
    >>> low, high = private_bounds(rows, epsilon=1.0)[0]
    >>> bool(-10 < low < 10 and 70 < high < 90)
    True
    """
    count, targets = rows.shape
    share, bounds = epsilon / (2 * targets), []
    needed = int(np.ceil(4 * np.log(len(list_candidates()) / MISSED) / share))
    if count < needed:  # both numbers are public
        raise InputError(
            f"Private bounds of {pluralize(targets, 'target')} need {needed:,} rows with their part "
            f"{epsilon:g} of epsilon, but there are {count:,}. Pass bounds (--bounds LOW:HIGH), or raise "
            "epsilon.",
            field="bounds",
        )
    for values in rows.T:
        center = draw_median(values, list_candidates(), share)
        deviation = draw_median(np.abs(values - center), list_candidates(positive=True), share)
        half = WIDTH * MAD_TO_DEVIATION * deviation
        bounds.append([center - half, center + half])
    return np.array(bounds)


@cache
def list_candidates(*, positive: bool = False) -> tuple[float, ...]:
    """List the numbers that a median may be: ±SMALLEST to ±LARGEST by factors of RATIO, and 0."""
    steps = int(np.ceil(np.log(LARGEST / SMALLEST) / np.log(RATIO)))
    sizes = (SMALLEST * RATIO ** np.arange(steps + 1)).tolist()
    return tuple(sizes if positive else [*(-size for size in reversed(sizes)), 0.0, *sizes])


def draw_median(values: Array, candidates: tuple[float, ...], epsilon: float) -> float:
    """Draw a number near the median of values (N,) with ε-differential privacy; N is public."""
    return float(build_mechanism(len(values), candidates, epsilon)(values.tolist()))


def build_mechanism(count: int, candidates: tuple[float, ...], epsilon: float) -> Any:
    """Build OpenDP's measurement of the median of `count` values; all privacy of bounds rests on it."""
    try:
        import opendp.prelude
    except ImportError:
        raise InputError(
            'Private bounds need OpenDP. Run: pip install "fedgram[private]", or pass bounds.', field="bounds"
        ) from None
    dp: Any = opendp.prelude  # its functions are not typed
    dp.enable_features("contrib")  # mechanisms with proofs that were not yet reviewed twice
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=count)
    space, median = (domain, dp.symmetric_distance(), dp.max_divergence()), (list(candidates), 0.5)
    unit = dp.m.make_private_quantile(*space, *median, scale=1.0).map(d_in=REPLACED)
    return dp.m.make_private_quantile(*space, *median, scale=unit / epsilon)
