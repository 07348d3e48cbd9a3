"""Student's t of a number x among K redraws, of logarithms if all are positive.

t = (x - mean) / (s √(1 + 1/K))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr, stdtrit

from fedgram._util.arrays import Array

FALSE_ALARMS = 0.01  # share of comparisons that miss although all numbers have one distribution


def p_value(number: float, redraws: Array, tolerance: float) -> float:
    """Two-sided p-value of a number after a relative tolerance."""
    slack = tolerance * abs(number)
    if number > 0 and (redraws > 0).all():
        number, redraws, slack = np.log(number), np.log(redraws), np.log1p(tolerance)
    away = abs(number - redraws.mean()) - slack
    if away <= 0:
        return 1.0
    unit = _unit(redraws)
    return float(2 * stdtr(len(redraws) - 1, -away / unit)) if unit else 0.0


def combine(p_values: Sequence[float]) -> float:
    """p-value of the smallest of n, 1 - (1 - p)^n."""
    return float(1 - (1 - np.min(p_values)) ** len(p_values))  # NaN stays NaN


def noticed_factor(samples: Sequence[Array]) -> float:
    """Smallest factor to the typical redraw that is certain to miss, of the least sensitive sample.

    Each sample (K,) has two numbers, and their p-values are combined. Infinite for numbers of both signs.
    """
    if not all((redraws > 0).all() for redraws in samples):
        return float("inf")
    alpha = 1 - (1 - FALSE_ALARMS) ** (1 / (2 * len(samples)))
    return float(np.exp(max(-stdtrit(len(each) - 1, alpha / 2) * _unit(np.log(each)) for each in samples)))


def _unit(redraws: Array) -> float:
    return float(redraws.std(ddof=1) * np.sqrt(1 + 1 / len(redraws)))
