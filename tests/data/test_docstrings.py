"""Examples in the docstrings of the public API run."""

import doctest

import pytest

from fedgram.data import encoding, holdout, missing_values, problem, site_summary, splits
from fedgram.data.tables import read_moments, read_site_problem, read_site_tables


@pytest.mark.parametrize(
    ("module", "examples"),
    [
        (problem, 4), (splits, 3), (read_moments, 5), (encoding, 6), (site_summary, 3), (holdout, 7),
        (read_site_tables, 4), (read_site_problem, 4), (missing_values, 2),
    ],
)  # fmt: skip
def test_examples_run(module, examples):
    assert doctest.testmod(module) == (0, examples)
