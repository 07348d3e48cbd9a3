"""Verdicts of the advice on given errors."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from fedgram import Problem
from fedgram.runs.advice import ALONE, AUTO
from fedgram.training.verdicts import judge_sites, lowest_over_sites, recommend, total_change


def problem_of(sites, *, in_time_order=False):
    values = np.arange(10.0)[:, None]
    problem = Problem.from_arrays([values] * sites, [values] * sites)
    return replace(problem, provenance={"time": "day"} if in_time_order else {}).hold_out_validation(0.2)


def judge(alone, joined, *, in_time_order=False):
    problem = problem_of(len(alone), in_time_order=in_time_order)
    return judge_sites(problem, alone, joined, np.ones(1))


@pytest.mark.parametrize(
    ("rows", "in_time_order", "verdict"),
    [(5, False, "untested"), (6, False, "join"), (15, True, "untested"), (16, True, "join")],
)
def test_a_handful_of_test_rows_decides_nothing(rows, in_time_order, verdict):
    ones = np.ones((rows, 1))
    site, _ = judge([4 * ones, ones], [ones, ones], in_time_order=in_time_order)
    assert (site.verdict, site.difference) == (verdict, (3.0, 3.0, 3.0))


@pytest.mark.parametrize(("rows", "in_time_order"), [(1, False), (7, True), (15, True)])
def test_a_handful_of_test_rows_decides_nothing_in_total(rows, in_time_order):
    ones = [np.ones((rows, 1))] * 2
    problem = problem_of(2, in_time_order=in_time_order)
    change, low, high = total_change(problem, [4 * each for each in ones], ones)
    assert change == -0.75
    assert np.isnan([low, high]).all()


@pytest.mark.parametrize(
    ("change", "over_sites", "recommended"),
    [
        ((-0.2, -0.3, -0.1), -0.4, AUTO),
        ((2.5, -0.2, 4.4), 1.0, AUTO),
        ((0.05, 0.01, 0.1), 0.02, ALONE),
        ((0.05, 0.01, 0.1), -0.02, AUTO),
        ((0.05, 0.01, 0.1), np.inf, ALONE),
        ((-0.001, -0.009, 0.008), -0.009, ALONE),
        ((-0.001, -0.009, 0.008), -0.011, AUTO),
        ((-0.001, -0.011, 0.008), -0.009, AUTO),
        ((-0.007, -0.009, -0.005), -0.009, ALONE),
        ((0.05, np.nan, np.nan), 0.02, AUTO),
        ((np.nan, np.nan, np.nan), np.nan, ALONE),
    ],
)
def test_joining_is_recommended_unless_it_clearly_gains_too_little(change, over_sites, recommended):
    assert recommend(change, over_sites) == recommended


def test_a_loss_at_all_sites_is_clear_over_sites_and_one_at_a_few_is_not():
    alone = [np.ones((n, 1)) for n in (5, 20, 0, 10, 40, 25, 30)]
    everywhere = [each * (1.3 + 0.02 * m) for m, each in enumerate(alone)]
    at_one = [each * (7.0 if m == 3 else 1.0) for m, each in enumerate(alone)]
    assert 0.25 < lowest_over_sites(alone, everywhere) < 0.35
    assert lowest_over_sites(alone, at_one) < 0 < total_change(problem_of(7), alone, at_one)[1]
    assert lowest_over_sites(alone[1:], at_one[1:]) == np.inf  # five tested sites


def test_the_interval_over_equal_sites_is_students():
    """The mean of the sites' changes, with its standard error and Student's quantile."""
    changes = np.random.default_rng(3).normal(0.2, 0.4, 8)
    alone = [np.ones((12, 2))] * 8
    low = lowest_over_sites(alone, [1 + each * np.ones((12, 2)) for each in changes])
    np.testing.assert_allclose(low, ttest_1samp(changes, 0.0).confidence_interval(0.95).low)


def test_a_loss_must_be_clearer_the_more_sites_there_are():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(20, 1))
    loss = 5 + 0.7 + noise - noise.mean()  # 3 standard errors above 5
    for sites, verdict in ((2, "alone"), (60, "undecided")):
        ones = [np.full((20, 1), 5.0)] * sites
        found = judge(ones, [loss, *ones[1:]])
        assert found[0].verdict == verdict
        assert found[0].difference[2] < 0  # its own interval is below 0 in both


def test_losses_by_chance_are_rarely_reported():
    rng, sites = np.random.default_rng(1), 40
    alone = 0
    for _ in range(25):
        before, after = (list(rng.chisquare(3, size=(sites, 12, 1))) for _ in range(2))
        alone += sum(site.verdict == "alone" for site in judge(before, after))
    assert alone <= 3  # of 1,000 sites, where 25 intervals would be below 0
