"""The prediction against forty digits, closed forms, and direct minimisation."""

from dataclasses import replace

import mpmath
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError, Moments, Penalty, correct, explain, phi, predict
from fedgram.theory.activity import describe_direction
from fedgram.theory.geometry import psd
from fedgram.theory.predict import conditional_solution, local_optimum, profiled_objective
from tests.helpers.instances import covariances, mp_barycenter, mp_phi, random_moments, rotations, to_float

SEEDS = st.integers(0, 10_000)


@given(SEEDS, st.integers(1, 5), st.floats(0.01, 0.3), st.floats(0.01, 0.3))
@settings(max_examples=40, deadline=None)
def test_phi_solves_its_stationarity_equation(seed, size, features, head):
    penalty = Penalty(features, head)
    covariance = covariances(np.random.default_rng(seed), size=size)
    regularised = phi(covariance, penalty) + features * np.eye(size)
    np.testing.assert_allclose(
        regularised @ regularised, features / head * covariance, rtol=1e-12, atol=1e-12
    )


def test_phi_clips_inactive_directions():
    gram = phi(np.diag([4.0, 1e-5, 0.0]), Penalty(0.01, 0.01))
    np.testing.assert_allclose(gram, np.diag([1.99, 0.0, 0.0]), atol=1e-15)


def test_phi_is_the_minimiser_of_the_profiled_objective():
    rng = np.random.default_rng(0)
    penalty, covariance = Penalty(0.1, 0.2), covariances(rng, size=3)

    def objective(flat):
        return float(profiled_objective(flat.reshape(3, 3), covariance, penalty))

    found = scipy.optimize.minimize(objective, rng.standard_normal(9), options={"gtol": 1e-9})
    head = found.x.reshape(3, 3)
    np.testing.assert_allclose(head @ head.T, phi(covariance, penalty), atol=1e-5)
    assert found.fun == pytest.approx(float(local_optimum(covariance, penalty)), rel=1e-9)


@given(SEEDS, st.floats(1e-3, 2.0))
@settings(max_examples=25, deadline=None)
def test_least_loss_also_where_directions_are_inactive(seed, product):
    covariance, penalty = (
        covariances(np.random.default_rng(seed), size=3),
        Penalty(np.sqrt(product), np.sqrt(product)),
    )
    head = psd.factor(phi(covariance, penalty))
    expected = profiled_objective(head, covariance, penalty)
    assert float(local_optimum(covariance, penalty)) == pytest.approx(float(expected), rel=1e-9)


def test_profiling_leaves_the_joint_loss():
    rng = np.random.default_rng(1)
    penalty, head, targets = Penalty(0.2, 0.3), rng.standard_normal((2, 5)), rng.standard_normal((2, 40))
    bias, features = conditional_solution(head, targets, penalty)

    def loss(b, h):
        fit = np.sum((head @ h + b[:, None] - targets) ** 2) + penalty.features * np.sum(h**2)
        return fit / (2 * 40) + penalty.head / 2 * np.sum(head**2)

    least = loss(bias, features)
    assert least == pytest.approx(
        float(profiled_objective(head, np.cov(targets, bias=True), penalty)), rel=1e-13
    )
    for _ in range(20):
        step = 1e-3 * rng.standard_normal(features.shape)
        assert loss(bias + 1e-3 * rng.standard_normal(2), features + step) > least


@pytest.mark.parametrize(("clients", "size", "seed"), [(3, 2, 0), (4, 3, 1), (3, 5, 2)])
def test_prediction_to_thirteen_digits(clients, size, seed):
    moments, penalty = random_moments(np.random.default_rng(seed), clients, size), Penalty(0.1, 0.2)
    prediction = predict(moments, penalty)
    with mpmath.workdps(45):
        grams = [mp_phi(covariance, 0.1, 0.2) for covariance in moments.covariance]
        star = to_float(mp_barycenter(grams, moments.client_weights))
        pooled = sum((mpmath.mpf(w) * mpmath.matrix(s.tolist())
                      for w, s in zip(moments.client_weights, moments.covariance, strict=True)),
                     mpmath.zeros(size))  # fmt: skip
        within = to_float(mp_phi(np.array(pooled.tolist()), 0.1, 0.2))
    assert psd.relative_error(prediction.barycenter.gram, star) < 1e-13
    assert psd.relative_error(prediction.within, within) < 1e-13
    for ours, exact in zip(prediction.grams, grams, strict=True):
        assert psd.relative_error(ours, to_float(exact)) < 1e-13
    assert prediction.barycenter.converged


@pytest.mark.parametrize("margin", [1e-2, 1e-4, 1e-6])
def test_prediction_near_the_activity_threshold(margin):
    rng = np.random.default_rng(3)
    basis = rotations(rng, 3, size=3)
    values = np.array([[1 + margin, 1 + 2 * margin, 1 + 3 * margin]] * 3) * rng.uniform(1, 1 + margin, (3, 3))
    covariance = psd.symmetric((basis * values[:, None, :]) @ np.swapaxes(basis, -1, -2))
    prediction = predict(Moments(np.full(3, 9), np.zeros((3, 3)), covariance), Penalty(1.0, 1.0))
    with mpmath.workdps(45):
        exact = to_float(mp_barycenter([mp_phi(c, 1, 1) for c in covariance], [1, 1, 1]))
    assert psd.relative_error(prediction.barycenter.gram, exact) < 1e-9


def test_one_near_threshold_direction_costs_no_normwise_accuracy():
    rng = np.random.default_rng(4)
    basis = rotations(rng, 3, size=2)
    covariance = psd.symmetric(
        (basis * np.array([2.0, 1 + 1e-6])[None, None, :]) @ np.swapaxes(basis, -1, -2)
    )
    prediction = predict(Moments(np.full(3, 9), np.zeros((3, 2)), covariance), Penalty(1.0, 1.0))
    with mpmath.workdps(45):
        exact = to_float(mp_barycenter([mp_phi(c, 1, 1) for c in covariance], [1, 1, 1]))
    assert psd.relative_error(prediction.barycenter.gram, exact) < 1e-9


def test_commuting_clients_have_a_closed_form():
    rng = np.random.default_rng(5)
    basis = rotations(rng, size=3)
    covariance = psd.symmetric((basis * rng.uniform(0.5, 3, (4, 1, 3))) @ basis.T)
    moments = Moments(np.full(4, 9), rng.standard_normal((4, 3)), covariance, client_weights=[1, 2, 3, 4])
    prediction = predict(moments, Penalty(0.1, 0.1))
    root = np.einsum("m,mij->ij", moments.client_weights, psd.sqrt(prediction.grams))
    assert psd.relative_error(prediction.barycenter.gram, root @ root) < 1e-14


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_prediction_is_equivariant(seed):
    rng = np.random.default_rng(seed)
    moments = random_moments(rng)
    turn, order = rotations(rng, size=3), rng.permutation(4)
    turned = Moments(
        moments.count,
        (moments.mean @ turn.T)[order],
        (turn @ moments.covariance @ turn.T)[order],
        client_weights=moments.client_weights[order],
    )
    ours, theirs = predict(moments), predict(turned)
    for field in ("within", "centralized"):
        np.testing.assert_allclose(turn @ getattr(ours, field) @ turn.T, getattr(theirs, field), atol=1e-12)
    np.testing.assert_allclose(
        turn @ ours.barycenter.gram @ turn.T, theirs.barycenter.gram, rtol=1e-12, atol=1e-12
    )


def test_batches_equal_loops():
    moments = random_moments(np.random.default_rng(6), batch=(5,))
    stacked = predict(moments, Penalty(0.1, 0.1))
    gap = explain(stacked)
    for k in range(5):
        one = predict(Moments(moments.count, moments.mean[k], moments.covariance[k],
                              client_weights=moments.client_weights[k]), Penalty(0.1, 0.1))  # fmt: skip
        np.testing.assert_allclose(stacked.barycenter.gram[k], one.barycenter.gram, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(gap.traces[k], explain(one).traces, rtol=1e-10)


def test_trajectory_starts_at_the_initial_gram_and_ends_at_the_limit():
    prediction = predict(random_moments(np.random.default_rng(7)), Penalty(0.1, 0.1))
    initial = np.diag([2.0, 0.1, 1.0])
    path = prediction.trajectory(initial, 30)
    assert path.shape == (31, 3, 3)
    np.testing.assert_allclose(path[0], initial, atol=1e-15)
    assert psd.relative_error(path[-1], prediction.barycenter.gram) < 1e-13
    with pytest.raises(InputError, match="3 by 3"):
        prediction.trajectory(np.eye(2), 1)
    for rounds in (-3, 2.5, "3", None):
        with pytest.raises(InputError, match=f"rounds must be a whole number, 0 or more, not {rounds}"):
            prediction.trajectory(initial, rounds)
    with pytest.raises(InputError, match="positive definite"):
        prediction.trajectory(np.diag([1.0, 1.0, 0.0]), 1)


def test_trajectories_of_a_batch_are_those_of_its_problems():
    moments = random_moments(np.random.default_rng(8), batch=(2, 1))
    initial = np.diag([2.0, 0.1, 1.0])
    path = predict(moments).trajectory(initial, 4)
    assert path.shape == (5, 2, 1, 3, 3)
    for k in range(2):
        one = replace(
            moments, mean=moments.mean[k, 0], covariance=moments.covariance[k, 0],
            client_weights=moments.client_weights[k, 0],
        )  # fmt: skip
        np.testing.assert_allclose(path[:, k, 0], predict(one).trajectory(initial, 4), rtol=1e-13, atol=1e-14)


def test_a_client_that_is_not_fully_active_is_computed_and_named():
    moments = Moments(
        [9, 9], np.zeros((2, 2)), [np.diag([1.0, 2.0]), np.diag([3.0, 5e-5])], ("a", "b"), ("u", "v")
    )
    prediction = predict(moments)
    assert not prediction.fully_active
    assert prediction.activity.active.tolist() == [True, False]
    assert prediction.barycenter.converged
    np.testing.assert_allclose(
        prediction.barycenter.gram[1, 1], (0.5 * np.sqrt(np.sqrt(2.0) - 0.01)) ** 2, rtol=1e-13
    )
    first = prediction.notes[0]
    assert "Client 'b'" in first
    assert "along target 'v' the target variance 5e-05 does not exceed lambda_h * lambda_w = 0.0001" in first
    assert first.endswith("A product below 5e-05 would make every client active.")


def test_a_zero_variance_has_no_remedy():
    moments = Moments(
        [9, 9], np.zeros((2, 2)), [np.diag([1.0, 2.0]), np.diag([3.0, 0.0])], ("a", "b"), ("u", "v")
    )
    assert "No positive product" in predict(moments).notes[0]


def test_without_a_fully_active_client_the_limit_may_depend_on_the_start():
    moments = Moments([9, 9], np.zeros((2, 2)), [np.diag([1.0, 0.0]), np.diag([0.0, 3.0])])
    prediction = predict(moments)
    assert any("may depend on the start" in note for note in prediction.notes)
    np.testing.assert_allclose(
        prediction.barycenter.gram, 0.25 * np.diag([0.99, np.sqrt(3) - 0.01]), atol=1e-14
    )


def test_a_direction_in_which_no_client_is_active_is_refused():
    moments = Moments(
        [9, 9], np.zeros((2, 2)), [np.diag([1.0, 1e-5]), np.diag([3.0, 9e-5])], ("a", "b"), ("u", "v")
    )
    with pytest.raises(
        InputError, match=r"No client is active along target 'v'.*9e-05 at client 'b'"
    ) as caught:
        predict(moments)
    assert caught.value.client == "b"


@pytest.mark.parametrize(
    ("features", "head", "field"),
    [(0, 1, "lambda_h"), (1, -1, "lambda_w"), (np.nan, 1, "lambda_h"), ("a", 1, "lambda_h")],
)
def test_penalties_must_be_positive(features, head, field):
    argument, value = ("features", features) if field == "lambda_h" else ("head", head)
    with pytest.raises(InputError) as caught:
        Penalty(features, head)
    assert caught.value.message == f"{argument} ({field}) must be a positive number, not {value}."
    assert caught.value.field == field


def test_directions_are_described_by_their_leading_targets():
    assert describe_direction(np.array([0.0, -1.0]), ("u", "v")) == "target 'v'"
    assert describe_direction(np.array([0.6, -0.8]), ("u", "v")) == "direction (+0.80 v, -0.60 u)"


@pytest.mark.parametrize(("features", "head"), [(1e200, 1e-200), (1e-200, 1e-200), (1e70, 1e70)])
def test_penalties_whose_powers_are_not_finite_are_refused(features, head):
    with pytest.raises(InputError, match=r"out of range\. .* must be between 1e-60 and 1e\+60\."):
        Penalty(features, head)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int8])
def test_penalties_are_multiplied_in_double_precision(kind):
    features, head = kind(100), kind(100) / kind(3) if kind is not np.int8 else kind(100)
    penalty, same = Penalty(features, head), Penalty(float(features), float(head))
    assert (penalty.threshold, penalty.scale) == (same.threshold, same.scale)
    assert type(penalty.features) is float


def test_clients_that_are_hardly_active_are_not_refused_for_their_weight():
    hardly = np.array([np.diag([1e4, 1e-4 * (1 + 1e-12)])] * 2)
    with pytest.raises(InputError, match="No client is active along target 'target 2'"):
        predict(Moments([10, 10], np.zeros((2, 2)), hardly))


def test_a_direction_in_which_only_a_weightless_client_is_active_is_refused_for_its_weight():
    covariance = np.array([np.diag([1.0, 0.0]), np.diag([1.0, 5.0])])
    moments = Moments([10, 10], np.zeros((2, 2)), covariance, client_weights=[1, 5e-16])
    with pytest.raises(InputError, match=r"only clients of negligible weight .* 'client 2' with 5e-16"):
        predict(moments)


def test_means_too_far_apart_to_compute_with_are_refused():
    with pytest.raises(InputError, match=r"too large to compute with\. Rescale the targets"):
        Moments([9, 9], [[0.0], [1e200]], [[[1.0]], [[1.0]]])


def test_a_target_that_others_determine_is_named_as_such():
    collinear = np.array([[1.0, 2.0], [2.0, 4.0]])
    with pytest.raises(InputError, match="Drop a target that others determine, or give all targets"):
        predict(Moments([9, 9], [[0, 0], [1, 1]], [collinear, 2 * collinear]))


LIGHT = Moments([10, 990], [[0.0], [0.0]], [[[2e-4]], [[1e-6]]])
"""The first client is active at the paper's penalties; the pooled data are not."""


def test_pooled_data_that_are_active_nowhere_are_refused():
    sentence = (
        "The pooled data are active in no direction: their largest variance, 2.99e-06, does not exceed "
        "lambda_h * lambda_w = 0.0001. Use smaller penalties."
    )
    stacked = Moments(LIGHT.count, [[[0.0], [1.0]], [[0.0], [0.0]]], LIGHT.covariance)
    for moments in (LIGHT, stacked):
        for ask in (predict, correct):
            with pytest.raises(InputError) as caught:
                ask(moments)
            assert (caught.value.message, caught.value.field) == (sentence, "covariance")
    assert np.isfinite(predict(LIGHT, Penalty(1e-3, 1e-3)).relative_gap)


def test_a_within_gram_of_zero_divides_nothing():
    apart = Moments(LIGHT.count, [[9.0], [0.0]], LIGHT.covariance)
    prediction = predict(apart)
    gap = explain(prediction)
    assert not prediction.within.any()
    for value in (gap.relative, gap.by_client, gap.scatter_residual, gap.traces):
        assert np.isfinite(value).all()


def test_every_problem_of_a_batch_is_looked_at_for_an_active_client():
    crossed = [np.diag([1.0, 0.0]), np.diag([0.0, 3.0])]
    active = [np.diag([1.0, 2.0]), np.diag([3.0, 2.0])]
    notes = predict(Moments([9, 9], np.zeros((2, 2)), [active, crossed])).notes
    assert any("may depend on the start" in note for note in notes)


def test_the_problem_that_is_undefined_is_the_one_named():
    tiny = [np.diag([3e-4, 2e-4]), np.diag([2e-4, 3e-4])]  # active, though little
    singular = [np.diag([1e9, 2e-5]), np.diag([1e9, 1e-5])]
    with pytest.raises(InputError, match=r"along target 'target 2'.*2e-05 at client 'client 1'"):
        predict(Moments([9, 9], np.zeros((2, 2)), [tiny, singular]))
    turn = np.array([[1.0, 1.0], [1.0, 1.0]])  # its least eigenvalue is rounding, and may be above zero
    with pytest.raises(InputError, match=r"is rounding relative to the largest covariance, 1."):
        predict(Moments([9, 9], np.zeros((2, 2)), [[1e9 * np.eye(2)] * 2, [turn] * 2]))


@pytest.mark.parametrize(("bad", "words"), [(np.nan, "not finite"), (1.0, "not symmetric")])
def test_an_optimum_is_that_of_a_covariance(bad, words):
    with pytest.raises(InputError, match=f"covariance .*{words}"):
        phi(np.array([[2.0, bad], [0.0, 2.0]]), Penalty())


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda moments: predict(moments.covariance),
            "predict() expects Moments, got ndarray. Build it with Moments.from_arrays or read_moments.",
        ),
        (
            lambda moments: correct({"a": moments}),
            "correct() expects Moments, got dict. Build it with Moments",
        ),
        (
            lambda moments: predict(moments, 0),
            "penalty= expects Penalty, got int. Build it with Penalty(feat",
        ),
        (lambda moments: correct(moments, (0.1, 0.1)), "penalty= expects Penalty, got tuple. Build it with"),
        (
            lambda moments: explain(moments),
            "explain() expects Prediction, got Moments. Build it with predict(",
        ),
    ],
)
def test_what_is_given_in_the_wrong_place_is_named(call, sentence):
    with pytest.raises(InputError) as refused:
        call(random_moments(np.random.default_rng(0)))
    assert refused.value.message.startswith(sentence)
