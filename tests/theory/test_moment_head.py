"""Moment head and site effects against solutions on the rows themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from fedgram import InputError
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.site_effects import EffectStrengths, fit_site_effects, fit_site_heads

SEEDS = st.integers(0, 2**32 - 1)


def rows(seed, count=60, features=4, targets=2):
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((count, features)) @ rng.standard_normal((features, features)) + 3.0
    return u, u @ rng.standard_normal((features, targets)) + rng.standard_normal((count, targets))


def site_sums(u, y, cuts):
    parts = zip(np.split(u, cuts), np.split(y, cuts), strict=True)
    return FeatureSums.stack([FeatureSums.from_rows(*part) for part in parts])


@given(SEEDS, st.lists(st.integers(1, 59), max_size=5), st.sampled_from([0.0, 1e-3, 0.1, 10.0]))
def test_the_head_is_that_of_pooled_rows_whatever_the_partition(seed, cuts, strength):
    u, y = rows(seed)
    head = site_sums(u, y, sorted(cuts)).total().ridge(strength)
    scaled = u / u.std(axis=0)
    peer = Ridge(alpha=strength * len(u), solver="svd").fit(scaled, y)
    np.testing.assert_allclose(head.predict(u), peer.predict(scaled), rtol=0, atol=1e-10 * np.abs(y).max())


@given(SEEDS, st.integers(1, 5), st.integers(1, 3))
def test_a_triangle_has_every_sum_once(seed, features, targets):
    u, y = rows(seed, features=features, targets=targets)
    sums = FeatureSums.from_rows(u, y)
    z = np.column_stack([np.ones(len(u)), u, y])
    tolerance = 1e-12 * (z.T @ z).max()
    np.testing.assert_allclose(sums.matrix, z.T @ z, atol=tolerance)
    triangle = sums.to_triangle()
    assert (
        len(triangle) == len(np.unique(triangle)) == (1 + features + targets) * (2 + features + targets) / 2
    )
    again = FeatureSums.from_triangle(triangle, targets)
    for name, value in vars(sums).items():
        np.testing.assert_allclose(getattr(again, name), value, atol=tolerance)
    sites = site_sums(u, y, [20]).to_triangle()
    np.testing.assert_allclose(sites.sum(axis=0), triangle, atol=tolerance)


@given(SEEDS)
def test_squared_errors_need_only_sums(seed):
    u, y = rows(seed)
    head = FeatureSums.from_rows(*rows(seed + 1)).ridge(0.1)
    expected = ((y - head.predict(u)) ** 2).sum(axis=0)
    np.testing.assert_allclose(FeatureSums.from_rows(u, y).squared_error(head), expected, rtol=1e-10)


def test_constant_and_repeated_features_get_finite_weights():
    u, y = rows(0)
    wide = np.column_stack([u, u[:, 0], np.full(len(u), 7.0)])
    head = FeatureSums.from_rows(wide, y).ridge(0.0)
    expected = FeatureSums.from_rows(u, y).ridge(0.0)
    np.testing.assert_allclose(head.predict(wide), expected.predict(u), atol=1e-9)
    assert np.abs(head.weight[:, -1]).max() == 0


@pytest.mark.parametrize("value", [0.1, 1 / 3, -2.7, 1e-9, 1e6 / 7])
def test_a_feature_that_is_constant_up_to_rounding_gets_no_weight(value):
    u, y = rows(0)
    wide = np.column_stack([u, np.full(len(u), value)])
    head = FeatureSums.from_rows(wide, y).ridge(0.0)
    expected = FeatureSums.from_rows(u, y).ridge(0.0)
    np.testing.assert_allclose(head.weight[:, :-1], expected.weight, atol=1e-9)
    assert np.abs(head.weight[:, -1]).max() == 0


def test_a_feature_that_is_constant_up_to_rounding_gets_no_site_effect():
    rng, sites = np.random.default_rng(0), []
    for m in range(5):
        features = np.c_[rng.standard_normal((200, 2)), np.full(200, 0.3)]
        targets = 2 * features[:, :1] + m + rng.standard_normal((200, 1))
        sites.append(FeatureSums.from_rows(features, targets))
    sums = FeatureSums.stack(sites)
    head = sums.total().moment_head(1.0)
    found = fit_site_effects(sums, head, sums.total(), EffectStrengths(4.0, 4.0))
    assert not found.weight[..., 2].any()
    assert found.weight[..., :2].all()


def test_site_effects_solve_the_penalized_problem():
    u, y = rows(3, 90)
    sites = site_sums(u, y, [30, 50])
    pooled = sites.total()
    head = pooled.ridge(0.1)
    strengths = EffectStrengths(intercept=5.0, deviation=20.0)
    own = fit_site_effects(sites, head, pooled, strengths)
    mean, variance = u.mean(axis=0), u.var(axis=0)
    for m, (a, b) in enumerate(((0, 30), (30, 50), (50, 90))):
        residual = y[a:b] - head.predict(u[a:b])
        design = np.column_stack([np.ones(b - a), u[a:b] - mean])
        penalty = np.diag([5.0, *20.0 * variance])
        solution = np.linalg.solve(design.T @ design + penalty, design.T @ residual)
        expected = head.predict(u[a:b]) + design @ solution
        np.testing.assert_allclose(own[m].predict(u[a:b]), expected, atol=1e-10)


@pytest.mark.parametrize("field", ["intercept", "deviation"])
def test_effects_vanish_with_the_strength_and_are_the_sites_own_without(field):
    u, y = rows(4, 400)
    y[200:] += 5.0
    sites = site_sums(u, y, [200])
    pooled = sites.total()
    head = pooled.ridge(0.0)
    none = fit_site_effects(sites, head, pooled, EffectStrengths())
    np.testing.assert_array_equal(none.weight, np.stack([head.weight] * 2))
    weak = fit_site_effects(sites, head, pooled, EffectStrengths(**{"intercept": 1e-9, field: 1e-9}))
    if field == "intercept":
        np.testing.assert_allclose(sites.residual_mean(weak), 0, atol=1e-9)
    else:
        alone = FeatureSums.from_rows(u[200:], y[200:]).ridge(0.0)
        np.testing.assert_allclose(weak[1].predict(u[200:]), alone.predict(u[200:]), atol=1e-6)


def test_one_row_moves_a_site_little_and_many_rows_move_it_fully():
    u, y = rows(5, 1001)
    shifted = y + 10.0
    sites = FeatureSums.stack(
        [FeatureSums.from_rows(u[:1], shifted[:1]), FeatureSums.from_rows(u[1:], shifted[1:])]
    )
    pooled = FeatureSums.from_rows(u, y)
    head = pooled.ridge(0.0)
    moved = fit_site_effects(sites, head, pooled, EffectStrengths(intercept=19.0)).bias - head.bias
    assert np.abs(moved[0]).max() < 0.1 * np.abs(shifted[0] - head.predict(u[:1])).max()
    np.testing.assert_allclose(moved[1], 10.0, rtol=0.05)


def test_a_ridge_shrinks_toward_a_given_head():
    u, y = rows(7, 60)
    sums, given = FeatureSums.from_rows(u, y), np.full((y.shape[1], u.shape[1]), 2.0)
    np.testing.assert_allclose(sums.ridge(1e12, given).weight, given, rtol=1e-8)
    exact = sums.ridge(0.0)
    np.testing.assert_allclose(sums.ridge(0.0, given).weight, exact.weight, rtol=1e-8)
    np.testing.assert_allclose(sums.ridge(0.0, given).bias, exact.bias, rtol=1e-8)
    # the same as the ridge of what the given head leaves
    rest = FeatureSums.from_rows(u, y - u @ given.T).ridge(0.3)
    np.testing.assert_allclose(sums.ridge(0.3, given).weight, given + rest.weight, rtol=1e-10)
    np.testing.assert_allclose(sums.ridge(0.3, given).bias, rest.bias, rtol=1e-8, atol=1e-12)


def test_the_moment_head_counts_rows_and_features():
    u, y = rows(8, 60)
    sums = FeatureSums.from_rows(u, y)
    expected = sums.ridge(0.5 * u.shape[1] / 60)
    np.testing.assert_array_equal(sums.moment_head(0.5).weight, expected.weight)


def test_strengths_are_chosen_by_held_out_error():
    rng = np.random.default_rng(6)
    u = rng.standard_normal((40, 30, 3))
    noise = rng.standard_normal((40, 30, 1))
    equal = u.sum(axis=-1, keepdims=True) + noise
    shifted = equal + 3 * rng.standard_normal((40, 1, 1))
    for y, expected in ((equal, False), (shifted, True)):
        train = FeatureSums.stack([FeatureSums.from_rows(a[:20], b[:20]) for a, b in zip(u, y, strict=True)])
        held_out = FeatureSums.stack(
            [FeatureSums.from_rows(a[20:], b[20:]) for a, b in zip(u, y, strict=True)]
        )
        heads = fit_site_heads(train, held_out, effects=True)
        strengths = heads.strengths
        assert (strengths.intercept <= 4) == expected
        assert strengths.deviation >= 64
        # The heads that are judged have not seen the held-out rows.
        pooled = train.total()
        unseen = fit_site_effects(train, pooled.moment_head(heads.ridge), pooled, strengths)
        np.testing.assert_array_equal(heads.unseen.weight, unseen.weight)
        errors = held_out.squared_error(unseen).sum(axis=-1)
        np.testing.assert_allclose(heads.validation_error, errors, rtol=1e-10)
        assert held_out.squared_error(heads.sites).sum() < errors.sum()


@pytest.mark.parametrize(
    ("features", "targets", "message"),
    [
        (np.ones((3, 2)), np.ones((4, 1)), "must have shapes"),
        (np.full((3, 2), np.nan), np.ones((3, 1)), "not finite"),
    ],
)
def test_bad_rows_are_refused(features, targets, message):
    with pytest.raises(InputError, match=message):
        FeatureSums.from_rows(features, targets)


@pytest.mark.parametrize("strength", [-1.0, np.nan, "1"])
def test_bad_strengths_are_refused(strength):
    with pytest.raises(InputError, match="strength must be"):
        FeatureSums.from_rows(*rows(0)).ridge(strength)


def test_no_rows_are_refused():
    with pytest.raises(InputError, match="at least one row"):
        FeatureSums.from_rows(np.ones((0, 2)), np.ones((0, 1))).ridge(0.1)
