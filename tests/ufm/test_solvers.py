"""Local solvers: they reach the theory's optimum, agree with each other, and what is exact stays exact."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from fedgram.theory.correct import correct
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments
from fedgram.theory.predict import conditional_solution, phi
from fedgram.theory.select import closest_head
from fedgram.ufm.instances import (
    SELECTION_SIZES,
    UNIT,
    fixed_instance,
    random_covariances,
    selection_instances,
    targets_with_moments,
)
from fedgram.ufm.joint import Joint, Sample
from fedgram.ufm.profiled import Profiled
from fedgram.ufm.solvers import (
    TOLERANCE,
    adam,
    adam_path,
    lbfgs,
    proximal_path,
    trust_exact,
)
from tests.helpers.unconstrained import CorrectedJoint, gradient_descent


def one_client(targets=3, width=5, seed=0):
    """A joint loss in the samples' own basis, and the closest optimal head it should select."""
    clients = selection_instances(np.random.default_rng(seed), targets, width, 1)
    selected = closest_head(clients.broadcast[0], phi(clients.covariance[0], UNIT))
    return Joint(Sample.from_targets(clients.targets[0]), UNIT, clients.broadcast[0]), selected


@pytest.mark.parametrize(
    ("targets", "width"),
    [pytest.param(*size, marks=pytest.mark.slow if size == (8, 16) else ()) for size in SELECTION_SIZES],
)
def test_joint_proximal_minimisers_select_the_closest_optimal_head(targets, width):
    loss, selected = one_client(targets, width)
    loss = replace(loss, sample=loss.sample.compress())
    weights = [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5]
    path = proximal_path(loss, weights)
    error = np.array([psd.relative_error(solution.head, selected) for solution in path])
    np.testing.assert_allclose(error[2:] / weights[2:], error[-1] / weights[-1], rtol=0.05)
    assert 0.05 < error[-1] / weights[-1] < 1.0
    assert max(solution.gradient_norm for solution in path[1:]) < 1e-8


def test_selection_inequality_bounds_the_excess_loss_along_the_path():
    loss, selected = one_client()
    distance = psd.frobenius(selected - loss.broadcast) ** 2
    for weight, solution in zip([1.0, 1e-2], proximal_path(loss, [1.0, 1e-2]), strict=True):
        assert 0 < loss.excess(solution.point) <= 0.5 * weight * distance  # eq. (15)


def test_a_path_of_one_small_weight_reaches_the_same_head_as_a_fine_grid():
    loss, _ = one_client(2, 4)
    loss = replace(loss, sample=loss.sample.compress())
    fine = proximal_path(loss, 10.0 ** np.arange(0, -6.1, -0.25))[-1]
    once = proximal_path(loss, [1e-6])[-1]
    np.testing.assert_allclose(once.head, fine.head, atol=1e-7)


def test_rotating_the_samples_changes_no_gradient_step():
    loss, _ = one_client(3, 5)
    rotated = replace(loss, sample=loss.sample.compress())
    assert rotated.start(loss.broadcast).size < loss.start(loss.broadcast).size / 4
    plain, turned = (gradient_descent(each, each.start(loss.broadcast), 50, 0.3) for each in (loss, rotated))
    np.testing.assert_allclose(turned.head, plain.head, rtol=1e-12)
    np.testing.assert_allclose(turned.gradient_norm, plain.gradient_norm, rtol=1e-11)
    assert plain.gradient_norm > 1e-3  # still on the way


def test_rotating_the_samples_changes_no_minimiser():
    loss, _ = one_client(3, 5)
    rotated = replace(loss, sample=loss.sample.compress())
    plain, turned = (proximal_path(each, [1.0, 1e-2, 1e-4])[-1] for each in (loss, rotated))
    np.testing.assert_allclose(turned.head, plain.head, atol=1e-8)
    (_, bias, features), (_, bias_, features_) = loss.split(plain.point), rotated.split(turned.point)
    np.testing.assert_allclose(bias_, bias, atol=1e-11)
    np.testing.assert_allclose(features_ @ features_.T, features @ features.T, atol=1e-6)


@pytest.mark.parametrize("weight", [1e-1, 1e-3])
def test_joint_and_profiled_minimisers_have_the_same_head(weight):
    joint, _ = one_client()
    joint = replace(joint, proximal=weight)
    profiled = joint.profile
    solutions = [trust_exact(loss, loss.start(joint.broadcast)) for loss in (joint, profiled)]
    np.testing.assert_allclose(solutions[0].head, solutions[1].head, atol=1e-7)
    head, bias, features = joint.split(solutions[0].point)
    np.testing.assert_allclose(bias, joint.sample.mean, atol=1e-9)
    # Lemma 2: H_ρ = H⋆(U_ρ), as without the penalty, for it weighs on the head alone.
    _, optimal = conditional_solution(head, joint.sample.targets, UNIT)
    np.testing.assert_allclose(features, optimal, atol=1e-7)


def test_corrected_joint_minimisers_have_the_pooled_gram():
    rng = np.random.default_rng(1)
    covariance = random_covariances(rng, (3,), 2, (2.0, 5.0))
    moments = Moments(np.full(3, 8), rng.standard_normal((3, 2)), covariance)
    targets, correction = targets_with_moments(rng, moments.mean, covariance, 8), correct(moments, UNIT)
    broadcast = rng.standard_normal((2, 3))
    selected = closest_head(broadcast, correction.centralized)
    for client in range(3):
        sample, deficit = Sample.from_targets(targets[client]), correction.deficit[client]
        loss = CorrectedJoint(sample, UNIT, broadcast, deficit=deficit)
        solution = proximal_path(loss, [1e-2, 1e-4, 1e-6])[-1]
        np.testing.assert_allclose(solution.head, selected, atol=3e-6)


@pytest.mark.parametrize("kind", ["joint", "profiled"])
def test_unregularised_lbfgs_reaches_the_optimal_gram_but_not_the_selected_head(kind):
    joint, selected = one_client()
    loss = joint if kind == "joint" else joint.profile
    start = np.random.default_rng(2).standard_normal(selected.shape)
    solution = lbfgs(loss, loss.start(start))
    assert psd.relative_error(solution.head @ solution.head.T, selected @ selected.T) < 1e-6
    assert psd.relative_error(solution.head, selected) > 0.1
    assert solution.gradient_norm < 1e-6


def test_solution_reports_the_gradient_at_its_own_point():
    loss = replace(one_client()[0], proximal=1e-2)
    solution = trust_exact(loss, loss.start(loss.broadcast))
    assert solution.gradient_norm == np.linalg.norm(loss.gradient(solution.point)) < TOLERANCE
    np.testing.assert_array_equal(solution.head, loss.head(solution.point))


def test_panel_b_of_the_fixed_instance():
    instance = fixed_instance()
    worst = np.zeros(2)
    for covariance in instance.moments.covariance:
        gram = phi(covariance, instance.penalty)
        selected = closest_head(instance.head, gram)
        path = proximal_path(Profiled(covariance, instance.penalty, instance.head), np.logspace(-1, -6, 11))
        head = path[-1].head
        errors = [psd.relative_error(head @ head.T, gram), psd.relative_error(head, selected)]
        worst = np.maximum(worst, errors)
    np.testing.assert_allclose(worst, [4.66e-6, 2.48e-6], rtol=2e-3)


def test_adam_brings_the_fixed_instance_to_its_optimal_gram():
    instance = fixed_instance()
    loss = Joint(Sample.from_targets(instance.targets[0]), instance.penalty, instance.head)
    gram = phi(instance.moments.covariance[0], instance.penalty)
    points = list(islice(adam_path(loss, loss.start(instance.head)), 241))
    heads = [loss.head(points[step]) for step in (0, 20, 80, 240)]
    errors = [psd.relative_error(head @ head.T, gram) for head in heads]
    np.testing.assert_array_equal(heads[0], instance.head)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-2
    np.testing.assert_array_equal(adam(loss, points[0], 240).head, heads[-1])


def test_adam_takes_a_first_step_of_the_learning_rate_in_every_variable():
    loss, _ = one_client()
    start = loss.start(loss.broadcast) + 0.1
    gradient = loss.gradient(start)
    expected = start - 0.02 * gradient / (np.abs(gradient) + 1e-8)
    np.testing.assert_allclose(adam(loss, start, 1).point, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "solver",
    [lambda loss, start: adam(loss, start, 30), lambda loss, start: gradient_descent(loss, start, 30, 0.05)],
)
def test_a_stack_trains_as_its_members_do_alone(solver):
    clients = selection_instances(np.random.default_rng(4), 2, 3, 4)
    stacked = Joint(Sample.from_targets(clients.targets), UNIT, clients.broadcast)
    together = solver(stacked, stacked.start(clients.broadcast))
    for member in range(4):
        alone = Joint(Sample.from_targets(clients.targets[member]), UNIT, clients.broadcast[member])
        solution = solver(alone, alone.start(clients.broadcast[member]))
        np.testing.assert_allclose(together.head[member], solution.head, rtol=1e-9)
        np.testing.assert_allclose(together.gradient_norm[member], solution.gradient_norm, rtol=1e-7)


def test_one_profiled_step_is_the_gradient_step():
    loss = one_client()[0].profile
    moved = gradient_descent(loss, loss.start(loss.broadcast), 1, 0.1)
    expected = loss.broadcast - 0.1 * loss.head(loss.gradient(loss.start(loss.broadcast)))
    np.testing.assert_allclose(moved.head, expected, rtol=1e-15)
