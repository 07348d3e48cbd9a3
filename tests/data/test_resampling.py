"""Bootstrap of moments from rows and blocks."""

import numpy as np
import pytest

from fedgram import Moments, intervals, predict
from fedgram.data.resampling import FEWER_UNITS, MANY_UNITS, block_length, row_sampler
from fedgram.theory.geometry import psd


def autoregressive(rng, count, factor, columns=1):
    noise = rng.standard_normal((count, columns))
    values = np.zeros_like(noise)
    for t in range(1, count):
        values[t] = factor * values[t - 1] + noise[t]
    return values


def sites(rng, count, sites=2):
    return {str(m): rng.exponential(size=(count, 2)) * (m + 1) for m in range(sites)}


@pytest.mark.parametrize("count", [60, 4 * MANY_UNITS])
def test_resampled_moments_scatter_around_those_of_the_rows(count):
    """Few rows are drawn; the averages of many are normal. Both have the covariance of the units."""
    rows = sites(np.random.default_rng(0), count)
    moments = Moments.from_arrays(rows)
    drawn = row_sampler(rows, moments.count)(4000, False)
    size = count - FEWER_UNITS * np.sqrt(count)
    for m in range(2):
        assert np.allclose(drawn.mean[:, m].mean(axis=0), moments.mean[m], atol=5 / count**0.5 / 20)
        expected = moments.covariance[m] / size
        np.testing.assert_allclose(np.cov(drawn.mean[:, m].T), expected, atol=0.1 * np.trace(expected))
    variances = psd.gram(drawn.root)[:, 0, 0, 0]
    centered = rows["0"][:, 0] - rows["0"][:, 0].mean()
    expected = np.sqrt(np.var(centered**2) / size)
    assert variances.std() == pytest.approx(expected, rel=0.15)


def test_pooled_draws_mix_the_rows_of_all():
    rows = sites(np.random.default_rng(0), 200)
    moments = Moments.from_arrays(rows)
    drawn = row_sampler(rows, moments.count)(3000, True)
    for m in range(2):
        np.testing.assert_allclose(drawn.mean[:, m].mean(axis=0), moments.pooled.mean, atol=0.02)


def test_block_lengths_follow_the_autocorrelation():
    """(1.5 (2 φ / (1 - φ²))² n)^(1/3) for first-order autoregression."""
    rng = np.random.default_rng(0)
    assert block_length(rng.standard_normal((2000, 1))) <= 3
    for factor in (0.5, 0.8):
        expected = (1.5 * (2 * factor / (1 - factor**2)) ** 2 * 20_000) ** (1 / 3)
        assert block_length(autoregressive(rng, 20_000, factor)) == pytest.approx(expected, rel=0.35)


def test_blocks_widen_the_intervals_of_time_series():
    """The variance of a mean is larger by (1 + φ) / (1 - φ) = 9, the interval three times wider."""
    rng = np.random.default_rng(0)
    rows = {str(m): m + autoregressive(rng, 2000, 0.8) for m in range(3)}
    moments = Moments.from_arrays(rows)
    prediction = predict(moments)
    independent, blocks = (
        intervals(prediction, sampler=row_sampler(rows, moments.count, in_time=in_time), resamples=500)
        for in_time in (False, True)
    )
    ratio = np.diff(blocks.mean_error).mean() / np.diff(independent.mean_error).mean()
    assert 2.3 < ratio < 3.7


def test_a_sample_of_rows_has_the_scatter_of_all():
    rng = np.random.default_rng(0)
    rows = sites(rng, 3000)
    drawn = row_sampler(rows, np.array([300_000, 300_000]))(1000, False)
    assert drawn.mean[:, 0, 0].std() == pytest.approx(1 / np.sqrt(300_000), rel=0.15)


def test_a_huge_value_does_not_hide_the_others():
    rng = np.random.default_rng(0)
    rows = {name: rng.standard_normal((200, 1)) for name in "ab"}
    rows["a"][0] = 1e12
    drawn = row_sampler(rows, np.array([200, 200]))(200, True)
    variance = drawn.root[..., 0, 0] ** 2
    is_clean = variance < 1e6  # without the huge value
    assert is_clean.any()
    np.testing.assert_allclose(variance[is_clean], 1, atol=0.5)
