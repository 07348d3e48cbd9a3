"""The moment correction: one-round recovery, its gradient, and what it leaves to predictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError, Moments, Penalty, correct, phi, predict
from fedgram.theory.correct import contributions, pooled_from_sum
from fedgram.theory.geometry import psd
from fedgram.theory.predict import conditional_solution, profiled_objective
from tests.helpers.instances import random_moments

SEEDS = st.integers(0, 10_000)
PENALTY = Penalty(0.1, 0.2)


@given(SEEDS, st.integers(2, 5), st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_corrected_objectives_are_the_centralized_one(seed, clients, size, extra):
    rng = np.random.default_rng(seed)
    moments, head = random_moments(rng, clients, size), rng.standard_normal((size, size + extra))
    corrected = profiled_objective(head, moments.covariance, PENALTY) + correct(moments, PENALTY).value(head)
    np.testing.assert_allclose(
        corrected, profiled_objective(head, moments.pooled.covariance, PENALTY), rtol=1e-13
    )


@given(SEEDS, st.integers(2, 5), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_correction_is_a_mean_term_and_a_covariance_term_that_averages_to_zero(seed, clients, size):
    """Appendix C.2: λ_H/2 tr(Σ_μ A⁻¹) for all clients, and λ_H/2 tr((Σ_within - Σ_m) A⁻¹) for each."""
    rng = np.random.default_rng(seed)
    moments, head = random_moments(rng, clients, size), rng.standard_normal((size, size + 1))
    weights, inverse = moments.client_weights, np.linalg.inv(head @ head.T + PENALTY.features * np.eye(size))
    offset = moments.mean - weights @ moments.mean
    within = np.einsum("m,mij->ij", weights, moments.covariance)
    mean_term = PENALTY.features / 2 * weights @ np.einsum("mi,ij,mj->m", offset, inverse, offset)
    covariance_term = PENALTY.features / 2 * np.einsum("mij,ji->m", within - moments.covariance, inverse)
    value = correct(moments, PENALTY).value(head)
    np.testing.assert_allclose(value, mean_term + covariance_term, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(weights @ covariance_term, 0, atol=1e-13)
    np.testing.assert_allclose(weights @ value, mean_term, rtol=1e-11)


def test_gradient_is_the_derivative_of_the_value():
    rng = np.random.default_rng(0)
    correction = correct(random_moments(rng), PENALTY, strength=0.7)
    head, step = rng.standard_normal((3, 5)), rng.standard_normal((3, 5))
    slope = (correction.value(head + 1e-6 * step) - correction.value(head - 1e-6 * step)) / 2e-6
    np.testing.assert_allclose(
        np.einsum("mij,ij->m", correction.gradient(head), step), slope, rtol=1e-7, atol=1e-9
    )


@given(SEEDS, st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_one_round_recovers_the_centralized_gram(seed, extra):
    rng = np.random.default_rng(seed)
    moments, head = random_moments(rng), rng.standard_normal((3, 3 + extra))
    correction = correct(moments, PENALTY)
    assert psd.relative_error(correction.after_round(head), predict(moments, PENALTY).centralized) < 1e-13


def test_partial_strength_leaves_an_error_in_proportion():
    moments = random_moments(np.random.default_rng(1))
    errors = [
        psd.relative_error(
            correct(moments, PENALTY, 1 - d).after_round(np.eye(3)), correct(moments, PENALTY).centralized
        )
        for d in (1e-3, 1e-4, 1e-5)
    ]
    np.testing.assert_allclose(np.array(errors[:-1]) / errors[1:], 10, rtol=2e-2)
    np.testing.assert_array_equal(correct(moments, PENALTY, 0.0).grams, phi(moments.covariance, PENALTY))


@pytest.mark.parametrize("strength", [-0.1, 1.1, float("nan"), "x", None])
def test_strength_lies_between_zero_and_one(strength):
    with pytest.raises(InputError, match="between 0 and 1"):
        correct(random_moments(np.random.default_rng(0)), PENALTY, strength)


def test_predictions_on_real_samples_differ_as_stated():
    """Train both in closed form on samples, and compare their predictions with the formulas."""
    rng = np.random.default_rng(2)
    data = [rng.standard_normal((30, 2)) @ rng.standard_normal((2, 2)) + shift for shift in (-1.0, 0.5, 3.0)]
    moments = Moments.from_arrays(data)
    correction = correct(moments, PENALTY)
    head = psd.factor(correction.centralized) @ np.linalg.qr(rng.standard_normal((4, 4)))[0][:2]
    _, pooled_features = conditional_solution(head, np.concatenate(data).T, PENALTY)
    start = 0
    for m, rows in enumerate(data):
        own_mean, features = conditional_solution(head, rows.T, PENALTY)
        central = head @ pooled_features[:, start : start + 30] + moments.pooled.mean[:, None]
        start += 30
        shared = head @ features + moments.pooled.mean[:, None]
        moved = head @ (features + correction.feature_offset(head)[m][:, None]) + moments.pooled.mean[:, None]
        private = head @ features + own_mean[:, None]
        for rule, ours in {"shared": shared, "private": private, "offset": moved}.items():
            stated = correction.prediction_difference(head, rule)[m]
            np.testing.assert_allclose(ours - central, np.tile(stated[:, None], 30), atol=1e-13)
    np.testing.assert_allclose(correction.prediction_difference(head, "offset"), 0, atol=1e-14)
    inverse = np.linalg.inv(correction.centralized + PENALTY.features * np.eye(2))
    private = PENALTY.features * moments.offset @ inverse
    np.testing.assert_allclose(correction.prediction_difference(head, "private"), private, atol=1e-13)


def test_only_a_sum_of_what_each_site_knows_needs_to_be_exchanged():
    rng = np.random.default_rng(3)
    targets = {"small": rng.normal(5, 1, (10, 2)), "large": rng.normal(0, 2, (1000, 2))}
    sites = [Moments.from_arrays({name: values}) for name, values in targets.items()]
    mean, covariance = pooled_from_sum(sum(contributions(site)[0] for site in sites))
    together = np.concatenate(list(targets.values()))
    np.testing.assert_allclose(mean, together.mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(covariance, np.cov(together.T, bias=True), atol=1e-13)


def test_targets_far_from_0_need_an_origin():
    moments = Moments.from_arrays([np.random.default_rng(m).normal(1e8 + m, 1, (50, 2)) for m in range(2)])
    with pytest.raises(InputError, match=r"far from the origin of this sum .* Choose an origin near"):
        pooled_from_sum(contributions(moments).sum(axis=0))
    mean, covariance = pooled_from_sum(contributions(moments, origin=1e8).sum(axis=0), origin=1e8)
    np.testing.assert_allclose(mean, moments.pooled.mean, rtol=1e-15)
    np.testing.assert_allclose(covariance, moments.pooled.covariance, atol=1e-7)  # of means at 1e8


def test_sums_over_rows_weigh_by_rows():
    moments = random_moments(np.random.default_rng(0), 2, 2).weighted([1.0, 3.0])
    with pytest.raises(
        InputError, match="weights clients by their rows, but these moments have other client weights"
    ):
        contributions(moments)


@pytest.mark.parametrize("ask", ["value", "gradient", "after_round", "feature_offset"])
def test_heads_are_lists_or_arrays_of_a_row_for_each_target(ask):
    correction = correct(random_moments(np.random.default_rng(0), 3, 2), PENALTY)
    head = [[1.0, 0.5, 0.0], [0.0, 1.0, 2.0]]
    np.testing.assert_array_equal(getattr(correction, ask)(head), getattr(correction, ask)(np.array(head)))
    for bad, words in (
        (np.ones(3), r"one row per target, not \(3,\)"),
        (np.ones((3, 3)), r"one row per target, not \(3, 3\)"),
        (np.full((2, 3), np.nan), "head has a value that is not finite"),
    ):
        with pytest.raises(InputError, match=words):
            getattr(correction, ask)(bad)


def test_what_is_not_worth_a_feature_is_said():
    moments = Moments([9, 9], [[0, 0], [1, 0]], [np.diag([4, 0.5]), np.diag([4, 3])], targets=("x", "y"))
    assert correct(moments, Penalty(1, 1)).notes == ()
    (note,) = correct(moments, Penalty(1, 2)).notes
    assert note.startswith("The pooled data are not fully active: along target 'y' the target variance 1.75")
    assert note.endswith("A product below 1.75 would make them active.")
    (note,) = correct(moments, Penalty(1, 1), strength=0.2).notes
    assert note.startswith("With the correction client 'client 1' is not fully active: along target 'y'")


@pytest.mark.parametrize("rule", ["shared", "private", "offset"])
def test_at_another_head_predictions_differ_by_more_than_a_constant(rule):
    rng = np.random.default_rng(2)
    correction = correct(random_moments(rng), PENALTY)
    for head in (np.eye(3), 1.001 * psd.factor(correction.centralized)):
        with pytest.raises(
            InputError, match=r"is up to .* away from G_cen, .* more than a constant"
        ) as caught:
            correction.prediction_difference(head, rule)
        assert caught.value.field == "head"


def test_the_difference_of_predictions_is_that_of_the_head():
    """A head a little off G_cen, as one in single precision is, leaves a little with the offset, too."""
    correction = correct(random_moments(np.random.default_rng(2)), PENALTY)
    head = (1 + 1e-7) * psd.factor(correction.centralized)
    heads = np.stack([head, psd.factor(correction.centralized)])
    off, exact = np.abs(correction.prediction_difference(heads, "offset")).max(axis=(-1, -2))
    assert 1e-9 < off < 1e-6
    assert exact < 1e-13
    for rule in ("shared", "private"):
        assert correction.prediction_difference(heads, rule).shape == (2, 4, 3)


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_nothing_is_corrected_towards_a_gram_of_zero(strength):
    moments = Moments([9, 9], [[0, 0], [1e-4, 0]], [np.eye(2) * 1e-8] * 2)
    with pytest.raises(InputError, match="The pooled data are active in no direction: their largest"):
        correct(moments, Penalty(), strength)


def test_means_alone_may_be_worth_a_feature():
    moments = Moments([9, 9], [[0, 0], [1, 0]], [np.eye(2) * 1e-8] * 2)
    with pytest.raises(InputError, match="No client is active along"):
        predict(moments)
    correction = correct(moments)
    np.testing.assert_allclose(correction.after_round(np.eye(2)), correction.centralized, atol=1e-15)
    assert np.linalg.matrix_rank(correction.centralized) == 1
    assert correction.notes[0].startswith("The pooled data are not fully active: along target 'target 2'")


def test_there_are_three_bias_rules():
    correction = correct(random_moments(np.random.default_rng(0)), PENALTY)
    with pytest.raises(
        InputError, match=r"Unknown bias rule 'own'\. Choose one of shared, private, offset"
    ) as caught:
        correction.prediction_difference(np.eye(3), "own")
    assert caught.value.field == "bias"


def test_a_head_that_cannot_have_the_gram_is_refused():
    correction = correct(random_moments(np.random.default_rng(0)), PENALTY)
    with pytest.raises(InputError, match=r"2 features for 3 targets\. It needs at least as many"):
        correction.after_round(np.ones((3, 2)))
