"""Targets that are far from all others at the same client.

The robust deviation of a target at a client is 1.4826 MAD, the standard deviation of a normal target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import pluralize

# Robust deviations from the median beyond which a value is an outlier. Hourly PM2.5, NO2, CO and O3 of twelve
# stations, 35,000 rows each, stay within 22.
OUTLIER = 25.0
# With fewer values a range says too little: 0.5 % of samples of five normal values have an outlier, but
# 0.003 % of samples of ten.
LEAST_ROWS = 10


@dataclass(frozen=True)
class Outliers:
    """Values of a target at a client that are far from the others: their number and the farthest one."""

    client: str
    target: str
    count: int
    farthest: float


def find_target_outliers(client: str, names: Sequence[str], targets: Array) -> Iterator[Outliers]:
    """Find outliers among a client's targets (N, C); rare events, where most values are equal, are none.

    Examples
    --------
    >>> weights = np.append(np.arange(30.0), 1e6)[:, None]
    >>> list(find_target_outliers("oslo", ["weight"], weights))
    [Outliers(client='oslo', target='weight', count=1, farthest=1000000.0)]
    """
    if len(targets) < LEAST_ROWS:
        return
    away = np.abs(targets - np.median(targets, axis=0))
    spread = 1.4826 * np.median(away, axis=0)
    for c, count in enumerate(((away > OUTLIER * spread) & (spread > 0)).sum(axis=0).tolist()):
        if count:
            yield Outliers(client, names[c], count, float(targets[away[:, c].argmax(), c]))


def describe_outliers(outliers: Sequence[Outliers]) -> str:
    """Count outliers in a sentence that names the farthest."""
    count = sum(found.count for found in outliers)
    worst = max(outliers, key=lambda found: abs(found.farthest))
    return (
        f"{pluralize(count, 'value')} {'is' if count == 1 else 'are'} far from all others at the same site, "
        f"such as {worst.farthest:.6g} in '{worst.target}' at '{worst.client}'."
    )
