"""The examples in docstrings of the public training API run."""

import doctest

import pytest

from fedgram import (
    FederatedRegressor,
    Plan,
    Procedure,
    Runs,
    StoredRun,
    TrainConfig,
    advise,
    measure,
    predict_rows,
    train,
)

PUBLIC = (
    FederatedRegressor, Plan, Procedure, Runs, StoredRun, TrainConfig, advise, measure, predict_rows,
    train,
)  # fmt: skip


@pytest.mark.parametrize("thing", PUBLIC, ids=lambda thing: thing.__name__)
def test_examples_run(thing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = [each for each in doctest.DocTestFinder(recurse=False).find(thing) if each.examples]
    assert not doctest.DocTestRunner().run(example).failed
