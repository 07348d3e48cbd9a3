"""The prediction from sums equals the prediction from every client's moments."""

import doctest
from fractions import Fraction

import numpy as np
import pytest

from fedgram import AccuracyError, Moments, Penalty, explain, predict
from fedgram.theory import sum_prediction
from fedgram.theory.geometry import psd
from fedgram.theory.sum_prediction import Total, moment_numbers, predict_from_sums, round_numbers
from tests.helpers.instances import covariances

PENALTY = Penalty(0.1, 0.1)


def split(moments):
    """Moments of each client alone."""
    return {
        name: Moments(
            moments.count[m : m + 1], moments.mean[m : m + 1], moments.covariance[m : m + 1], (name,)
        )
        for m, name in enumerate(moments.clients)
    }


def federation(rng, clients=4, size=3, shift=0.0, **spread):
    return Moments(
        count=rng.integers(20, 400, clients),
        mean=shift + rng.standard_normal((clients, size)),
        covariance=covariances(rng, clients, size=size, **spread),
    )


def add(parts):
    return Total([sum(map(Fraction, each)) for each in zip(*parts.values(), strict=True)], tuple(parts))


def predict_sums(moments, penalty=PENALTY, present=lambda number: None):
    """Predict with plain sums over the clients that `present(number of the sum)` names, by default all."""
    sites, asked = split(moments), iter(range(1, 1000))

    def total(numbers, only=()):
        chosen = present(next(asked)) or tuple(sites)
        if not set(only) <= set(chosen):
            return None
        return add({name: numbers(sites[name]) for name in only or chosen})

    return predict_from_sums(
        lambda head: total(lambda site: round_numbers(site, penalty, head)),
        lambda clients: total(lambda site: moment_numbers(site, penalty), clients),
        len(moments.targets),
        penalty,
    )


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("spread", [{}, {"low": 0.05, "high": 5.0}])
def test_sums_give_the_plain_prediction_and_explanation(size, spread):
    moments = federation(np.random.default_rng(size), size=size, **spread)
    found, plain = predict_sums(moments), predict(moments, PENALTY)
    gap = explain(plain)
    assert psd.relative_error(found.barycenter, plain.barycenter.gram) < 1e-11
    assert psd.relative_error(found.centralized, plain.centralized) < 1e-12
    assert found.relative_gap == pytest.approx(float(gap.relative), abs=1e-11)
    for name, term in found.terms.items():
        assert np.abs(term - getattr(gap, name)).max() < 1e-11 * gap.scale
    np.testing.assert_allclose(found.pooled.covariance, moments.pooled.covariance, rtol=1e-12, atol=1e-14)
    assert found.count == moments.count.sum()
    assert found.notes == ()


def test_means_far_from_zero_cost_no_digits():
    near = federation(np.random.default_rng(0))
    far = Moments(near.count, near.mean + 2.0**20, near.covariance)
    np.testing.assert_allclose(
        predict_sums(far).pooled.covariance, predict_sums(near).pooled.covariance, rtol=1e-8
    )
    np.testing.assert_allclose(predict_sums(far).pooled.between, far.pooled.between, rtol=1e-9)


def test_inactive_clients_are_counted():
    moments = federation(np.random.default_rng(3), low=0.001, high=0.04)
    found, plain = predict_sums(moments), predict(moments, PENALTY)
    assert found.active == plain.activity.active.sum() < 4
    assert "not fully active" in found.notes[0]
    assert psd.relative_error(found.barycenter, plain.barycenter.gram) < 1e-9


@pytest.mark.parametrize("moment", [1, 4, 8, 9, 10, 11])
def test_a_client_that_leaves_at_any_sum_ends_in_the_prediction_of_the_others(moment):
    moments = federation(np.random.default_rng(5))
    rest = moments.clients[:3]
    found = predict_sums(moments, present=lambda number: rest if number >= moment else None)
    kept = moments if found.clients == moments.clients else Moments(
        moments.count[:3], moments.mean[:3], moments.covariance[:3], rest
    )  # fmt: skip
    assert len(kept.clients) == 3 or moment > found.rounds
    assert psd.relative_error(found.barycenter, predict(kept, PENALTY).barycenter.gram) < 1e-11
    np.testing.assert_allclose(found.pooled.covariance, kept.pooled.covariance, rtol=1e-12)


def test_a_map_without_a_fixed_point_is_an_accuracy_error():
    count = iter(range(1, 1000))
    with pytest.raises(AccuracyError, match="did not converge"):
        predict_from_sums(
            lambda head: Total([Fraction(1), Fraction(2) ** next(count)], ("a",)), lambda clients: None, 1
        )


def test_the_example_gives_the_printed_output():
    found = doctest.testmod(sum_prediction)
    assert found.attempted
    assert not found.failed
