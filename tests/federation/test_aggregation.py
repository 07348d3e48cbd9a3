"""Robust means: bounds under bad clients, and the limits of federated averaging with each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedgram import Moments, Penalty, predict
from fedgram.federation.aggregation import AGGREGATIONS, clip_returns, geometric_median, trimmed_mean
from fedgram.flower.config import AggregationConfig
from fedgram.flower.limits import find_limit, geometric_median_gram
from fedgram.runs.expectation import expectation
from fedgram.runs.procedure import Procedure
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import barycenter
from fedgram.theory.geometry.psd import closest_factor

RNG = np.random.default_rng(0)
HEADS, WEIGHTS = RNG.standard_normal((5, 2, 3)), np.array([0.3, 0.1, 0.2, 0.25, 0.15])


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregate_of_equal_values_is_the_value(name):
    values = np.repeat(HEADS[:1], 4, axis=0)
    np.testing.assert_allclose(AGGREGATIONS[name](values, WEIGHTS[:4], 1), HEADS[0], rtol=1e-14)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregate_follows_shifts_scales_and_order(name):
    def aggregate(values, weights=WEIGHTS):
        return AGGREGATIONS[name](values, weights, 1)

    expected = aggregate(HEADS)
    np.testing.assert_allclose(aggregate(3 * HEADS + 1), 3 * expected + 1, atol=1e-7)
    order = RNG.permutation(5)
    np.testing.assert_allclose(aggregate(HEADS[order], WEIGHTS[order]), expected, atol=1e-7)


def test_geometric_median_and_mean_follow_rotations():
    turn = np.linalg.qr(RNG.standard_normal((3, 3)))[0]
    for name in ("mean", "geometric-median"):
        turned, plain = (AGGREGATIONS[name](each, WEIGHTS, 1) for each in (HEADS @ turn, HEADS))
        np.testing.assert_allclose(turned, plain @ turn, atol=1e-7)


def test_geometric_median_minimizes_the_sum_of_distances():
    def cost(flat):
        return WEIGHTS @ np.linalg.norm(HEADS.reshape(5, -1) - flat, axis=1)

    found = geometric_median(HEADS, WEIGHTS).ravel()
    best = minimize(cost, HEADS.mean(axis=0).ravel(), method="BFGS", options={"gtol": 1e-9})
    assert cost(found) <= best.fun * (1 + 1e-12)
    np.testing.assert_allclose(found, best.x, atol=1e-5)


def test_weighted_median_of_scalars_is_their_geometric_median():
    values = np.array([[0.0], [1.0], [5.0]])
    np.testing.assert_allclose(geometric_median(values, np.array([0.2, 0.2, 0.6])), [5.0], atol=1e-6)


@given(st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=5), st.floats(-1e12, 1e12))
def test_trimmed_mean_stays_between_the_honest_extremes(honest, bad):
    values = np.array([*honest, bad])[:, None]
    found = trimmed_mean(values, np.ones(6), 1)[0]
    slack = 1e-9 * (1 + max(map(abs, honest)))
    assert min(honest) - slack <= found <= max(honest) + slack


@settings(max_examples=15)
@given(st.floats(1.0, 1e9))
def test_geometric_median_of_a_bad_minority_is_bounded(size):
    """Two of seven equal clients are bad: α = 2/7, so the bound is 2 (1 - α) / (1 - 2 α) = 10/3."""
    honest = np.random.default_rng(1).standard_normal((5, 4))
    found = geometric_median(np.vstack([honest, np.full((2, 4), size)]), np.ones(7))
    assert np.linalg.norm(found) <= 10 / 3 * np.linalg.norm(honest, axis=1).max() + 1e-9


def test_clipping_moves_far_returns_only():
    values = np.concatenate([HEADS, 1e3 * np.ones((1, 2, 3))])
    clipped = clip_returns(values, 3.0)
    np.testing.assert_array_equal(clipped[:5], HEADS)
    center = np.median(values.reshape(6, -1), axis=0)
    distances = np.linalg.norm(clipped.reshape(6, -1) - center, axis=1)
    np.testing.assert_allclose(
        distances[5], 3 * np.median(np.linalg.norm(values.reshape(6, -1) - center, axis=1))
    )


def expected_end(procedure="ordinary"):
    rng = np.random.default_rng(2)
    rows = [rng.standard_normal((60, 3)) @ rng.standard_normal((3, 3)) for _ in range(5)]
    return expectation(predict(Moments.from_arrays(rows), Penalty(0.1, 0.1)), Procedure.parse(procedure))


def run_rounds(expected, name: str, rounds: int = 80):
    head = np.random.default_rng(3).standard_normal((3, 6))
    for _ in range(rounds):
        heads = np.stack([closest_factor(head, gram) for gram in expected.grams])
        head = AGGREGATIONS[name](heads, expected.client_weights, 1)
    return psd.gram(head)


def test_geometric_median_of_heads_ends_at_the_geometric_median_of_grams():
    expected = expected_end()
    limit = find_limit(expected, "abcde", "abcde", AggregationConfig("geometric-median"))
    assert psd.relative_error(run_rounds(expected, "geometric-median"), limit.gram) < 1e-8
    assert psd.relative_error(limit.gram, expected.gram) > 1e-3  # it is not the barycenter


def test_geometric_median_of_grams_minimizes_the_sum_of_distances():
    expected = expected_end()
    median = geometric_median_gram(expected.grams, expected.client_weights)

    def cost(gram):
        return expected.client_weights @ psd.distance(gram, expected.grams)

    for _ in range(20):
        step = 1e-3 * psd.symmetric(RNG.standard_normal((3, 3)))
        assert cost(median + step) > cost(median)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_full_correction_ends_at_the_centralized_gram_with_every_aggregation(name):
    expected = expected_end("corrected")
    limit = find_limit(expected, "abcde", "abcde", AggregationConfig(name))
    assert psd.relative_error(run_rounds(expected, name, 5), expected.gram) < 1e-12
    assert psd.relative_error(limit.gram, expected.gram) < 1e-10
    assert "limit of the mean" not in limit.name


def test_limit_excludes_clients_that_do_not_count():
    expected = expected_end()
    limit = find_limit(expected, "abcde", "abde", AggregationConfig())
    assert limit.name == "G_⋆ of 4 clients"
    assert psd.relative_error(limit.gram, expected.gram) > 1e-3
    name = find_limit(expected, "abcde", "abcde", AggregationConfig("trimmed")).name
    assert name == "G_⋆ (the limit of the mean)"


@pytest.mark.parametrize(("name", "clip"), [("mean", 2.0), ("trimmed", 0.0), ("geometric-median", 0.0)])
@pytest.mark.parametrize("attack", [lambda head: -head, lambda head: 1e3 * head], ids=["flip", "scale"])
def test_one_bad_client_of_eight_moves_a_robust_limit_little(name, clip, attack):
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((200, 3)) @ (np.eye(3) + 0.3 * rng.standard_normal((3, 3))) for _ in range(8)]
    prediction = predict(Moments.from_arrays(rows), Penalty())
    honest = barycenter(prediction.grams[1:], np.full(7, 1 / 7)).gram

    def end(name, clip):
        head = np.random.default_rng(3).standard_normal((3, 8))
        for _ in range(20):
            heads = np.stack([closest_factor(head, gram) for gram in prediction.grams])
            heads[0] = attack(heads[0])
            heads = clip_returns(heads, clip) if clip else heads
            head = AGGREGATIONS[name](heads, np.full(8, 1 / 8), 1)
        return psd.relative_error(psd.gram(head), honest)

    assert end(name, clip) < 0.15
    assert end("mean", 0.0) > 0.3
