"""Shares of two predictions."""

import numpy as np
import pytest

from fedgram.theory.blend import MARGIN, PRIOR_ROWS, BlendSums, find_limits, mix


def rows(count, own, shared, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.standard_normal((count, 2))
    return y + own * rng.standard_normal(y.shape), y + shared * rng.standard_normal(y.shape), y


def test_with_many_rows_a_site_gets_its_own_best_share():
    sites = [rows(100_000, 1.0, 2.0, 1), rows(100_000, 2.0, 1.0, 2)]
    shares = BlendSums.from_rows(*(list(each) for each in zip(*sites, strict=True))).shares()
    # independent errors: the best share is inverse to the variance
    np.testing.assert_allclose(shares, [0.8, 0.2], atol=0.01)


def test_with_few_rows_a_site_gets_the_share_of_all():
    sites = [rows(20_000, 1.0, 1.0, 1), rows(2, 0.0, 3.0, 2)]
    sums = BlendSums.from_rows(*(list(each) for each in zip(*sites, strict=True)))
    common = sums.agreement.sum() / sums.difference.sum()
    expected = (sums.agreement[1] + common * PRIOR_ROWS * sums.difference.sum() / sums.count.sum()) / (
        sums.difference[1] + PRIOR_ROWS * sums.difference.sum() / sums.count.sum()
    )
    assert sums.shares()[1] == pytest.approx(expected)
    assert abs(sums.shares()[1] - common) < 0.2


def test_own_predictions_end_a_margin_beyond_the_targets():
    limits = find_limits(np.array([[0.0, 5.0], [10.0, 5.0], [4.0, 5.0]]))
    np.testing.assert_allclose(limits, [[-10 * MARGIN, 5.0], [10 + 10 * MARGIN, 5.0]])
    own = np.array([[-1e6, 5.0], [7.0, 4.0], [1e6, 6.0]])
    np.testing.assert_allclose(mix(own, np.zeros((3, 2)), 1.0, limits), [limits[0], [7.0, 5.0], limits[1]])
    shared = np.full((3, 2), 1e6)  # has no limits
    np.testing.assert_allclose(mix(own, shared, 0.25, limits)[1], [0.25 * 7 + 0.75e6, 0.25 * 5 + 0.75e6])


def test_shares_are_between_0_and_1_and_0_without_rows_or_difference():
    worse, better, y = rows(50, 5.0, 0.0)
    assert BlendSums.from_rows([worse], [better], [y]).shares() == [0.0]
    assert BlendSums.from_rows([better], [worse], [y]).shares() == [1.0]
    assert BlendSums.from_rows([better], [better], [y]).shares() == [0.0]
    empty = y[:0]
    shares = BlendSums.from_rows([better, empty], [worse, empty], [y, empty]).shares()
    assert shares.tolist() == [1.0, 0.0]
