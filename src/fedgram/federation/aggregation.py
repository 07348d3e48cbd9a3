"""Average returns of clients: weighted mean, trimmed mean, geometric median.

Values (M, ...) of M clients with weights p_m (M,) become one value (...). Every function has the same
signature; `trim` is how many clients at each end of a coordinate the trimmed mean drops.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedgram._util.arrays import EPS, Array

Aggregation = Callable[[Array, Array, int], Array]

# 3 to 30 clients took at most 80 steps to 1e-12. Two equally heavy clusters take more than 3000, but between
# them the sum of distances is almost flat.
MAX_STEPS = 1000


def weighted_mean(values: Array, client_weights: Array, trim: int = 0) -> Array:
    """Compute Σ p_m W_m. One client can move it anywhere."""
    weights = client_weights / client_weights.sum()
    return np.sum([weight * value for weight, value in zip(weights, values, strict=True)], axis=0)


def trimmed_mean(values: Array, client_weights: Array, trim: int = 1) -> Array:
    """Drop the `trim` largest and smallest values of each coordinate, and average the others.

    With at most `trim` bad clients, every coordinate lies between the honest clients' extremes. With too few
    clients to trim, one or two values in the middle remain.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram.federation.aggregation import trimmed_mean
    >>> trimmed_mean(np.array([[1.0], [2.0], [3.0], [1e9]]), np.ones(4)).tolist()
    [2.5]
    """
    trim = min(trim, (len(values) - 1) // 2)
    order = np.argsort(values, axis=0, kind="stable")[trim : len(values) - trim]
    kept, weights = np.take_along_axis(values, order, axis=0), client_weights[order]
    return np.asarray((weights * kept).sum(axis=0) / weights.sum(axis=0))


def geometric_median(values: Array, client_weights: Array, trim: int = 0) -> Array:
    """Minimize Σ p_m ‖W − W_m‖ by Weiszfeld's iteration from the coordinate-wise median.

    If bad clients have less than half of the weight, α < 1/2, its distance from any point c is at most
    2 (1 − α) / (1 − 2 α) times the largest distance of an honest client from c.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram.federation.aggregation import geometric_median
    >>> geometric_median(np.array([[0.0], [1.0], [1e9]]), np.ones(3)).round(6).tolist()
    [1.0]
    """
    flat, weights = values.reshape(len(values), -1), client_weights / client_weights.sum()
    center = np.median(flat, axis=0)
    nearby = EPS * float(np.linalg.norm(flat - center, axis=1).max())
    for _ in range(MAX_STEPS):
        distance = np.linalg.norm(flat - center, axis=1)
        inverse = np.where(distance > nearby, weights / np.maximum(distance, nearby or 1.0), 0.0)
        pull, own = inverse @ (flat - center), weights[distance <= nearby].sum()
        strength = float(np.linalg.norm(pull))
        if strength <= own:  # a client's value that the others cannot pull away is the minimum
            break
        # Vardi and Zhang's step, which leaves a client's value where Weiszfeld's stays.
        step = (1 - own / strength) * pull / inverse.sum()
        center = center + step
        if np.linalg.norm(step) <= 4 * EPS * np.linalg.norm(center):
            break
    return center.reshape(values.shape[1:])


def clip_returns(values: Array, multiple: float) -> Array:
    """Limit the distance of values (M, ...) from their coordinate-wise median to a multiple of its median.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram.federation.aggregation import clip_returns
    >>> clip_returns(np.array([[0.0], [1.0], [2.0], [3.0], [100.0]]), 2.0).tolist()
    [[0.0], [1.0], [2.0], [3.0], [4.0]]
    """
    flat = values.reshape(len(values), -1)
    center = np.median(flat, axis=0)
    distance = np.linalg.norm(flat - center, axis=1, keepdims=True)
    limit = multiple * np.median(distance)
    shrink = np.where(distance > limit, limit / np.where(distance > 0, distance, 1.0), 1.0)
    return np.where(shrink < 1.0, center + shrink * (flat - center), flat).reshape(values.shape)


AGGREGATIONS: dict[str, Aggregation] = {
    "mean": weighted_mean,
    "trimmed": trimmed_mean,
    "geometric-median": geometric_median,
}
"""Aggregation by its name in the run config."""
