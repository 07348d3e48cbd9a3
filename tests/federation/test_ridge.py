"""Ridge maps by leave-one-out, against refits without each row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram.federation.ridge import STRENGTHS
from tests.helpers import numpy_ridge
from tests.helpers.numpy_ridge import fit_ridge

SEEDS = st.integers(0, 10_000)


def client(seed, rows=30, width=5, targets=2, noise=1.0):
    rng = np.random.default_rng(seed)
    x, start = rng.standard_normal((rows, width)) * np.geomspace(1, 0.1, width), rng.random((width, targets))
    y = x @ (start + rng.standard_normal((width, targets))) + noise * rng.standard_normal((rows, targets))
    return x - x.mean(axis=0), y - y.mean(axis=0), start


def refit_errors(x, y, start, strength):
    """Squared errors of rows that a ridge fit with an intercept did not see."""
    errors = []
    for i in range(len(x)):
        rest = np.arange(len(x)) != i
        # The intercept has no penalty.
        design = np.column_stack([x[rest], np.ones(rest.sum())])
        penalty = strength * np.diag([1.0] * x.shape[1] + [0.0])
        residual = y[rest] - x[rest] @ start
        change = np.linalg.solve(design.T @ design + penalty, design.T @ residual)
        errors.append(y[i] - x[i] @ start - np.append(x[i], 1) @ change)
    return (np.array(errors) ** 2).sum(axis=1)


@given(SEEDS, st.sampled_from(STRENGTHS))
@settings(max_examples=20)
def test_errors_are_those_of_refits_without_each_row(seed, fraction):
    x, y, start = client(seed)
    strength = fraction * np.trace(x.T @ x) / x.shape[1]
    residual = y - x @ start
    change, leverage = numpy_ridge._solve(x, x.T @ x, residual, strength)
    ours = numpy_ridge._row_errors(residual - x @ change, leverage + 1 / len(x))
    np.testing.assert_allclose(ours, refit_errors(x, y, start, strength), rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_strength_has_the_least_error_of_all(seed):
    x, y, start = client(seed, noise=0.5)
    scale = np.trace(x.T @ x) / x.shape[1]
    errors = [refit_errors(x, y, start, each * scale).sum() for each in STRENGTHS]
    found = fit_ridge(x, y, start)
    assert found.strength == STRENGTHS[int(np.argmin(errors))]
    assert 0 < found.share < 1
    assert not found.is_exact


def test_exact_rows_are_recognized_and_need_no_shrinkage():
    x, y, start = client(1, noise=0.0)
    found = fit_ridge(x, y, start)
    assert found.is_exact
    assert found.strength == STRENGTHS[0]
    assert found.share > 0.999
    np.testing.assert_allclose(x @ found.weight, y, atol=1e-4)


def test_noise_keeps_the_trained_map_and_head():
    rng = np.random.default_rng(2)
    x, _, start = client(2)
    found = fit_ridge(x, rng.standard_normal((len(x), 2)), 0 * start)
    assert found.strength == np.inf
    np.testing.assert_array_equal(found.weight, 0)
    assert found.share < 0.2


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_few_rows_keep_the_trained_map(rows):
    x, y, start = client(3, rows=rows, width=6)
    found = fit_ridge(x, y, start)
    assert np.isfinite(found.weight).all()
    np.testing.assert_array_equal(found.weight, start)
    assert found.share == 0.0


@given(SEEDS, st.floats(0.01, 100))
@settings(max_examples=20)
def test_units_of_inputs_and_targets_do_not_matter(seed, scale):
    x, y, start = client(seed)
    first, second = fit_ridge(x, y, start), fit_ridge(scale * x, 3 * y, 3 * start / scale)
    assert second.strength == first.strength
    np.testing.assert_allclose(scale * second.weight, 3 * first.weight, rtol=1e-7, atol=1e-9)
    assert second.share == pytest.approx(first.share, abs=1e-9)
