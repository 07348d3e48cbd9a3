"""Linear regression of all sites, next to closed forms."""

import numpy as np

from fedgram import Problem, hold_out
from fedgram.theory.site_ridge import fit_site_ridge
from fedgram.training import linear_baselines
from fedgram.training.linear_baselines import linear_errors


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
    errors = linear_errors(problem_of((60, 80), noise=0.0))
    assert [len(each) for each in errors] == [18, 24]
    assert np.concatenate(errors).mean() < 1e-3 * 5  # the variance of all targets


def test_small_sites_gain_from_the_sums_of_all():
    problem = problem_of((14,) * 30, noise=1.0)
    alone = []
    for name, test in problem.test.items():
        own = [part[name] for part in (problem.train, problem.validation)]
        rows = (np.concatenate([getattr(part, kind) for part in own]) for kind in ("inputs", "targets"))
        alone.append((fit_site_ridge(*rows).predict(test.inputs) - test.targets) ** 2)
    assert np.concatenate(linear_errors(problem)).mean() < 0.9 * np.concatenate(alone).mean()


def test_images_and_very_wide_inputs_have_no_linear_baseline(monkeypatch):
    assert linear_errors(problem_of((20, 20), noise=0.1, shape=(2, 2, 1))) is None
    monkeypatch.setattr(linear_baselines, "MAX_ENTRIES", 10)
    assert linear_errors(problem_of((20, 20), noise=0.1)) is None
