"""Examples in the docstrings of the public API run."""

import doctest

import pytest

from fedgram.data import encoding, holdout, missing_values, problem, site_summary, splits
from fedgram.data.tables import read_moments, read_site_problem, read_site_tables

MODULES = (
    problem, splits, read_moments, encoding, site_summary, holdout, read_site_tables, read_site_problem,
    missing_values,
)  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_run(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
