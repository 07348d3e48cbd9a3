"""The three terms of the gap: Proposition 1, The pairwise bounds, and who causes what."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import Moments, Penalty, effects, explain, predict
from fedgram.display import sentences
from fedgram.display.analysis import Analysis
from fedgram.display.prediction_figure import _draw_terms, pyplot
from fedgram.display.prediction_json import explanation_document, gap_summary
from fedgram.theory.explain import pairwise_dispersion
from fedgram.theory.geometry import psd
from tests.helpers.instances import random_moments, rotations

SEEDS = st.integers(0, 10_000)
PENALTY = Penalty(0.1, 0.1)


def analysis_of(gap):
    return Analysis(gap, effects(gap.prediction), gap.prediction.moments.targets)


def gap_of(moments, penalty=PENALTY):
    return explain(predict(moments, penalty))


@given(SEEDS, st.integers(2, 6), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_proposition_1_holds_on_random_clients(seed, clients, size):
    prediction = predict(random_moments(np.random.default_rng(seed), clients, size), PENALTY)
    gap = explain(prediction)
    np.testing.assert_allclose(gap.total, prediction.centralized - prediction.barycenter.gram, atol=1e-13)
    assert gap.chain_holds
    assert gap.bounds_hold
    assert (gap.smallest_eigenvalue > -1e-13).all()
    assert gap.variance == pytest.approx(gap.traces[2], rel=1e-9, abs=1e-14)
    assert gap.scatter_residual < 1e-13


@given(SEEDS, st.integers(2, 6), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_shares_are_nonnegative_and_complete(seed, clients, size):
    gap = gap_of(random_moments(np.random.default_rng(seed), clients, size))
    assert (gap.by_client >= -1e-13).all()
    np.testing.assert_allclose(gap.by_client.sum(axis=-1), gap.traces, rtol=1e-9, atol=1e-13)
    for shares in (gap.shares, gap.client_shares, gap.target_shares):
        assert shares.sum() == pytest.approx(1.0)
        assert (shares >= -1e-12).all()
    assert gap.directions[0].sum() == pytest.approx(gap.trace)


def test_client_parts_need_no_rescaling_when_all_are_active():
    # The quadrature and the Bregman parts must themselves sum to the traces; compare before scaling.
    from fedgram.theory.explain import _mean_slope

    moments = random_moments(np.random.default_rng(1))
    pooled, gap = moments.pooled, gap_of(moments)
    slope = _mean_slope(pooled.within, pooled.between, PENALTY)
    parts = moments.client_weights * np.einsum("mi,ij,mj->m", moments.offset, slope, moments.offset)
    np.testing.assert_allclose(parts, gap.by_client[0], rtol=1e-12)


def test_equal_means_remove_the_mean_term_and_equal_covariances_the_others():
    moments = random_moments(np.random.default_rng(0))
    means = np.broadcast_to(moments.pooled.mean, moments.mean.shape)
    covariances = np.broadcast_to(moments.pooled.within, moments.covariance.shape)
    weights = moments.client_weights
    same_mean = gap_of(Moments(moments.count, means, moments.covariance, client_weights=weights))
    same_covariance = gap_of(Moments(moments.count, moments.mean, covariances, client_weights=weights))
    same = gap_of(Moments(moments.count, means, covariances, client_weights=weights))
    full = gap_of(moments)
    np.testing.assert_allclose(same_mean.traces, [0, *full.traces[1:]], atol=2e-14)
    np.testing.assert_allclose(same_covariance.traces, [full.traces[0], 0, 0], atol=2e-14)
    np.testing.assert_allclose(same.traces, 0, atol=2e-14)
    assert same.relative < 1e-14
    assert same.chain_holds
    assert same.bounds_hold


SIZES = st.floats(0.01, 1.0)


def one_client_aside(seed, clients, size, shift=0.0, stretch=0.0):
    """Traces of clients with equal moments, but for the first: moved and stretched along one direction."""
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(size)
    direction /= np.linalg.norm(direction)
    first, common = (np.arange(clients) == 0).astype(float), random_moments(rng, 1, size)
    mean = common.mean + shift * first[:, None] * direction
    covariance = common.covariance + stretch * first[:, None, None] * np.outer(direction, direction)
    weights = rng.uniform(0.5, 1.5, clients)
    return gap_of(Moments([50] * clients, mean, covariance, client_weights=weights)).traces


@given(SEEDS, st.integers(2, 6), st.integers(1, 5), SIZES)
@settings(max_examples=40, deadline=None)
def test_one_mean_that_differs_leaves_a_gap(seed, clients, size, shift):
    """Proposition 1, 'only if': the mean term alone is positive."""
    mean, covariance, averaging = one_client_aside(seed, clients, size, shift=shift)
    assert mean > 1e-3 * shift**2
    np.testing.assert_allclose([covariance, averaging], 0, atol=1e-13)


@given(SEEDS, st.integers(2, 6), st.integers(1, 5), SIZES)
@settings(max_examples=40, deadline=None)
def test_one_covariance_that_differs_leaves_a_gap(seed, clients, size, stretch):
    """Proposition 1, 'only if': the averaging and covariance terms are positive, the mean term is not."""
    mean, covariance, averaging = one_client_aside(seed, clients, size, stretch=stretch)
    assert min(covariance, averaging) > 1e-4 * stretch**2
    np.testing.assert_allclose(mean, 0, atol=1e-13)


def test_two_clients_attain_the_lower_bound():
    gap = gap_of(random_moments(np.random.default_rng(2), clients=2))
    assert gap.traces[2] == pytest.approx(float(gap.dispersion), rel=1e-10)
    assert gap.bounds_hold
    for factor in (1 - 1e-6, 2 + 1e-6):
        assert not replace(gap, averaging=factor * gap.averaging).bounds_hold


def test_dispersion_is_the_double_sum():
    moments = random_moments(np.random.default_rng(3))
    grams, p = predict(moments, PENALTY).grams, moments.client_weights
    expected = sum(
        p[m] * p[n] * psd.distance(grams[m], grams[n]) ** 2 for m in range(4) for n in range(m + 1, 4)
    )
    assert pairwise_dispersion(grams, p) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(
    "field",
    ["by_client", "shares", "client_shares", "target_shares", "dispersion", "chain_holds", "bounds_hold"],
)
def test_a_batch_is_explained_as_its_problems_are(field):
    moments = random_moments(np.random.default_rng(4), clients=4, size=2, batch=(5,))
    ones = (
        gap_of(Moments(moments.count, mean, covariance, client_weights=weights))
        for mean, covariance, weights in zip(
            moments.mean, moments.covariance, moments.client_weights, strict=True
        )
    )
    np.testing.assert_allclose(
        getattr(gap_of(moments), field), [getattr(one, field) for one in ones], rtol=1e-9, atol=1e-12
    )


def test_the_fixed_instance_of_the_paper():
    def turned(degrees, *values):
        c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
        turn = np.array([[c, -s], [s, c]])
        return turn @ np.diag(values) @ turn.T

    covariance = [turned(-40, 3, 0.11), turned(10, 1.1, 0.45), turned(55, 2.4, 0.13)]
    gap = gap_of(Moments([256] * 3, [[0, -2.2], [0, 0], [0, 2.2]], covariance))
    np.testing.assert_allclose(gap.traces, [1.02, 0.290, 0.193], rtol=5e-3)
    assert float(gap.relative) == pytest.approx(0.578, abs=5e-4)
    assert gap.by_client[0, 1] == pytest.approx(0.0, abs=1e-15)
    assert gap.client_shares.argmin() == 1


def test_parts_of_clients_that_are_not_fully_active_add_up_and_keep_their_sign():
    covariance = [np.diag([4.0, 0.02]), np.diag([3.0, 0.5]), np.diag([9.0, 6.0])]
    prediction = predict(Moments([50] * 3, [[0, 1], [2, 0], [0, 0]], covariance), Penalty(3, 1.5))
    gap = explain(prediction)
    np.testing.assert_allclose(gap.by_client.sum(axis=-1), gap.traces, atol=1e-13)
    assert not gap.one_sided
    assert not gap.chain_holds
    # tr φ is concave where all are active; its graph leaves the tangent at zero from below elsewhere
    variances, within = np.array([[4.0, 0.02], [3.0, 0.5], [9.0, 6.0]]), np.array([16, 6.52]) / 3
    root2 = np.sqrt(2)
    grams = np.maximum(root2 * np.sqrt(variances) - 3, 0)
    tangent = np.where(within > 4.5, root2 / 2 / np.sqrt(within), 0)
    line = np.maximum(root2 * np.sqrt(within) - 3, 0) + tangent * (variances - within)
    np.testing.assert_allclose(gap.by_client[1], (line - grams).sum(axis=1) / 3, atol=1e-13)


def test_shares_are_not_told_where_a_term_is_negative():
    covariance = [np.diag([4.0, 0.02]), np.diag([3.0, 0.5]), np.diag([9.0, 6.0])]
    gap = gap_of(Moments([50] * 3, [[0, 1], [2, 0], [0, 0]], covariance), Penalty(3, 1.5))
    said = " ".join(
        [
            *sentences.outcome(gap),
            *sentences.client_contributions(gap, "abc"),
            sentences.target_contributions(gap, ("x", "y")),
        ]
    )
    assert said.count("%") == 1, "how far it ends is still a percentage"
    assert f"parts of its trace {float(gap.trace):.4g}:" in said


def test_shares_are_not_numbers_where_a_term_is_negative():
    covariance = [np.diag([4.0, 0.02]), np.diag([3.0, 0.5]), np.diag([9.0, 6.0])]
    two_sided = Moments([50] * 3, [[0, 1], [2, 0], [0, 0]], covariance)
    gap = gap_of(two_sided, Penalty(3, 1.5))
    for shares in (gap.shares, gap.client_shares, gap.target_shares):
        assert np.isnan(shares).all()
    document = explanation_document(analysis_of(gap))
    assert [client["share"] for client in document["clients"]] == [None] * 3
    assert document["target_shares"] == [None] * 2
    alike = gap_of(Moments([50] * 2, np.zeros((2, 1)), np.ones((2, 1, 1))))
    np.testing.assert_array_equal(alike.shares, 0)


def test_a_negative_term_is_drawn_whole():
    covariance = [np.diag([4.0, 0.02]), np.diag([3.0, 0.5]), np.diag([9.0, 6.0])]
    gap = gap_of(Moments([50] * 3, [[0, 1], [2, 0], [0, 0]], covariance), Penalty(3, 1.5))
    plt = pyplot()
    figure, axis = plt.subplots()
    _draw_terms(axis, gap)
    low, high = axis.get_xlim()
    assert low < gap.traces.min() < 0 < gap.traces.max() < high
    plt.close(figure)


def test_a_gap_that_is_only_rounding_is_drawn_as_none():
    moments = random_moments(np.random.default_rng(0), clients=1, size=2)
    gap = gap_of(Moments([50] * 3, np.repeat(moments.mean, 3, 0), np.repeat(moments.covariance, 3, 0)))
    gap = replace(gap, averaging=-1e-15 * np.eye(2), covariance=2e-15 * np.eye(2))
    plt = pyplot()
    figure, axis = plt.subplots()
    _draw_terms(axis, gap)
    figure.canvas.draw()
    assert axis.get_title(loc="left") == "no gap"
    assert [bar.get_width() for bar in axis.patches] == [0, 0, 0]
    assert axis.get_xlim()[1] > 0.1
    plt.close(figure)
    assert "bounds" not in sentences.checks(gap)


@pytest.mark.parametrize(
    ("variances", "mean"),
    [
        ([3.0], 0.0),
        ([1e9, 1e4, 1.0, 1e-3], 0.0),
        ([1e-4 * (1 + 1e-8)], 0.0),
        ([1.0, 2.0], 1e12),
        ([5.0, 1e-9], 1.0),
    ],
)
def test_equal_clients_leave_no_gap_however_rounding_is_enlarged(variances, mean):
    for seed in range(20):
        basis = rotations(np.random.default_rng(seed), size=len(variances))
        same = psd.symmetric((basis * variances) @ basis.T)
        moments = Moments([10, 20, 30], np.full((3, len(variances)), mean), np.array([same] * 3))
        gap = explain(predict(moments, Penalty() if min(variances) > 1e-8 else Penalty(1e-7, 1e-7)))
        assert gap.chain_holds & gap.one_sided & gap.bounds_hold & gap.negligible
        assert not np.concatenate([gap.shares, gap.client_shares, gap.target_shares]).any()
        assert "will match centralized training" in sentences.outcome(gap)[0]


@pytest.mark.parametrize(
    ("variances", "means", "penalty"),
    [
        ([[1.0, 0.0], [4.0, 1.0]], [[0.0, 0.0], [0.5, 0.0]], 1e-15),
        ([[0.0], [1.0]], [[0.0], [0.0]], 1e-20),
        ([[1e20, 4e-4], [1e20, 4e-4]], [[0.0, 0.0], [5e8, 0.0]], 0.01),
        ([[1e24, 0.0], [1.5e24, 1.0]], [[0.0, 0.0], [0.0, 0.0]], 0.01),
        ([[1e-3], [1e-3]], [[1e12], [1e12 + 2**-10]], 0.01),
        ([[1e-3], [1e-3]], [[1e15], [1e15 + 1]], 0.01),
    ],
)
def test_a_gap_that_is_known_is_told_however_rounding_is_enlarged(variances, means, penalty):
    """Diagonal covariances and means that differ in the first target: roots and averages, nothing else."""
    variances, means = np.array(variances), np.array(means)
    moments = Moments([10, 10], means, np.array([np.diag(each) for each in variances]))
    gap = explain(predict(moments, Penalty(penalty, penalty)))
    pooled = variances.mean(axis=0) + (0.5 * (means[1] - means[0])) ** 2
    optimum = [np.maximum(np.sqrt(each) - penalty, 0.0) for each in (*variances, pooled)]
    federated = (0.5 * (np.sqrt(optimum[0]) + np.sqrt(optimum[1]))) ** 2
    expected = np.linalg.norm(optimum[2] - federated) / np.linalg.norm(optimum[2])
    assert gap.relative == pytest.approx(expected, rel=1e-9)
    assert not gap.negligible
    assert np.nansum(np.abs(gap.shares)) > 0.99 or not gap.one_sided
    assert "away from centralized training" in sentences.outcome(gap)[0]


def test_many_equal_clients_far_from_zero_leave_no_gap():
    rng, same = np.random.default_rng(0), np.full((10_000, 1, 1), 1e-3)
    gap = explain(predict(Moments(rng.integers(5, 5000, 10_000), np.full((10_000, 1), 1e9 / 3), same)))
    assert gap.negligible
    assert gap.relative < 1e-11


def test_an_averaging_term_that_is_only_rounding_is_0_between_its_bounds():
    moments = random_moments(np.random.default_rng(0), size=2)
    same = np.broadcast_to(moments.pooled.within, moments.covariance.shape)
    gap = gap_of(Moments(moments.count, moments.mean, same))
    assert "The pairwise bounds 0 <= 0 <= 0 hold" in sentences.checks(gap)


def test_a_common_factor_does_not_lie_on_the_label():
    gap = gap_of(random_moments(np.random.default_rng(0), size=2))
    plt = pyplot()
    figure, axis = plt.subplots()
    _draw_terms(axis, replace(gap, mean=1e-9 * gap.mean, covariance=0 * gap.mean, averaging=0 * gap.mean))
    figure.canvas.draw()
    assert axis.xaxis.get_offset_text().get_text() == ""
    plt.close(figure)


def test_pairs_of_many_clients_are_visited_only_when_asked(monkeypatch):
    gap = explain(predict(random_moments(np.random.default_rng(0), 5, 2)))
    assert "The pairwise bounds" in sentences.checks(gap)
    assert gap_summary(gap)["pairwise_dispersion"] == gap.dispersion
    monkeypatch.setattr(
        sys.modules["fedgram.theory.explain"], "MAX_PAIR_COST", 249
    )  # not the function of that name
    assert "bounds" not in sentences.checks(gap)
    assert gap_summary(gap)["pairwise_dispersion"] is None
    assert explanation_document(analysis_of(gap))["bounds_hold"] is None
    assert gap.bounds_hold
