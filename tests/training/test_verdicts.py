"""Verdicts of the advice on given errors."""

from dataclasses import replace

import numpy as np
import pytest

from fedgram import Problem
from fedgram.runs.advice import ALONE, AUTO
from fedgram.training.verdicts import judge_sites, recommend, total_change


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
    ("change", "recommended"),
    [
        ((-0.2, -0.3, -0.1), AUTO),
        ((0.5, -0.2, 1.4), AUTO),
        ((0.51, -0.2, 1.4), ALONE),
        ((0.05, 0.01, 0.1), ALONE),
        ((-0.001, -0.009, 0.008), ALONE),
        ((-0.001, -0.011, 0.008), AUTO),
        ((-0.007, -0.009, -0.005), ALONE),
        ((0.05, np.nan, np.nan), AUTO),
        ((np.nan, np.nan, np.nan), ALONE),
    ],
)
def test_joining_is_recommended_unless_it_looks_worthless(change, recommended):
    assert recommend(change) == recommended


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
