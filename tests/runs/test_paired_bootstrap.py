"""Intervals of error differences: coverage, closed forms, invariances."""

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from fedgram.runs import paired_bootstrap
from fedgram.runs.paired_bootstrap import block_count, interval, relative_change, resample_means


def draw_errors(rng, rows, correlation, size):
    """AR(1) errors (size, rows) of variance one."""
    noise = np.sqrt(1 - correlation**2) * rng.standard_normal((size, rows + 100))
    return lfilter([1.0], [1.0, -correlation], noise)[:, 100:]


def coverage(rows, correlation, *, in_time_order, samples=200):
    """Fraction of intervals that contain the expected difference 1.44 - 1 of two squared errors."""
    rng = np.random.default_rng(0)
    alone, federated = (draw_errors(rng, rows, correlation, samples) for _ in range(2))
    blocks, found = block_count(rows, in_time_order=in_time_order), 0
    for difference in 1.44 * alone**2 - federated**2:
        low, high = interval(resample_means(difference, rng, in_time_order=in_time_order), blocks)
        found += low <= 0.44 <= high
    return found / samples


@pytest.mark.parametrize("correlation", [0.5, 0.8])
def test_blocks_cover_correlated_errors_where_rows_do_not(monkeypatch, correlation):
    assert coverage(200, correlation, in_time_order=True, samples=300) == pytest.approx(0.95, abs=0.03)
    monkeypatch.setattr(paired_bootstrap, "RESAMPLES", 100)  # rows take longer, and these are far off
    assert coverage(200, correlation, in_time_order=False) < (0.9 if correlation == 0.5 else 0.75)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "correlation", "least"), [(100, 0.8, 0.89), (200, 0.9, 0.88), (800, 0.9, 0.92)]
)
def test_blocks_cover_strongly_correlated_errors(rows, correlation, least):
    assert coverage(rows, correlation, in_time_order=True, samples=1000) >= least
    assert coverage(rows, correlation, in_time_order=False, samples=300) < 0.75


@pytest.mark.parametrize("in_time_order", [False, True])
def test_independent_errors_are_covered_either_way(monkeypatch, in_time_order):
    monkeypatch.setattr(paired_bootstrap, "RESAMPLES", 300)
    assert coverage(60, 0.0, in_time_order=in_time_order, samples=300) == pytest.approx(0.94, abs=0.03)


def test_intervals_of_normal_values_are_those_of_student():
    values = stats.norm.ppf((np.arange(30) + 0.5) / 30)
    means = resample_means(values, np.random.default_rng(0), in_time_order=False)
    half = stats.t.ppf(0.975, 29) * values.std(ddof=1) / np.sqrt(30)
    np.testing.assert_allclose(interval(means, 30), [-half, half], rtol=0.06)


@pytest.mark.parametrize("in_time_order", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 100])
def test_equal_values_have_an_interval_of_one_point(rows, in_time_order):
    means = resample_means(np.full((rows, 2), 3.0), np.random.default_rng(0), in_time_order=in_time_order)
    np.testing.assert_array_equal(interval(means, block_count(rows, in_time_order=in_time_order)), 3.0)


def test_there_are_eight_blocks_or_fewer():
    assert [block_count(rows, in_time_order=True) for rows in (1, 6, 8, 9, 16, 17, 800)] == [
        1,
        6,
        8,
        5,
        8,
        6,
        8,
    ]
    assert block_count(17, in_time_order=False) == 17


def test_relative_change_does_not_depend_on_units_or_empty_sites():
    rng = np.random.default_rng(0)
    before, after = ([rng.normal(size=(rows, 2)) ** 2 for rows in (20, 30)] for _ in range(2))
    found = relative_change(before, after, in_time_order=True)
    empty = np.empty((0, 2))
    scaled = [[9.0 * each for each in part] + [empty] for part in (before, after)]
    np.testing.assert_allclose(relative_change(*scaled, in_time_order=True), found, rtol=1e-12)
    assert np.isnan(relative_change([0 * before[0]], [after[0]], in_time_order=False)).all()
    np.testing.assert_allclose(relative_change(before, before, in_time_order=False), 0, atol=1e-15)


def test_sites_that_err_together_count_once():
    """Ten copies of a site show no more than the site: copies at the same times share their draws."""
    rng = np.random.default_rng(0)
    before, after = draw_errors(rng, 160, 0.5, 2)[:, :, None] ** 2
    one = relative_change([before], [after], in_time_order=True)
    ten = relative_change([before] * 10, [after] * 10, in_time_order=True)
    np.testing.assert_allclose(ten, one, atol=0.05 * (one[1] - one[0]))
    low, high = relative_change([before] * 10, [after] * 10, in_time_order=False)
    assert high - low < 0.5 * (one[1] - one[0])


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_many_small_sites_are_covered(monkeypatch, rows):
    monkeypatch.setattr(paired_bootstrap, "RESAMPLES", 300)
    rng, found = np.random.default_rng(0), []
    for _ in range(300):
        alone, federated = rng.standard_normal((2, 60, rows, 1))
        low, high = relative_change(1.44 * alone**2, federated**2, in_time_order=False)
        found.append(low <= 1 / 1.44 - 1 <= high)
    assert np.mean(found) == pytest.approx(0.95, abs=0.035)


def test_many_sites_do_not_replace_times():
    before, after = np.random.default_rng(0).standard_normal((2, 60, 15, 1)) ** 2
    assert np.isnan(relative_change(before, after, in_time_order=True)).all()
    assert np.isfinite(relative_change(before, after, in_time_order=False)).all()


def test_many_rows_are_drawn_in_parts(monkeypatch):
    values = np.random.default_rng(0).standard_normal(50)
    together = resample_means(values, np.random.default_rng(1), in_time_order=False)
    monkeypatch.setattr(paired_bootstrap, "MOST_DRAWS", 700)
    parts = resample_means(values, np.random.default_rng(1), in_time_order=False)
    np.testing.assert_array_equal(parts, together)
