"""Effects in the targets' units: the exact model, closed forms, invariances, a converged network."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError, Moments, Penalty, correct, effects, predict
from fedgram.theory.geometry import psd
from fedgram.theory.predict import conditional_solution
from fedgram.theory.select import closest_head
from fedgram.ufm.joint import Joint, Sample
from fedgram.ufm.profiled import Profiled
from fedgram.ufm.rounds import exact, run_rounds
from tests.helpers.instances import random_moments

PENALTY = Penalty(features=0.3, head=0.2)


def rows_of_sites(rng, clients=3, targets=2, rows=9, shift=1.0):
    """Targets (M, C, N) of sites with their own means and covariances."""
    mixing = np.eye(targets) + 0.5 * rng.standard_normal((clients, targets, targets))
    return (
        mixing @ rng.standard_normal((clients, targets, rows))
        + shift * rng.standard_normal((clients, targets))[..., None]
    )


def errors_and_differences(predicted, centralized, targets):
    return (predicted - targets).mean(axis=-1), np.sqrt(((predicted - centralized) ** 2).mean(axis=-1))


@pytest.mark.parametrize("seed", range(3))
def test_effects_are_those_of_the_exact_model_after_many_rounds(seed):
    """Run the rounds of the unconstrained feature model, and predict every row with what they leave."""
    rng = np.random.default_rng(seed)
    targets = rows_of_sites(rng)
    moments = Moments.from_arrays(list(targets.swapaxes(-1, -2)))
    prediction = predict(moments, PENALTY)
    found, correction = effects(prediction), correct(moments, PENALTY)
    start = np.eye(2, 4) + 0.1 * rng.standard_normal((2, 4))
    shared = run_rounds(start, exact(prediction.grams), moments.client_weights, 200).heads[-1]
    loss = Joint(Sample.from_targets(targets), PENALTY, shared)
    own = loss.start(closest_head(shared, prediction.grams))
    assert np.abs(loss.gradient(own)).max() < 1e-12, "every site is at a minimum of its loss"
    _, bias, features = loss.split(own)
    pooled = targets.swapaxes(0, 1).reshape(2, -1)
    central_head = psd.factor(prediction.centralized)
    mean, central_features = conditional_solution(central_head, pooled, PENALTY)
    centralized = (central_head @ central_features + mean[:, None]).reshape(2, 3, -1).swapaxes(0, 1)
    corrected_head = closest_head(shared, prediction.centralized)
    profiled = Profiled(moments.covariance + correction.deficit, PENALTY, shared)
    corrected = profiled.start(np.broadcast_to(corrected_head, (3, *corrected_head.shape)))
    assert np.abs(profiled.gradient(corrected)).max() < 1e-12, "so it is with the correction"
    own_features = loss.split(loss.start(corrected_head))[2]
    moved = own_features + correction.feature_offset(corrected_head)[..., None]
    cases = {
        "shared": shared @ features + (moments.client_weights @ bias)[:, None],
        "private": shared @ features + bias[..., None],
        "corrected": corrected_head @ moved + mean[:, None],
    }
    for name, predicted in cases.items():
        error, difference = errors_and_differences(predicted, centralized, targets)
        effect = getattr(found, name)
        np.testing.assert_allclose(effect.mean_error, error, atol=1e-9)
        np.testing.assert_allclose(effect.rms_difference, difference, atol=1e-9)


def test_one_target_in_closed_form():
    """K_m = sqrt(G_⋆ G_m) / (G_m + λ_H); roots of the Grams are averaged."""
    moments = Moments([10, 30], [[0.0], [4.0]], [[[1.0]], [[9.0]]])
    found = effects(predict(moments, PENALTY))
    variance, offset, lam = np.array([1.0, 9.0]), np.array([-3.0, 1.0]), PENALTY.features
    gram = PENALTY.scale * np.sqrt(variance) - lam
    star = (np.array([0.25, 0.75]) @ np.sqrt(gram)) ** 2
    central = 1 - lam / (PENALTY.scale * np.sqrt(0.25 * 1 + 0.75 * 9 + 3))
    change = np.sqrt(star * gram) / (gram + lam) - central
    np.testing.assert_allclose(found.shared.mean_error[:, 0], -offset, rtol=1e-13)
    np.testing.assert_allclose(
        found.shared.rms_difference[:, 0], np.sqrt(change**2 * variance + (central * offset) ** 2), rtol=1e-12
    )
    np.testing.assert_allclose(
        found.private.rms_difference[:, 0],
        np.sqrt(change**2 * variance + ((1 - central) * offset) ** 2),
        rtol=1e-12,
    )


def test_corrected_differences_are_those_of_the_correction():
    moments = random_moments(np.random.default_rng(0))
    prediction, correction = predict(moments, PENALTY), correct(moments, PENALTY)
    found = effects(prediction)
    head = psd.factor(prediction.centralized)
    assert not found.corrected.rms_difference.any()
    error = correction.prediction_difference(head, "shared") - found.shared.mean_error
    np.testing.assert_allclose(error, -found.corrected.mean_error, atol=1e-12)


@given(st.integers(0, 10**6), st.floats(0.1, 10.0))
@settings(max_examples=15, deadline=None)
def test_common_units_scale_and_offsets_cancel(seed, unit):
    """Targets in a common unit with penalties in it: the same effects in that unit."""
    moments = random_moments(np.random.default_rng(seed))
    base = effects(predict(moments, PENALTY))
    moved = Moments(
        moments.count, moments.mean + 5.0, moments.covariance, client_weights=moments.client_weights
    )
    for changed, unit_of in ((moved, 1.0), (moments.scaled(np.full(3, unit)), unit)):
        penalty = Penalty(PENALTY.features / unit_of, PENALTY.head / unit_of)
        found = effects(predict(changed, penalty), np.full(3, unit_of))
        for rule in ("shared", "private", "corrected"):
            for name in ("mean_error", "rms_difference"):
                expected = getattr(getattr(base, rule), name)
                np.testing.assert_allclose(getattr(getattr(found, rule), name), expected, atol=1e-10)


def test_a_batch_has_the_effects_of_its_problems():
    moments = random_moments(np.random.default_rng(4), clients=4, size=2, batch=(3,))
    found = effects(predict(moments, PENALTY))
    for k in range(3):
        one = Moments(
            moments.count, moments.mean[k], moments.covariance[k], client_weights=moments.client_weights[k]
        )
        np.testing.assert_allclose(
            found.shared.rms_difference[k], effects(predict(one, PENALTY)).shared.rms_difference, rtol=1e-10
        )


def test_equal_clients_have_no_effects():
    same = random_moments(np.random.default_rng(0), clients=1)
    moments = Moments([9, 9], np.repeat(same.mean, 2, 0), np.repeat(same.covariance, 2, 0))
    found = effects(predict(moments, PENALTY))
    for effect in (found.shared, found.private, found.corrected):
        np.testing.assert_allclose(effect.rms_difference, 0, atol=1e-10)
        np.testing.assert_allclose(effect.mean_error, 0, atol=1e-14)


@pytest.mark.parametrize("scale", [[1.0], [1.0, 0.0, 2.0], [1.0, np.inf, 1.0]])
def test_a_bad_scale_is_refused(scale):
    moments = random_moments(np.random.default_rng(0))
    with pytest.raises(InputError, match="3 positive numbers"):
        effects(predict(moments, PENALTY), np.array(scale))
    with pytest.raises(InputError, match="3 positive numbers"):
        moments.scaled(scale)


@pytest.mark.slow
def test_effects_are_those_of_a_network_that_fits_its_rows(tmp_path):
    """Solved returns end at the exact local optimum, so the trained networks agree to three digits."""
    import fedgram

    rng = np.random.default_rng(0)
    targets = {str(m): values.T for m, values in enumerate(rows_of_sites(rng, rows=24))}
    inputs = {name: rng.standard_normal((24, 6)).astype(np.float32) for name in targets}
    penalty = Penalty(features=0.05, head=0.05)
    config = fedgram.TrainConfig(
        rounds=5, epochs=400, features=16, batch=24, penalty=penalty, learning_rate=3e-3, precision="fp32"
    )
    procedures = ["centralized", "solved", "solved+private", "solved+corrected+offset"]
    problem = fedgram.Problem.from_arrays(inputs, targets)
    runs = fedgram.train(problem, "resmlp-small", procedures, [0], config, folder=tmp_path)
    centralized, *others = [
        np.stack(list(fedgram.predict_rows(run, inputs).values())).swapaxes(-1, -2) for run in runs
    ]
    found = effects(predict(Moments.from_arrays(targets), penalty))
    expected = np.stack([values.T for values in targets.values()])
    for predicted, effect in zip(others, (found.shared, found.private, found.corrected), strict=True):
        error, difference = errors_and_differences(predicted, centralized, expected)
        np.testing.assert_allclose(effect.mean_error, error, atol=5e-3)
        np.testing.assert_allclose(effect.rms_difference, difference, atol=5e-3)
