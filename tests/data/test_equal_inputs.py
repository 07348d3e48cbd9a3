"""Rows with equal inputs: what networks can reach of their targets, and where training on them ends."""

from dataclasses import replace

import numpy as np
import pytest

from fedgram import predict
from fedgram.data.equal_inputs import average_equal_inputs, unattainable_fraction
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.runs.measure import measure
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import trajectory
from tests.helpers.small_runs import SETTINGS, trained

INPUTS = np.array([[0.0, 1], [2, 3], [0, 1], [4, 5], [0, 1]])
TARGETS = np.array([[1.0], [5], [2], [7], [3]])


def test_targets_of_equal_inputs_become_their_mean():
    assert average_equal_inputs(INPUTS, TARGETS).tolist() == [[2], [5], [2], [7], [2]]
    part = 2 / ((TARGETS - TARGETS.mean()) ** 2).sum()
    assert unattainable_fraction(INPUTS, TARGETS) == pytest.approx(part)
    nearly = INPUTS + 1 + 1e-12 * np.arange(5)[:, None]  # the same in single precision
    assert unattainable_fraction(nearly, TARGETS) == pytest.approx(part)
    negative = np.where(INPUTS == 0, [[0.0], [0], [-0.0], [0], [-0.0]], INPUTS)  # -0 is 0
    assert unattainable_fraction(negative, TARGETS) == pytest.approx(part)
    assert unattainable_fraction(INPUTS, INPUTS + 0.1) < 1e-30
    assert unattainable_fraction(INPUTS[[1, 3]], TARGETS[[1, 3]]) == 0


def test_images_are_compared_whole():
    images = np.zeros((5, 4, 4, 1), dtype=np.uint8)
    images[[1, 3], 0, 0, 0] = 1, 2
    assert unattainable_fraction(images, TARGETS) == pytest.approx(unattainable_fraction(INPUTS, TARGETS))


def discrete():
    """Clients whose inputs take four values, with noise in their targets."""
    rng = np.random.default_rng(3)
    values = rng.standard_normal((4, 4))

    def split(client, count):
        which = rng.integers(4, size=count)
        targets = (1 + client) * rng.standard_normal((4, 2))[which] + client
        return Split(values[which], targets + 0.5 * rng.standard_normal((count, 2)))

    return Problem("discrete", "GENERATED", {f"site {m}": split(m, 40 - 5 * m) for m in range(3)})


def test_training_ends_where_the_attainable_targets_say(tmp_path):
    known = discrete()
    (run,) = trained(tmp_path, ["solved"], [0], replace(SETTINGS, rounds=5), problem=known)
    expected = predict(known.attainable().moments, SETTINGS.penalty)
    exact = trajectory(run.initial[0], expected.grams, expected.moments.client_weights, 5)
    found = measure(run)
    # Rows are noisy, so heads stop short of the solved ones.
    assert psd.relative_error(found.grams, exact).max() < 0.02
    assert found.trajectory_error[1:].min() > 0.07  # of the prediction for networks that fit every row
    assert known.attainable().provenance["targets"] == "means over rows with equal inputs"


def test_whole_numbers_that_single_precision_does_not_tell_apart_are_equal():
    targets = np.arange(8.0)[:, None]
    assert unattainable_fraction(100_000_000 + np.arange(8)[:, None], targets) > 0.1
    assert unattainable_fraction(np.arange(8)[:, None], targets) == 0
