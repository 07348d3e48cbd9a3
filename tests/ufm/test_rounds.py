"""Rounds: exact selection follows the Gram recursion, and each way of training ends where it should."""

from functools import partial

import numpy as np
import pytest

from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import trajectory
from fedgram.theory.geometry.weights import average
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import predict
from fedgram.ufm.instances import barycenter_instances, fixed_instance
from fedgram.ufm.joint import Joint, Sample
from fedgram.ufm.profiled import Profiled
from fedgram.ufm.rounds import exact, minimize_alone, minimize_together, proximal, run_rounds
from fedgram.ufm.solvers import adam, lbfgs
from tests.helpers.unconstrained import aligned, gradient_descent


@pytest.fixture(scope="module")
def fixed():
    instance = fixed_instance()
    return instance, predict(instance.moments, instance.penalty)


def profiled_clients(instance):
    return [Profiled(each, instance.penalty, instance.head) for each in instance.moments.covariance]


def test_exact_selection_follows_the_gram_recursion_to_the_barycenter(fixed):
    instance, prediction = fixed
    weights = instance.moments.client_weights
    rounds = run_rounds(instance.head, exact(prediction.grams), weights, 18)
    expected = trajectory(instance.head, prediction.grams, weights, 18)
    np.testing.assert_allclose(rounds.grams, expected, rtol=1e-12, atol=1e-14)
    assert (psd.relative_error(rounds.grams[16:], prediction.barycenter.gram) < 1e-14).all()
    assert rounds.returned.shape == (18, 3, 2, 2)


def test_shared_bias_is_the_pooled_mean_from_the_first_round_on(fixed):
    """Theorem 1: (Π_m(W_t), μ_m) minimises the local loss in every round, and the μ_m average to μ_g."""
    instance, prediction = fixed
    weights = instance.moments.client_weights
    clients = Joint(Sample.from_targets(instance.targets), instance.penalty, instance.head)
    for returned in run_rounds(instance.head, exact(prediction.grams), weights, 4).returned:
        points = clients.start(returned)
        np.testing.assert_allclose(clients.gradient(points), 0, atol=1e-13)
        _, bias, _ = clients.split(points)
        np.testing.assert_allclose(weights @ bias, instance.moments.pooled.mean, atol=1e-14)


@pytest.mark.parametrize("seed", range(3))
def test_what_averaging_loses_in_a_round_is_the_scatter_of_the_returned_heads(seed):
    """Eq. (16): Σ_m p_m G_m - G_{t+1} is the weighted scatter of Π_m(W_t) about W_{t+1}, at every round t."""
    drawn = barycenter_instances(np.random.default_rng(seed), 4, 3, 2)
    grams, weights = predict(drawn.moments, drawn.penalty).grams, drawn.moments.client_weights
    rounds = run_rounds(drawn.head, exact(grams), weights, 6)
    scatter = average(weights, psd.gram(rounds.returned - rounds.heads[1:, :, None]))
    np.testing.assert_allclose(average(weights, grams) - rounds.grams[1:], scatter, atol=1e-13)
    assert (np.linalg.eigvalsh(average(weights, grams) - rounds.grams[1:])[..., 0] > -1e-13).all()
    assert (psd.trace(scatter) > 1e-3).all()


@pytest.mark.parametrize(("weight", "error"), [(1e-1, 3.49e-2), (1e-3, 2.55e-4)])
def test_proximal_rounds_end_at_the_papers_error(fixed, weight, error):
    instance, prediction = fixed
    local = proximal(profiled_clients(instance), prediction.grams, weight)
    rounds = run_rounds(instance.head, local, instance.moments.client_weights, 18)
    assert psd.relative_error(rounds.grams[-1], prediction.barycenter.gram) == pytest.approx(error, rel=3e-3)
    clients = Profiled(instance.moments.covariance, instance.penalty, rounds.heads[:-1, None], weight)
    assert np.linalg.norm(clients.gradient(clients.start(rounds.returned)), axis=-1).max() < 1e-8


def test_unregularised_rounds_end_at_the_papers_error_and_alignment_removes_it(fixed):
    instance, prediction = fixed
    local = minimize_alone(profiled_clients(instance), lbfgs)
    plain, turned = (
        run_rounds(instance.head, each, instance.moments.client_weights, 18)
        for each in (local, aligned(local))
    )
    star = prediction.barycenter.gram
    assert psd.relative_error(plain.grams[-1], star) == pytest.approx(3.11e-3, rel=3e-3)
    assert psd.relative_error(turned.grams[-1], star) < 1e-7


def test_joint_and_profiled_proximal_rounds_agree():
    instance = barycenter_instances(np.random.default_rng(0), 2, 3, 1)
    prediction = predict(instance.moments, instance.penalty)
    head, grams, weights = instance.head[0], prediction.grams[0], instance.moments.client_weights[0]
    joint = [
        Joint(Sample.from_targets(each).compress(), instance.penalty, head) for each in instance.targets[0]
    ]
    grams_of = [
        run_rounds(head, proximal(clients, grams, 1e-2), weights, 4).grams
        for clients in (joint, [client.profile for client in joint])
    ]
    np.testing.assert_allclose(grams_of[0], grams_of[1], atol=1e-6)


def test_a_stack_of_federations_trains_as_each_alone():
    instance = barycenter_instances(np.random.default_rng(1), 2, 3, 4)
    weights, solver = instance.moments.client_weights, partial(adam, steps=20)
    stacked = Joint(Sample.from_targets(instance.targets), instance.penalty, instance.head[:, None])
    rounds = run_rounds(instance.head, aligned(minimize_together(stacked, solver)), weights, 3)
    assert rounds.grams.shape == (4, 4, 2, 2)
    clients = [
        Joint(Sample.from_targets(each), instance.penalty, instance.head[2]) for each in instance.targets[2]
    ]
    alone = run_rounds(instance.head[2], aligned(minimize_alone(clients, solver)), weights[2], 3)
    np.testing.assert_allclose(rounds.grams[:, 2], alone.grams, rtol=1e-9)


def test_one_profiled_step_per_round_descends_the_averaged_objective(fixed):
    instance, prediction = fixed
    clients = Profiled(instance.moments.covariance, instance.penalty, instance.head)
    local = minimize_together(clients, partial(gradient_descent, steps=1, rate=0.2))
    rounds = run_rounds(instance.head, local, instance.moments.client_weights, 400)
    within = Profiled(instance.moments.pooled.within, instance.penalty, instance.head)
    once = gradient_descent(within, within.start(instance.head), steps=1, rate=0.2)
    np.testing.assert_allclose(rounds.heads[1], once.head, rtol=1e-13)
    assert psd.relative_error(rounds.grams[-1], prediction.within) < 1e-10


def joint_step(clients, points, client_weights, rate):
    """Take one gradient step per client in (W, b, H_m), then average (W, b): points (..., M, n).

    All points share (W, b), before and after. It is gradient descent on the pooled loss, eq. (2), at this
    rate for (W, b) and at rate / p_m for H_m (Appendix G.1).
    """
    head, bias, features = clients.split(points - rate * clients.gradient(points))
    shared = average(client_weights, head)[..., None, :, :]
    offset = np.einsum("...m,...mc->...c", client_weights, bias)[..., None, :]
    return clients.join(np.broadcast_to(shared, head.shape), np.broadcast_to(offset, bias.shape), features)


def random_joint_state():
    """Three clients at one shared (W, b) with features of their own, and unequal weights."""
    rng = np.random.default_rng(2)
    clients = Joint(Sample.from_targets(rng.standard_normal((3, 2, 7))), Penalty(0.3, 0.2), np.zeros((2, 4)))
    head, bias = rng.standard_normal((2, 4)), rng.standard_normal(2)
    features = rng.standard_normal((3, 4, 7))
    points = clients.join(np.broadcast_to(head, (3, 2, 4)), np.broadcast_to(bias, (3, 2)), features)
    return clients, points, np.array([0.2, 0.3, 0.5])


def test_joint_step_is_gradient_descent_on_the_pooled_loss():
    clients, points, weights = random_joint_state()
    rate, shared = 0.1, 2 * 4 + 2
    moved = joint_step(clients, points, weights, rate)

    def pooled(head_and_bias, features):
        """Eq. (2) as a function of the shared (W, b) and all features."""
        together = np.concatenate([np.broadcast_to(head_and_bias, (3, shared)), features], axis=-1)
        return weights @ clients.value(together)

    def slope(head_and_bias_step, features_step):
        step = 1e-30j
        start = points[0, :shared], points[:, shared:]
        return pooled(start[0] + step * head_and_bias_step, start[1] + step * features_step).imag / 1e-30

    for index, unit in enumerate(np.eye(shared)):
        expected = points[0, index] - rate * slope(unit, 0.0)
        np.testing.assert_allclose(moved[:, index], expected, rtol=1e-12)
    for client in range(3):
        for index, unit in enumerate(np.eye(points.shape[-1] - shared)):
            only_here = np.eye(3)[client][:, None] * unit
            expected = points[client, shared + index] - rate / weights[client] * slope(0.0, only_here)
            np.testing.assert_allclose(moved[client, shared + index], expected, rtol=1e-12)


@pytest.mark.slow
def test_joint_steps_converge_to_the_centralized_gram(fixed):
    instance, prediction = fixed
    clients = Joint(Sample.from_targets(instance.targets).compress(), instance.penalty, instance.head)
    points = clients.start(instance.head[None])
    for _ in range(20000):
        points = joint_step(clients, points, instance.moments.client_weights, 0.5)
    head, bias, _ = clients.split(points[0])
    assert psd.relative_error(head @ head.T, prediction.centralized) < 1e-6
    np.testing.assert_allclose(bias, instance.moments.pooled.mean, atol=1e-6)
