"""Linear regression at natural sites, next to scikit-learn and closed forms."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from fedgram import Problem, hold_out
from fedgram.training import linear_baselines
from fedgram.training.linear_baselines import linear_errors

ALONE, TOGETHER = "at each site alone", "with site effects, from sums over all sites,"


def problem_of(rows, noise, seed=0, shape=(3,)):
    """Sites with one slope and intercepts of their own."""
    rng = np.random.default_rng(seed)
    inputs = {f"site {m}": rng.normal(size=(count, *shape)) for m, count in enumerate(rows)}
    targets = {
        name: x.reshape(len(x), -1)[:, :2] @ [[1], [-2]] + np.sin(m) + noise * rng.normal(size=(len(x), 1))
        for m, (name, x) in enumerate(inputs.items())
    }
    return hold_out(Problem.from_arrays(inputs, targets), 0.3).hold_out_validation(0.2)


def test_rows_without_noise_are_predicted_up_to_shrinkage():
    for errors in linear_errors(problem_of((60, 80), noise=0.0)).values():
        assert [len(each) for each in errors] == [18, 24]
        assert np.concatenate(errors).mean() < 1e-3 * 5  # the variance of all targets


def test_many_rows_alone_have_the_errors_of_least_squares():
    problem = problem_of((4000, 4000), noise=1.0)
    for m, name in enumerate(problem.clients):
        fitted = problem.with_validation_in_training().train[name]
        model = LinearRegression().fit(fitted.inputs, fitted.targets)
        expected = (model.predict(problem.test[name].inputs) - problem.test[name].targets) ** 2
        found = linear_errors(problem)[ALONE][m]
        assert found.mean() == pytest.approx(expected.mean(), rel=1e-3)


def test_small_sites_gain_from_the_sums_of_all():
    errors = linear_errors(problem_of((14,) * 30, noise=1.0))
    alone, together = (np.concatenate(errors[kind]).mean() for kind in (ALONE, TOGETHER))
    assert together < 0.9 * alone


def test_images_have_no_linear_baseline_and_very_wide_inputs_none_of_all_sites(monkeypatch):
    assert linear_errors(problem_of((20, 20), noise=0.1, shape=(2, 2, 1))) == {}
    monkeypatch.setattr(linear_baselines, "MAX_ENTRIES", 10)
    assert list(linear_errors(problem_of((20, 20), noise=0.1))) == [ALONE]
