"""A federation that trains in a blink, and runs on disk that follow theory exactly."""

from __future__ import annotations

import json

import numpy as np
from torch import nn

from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.runs import Account, Runs, Setup, StoredRun
from fedgram.runs.expectation import expectation
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Round
from fedgram.runs.tensor_files import read_arrays
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.geometry.barycenter import next_head
from fedgram.theory.geometry.psd import closest_factor
from fedgram.theory.predict import predict, profiled_objective
from fedgram.training import train
from fedgram.training.trainer import summarize

SETTINGS = TrainConfig(rounds=3, epochs=2, batch=16, features=6, precision="fp64", learning_rate=1e-2)
PROCEDURES = ("ordinary", "solved+corrected+offset")


def small_problem(rows=(24, 20, 16), columns=4, targets=2):
    """Clients that differ in size, mean and covariance; the last one has no test rows."""
    rng = np.random.default_rng(5)
    slope = rng.standard_normal((columns, targets))

    def split(client, count):
        inputs = rng.standard_normal((count, columns))
        return Split(inputs, (1 + client) * np.tanh(inputs @ slope) + 0.4 * client)

    train = {f"site {m}": split(m, count) for m, count in enumerate(rows)}
    test = {f"site {m}": split(m, (5, 3, 0)[m]) for m in range(len(rows))}
    return Problem("small", "GENERATED", train, test, tuple("xyz"[:targets]), {"made": "by a test"})


def net():
    """A backbone of our own."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh())


def trained(folder, procedures=PROCEDURES, seeds=(0, 1), settings=SETTINGS, problem=None, **options):
    """Train into a folder."""
    return train(problem or small_problem(), net, procedures, seeds, settings, folder=folder, **options)


def contents(folder):
    """All that runs found, by file and name."""
    return {
        (str(path.relative_to(folder)), name): array
        for path in sorted(folder.rglob("*.safetensors"))
        for name, array in read_arrays(path).items()
    }


def assert_same_contents(folder, other):
    """Every array of every file is the same to the bit, and every setup."""
    ours, theirs = contents(folder), contents(other)
    assert list(ours) == list(theirs)
    for place, array in ours.items():
        np.testing.assert_array_equal(array, theirs[place], err_msg=str(place), strict=True)
    for path in folder.rglob("manifest.json"):
        setups = [
            json.loads((root / path.relative_to(folder)).read_text())["setup"] for root in (folder, other)
        ]
        assert setups[0] == setups[1]


def exact_run(folder, procedure="ordinary", rounds=12, targets=2, features=5, seed=0):
    """A stored run whose clients select exactly: heads by theory, everything else at its optimum."""
    problem, procedure = small_problem(targets=targets), Procedure.parse(procedure)
    settings = TrainConfig(rounds=rounds, epochs=1, features=features)
    setup = Setup(procedure, seed, settings, "none", 0, "none", summarize(problem))
    account = Account((1.0,) * rounds, 1, "cpu", "a machine", 1, {})
    stored = StoredRun(Runs(folder).folder_of(setup), setup, account)
    expected = expectation(predict(problem.moments, settings.penalty), procedure)
    head = np.random.default_rng(seed).standard_normal((targets, features))
    stored.begin(problem.moments, head, np.zeros(targets))
    clients = len(expected.grams)
    pooled = problem.moments.pooled.covariance[None]
    covariances = pooled if procedure.centralized else problem.moments.covariance
    for number in range(1, rounds + 1):
        returned = closest_factor(head, expected.grams)
        objective = profiled_objective(returned, covariances, settings.penalty)
        head = next_head(head, expected.grams, expected.client_weights)
        errors = np.arange(1.0, 1 + clients)[:, None] * np.array([1.0, 2.0, 3.0]) / number
        stored.record(
            Round(
                number, head, np.zeros(targets), returned, np.zeros((clients, targets)),
                objective, objective, errors, errors, np.zeros(clients),
                np.zeros(clients),
            )
        )  # fmt: skip
    return stored
