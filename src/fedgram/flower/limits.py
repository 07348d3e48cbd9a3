"""Limit of federated averaging with the clients that count and the chosen aggregation.

With the mean it is the barycenter, argmin Σ p_m d(G, G_m)². With the geometric median it is
argmin Σ p_m d(G, G_m): a head minimizes Σ p_m ‖W − W_m‖, and ‖W − W_m‖ = d(G, G_m) for the selected W_m. The
trimmed mean has no closed form unless all clients select the same Gram.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import EPS, Array
from fedgram.flower.config import AggregationConfig
from fedgram.runs.expectation import SYMBOLS, Expectation
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import barycenter

# Steps of the median's iteration. 3 to 12 clients took 20 to 80 to 1e-10, and up to 800 where the median is
# almost a client's own Gram.
MAX_STEPS = 1000


@dataclass(frozen=True, eq=False)
class Limit:
    """The Gram (C, C) that training approaches, and its name."""

    gram: Array
    name: str


def find_limit(
    expected: Expectation, clients: Sequence[str], counted: Container[str], config: AggregationConfig
) -> Limit:
    """Return the limit of the clients that count; all others are suspended or never replied."""
    is_counted = np.array([client in counted for client in clients])
    grams, weights = expected.grams[is_counted], expected.client_weights[is_counted]
    symbol = SYMBOLS[expected.target]
    if is_counted.all():
        gram = expected.gram
    else:
        gram, symbol = barycenter(grams, weights).gram, f"{symbol} of {len(grams)} clients"
    if config.method == "geometric-median":
        return Limit(geometric_median_gram(grams, weights), f"the geometric median of {len(grams)} clients")
    has_limit = config.method == "mean" or bool(np.ptp(grams, axis=0).max() <= EPS * np.abs(grams).max())
    return Limit(gram, symbol if has_limit else f"{symbol} (the limit of the mean)")


def geometric_median_gram(grams: Array, client_weights: Array) -> Array:
    """Minimize Σ p_m d(G, G_m) over Grams (C, C), for grams (M, C, C).

    At the minimum, G is the barycenter with weights p_m / d(G, G_m).
    """
    gram = barycenter(grams, client_weights).gram
    for _ in range(MAX_STEPS):
        distance = psd.distance(gram, grams)
        smallest = np.sqrt(EPS) * float(np.sqrt(psd.trace(gram)))
        weights = client_weights / np.maximum(distance, smallest)
        before, gram = gram, barycenter(grams, weights / weights.sum()).gram
        if psd.relative_error(gram, before) < 1e-13:
            break
    return gram
