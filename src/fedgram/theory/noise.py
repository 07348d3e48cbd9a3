"""What the noise of private moments does to the gap.

The noise of all private clients is drawn again, K times, on top of their released moments. The intervals are
those of `intervals`, for the gap of the rows themselves instead of the population.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import AccuracyError
from fedgram.theory.geometry import psd
from fedgram.theory.intervals import LEVEL, RESAMPLES, Intervals, Resamples, intervals
from fedgram.theory.moments import Moments
from fedgram.theory.predict import Prediction
from fedgram.theory.privacy import MEAN_WEIGHT

# Noise decides a gap if it moves it by more than this fraction of the gap, and by more than NEGLIGIBLE.
DECISIVE, NEGLIGIBLE = 0.5, 0.02
# It also does if a client's smallest variance is below so many standard deviations of its noise. The
# projection may then have removed a direction, and draws around what is left miss the gap. docs/privacy.md
# has the errors of gaps that pass.
LEAST_RATIO = 2.0
REMEDY = "Release moments of more rows, with narrower bounds or a larger epsilon."


def noise_intervals(
    prediction: Prediction,
    *,
    draws: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
    scale: Array | None = None,
) -> Intervals | None:
    """Estimate intervals for the gap without noise; None if no client is private.

    Parameters
    ----------
    prediction
        Result of `predict` for one problem.
    draws
        Draws K of the noise, at least 100.
    level
        Nominal coverage between 0 and 1.
    seed
        Seed of the draws.
    scale
        Unit of each target in the prediction, (C,), as in `intervals`.

    Examples
    --------
    >>> from fedgram import Moments, predict
    >>> from fedgram.theory.noise import noise_intervals
    >>> from fedgram.theory.privacy import Privacy
    >>> privacy = Privacy(epsilon=1.0, delta=1e-6, bounds=[[-4.0, 4.0]], noise=9.0)
    >>> moments = Moments(
    ...     count=[5000, 5000], mean=[[-1.0], [1.0]], covariance=[[[1.0]], [[1.0]]],
    ...     privacy=(privacy, privacy),
    ... )
    >>> found = noise_intervals(predict(moments), draws=200)
    >>> bool(found.relative[0] < predict(moments).relative_gap < found.relative[1])
    True
    """
    moments = prediction.moments
    if not any(moments.privacy):
        return None
    rng = np.random.default_rng(seed)

    def draw(resamples: int, is_pooled: bool) -> Resamples:
        mean, covariance = draw_noise(_pool(moments) if is_pooled else moments, resamples, rng)
        return Resamples(mean, psd.spectral_factor(covariance)[0])

    return intervals(prediction, sampler=draw, resamples=draws, level=level, scale=scale)


def check_noise(prediction: Prediction, noise: Intervals) -> None:
    """Raise AccuracyError if the noise decides the gap."""
    for client, ratio in zip(prediction.moments.clients, variance_ratios(prediction.moments), strict=True):
        if ratio < LEAST_RATIO:
            raise AccuracyError(
                f"The privacy noise decides the answer: the smallest variance of client '{client}' is "
                f"{max(ratio, 0.0):.1f} standard deviations of its noise, less than {LEAST_RATIO:g}. {REMEDY}"
            )
    if noise.undefined:
        raise AccuracyError(
            f"The privacy noise decides the answer: in {noise.undefined:,} of {noise.resamples:,} draws, "
            f"centralized training ends at a zero head. {REMEDY}"
        )
    relative, half = float(prediction.relative_gap), float(np.ptp(noise.relative)) / 2
    if half > max(DECISIVE * relative, NEGLIGIBLE):
        raise AccuracyError(
            f"The privacy noise decides the answer: it moves the gap of {relative:.1%} by {half:.1%} "
            f"({noise.level:.0%} interval {noise.relative[0]:.1%} to {noise.relative[1]:.1%}). {REMEDY}"
        )


def variance_ratios(moments: Moments) -> Array:
    """Smallest variance of each client over the standard deviation of its noise, (M,); infinite without."""
    ratios = np.full(len(moments.clients), np.inf)
    for m, privacy in enumerate(moments.privacy):
        if privacy is not None and privacy.noise > 0:
            unit = privacy.half_width
            least = np.linalg.eigvalsh(moments.covariance[m] / (unit[:, None] * unit))[0]
            ratios[m] = least * moments.count[m] / privacy.noise
    return ratios


def _pool(moments: Moments) -> Moments:
    """Give every client the pooled mean and covariance."""
    pooled = moments.pooled
    return replace(
        moments,
        mean=np.broadcast_to(pooled.mean, moments.mean.shape),
        covariance=np.broadcast_to(pooled.covariance, moments.covariance.shape),
    )


def draw_noise(moments: Moments, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw the noise of all private clients again: mean (K, M, C) and covariance (K, M, C, C)."""
    mean = np.repeat(moments.mean[None], draws, axis=0)
    covariance = np.repeat(moments.covariance[None], draws, axis=0)
    for m, (privacy, count) in enumerate(zip(moments.privacy, moments.count, strict=True)):
        if privacy is None:
            continue
        unit, size = privacy.half_width, privacy.noise / count
        mapped = (moments.mean[m] - privacy.center) / unit
        second = moments.covariance[m] / (unit[:, None] * unit) + np.outer(mapped, mapped)
        shape = (draws, len(unit), len(unit))
        noisy = second + size * psd.symmetric(rng.standard_normal(shape))
        mean[:, m], covariance[:, m] = privacy.to_moments(
            mapped + size / MEAN_WEIGHT * rng.standard_normal(shape[:2]), noisy, count
        )
    return mean, covariance
