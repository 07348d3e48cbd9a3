"""Intervals of the gap: resampled statistics, draws from moments, the test of chance."""

import numpy as np
import pytest
from scipy import stats

from fedgram import InputError, Moments, Penalty, explain, intervals, predict
from fedgram.theory.geometry import psd
from fedgram.theory.intervals import (
    MAX_COST,
    SINGULAR_COST,
    basic_interval,
    default_resamples,
    draw_normal,
    moments_sampler,
)
from fedgram.theory.resamples import gap_statistics, relative_gaps
from tests.helpers.instances import random_moments

PENALTY = Penalty(features=0.1, head=0.1)


def same_sites(rng, sites=4, rows=50, targets=2):
    return Moments.from_arrays([rng.standard_normal((rows, targets)) for _ in range(sites)])


@pytest.mark.parametrize(("clients", "size"), [(2, 1), (5, 3)])
def test_statistics_of_resamples_are_those_of_predict_and_explain(clients, size):
    moments = random_moments(np.random.default_rng(0), clients, size, batch=(40,))
    weights = moments.client_weights[0]
    batch = Moments(moments.count, moments.mean, moments.covariance, client_weights=weights)
    gap = explain(predict(batch, PENALTY))
    root = psd.factor(batch.covariance)
    found = gap_statistics(batch.mean, root, weights, PENALTY)
    np.testing.assert_allclose(found.relative, gap.relative, rtol=1e-6)
    np.testing.assert_allclose(relative_gaps(batch.mean, root, weights, PENALTY), found.relative, rtol=1e-10)
    np.testing.assert_allclose(found.traces, gap.traces, atol=1e-6 * gap.scale.max())
    np.testing.assert_allclose(found.by_client, gap.by_client.sum(axis=-2), atol=5e-3 * gap.trace.max())
    np.testing.assert_allclose(found.mean_error, -batch.offset, atol=1e-12)


def test_statistics_of_clients_that_are_not_fully_active():
    moments = random_moments(np.random.default_rng(0), 3, 2, batch=(20,), low=0.02, high=2.0)
    batch = Moments(moments.count, moments.mean, moments.covariance)
    penalty = Penalty(0.3, 0.3)
    found = relative_gaps(batch.mean, psd.factor(batch.covariance), batch.client_weights[0], penalty)
    np.testing.assert_allclose(found, predict(batch, penalty).relative_gap, rtol=1e-5)


def test_draws_have_a_normal_mean_and_a_wishart_covariance():
    count, scale = np.array([12.0, 40.0]), np.array([[[2.0, 0.6], [0.6, 0.5]], np.eye(2)])
    mean = np.array([[1.0, -1.0], [0.0, 3.0]])
    drawn = draw_normal(np.random.default_rng(0), mean, psd.factor(scale), count, 20_000)
    covariance = psd.gram(drawn.root)
    freedom = count[:, None, None] - 1
    np.testing.assert_allclose(drawn.mean.mean(axis=0), mean, atol=0.02)
    for m in range(2):
        np.testing.assert_allclose(np.cov(drawn.mean[:, m].T), scale[m] / freedom[m], rtol=0.05, atol=0.002)
    np.testing.assert_allclose(
        covariance.mean(axis=0), scale * freedom / count[:, None, None], rtol=0.02, atol=0.01
    )
    for m in range(2):  # a variance is a chi-square
        reference = stats.chi2(count[m] - 1, scale=scale[m, 0, 0] / count[m])
        assert stats.kstest(covariance[:2000, m, 0, 0], reference.cdf).pvalue > 1e-3


def test_pooled_draws_come_from_one_population():
    moments = random_moments(np.random.default_rng(1), 3, 2)
    drawn = moments_sampler(moments)(4000, True)
    np.testing.assert_allclose(drawn.mean.mean(axis=0), np.tile(moments.pooled.mean, (3, 1)), atol=0.02)
    expected = np.broadcast_to(moments.pooled.covariance * 49 / 50, (3, 2, 2))
    np.testing.assert_allclose(psd.gram(drawn.root).mean(axis=0), expected, atol=0.05)


def test_a_basic_interval_removes_the_bias():
    replicates = 3.0 + np.linspace(-1, 1, 1001)
    np.testing.assert_allclose(basic_interval(2.0, replicates, 0.95), [1 - 0.95, 1 + 0.95], atol=2e-3)
    np.testing.assert_allclose(basic_interval(0.5, replicates, 0.95, 0.0), [0, 0], atol=1e-12)


def test_intervals_contain_what_they_must_and_shrink_with_rows():
    small, large = random_moments(np.random.default_rng(0)), random_moments(np.random.default_rng(0))
    large = Moments(np.full(4, 5000), large.mean, large.covariance, client_weights=large.client_weights)
    widths = []
    for moments in (small, large):
        prediction = predict(moments, PENALTY)
        found, gap = intervals(prediction, resamples=300), explain(prediction)
        widths.append(float(np.diff(found.relative)[0]))
        assert found.relative.shape == (2,)
        assert found.traces.shape == (3, 2)
        assert found.client_shares.shape == (4, 2)
        assert (found.client_shares >= 0).all()
        assert (found.client_shares <= 1).all()
        assert (found.mean_error[..., 0] <= -moments.offset).all()
        assert (found.mean_error[..., 1] >= -moments.offset).all()
        assert found.p_value == pytest.approx(1 / 301)
        assert found.relative[1] > 0.5 * gap.relative
    assert widths[1] < 0.2 * widths[0]


def test_mean_error_intervals_are_those_of_students_t():
    """Two sites of one target: μ_g - μ_m is half the difference of two means."""
    rng = np.random.default_rng(3)
    rows = [rng.standard_normal((60, 1)), 1 + 2 * rng.standard_normal((60, 1))]
    found = intervals(predict(Moments.from_arrays(rows)), resamples=4000)
    test = stats.ttest_ind(rows[1][:, 0], rows[0][:, 0], equal_var=False)
    expected = 0.5 * np.array(test.confidence_interval(0.95))
    np.testing.assert_allclose(found.mean_error[0, 0], expected, atol=0.03)


def test_targets_in_other_units_give_mean_errors_in_these():
    moments = random_moments(np.random.default_rng(0))
    scale = np.array([1.0, 10.0, 100.0])
    one = intervals(predict(moments, PENALTY), resamples=100)
    other = intervals(predict(moments, PENALTY), resamples=100, scale=scale)
    np.testing.assert_allclose(other.mean_error, scale[:, None] * one.mean_error)
    np.testing.assert_allclose(other.relative, one.relative)


def test_p_values_of_equal_sites_are_uniform():
    rng = np.random.default_rng(0)
    values = [
        intervals(predict(same_sites(rng, sites=2, targets=1)), resamples=100, seed=seed).p_value
        for seed in range(60)
    ]
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_chance_alone_leaves_the_gap_of_equal_sites():
    """Four sites of one population with two targets: a median gap of 2.6 % with 50 rows each."""
    rng = np.random.default_rng(0)
    found = intervals(predict(same_sites(rng)), resamples=200)
    assert 0.01 < found.chance_median < 0.04
    assert found.p_value > 0.05
    assert found.relative[0] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resamples": 10}, "resamples must be"),
        ({"resamples": 200.5}, "resamples must be"),
        ({"level": 1.0}, "level must be"),
        ({"seed": -1}, "seed must be a whole number, 0 or more, not -1"),
        ({"seed": 0.5}, "seed must be"),
        ({"scale": [1.0]}, "scale"),
    ],
)
def test_bad_numbers_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        intervals(predict(random_moments(np.random.default_rng(0))), **change)


def test_whole_numbers_may_be_floats():
    prediction = predict(random_moments(np.random.default_rng(0)))
    found, expected = (
        intervals(prediction, resamples=200.0, seed=1.0),
        intervals(prediction, resamples=200, seed=1),
    )
    assert found.resamples == 200
    np.testing.assert_array_equal(found.traces, expected.traces)


def test_several_problems_are_refused():
    with pytest.raises(InputError, match="leading axes"):
        intervals(predict(random_moments(np.random.default_rng(0), batch=(2,))))


def test_large_problems_get_fewer_resamples_or_none():
    def default(clients, size, penalty=PENALTY):
        return default_resamples(predict(random_moments(np.random.default_rng(0), clients, size), penalty))

    assert default(4, 3) == 1000
    assert default(4, 10) == int(MAX_COST / 4000)
    assert default(4, 20) == 0
    assert default(10, 3, Penalty(0.7, 0.7)) == int(MAX_COST / (10 * 27 * SINGULAR_COST))


def test_resamples_without_a_head_leave_no_interval_and_count_as_large_gaps():
    """Variances are near λ_H λ_W, below which centralized training ends at zero."""
    moments = Moments([300, 300], [[0.0], [0.001]], [[[1.05e-4]], [[1.1e-4]]])
    found = intervals(predict(moments, Penalty(0.01, 0.01)))
    assert 0 < found.undefined < found.resamples
    assert np.isnan(found.relative).all()
    assert np.isfinite(found.mean_error).all()
    chance = relative_gaps(
        *vars(moments_sampler(moments)(1000, True)).values(), moments.client_weights, Penalty(0.01, 0.01)
    )
    assert np.isnan(chance).any()
    assert found.p_value > np.isnan(chance).mean()
    assert found.chance_median > np.nanmedian(chance)
