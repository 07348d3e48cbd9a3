"""Bootstrap of client moments from rows, independent or in blocks of time.

A unit is a row, or a block of consecutive rows. Moments are averages over units of y and y yᵀ. Resamples of
few units draw units with replacement. With many units the averages are normal, with the units' covariance.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgram._util.arrays import Array, outer
from fedgram.theory.geometry import psd
from fedgram.theory.intervals import Resamples, Sampler

# U - 0.75 √U units are drawn from U. Fourth moments of a sample are smaller than the population's, and fewer
# units widen the intervals to make up for it; docs/benchmarks.md has their coverage.
FEWER_UNITS = 0.75
# With more units, their averages are drawn from a normal distribution, in a time independent of the rows.
MANY_UNITS = 500
# Autocorrelations within these standard errors at five lags in a row count as zero (Politis and White, 2004).
NEGLIGIBLE_LAGS, STANDARD_ERRORS = 5, 2.0


def row_sampler(rows: Mapping[str, Array], count: Array, *, in_time: bool = False, seed: int = 0) -> Sampler:
    """Build a sampler for `fedgram.intervals` from rows.

    Parameters
    ----------
    rows
        Targets (n, C) of each client, in order of time if `in_time`; all rows or a sample of them.
    count
        Rows N_m of each client that the moments belong to, (M,).
    in_time
        Resample blocks of consecutive rows; their length follows from the autocorrelation of the targets.
    seed
        Seed of the draws.

    Returns
    -------
    Sampler
        Draws moments of all clients, each from its own rows or from the rows of all.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram import Moments, intervals, predict
    >>> rng = np.random.default_rng(0)
    >>> rows = {"a": rng.exponential(size=(80, 1)), "b": 2 + rng.exponential(size=(80, 1))}
    >>> moments = Moments.from_arrays(rows)
    >>> found = intervals(predict(moments), sampler=row_sampler(rows, moments.count))
    >>> bool(found.relative[0] > 0)
    True
    """
    rng = np.random.default_rng(seed)
    lengths = [block_length(values) if in_time else 1 for values in rows.values()]
    # The median, because next to a mean that one huge value moved, squares lose the digits of all others.
    center = np.median(np.concatenate(list(rows.values())), axis=0)
    own = [_units(values - center, length) for values, length in zip(rows.values(), lengths, strict=True)]
    pooled = np.concatenate(own)
    sizes = [number / length for number, length in zip(count, lengths, strict=True)]

    def draw(resamples: int, is_pooled: bool) -> Resamples:
        drawn = [
            _draw_averages(rng, pooled, size, resamples)
            if is_pooled  # many units, whose fourth moments are not too small
            else _draw_averages(rng, units, size - FEWER_UNITS * np.sqrt(size), resamples)
            for units, size in zip(own, sizes, strict=True)
        ]
        return _to_moments(np.stack(drawn, axis=1), center)

    return draw


def block_length(values: Array) -> int:
    """Choose the rows of a block from the autocorrelation of targets (n, C): the longest of all targets."""
    return max(_optimal_block(column) for column in values.T)


def _optimal_block(values: Array) -> int:
    """Politis and White (2004, corrected 2009): b = (2 g² / D)^(1/3) n^(1/3) with a flat-top window."""
    count = len(values)
    covariance = _autocovariance(values)
    small = np.abs(covariance[1:]) < STANDARD_ERRORS * np.sqrt(np.log10(count) / count) * covariance[0]
    runs = np.convolve(small, np.ones(NEGLIGIBLE_LAGS), "valid") == NEGLIGIBLE_LAGS
    last = int(np.argmax(runs)) if runs.any() else count // 4
    if last == 0:
        return 1
    lag = np.arange(1, min(2 * last, count - 1) + 1)
    window = np.clip(2 * (1 - lag / (2 * last)), 0.0, 1.0) * covariance[lag]
    slope, variance = 2 * float(lag @ window), covariance[0] + 2 * float(window.sum())
    if variance <= 0:
        return 1
    length = (1.5 * slope**2 / variance**2 * count) ** (1 / 3)  # 2 g² / D with D = 4/3 variance²
    return int(np.clip(np.ceil(length), 1, max(count // 10, 1)))


def _autocovariance(values: Array) -> Array:
    """Autocovariances at all lags, (n,)."""
    count = len(values)
    transformed = np.fft.rfft(values - values.mean(), 2 * count)
    return np.fft.irfft(np.abs(transformed) ** 2, 2 * count)[:count] / count


def _units(values: Array, length: int) -> Array:
    """Averages of y and y yᵀ (U, C + C²) over blocks of this length."""
    products = outer(values, values).reshape(len(values), -1)
    features = np.concatenate([values, products], axis=1)
    if length == 1:
        return features
    starts = np.arange(
        0, len(values) - length // 2, length
    )  # a rest of less than half a block joins the last one
    sums = np.add.reduceat(features, starts, axis=0)
    return sums / np.diff(np.append(starts, len(values)))[:, None]


def _draw_averages(rng: np.random.Generator, units: Array, size: float, resamples: int) -> Array:
    """Averages (K, C + C²) of samples of this size from units (U, C + C²)."""
    if size > MANY_UNITS:
        covariance = np.cov(units, rowvar=False, bias=True) / size
        noise = rng.standard_normal((resamples, units.shape[1]))
        return units.mean(axis=0) + noise @ _any_factor(covariance).mT
    drawn = max(round(size), 2)
    weights = rng.multinomial(drawn, np.full(len(units), 1 / len(units)), size=resamples)
    return weights @ units / drawn


def _to_moments(averages: Array, center: Array) -> Resamples:
    """Convert averages (K, M, C + C²) of centered targets to moments."""
    targets = len(center)
    mean = averages[..., :targets]
    second = averages[..., targets:].reshape(*mean.shape, targets)
    return Resamples(mean + center, _any_factor(second - outer(mean, mean)))


def _any_factor(covariance: Array) -> Array:
    """Factor of covariances (..., C, C); rounding or few rows may leave eigenvalues at or below zero."""
    values, basis = np.linalg.eigh(psd.symmetric(covariance))
    return basis * np.sqrt(np.maximum(values, 0.0))[..., None, :]
