"""What training says of a problem before it begins."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from fedgram import Penalty, predict
from fedgram.data.datasets import registry
from fedgram.data.equal_inputs import unattainable_fraction
from fedgram.data.problem import Problem
from fedgram.data.site_problem import build_site_problem
from fedgram.data.split import Split
from fedgram.training import train
from fedgram.training.preflight import preflight_warnings
from tests.helpers.small_runs import SETTINGS, net, small_problem


def said_of(known):
    """Return all warnings about a problem, for a network without randomness."""
    prediction = predict(known.moments, Penalty(1e-12, 1e-12))
    return list(preflight_warnings(known, nn.Linear(4, 2), torch.ones(2, 4), prediction))


def problem(inputs=lambda rows: rows, targets=lambda rows: rows):
    """The small problem with other numbers."""
    made = small_problem()
    train = {name: Split(inputs(split.inputs), targets(split.targets)) for name, split in made.train.items()}
    return Problem("other", "GENERATED", train, target_names=("east", "north"))


@pytest.mark.parametrize("name", ["swimmer-mini", "gaussian"])
def test_nothing_is_said_of_what_is_trained_as_it_should_be(name, tmp_path):
    assert said_of(registry.load(name, tmp_path)) == []
    assert said_of(small_problem()) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"targets": lambda rows: rows + np.array([0, 1e9])},
            r"\(mean ± deviation\): target 'north' \(1e\+09 ± ",
        ),
        ({"targets": lambda rows: rows * [1e-9, 1]}, r"target 'east' \(\S+e-\d+ ± \S+e-\d+\)\. Networks"),
        ({"inputs": lambda rows: rows * [1, 1, 1e4, 1]}, r"deviation\): input 3 \("),
        ({"inputs": lambda rows: rows * [1, 1, 0, 1] + [0, 0, 1e6, 0]}, r"input 3 \(1e\+06 ± 0\)"),
        ({"inputs": lambda rows: rows * [1, 1, 1e-170, 1]}, r"input 3 \(\S+e-17\d ± 0\)"),
        ({"inputs": lambda rows: 1e6 * rows}, r"input 1 \(.*, input 4 \([^)]*\)\. Networks"),
        ({"inputs": lambda rows: np.tile(20 * rows, 3)}, r"input 10 \([^)]*\) and 2 more\. Networks"),
    ],
)
def test_columns_far_from_zero_or_of_another_scale_are_named(changed, words):
    (said,) = said_of(problem(**changed))
    assert said.startswith("Badly scaled columns ")
    assert re.search(words, said)


@pytest.mark.parametrize(("mean", "deviation", "is_named"), [
    (0, 9.9, False), (0, 10.1, True), (0, 0.11, False), (0, 0.09, True), (2.9, 1, False), (3.1, 1, True),
    (-3.1, 1, True), (15, 6, False), (1, 0, False), (11, 0, True),
])  # fmt: skip
def test_columns_of_deviation_one_tenth_to_ten_and_mean_of_three_deviations_are_well_scaled(
    mean, deviation, is_named
):
    rows = np.concatenate([split.inputs for split in small_problem().train.values()])
    center, scale = rows.mean(axis=0)[1], rows.std(axis=0)[1]

    def rescale(rows):
        changed = rows.astype(np.float64)
        changed[:, 1] = mean + deviation * (changed[:, 1] - center) / scale
        return changed

    said = said_of(problem(inputs=rescale))
    assert bool(said) == is_named
    assert all("input 2 (" in each and "--standardize" in each for each in said)


def test_columns_of_rare_categories_are_not_named():
    rng = np.random.default_rng(0)
    sites = {
        name: {
            "kind": np.where(np.arange(200) < 1, "rare", "usual"),
            "x": 500 + 40 * rng.standard_normal(200),
            "y": 1e5 * rng.standard_normal(200),
        }
        for name in "ab"
    }
    known, _ = build_site_problem(sites, inputs=["kind", "x"], targets=["y"])
    assert said_of(known) == []


def test_bytes_without_an_axis_of_channels_are_named():
    def pictures(rows):
        return np.random.default_rng(len(rows)).integers(0, 256, (len(rows), 4, 4), dtype=np.uint8)

    (said,) = said_of(problem(inputs=pictures))
    assert "inputs[..., None]" in said
    assert said_of(problem(inputs=lambda rows: pictures(rows)[..., None])) == []
    assert said_of(problem(inputs=lambda rows: pictures(rows) / 255)) == []


def test_rows_that_are_only_repeated_are_no_matter():
    twice = problem(lambda rows: np.repeat(rows, 3, axis=0), lambda rows: np.repeat(rows + 0.1, 3, axis=0))
    assert said_of(twice) == []


def test_rows_that_no_network_fits_are_said_before_training(tmp_path):
    made = small_problem()
    first = made.train["site 0"]
    inputs = first.inputs.copy()
    inputs[1] = inputs[0]
    known = Problem("equal", "GENERATED", {**made.train, "site 0": Split(inputs, first.targets)})
    said = []
    train(known, net, ["ordinary"], [0], SETTINGS, folder=tmp_path, on_warning=said.append)
    part = 100 * unattainable_fraction(inputs, first.targets)
    raw, reached = (
        predict(each.moments, SETTINGS.penalty).barycenter.gram for each in (known, known.attainable())
    )
    moved = 100 * np.linalg.norm(reached - raw) / np.linalg.norm(raw)
    assert said[:-1] == [
        f"Rows with equal inputs have unequal targets at 1 of 3 clients ({part:.3g} % of the target variance "
        f"at 'site 0'), which no network fits; this moves the barycenter by {moved:.3g} %. In Python, "
        "predict for problem.attainable()."
    ]
    said.clear()
    train(known, net, ["local"], [0], SETTINGS, folder=tmp_path, on_warning=said.append)
    assert not [each for each in said if "equal inputs" in each]  # nothing is compared with a limit


def test_where_inputs_say_nothing_there_is_no_limit():
    (said,) = said_of(problem(inputs=lambda rows: 0 * rows))
    assert "(100 % of the target variance at 'site 0'), which no network fits; there is no barycenter" in said
