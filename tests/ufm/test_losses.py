"""The losses of the unconstrained feature model: derivatives, and each against the others."""

import numpy as np
import pytest

from fedgram.theory.correct import correct
from fedgram.theory.derivatives import two_sided, two_sided_transposed
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import conditional_solution, local_optimum, phi, profiled_objective
from fedgram.theory.select import closest_head
from fedgram.ufm.instances import random_covariances, targets_with_moments
from fedgram.ufm.joint import Joint, Sample
from fedgram.ufm.profiled import Profiled
from tests.helpers.unconstrained import CorrectedJoint

TARGETS, WIDTH, COUNT, CLIENTS = 3, 4, 9, 3
PENALTY = Penalty(features=0.3, head=0.2)
STEP = 1e-30


def moments_and_targets():
    rng = np.random.default_rng(5)
    mean = rng.standard_normal((CLIENTS, TARGETS))
    covariance = random_covariances(rng, (CLIENTS,), TARGETS, (0.3, 3.0))
    targets = targets_with_moments(rng, mean, covariance, COUNT)
    return Moments(np.full(CLIENTS, COUNT), mean, covariance), targets


def stacked_losses():
    """Every loss, stacked over three clients: the tests iterate this dict."""
    moments, targets = moments_and_targets()
    broadcast = np.random.default_rng(6).standard_normal((TARGETS, WIDTH))
    deficit = 0.7 * correct(moments, PENALTY).deficit
    sample = Sample.from_targets(targets)
    return {
        "profiled": Profiled(moments.covariance, PENALTY, broadcast),
        "profiled proximal": Profiled(moments.covariance, PENALTY, broadcast, 0.4),
        "joint": Joint(sample, PENALTY, broadcast),
        "joint proximal": Joint(sample, PENALTY, broadcast, 0.4),
        "joint corrected": CorrectedJoint(sample, PENALTY, broadcast, 0.4, deficit=deficit),
        "joint rotated": Joint(sample.compress(), PENALTY, broadcast, 0.4),
    }


def random_points(loss, seed=7):
    size = loss.start(np.ones((CLIENTS, TARGETS, WIDTH))).shape
    return np.random.default_rng(seed).standard_normal(size)


@pytest.fixture(params=stacked_losses())
def loss(request):
    return stacked_losses()[request.param]


def test_gradient_is_the_complex_step_derivative_of_the_value(loss):
    points, direction = random_points(loss), random_points(loss, 8)
    slope = loss.value(points + 1j * STEP * direction).imag / STEP
    np.testing.assert_allclose((loss.gradient(points) * direction).sum(axis=-1), slope, rtol=1e-13)


def test_gradient_matches_central_differences_in_every_variable(loss):
    points, step = random_points(loss), 1e-5
    for variable in np.eye(points.shape[-1]):
        slope = (loss.value(points + step * variable) - loss.value(points - step * variable)) / (2 * step)
        np.testing.assert_allclose(loss.gradient(points) @ variable, slope, rtol=1e-7, atol=1e-8)


def test_hessian_is_the_complex_step_derivative_of_the_gradient_and_symmetric(loss):
    points = random_points(loss)
    dense = loss.hessian(points)
    columns = [loss.gradient(points + 1j * STEP * unit).imag / STEP for unit in np.eye(points.shape[-1])]
    np.testing.assert_allclose(dense, np.stack(columns, axis=-1), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(dense, np.swapaxes(dense, -1, -2), rtol=1e-12, atol=1e-14)


def test_excess_is_the_value_less_a_constant(loss):
    profile = loss if isinstance(loss, Profiled) else loss.profile
    for seed in range(3):
        points = random_points(loss, seed)
        np.testing.assert_allclose(loss.value(points) - loss.excess(points), profile.floor, rtol=1e-12)


def test_floor_is_the_least_value_in_the_fully_active_regime():
    moments, _ = moments_and_targets()
    floor = Profiled(moments.covariance, PENALTY, np.zeros((TARGETS, WIDTH))).floor
    np.testing.assert_allclose(floor, local_optimum(moments.covariance, PENALTY), rtol=1e-14)


def test_excess_keeps_digits_where_the_value_has_none():
    loss = stacked_losses()["profiled"]
    optimum = closest_head(loss.broadcast, phi(loss.covariance, PENALTY))
    step = 1e-9 * random_points(loss)
    excess = loss.excess(loss.start(optimum) + step)
    curvature = 0.5 * np.einsum(
        "mi,mi->m", step, (loss.hessian(loss.start(optimum)) @ step[..., None])[..., 0]
    )
    np.testing.assert_allclose(excess, curvature, rtol=1e-5)
    assert (excess < 0.1 * np.finfo(float).eps * loss.floor).all()


@pytest.mark.parametrize("name", ["joint", "joint proximal", "joint corrected", "joint rotated"])
def test_profile_of_the_joint_loss_is_the_profiled_loss(name):
    loss = stacked_losses()[name]
    heads = np.random.default_rng(9).standard_normal((CLIENTS, TARGETS, WIDTH))
    best, profile = loss.start(heads), loss.profile
    np.testing.assert_allclose(loss.value(best), profile.value(profile.start(heads)), rtol=1e-13)
    _, to_bias, to_features = loss.split(loss.gradient(best))
    assert max(np.abs(to_bias).max(), np.abs(to_features).max()) < 1e-14
    np.testing.assert_allclose(
        loss.head(loss.gradient(best)), profile.head(profile.gradient(profile.start(heads))), atol=1e-13
    )


@pytest.mark.parametrize("name", ["joint", "joint proximal", "joint corrected", "joint rotated"])
def test_schur_complement_of_the_joint_hessian_is_the_profiled_hessian(name):
    loss = stacked_losses()[name]
    heads = np.random.default_rng(9).standard_normal((CLIENTS, TARGETS, WIDTH))
    hessian, split = loss.hessian(loss.start(heads)), TARGETS * WIDTH
    cross, inner = hessian[:, :split, split:], hessian[:, split:, split:]
    schur = hessian[:, :split, :split] - cross @ np.linalg.solve(inner, np.swapaxes(cross, -1, -2))
    profile = loss.profile
    np.testing.assert_allclose(schur, profile.hessian(profile.start(heads)), atol=1e-12)


def test_full_correction_profiles_to_the_pooled_covariance():
    moments, targets = moments_and_targets()
    deficit = correct(moments, PENALTY).deficit
    broadcast = np.zeros((TARGETS, WIDTH))
    loss = CorrectedJoint(Sample.from_targets(targets), PENALTY, broadcast, deficit=deficit)
    head = np.random.default_rng(9).standard_normal((TARGETS, WIDTH))
    pooled = profiled_objective(head, moments.pooled.covariance, PENALTY)
    np.testing.assert_allclose(loss.value(loss.start(head[None])), pooled, rtol=1e-13)


def test_joint_losses_start_from_the_conditional_solution():
    _, targets = moments_and_targets()
    heads = np.random.default_rng(9).standard_normal((CLIENTS, TARGETS, WIDTH))
    loss = Joint(Sample.from_targets(targets), PENALTY, heads)
    bias, features = conditional_solution(heads, targets, PENALTY)
    np.testing.assert_allclose(loss.start(heads), loss.join(heads, bias, features), rtol=1e-12, atol=1e-13)


def test_joint_value_is_the_equation_written_out():
    rng = np.random.default_rng(3)
    targets, head, features = (rng.standard_normal(shape) for shape in ((2, 5), (2, 3), (3, 5)))
    bias, loss = rng.standard_normal(2), Joint(Sample.from_targets(targets), PENALTY, np.zeros((2, 3)))
    error = sum(
        (sum(head[c, p] * features[p, i] for p in range(3)) + bias[c] - targets[c, i]) ** 2
        for c in range(2)
        for i in range(5)
    )
    expected = error / 10 + 0.3 / 10 * (features**2).sum() + 0.2 / 2 * (head**2).sum()
    assert loss.value(loss.join(head, bias, features)) == pytest.approx(expected, rel=1e-14)


def test_rotated_sample_keeps_moments_in_one_more_direction_than_targets():
    _, targets = moments_and_targets()
    plain, rotated = Sample.from_targets(targets), Sample.from_targets(targets).compress()
    assert rotated.targets.shape == (CLIENTS, TARGETS, TARGETS + 1)
    np.testing.assert_allclose(rotated.mean, plain.mean, rtol=1e-13)
    np.testing.assert_allclose(rotated.covariance, plain.covariance, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose((rotated.ones**2).sum(axis=-1), COUNT, rtol=1e-14)


def test_two_sided_matrices_act_as_their_products():
    rng = np.random.default_rng(2)
    left, right, middle = (rng.standard_normal((2, *shape)) for shape in ((3, 4), (5, 6), (4, 6)))
    flat = middle.reshape(2, -1, 1)
    straight = (two_sided(left, right) @ flat).reshape(2, 3, 5)
    np.testing.assert_allclose(straight, left @ middle @ np.swapaxes(right, -1, -2), rtol=1e-12)
    turned = np.swapaxes(middle, -1, -2).reshape(2, -1, 1)
    crossed = (two_sided_transposed(left, right) @ turned).reshape(2, 3, 5)
    np.testing.assert_allclose(crossed, left @ middle @ np.swapaxes(right, -1, -2), rtol=1e-12)
