"""What training says of a problem before it begins."""

import re

import numpy as np
import pytest
from torch import nn

from fedgram.data import registry
from fedgram.data.problem import Problem, Split
from fedgram.train import train
from fedgram.train.cautions import cautions, unexplained
from tests.small_runs import SETTINGS, net, small_problem

PLAIN = nn.Linear(4, 2)


def problem(inputs=lambda rows: rows, targets=lambda rows: rows):
    """The small problem with other numbers."""
    made = small_problem()
    train = {name: Split(inputs(split.inputs), targets(split.targets)) for name, split in made.train.items()}
    return Problem("other", "GENERATED", train, target_names=("east", "north"))


@pytest.mark.parametrize("name", ["swimmer-mini", "gaussian"])
def test_nothing_is_said_of_what_is_trained_as_it_should_be(name, tmp_path):
    assert cautions(registry.load(name, tmp_path), PLAIN) == []
    assert cautions(small_problem(), PLAIN) == []


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
        ({"inputs": lambda rows: 1e6 * rows}, r"input 1 \(.*, input 3 \([^)]*\) and 1 more\. Networks"),
    ],
)
def test_columns_far_from_zero_or_of_another_scale_are_named(changed, words):
    (said,) = cautions(problem(**changed), PLAIN)
    assert said.startswith("Far from 0 or of another scale than 1 ")
    assert re.search(words, said)


def test_a_constant_input_and_a_mean_of_some_deviations_are_no_matter():
    assert cautions(problem(inputs=lambda rows: rows * [1, 1, 0, 1] + [0, 50, 1, 0]), PLAIN) == []


def test_the_variance_that_inputs_cannot_explain():
    inputs = np.array([[0.0, 1], [2, 3], [0, 1], [4, 5], [0, 1]])
    targets = np.array([[1.0], [5], [2], [7], [3]])
    mean = targets.mean()
    assert unexplained(Split(inputs, targets)) == pytest.approx(2 / ((targets - mean) ** 2).sum())
    nearly = inputs + 1 + 1e-12 * np.arange(5)[:, None]  # the same in single precision
    assert unexplained(Split(nearly, targets)) == pytest.approx(unexplained(Split(inputs, targets)))
    assert unexplained(Split(inputs, inputs + 0.1)) < 1e-30
    assert unexplained(Split(inputs[[1, 3]], targets[[1, 3]])) == 0
    images = np.zeros((5, 4, 4, 1), dtype=np.uint8)
    images[[1, 3], 0, 0, 0] = 1, 2
    assert unexplained(Split(images, targets)) == pytest.approx(unexplained(Split(inputs, targets)))


def test_rows_that_are_only_repeated_are_no_matter():
    twice = problem(lambda rows: np.repeat(rows, 3, axis=0), lambda rows: np.repeat(rows + 0.1, 3, axis=0))
    assert cautions(twice, PLAIN) == []


def test_rows_that_no_network_fits_are_said_before_training(tmp_path):
    made = small_problem()
    first = made.train["site 0"]
    inputs = first.inputs.copy()
    inputs[1] = inputs[0]
    train_rows = {**made.train, "site 0": Split(inputs, first.targets)}
    said = []
    known = Problem("equal", "GENERATED", train_rows)
    train(known, net, ["ordinary"], [0], SETTINGS, folder=tmp_path, warned=said.append)
    part = 100 * unexplained(train_rows["site 0"])
    assert said == [
        "Some rows with equal inputs have unequal targets, at 1 of 3 clients (at 'site 0' this is "
        f"{part:.2g} % of the target variance): no network fits them, and the prediction is for networks "
        "that fit all rows."
    ]
