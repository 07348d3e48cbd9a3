"""Proximal training with a weight: other solvers, closed forms, both ends, invariances, bad input."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from fedgram import AccuracyError, InputError, Moments, Penalty, predict
from fedgram.theory import proximal
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.psd import closest_factor
from fedgram.theory.proximal import find_proximal_limit, proximal_heads
from fedgram.ufm.profiled import Profiled
from fedgram.ufm.solvers import trust_exact
from tests.helpers.instances import random_moments

PENALTY = Penalty(0.02, 0.05)
WEIGHTS = (1e-5, 1e-3, 0.05, 1.0, 30.0)


def instance(seed=0, clients=4, size=3):
    moments = random_moments(np.random.default_rng(seed), clients=clients, size=size)
    return predict(moments, PENALTY), np.random.default_rng(seed + 1).standard_normal((size, size))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_heads_are_those_of_a_trust_region_solver(weight):
    prediction, broadcast = instance()
    heads = proximal_heads(broadcast, prediction.moments.covariance, PENALTY, weight)
    for covariance, gram, head in zip(prediction.moments.covariance, prediction.grams, heads, strict=True):
        loss = Profiled(covariance, PENALTY, broadcast, weight)
        found = trust_exact(loss, loss.start(closest_factor(broadcast, gram)), 1e-13)
        np.testing.assert_allclose(head, found.head, atol=1e-8)
        assert np.abs(loss.gradient(loss.start(head))).max() < 1e-12 * (1 + weight)
        assert loss.value(loss.start(head)) <= loss.value(found.point) * (1 + 1e-13)


def test_a_single_target_solves_a_scalar_equation():
    prediction, _ = instance(size=1)
    weight, broadcast = 0.3, 0.7
    (heads,) = proximal_heads(np.full((1, 1), broadcast), prediction.moments.covariance, PENALTY, weight).T
    for variance, head in zip(prediction.moments.covariance.ravel(), heads.ravel(), strict=True):

        def slope(w, variance=variance):
            fit = -PENALTY.features * variance * w / (w * w + PENALTY.features) ** 2
            return fit + PENALTY.head * w + weight * (w - broadcast)

        assert head == pytest.approx(brentq(slope, 0.3, 10, xtol=1e-15), rel=1e-12)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_heads_are_the_closest_ones_of_their_grams(weight):
    prediction, broadcast = instance(2)
    heads = proximal_heads(broadcast, prediction.moments.covariance, PENALTY, weight)
    transport = heads @ np.linalg.inv(broadcast)
    np.testing.assert_allclose(transport, transport.mT, atol=1e-10 * np.abs(transport).max())
    assert np.linalg.eigvalsh(psd.symmetric(transport)).min() > 0


def test_small_weights_end_at_the_barycenter_and_large_ones_within():
    prediction, _ = instance()
    star, within = prediction.barycenter.gram, prediction.within
    near = [psd.relative_error(prediction.proximal_limit(weight), star) for weight in (1e-5, 1e-6)]
    far = [psd.relative_error(prediction.proximal_limit(weight), within) for weight in (1e4, 1e5)]
    assert near[0] == pytest.approx(10 * near[1], rel=0.01)  # linear in the weight
    assert far[0] == pytest.approx(10 * far[1], rel=0.01)  # and in its inverse
    assert max(near[0], far[0]) < 1e-3
    between = prediction.proximal_limit(0.1)
    assert min(psd.relative_error(between, star), psd.relative_error(between, within)) > 0.01


def test_a_round_without_a_weight_is_the_selection_rule():
    prediction, _ = instance()
    ours, exact = (prediction.trajectory(np.eye(3), 3, weight) for weight in (1e-7, 0.0))
    np.testing.assert_allclose(ours, exact, rtol=1e-4)


@pytest.mark.parametrize("weight", [1e-3, 0.05])
def test_rounds_reach_the_limit_from_any_start(weight):
    prediction, broadcast = instance(4)
    limit = prediction.proximal_limit(weight)
    for start in (np.eye(3), broadcast @ broadcast.T):
        path = prediction.trajectory(start, 120, weight)
        np.testing.assert_allclose(path[-1], limit, rtol=1e-11)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_limit_is_the_same_after_a_round(weight):
    prediction, _ = instance(5, clients=6, size=4)
    limit = prediction.proximal_limit(weight)
    assert psd.relative_error(prediction.trajectory(limit, 1, weight)[1], limit) < 1e-13


@pytest.mark.parametrize("weight", [1e-8, 1e-6, 1e2, 1e6])
@pytest.mark.parametrize("penalty", [Penalty(1e-3, 0.3), Penalty(0.2, 1e-4)], ids=str)
@pytest.mark.parametrize("size", [1, 5])
def test_limits_are_exact_for_extreme_weights(size, penalty, weight):
    moments = random_moments(np.random.default_rng(size), clients=7, size=size)
    prediction = predict(replace(moments, covariance=9 * moments.covariance), penalty)
    assert prediction.fully_active
    limit = prediction.proximal_limit(weight)
    after = prediction.trajectory(limit, 1, weight)[1]
    assert psd.relative_error(after, limit) < 1e-13
    other = prediction.proximal_limit(1.001 * weight)
    ends = prediction.barycenter.gram, prediction.within  # it moves from one toward the other
    away, closer = (psd.relative_error(np.stack([limit, other]), end) for end in ends)
    assert away[1] > away[0] - 1e-13
    assert closer[1] < closer[0] + 1e-13


@pytest.mark.parametrize("weight", [1e-4, 1.0])
def test_equal_clients_end_at_their_own_gram(weight):
    covariance = np.diag([2.0, 0.5])
    prediction = predict(Moments([5, 9], [[0, 1], [3, -1]], np.stack([covariance] * 2)), PENALTY)
    np.testing.assert_allclose(prediction.proximal_limit(weight), prediction.grams[0], rtol=1e-12)


@given(seed=st.integers(0, 2**32), weight=st.sampled_from(WEIGHTS))
def test_a_rotation_of_the_targets_rotates_the_limit(seed, weight):
    prediction, _ = instance(seed, clients=3)
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))[0]
    moments = prediction.moments
    turned = replace(
        moments, mean=moments.mean @ rotation.T, covariance=rotation @ moments.covariance @ rotation.T
    )
    ours, other = prediction.proximal_limit(weight), predict(turned, PENALTY).proximal_limit(weight)
    np.testing.assert_allclose(other, rotation @ ours @ rotation.T, rtol=1e-9, atol=1e-11)


def test_a_client_that_is_inactive_in_a_direction_moves_toward_zero_there():
    moments = Moments([9, 9], np.zeros((2, 2)), np.array([np.diag([1.0, 1e-9]), np.diag([1.0, 1.0])]))
    prediction = predict(moments, PENALTY)
    heads = proximal_heads(np.eye(2), moments.covariance, PENALTY, 0.01)
    expected = 0.01 / (PENALTY.head + 0.01)  # nothing but penalties act on it
    assert heads[0][1, 1] == pytest.approx(expected, rel=1e-4)
    limit = prediction.proximal_limit(0.01)
    assert psd.relative_error(prediction.trajectory(limit, 1, 0.01)[1], limit) < 1e-12


def test_leading_axes_are_independent_problems():
    one, other = instance(1)[0].moments, instance(2)[0].moments
    stacked = {
        name: np.stack([getattr(one, name), getattr(other, name)])
        for name in ("mean", "covariance", "client_weights")
    }
    both = predict(replace(one, **stacked), PENALTY)
    limits, paths = both.proximal_limit(0.02), both.trajectory(np.eye(3), 2, 0.02)
    for k, each in enumerate((one, other)):
        alone = predict(each, PENALTY)
        np.testing.assert_allclose(limits[k], alone.proximal_limit(0.02), rtol=1e-12)
        np.testing.assert_allclose(paths[:, k], alone.trajectory(np.eye(3), 2, 0.02), rtol=1e-12)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf, "much"])
def test_weights_are_positive_numbers(weight):
    prediction, _ = instance()
    with pytest.raises(InputError, match="The proximal weight must be positive"):
        prediction.proximal_limit(weight)
    with pytest.raises(InputError, match="The proximal weight must be positive"):
        prediction.trajectory(np.eye(3), 2, weight)


def test_a_search_that_does_not_end_is_an_error(monkeypatch):
    prediction, broadcast = instance()
    monkeypatch.setattr(proximal, "STEPS", 1)
    with pytest.raises(AccuracyError, match="did not find the proximal heads"):
        proximal_heads(broadcast, prediction.moments.covariance, PENALTY, 0.1)
    monkeypatch.setattr(proximal, "proximal_heads", lambda head, *rest: np.stack([head + 1.0] * 4))
    covariance, weights = prediction.moments.covariance, prediction.moments.client_weights
    with pytest.raises(AccuracyError, match="The limit at the proximal weight"):
        find_proximal_limit(broadcast, covariance, weights, PENALTY, 0.1)
