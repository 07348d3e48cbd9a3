"""Ridge heads on the features of networks that sites train alone."""

import numpy as np
import pytest

from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.own_heads import (
    NOISE_RATIOS,
    ROWS_PER_DECADE,
    USUAL_INDEX,
    choose_common_ratio,
    choose_own_ratios,
    fit_own_heads,
    ratio_errors,
    solve_for_ratios,
)

FEATURES, TARGETS = 5, 2


def site_rows(rows, noise, seed=0):
    """Features of three sites, each with a linear map of its own."""
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((3, rows, FEATURES))
    maps = rng.standard_normal((3, FEATURES, TARGETS))
    return u, u @ maps + 2.0 + noise * rng.standard_normal((3, rows, TARGETS))


def sums_of(u, y, part):
    return FeatureSums.stack([FeatureSums.from_rows(a[part], b[part]) for a, b in zip(u, y, strict=True)])


def halves(rows, noise):
    u, y = site_rows(rows, noise)
    return u, y, sums_of(u, y, slice(rows // 2)), sums_of(u, y, slice(rows // 2, rows))


def test_heads_of_all_ratios_are_ridge_regressions():
    u, y, training, _ = halves(40, 0.5)
    heads = solve_for_ratios(training)
    for r, ratio in enumerate(NOISE_RATIOS):
        for m in range(3):
            rows, targets = u[m, :20] - u[m, :20].mean(0), y[m, :20] - y[m, :20].mean(0)
            penalty = ratio * rows.var(axis=0).sum() * np.eye(FEATURES)
            expected = np.linalg.solve(rows.T @ rows + penalty, rows.T @ targets).T
            np.testing.assert_allclose(heads.weight[r, m], expected, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(heads[r][m].predict(u[m, :20].mean(0)[None])[0], y[m, :20].mean(0))


def test_heads_turn_with_the_features():
    u, y, training, _ = halves(40, 0.5)
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((FEATURES, FEATURES)))
    turned = solve_for_ratios(sums_of(3 * u @ turn, y, slice(20)))
    np.testing.assert_allclose(turned.weight, solve_for_ratios(training).weight @ turn / 3, rtol=1e-9)


def test_one_row_gives_its_targets():
    u, y = site_rows(1, 0.0)
    heads = solve_for_ratios(sums_of(u, y, slice(None)))
    assert not heads.weight.any()
    np.testing.assert_allclose(heads.bias[0], y[:, 0])


def test_a_common_ratio_has_the_least_error_over_all_sites():
    u, y, training, validation = halves(40, 1.0)
    heads = solve_for_ratios(training)
    errors = [
        sum(((heads[r][m].predict(u[m, 20:]) - y[m, 20:]) ** 2).sum() for m in range(3))
        for r in range(len(NOISE_RATIOS))
    ]
    np.testing.assert_allclose(ratio_errors(heads, validation).sum(axis=1), errors, rtol=1e-9)
    best = int(np.argmin(errors))
    found = fit_own_heads(training, validation, common=True)
    assert found.ratio.tolist() == [NOISE_RATIOS[best]] * 3
    np.testing.assert_array_equal(found.unseen.weight, heads.weight[best])
    both = solve_for_ratios(sums_of(u, y, slice(None)))
    np.testing.assert_allclose(found.sites.weight, both.weight[best], rtol=1e-9)
    np.testing.assert_allclose(found.sites.bias, both.bias[best], rtol=1e-9)


def test_the_stronger_of_equal_ratios_counts():
    assert choose_common_ratio(np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 0.0]])) == 1


def test_own_ratios_leave_the_usual_one_only_if_rows_pay_for_it():
    rows, least = 40, 1.0
    needed = ROWS_PER_DECADE * least / rows
    for margin, expected in ((1.01, USUAL_INDEX - 1), (0.99, USUAL_INDEX)):
        errors = np.full((len(NOISE_RATIOS), 1), 10.0)
        errors[USUAL_INDEX], errors[USUAL_INDEX - 1] = least + margin * needed, least
        assert choose_own_ratios(errors, np.array([rows])).tolist() == [expected]


def test_a_site_without_validation_rows_has_the_usual_ratio():
    _, _, training, validation = halves(40, 1.0)
    nothing = FeatureSums(*(0 * part for part in vars(validation).values()))
    found = fit_own_heads(training, nothing, common=False)
    assert found.ratio.tolist() == [NOISE_RATIOS[USUAL_INDEX]] * 3
    np.testing.assert_array_equal(found.sites.weight, found.unseen.weight)


@pytest.mark.parametrize(("noise", "least", "largest"), [(0.0, 0.0, 1e-4), (30.0, 1.0, np.inf)])
def test_noise_shrinks_the_heads(noise, least, largest):
    _, _, training, validation = halves(200, noise)
    ratio = fit_own_heads(training, validation, common=True).ratio
    assert ((ratio >= least) & (ratio <= largest)).all()
