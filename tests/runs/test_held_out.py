"""Errors on test rows: R² where targets vary, and nothing where they do not."""

import numpy as np
import pytest

from fedgram.runs.held_out import HeldOutErrors

RNG = np.random.default_rng(0)
VARYING = RNG.standard_normal((24, 1))


def errors(targets):
    predicted = [y + 0.5 * RNG.standard_normal(y.shape) for y in targets]
    return HeldOutErrors.from_predictions(predicted, targets)


@pytest.mark.parametrize(
    "constant",
    [
        np.full((24, 1), 0.7),  # its mean is rounded, so np.var is not 0
        np.full((24, 1), 0.3) + np.spacing(0.3) * (np.arange(24)[:, None] % 2),
    ],
)
def test_constant_targets_have_no_r2(constant):
    assert constant.var() > 0
    found = errors([VARYING, constant])
    assert np.isfinite(found.r2[0]).all()
    assert np.isnan(found.r2[1]).all()
    assert np.isfinite(found.total_r2).all()


def test_equal_targets_have_no_r2_over_all_rows():
    found = errors([np.full((24, 1), 0.1), np.full((7, 1), 0.1)])
    assert np.isnan(found.total_r2).all()


def test_sites_of_very_different_scales_have_r2():
    found = errors([1e11 * VARYING, VARYING, 1e9 + VARYING])
    assert np.isfinite(found.r2).all()


def test_r2_of_a_site_with_little_variance():
    small = 1e-6 * VARYING + 5.0
    found = HeldOutErrors.from_predictions([VARYING, small.mean() + 0 * small], [VARYING, small])
    np.testing.assert_allclose(found.r2, [[1.0], [0.0]], atol=1e-9)
