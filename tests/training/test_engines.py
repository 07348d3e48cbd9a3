"""Training on a Ray cluster gives the results of training in one process."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedgram import InputError
from fedgram.runs import Runs
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.training.engines import _divide, run_tasks

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed.")


def test_unknown_engines_and_a_missing_ray_are_named(monkeypatch):
    with pytest.raises(InputError, match=r"Unknown engine: 'spark'\. Engines are local, ray"):
        run_tasks("spark", lambda task, shared: task, [1], None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"needs Ray\. Install it with pip"):
        run_tasks("ray", lambda task, shared: task, [1], None)


def test_local_tasks_run_in_order():
    assert run_tasks("local", lambda task, shared: task + shared, [3, 1, 2], 10) == [13, 11, 12]


def test_runs_are_divided_by_seed_or_by_procedure():
    plain, aligned = Procedure(), Procedure(returned="aligned")
    both = [Run(procedure, seed) for procedure in (plain, aligned) for seed in (0, 1)]
    assert _divide(both) == [(both[0], both[2]), (both[1], both[3])]
    assert _divide(both[::2]) == [(both[0],), (both[2],)]


def fedgram(*arguments):
    """Run the command in a process of its own: Ray leaves files open, which is an error in this one."""
    words = [Path(sys.executable).with_name("fedgram"), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@needs_ray
@pytest.mark.slow
def test_a_cluster_trains_the_same_runs(tmp_path):
    options = [
        "--procedure",
        "ordinary,solved",
        "--seeds",
        "2",
        "--backbone",
        "resmlp-small",
        "--rounds",
        "2",
    ]
    options += ["--features", "8", "--epochs", "2", "--device", "cpu"]
    for engine in ("local", "ray"):
        done = fedgram("train", "swimmer-mini", *options, "--engine", engine, "--out", tmp_path / engine)
        assert done.returncode == 0, done.stderr
    ours, theirs = (Runs(tmp_path / engine) for engine in ("local", "ray"))
    assert [run.setup.run for run in theirs] == [run.setup.run for run in ours]
    assert len(list(ours)) == 4
    for own, other in zip(ours, theirs, strict=True):
        for first, second in zip(own.rounds(), other.rounds(), strict=True):
            np.testing.assert_allclose(first.head, second.head, rtol=1e-5, atol=1e-7)
    done = fedgram("train", "swimmer-mini", *options, "--features", "1", "--engine", "ray", "--out", tmp_path)
    assert done.returncode == 2
    assert "too small for" in done.stderr


@needs_ray
@pytest.mark.slow
def test_a_cluster_gives_the_same_advice():
    options = ["--rounds", "2", "--seeds", "2", "--json"]
    ours, theirs = (
        json.loads(fedgram("advise", "beijing-stations", *options, "--engine", engine).stdout)
        for engine in ("local", "ray")
    )
    assert ours["exchanged"] == theirs["exchanged"]
    for first, second in zip(ours["procedures"], theirs["procedures"], strict=True):
        assert first["name"] == second["name"]
        assert first["standardized_mse"] == pytest.approx(second["standardized_mse"], rel=1e-5)
