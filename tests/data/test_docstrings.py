"""Examples in the docstrings of the public API run."""

import doctest

import pytest

from fedgram.data import problem, splits
from fedgram.data.tables import read_moments


@pytest.mark.parametrize(("module", "examples"), [(problem, 3), (splits, 3), (read_moments, 5)])
def test_examples_run(module, examples):
    assert doctest.testmod(module) == (0, examples)
