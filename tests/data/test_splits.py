"""Rows kept for testing."""

import numpy as np
import pytest

from fedgram import InputError
from fedgram.data.problem import Problem
from fedgram.data.splits import hold_out, split_rows

NUMBERS = {"north": np.arange(40.0).reshape(20, 2), "south": np.arange(40.0, 60.0).reshape(10, 2)}
PROBLEM = Problem.from_arrays(NUMBERS, NUMBERS, kind="GENERATED")


def test_every_row_is_for_training_or_testing():
    problem = hold_out(PROBLEM, 0.3, seed=4)
    assert [len(split) for split in problem.test.values()] == [6, 3]
    for client, rows in NUMBERS.items():
        both = [problem.train[client], problem.test[client]]
        targets = np.concatenate([split.targets for split in both])
        np.testing.assert_array_equal(np.sort(targets, axis=0), rows)
        np.testing.assert_array_equal(np.concatenate([split.inputs for split in both]), targets)
    assert (problem.kind, problem.provenance["seed"]) == ("GENERATED", 4)


def test_the_seed_says_which():
    assert hold_out(PROBLEM, 0.3).digest == hold_out(PROBLEM, 0.3, seed=0).digest
    assert hold_out(PROBLEM, 0.3).digest != hold_out(PROBLEM, 0.3, seed=1).digest


def test_a_client_keeps_the_same_rows_with_or_without_others():
    numbered = hold_out(Problem("own", "REAL", dict(enumerate(PROBLEM.train.values()))), 0.3)
    assert [len(split) for split in numbered.test.values()] == [6, 3]  # names need not be text
    together = hold_out(PROBLEM, 0.3, seed=2)
    for client, split in PROBLEM.train.items():
        train, test = split_rows({client: split}, 0.3, seed=2)
        np.testing.assert_array_equal(train[client].targets, together.train[client].targets)
        np.testing.assert_array_equal(test[client].targets, together.test[client].targets)


@pytest.mark.parametrize(
    ("problem", "fraction", "words"),
    [
        (PROBLEM, 1.0, "The test fraction must be at least 0 and below 1, not 1"),
        (PROBLEM, 0.8, "A test fraction of 0.8 leaves 2 of the 10 rows of client 'south' for training"),
        (hold_out(PROBLEM, 0.3), 0.3, "'own data' already has test rows"),
        (3, 0.3, r"^hold_out\(\) expects Problem, got int\. Build it with Problem\.from_arrays"),
    ],
)
def test_what_cannot_be_held_out(problem, fraction, words):
    with pytest.raises(InputError, match=words):
        hold_out(problem, fraction)
