"""Ridge regression of one site, next to scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV

from fedgram.theory.site_ridge import STRENGTHS, fit_site_ridge


@pytest.mark.parametrize(("rows", "noise"), [(30, 1.0), (6, 0.1), (200, 3.0)])
def test_leave_one_out_chooses_as_scikit_learn_does(rows, noise):
    rng = np.random.default_rng(rows)
    x = 3 + rng.normal(size=(rows, 8)) * np.geomspace(0.01, 100, 8)
    y = (x / np.geomspace(0.01, 100, 8)) @ rng.normal(size=(8, 2)) + noise * rng.normal(size=(rows, 2))
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    alphas = [strength * rows for strength in STRENGTHS[1:]]
    other = RidgeCV(alphas=alphas, scoring="neg_mean_squared_error").fit(z, y)
    assert min(alphas) <= other.alpha_ < max(alphas)
    np.testing.assert_allclose(fit_site_ridge(x, y).predict(x), other.predict(z), rtol=1e-9)


def test_inputs_without_information_leave_the_mean():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(12, 6)), rng.normal(size=(12, 1))
    for inputs in (x, np.full((12, 2), 0.1), np.zeros((12, 0))):
        np.testing.assert_allclose(fit_site_ridge(inputs, y).predict(inputs), np.full((12, 1), y.mean()))


@pytest.mark.parametrize("rows", [1, 2])
def test_very_few_rows_leave_the_mean(rows):
    x, y = np.arange(2.0 * rows).reshape(rows, 2), np.arange(float(rows))[:, None]
    np.testing.assert_allclose(fit_site_ridge(x, y).predict([[9.0, -9.0]]), [[y.mean()]])
