"""Results of every network experiment, as if trained: the exact recursion with a little noise."""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np

from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import Cohort
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.scales import SCALES
from fedgram.paper.networks.settings import ALL, SETTINGS, Source
from fedgram.runs.expectation import expectation, references
from fedgram.runs.measure import direction_error
from fedgram.theory.explain import explain
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import trajectory
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import predict
from tests.helpers.instances import random_moments

KINDS = dict.fromkeys(ALL, "REAL") | dict.fromkeys(ALL[1:5], "GENERATED") | {"dsprites": "RE-RENDERED"}
NOISE = {"trained": 3e-2, "aligned": 2e-4, "solved": 5e-5}
COHORTS = [each for each in vars(cohorts).values() if isinstance(each, Cohort)]


@cache
def prediction_of(setting: str):
    """The theory of a setting's clients, drawn at random."""
    rng = np.random.default_rng(zlib.crc32(setting.encode()))
    return predict(random_moments(rng, clients=4, size=SETTINGS[setting].targets), Penalty())


@cache
def gap_terms_of(setting: str):
    """Traces of the three terms of a setting's gap."""
    return explain(prediction_of(setting)).traces


@cache
def expectation_of(setting: str, procedure):
    """Where a procedure ends in a setting."""
    return expectation(prediction_of(setting), procedure)


@cache
def exact_grams(setting: str, procedure, seed: int, rounds: int):
    """The exact recursion from a seed's start, which is the same for every number of epochs."""
    rng = np.random.default_rng([zlib.crc32(setting.encode()), seed])
    expected = expectation_of(setting, procedure)
    head = 0.3 * rng.standard_normal((expected.grams.shape[-1], 8))
    return trajectory(head, expected.grams, expected.client_weights, rounds)


def result_of(key, scale: str) -> Result:
    """What a run of this key might have found."""
    rng = np.random.default_rng(zlib.crc32(repr(key).encode()))
    prediction, rounds = prediction_of(key.setting), key.rounds
    expected = expectation_of(key.setting, key.procedure)
    exact = exact_grams(key.setting, key.procedure, key.seed, rounds)
    grams = exact + noise_of(key) * psd.symmetric(rng.uniform(-0.5, 0.5, exact.shape))
    known = references(prediction)
    clients, better = len(expected.grams), key.procedure.returned == "aligned"
    return Result(
        setting=key.setting, dataset=key.dataset, kind=KINDS[key.setting], backbone=key.backbone,
        procedure=key.procedure, seed=key.seed, epochs=key.epochs, precision="tf32", scale=scale,
        larger=key.larger,
        target=expected.target, **known, gap_terms=gap_terms_of(key.setting), grams=grams,
        returned_grams=np.broadcast_to(expected.grams, (rounds, *expected.grams.shape)),
        client_grams=prediction.grams,
        error={name: psd.relative_error(grams, gram) for name, gram in known.items()},
        direction_error={name: direction_error(grams, gram) for name, gram in known.items()},
        trajectory_error=psd.relative_error(grams, exact),
        delta=noise_of(key) * rng.uniform(0.5, 2, rounds),
        objective_gap=1e-5 * rng.uniform(0.5, 2, (rounds, clients)),
        shared_objective=rng.uniform(0.9, 1.0, rounds) * (0.85 if better else 1.0),
        train_mse=1e-3 * rng.uniform(0.9, 1.1, (rounds, 3)),
        test_mse=mse_of(key.procedure) * rng.uniform(0.95, 1.05, (rounds, 3)),
        train_rows=SETTINGS[key.setting].size.rows, test_rows=1_000,
        seconds=0.02 * key.epochs * rng.uniform(0.9, 1.1), device="cuda", hardware="NVIDIA H200",
        models_in_stack=40, least_variance=float(prediction.activity.eigenvalue.min()),
    )  # fmt: skip


def noise_of(key) -> float:
    """Relative error of a run: falls with local epochs, and with what selects."""
    procedure, weight = key.procedure, key.procedure.proximal
    base = NOISE[procedure.returned]
    if weight:
        base = 3e-4 * (1 + 0.1 * abs(np.log10(weight / 1e-3)) * 10 ** abs(np.log10(weight / 1e-3)))
    return float(base * (4000 / key.epochs) ** 0.7)


def mse_of(procedure):
    """Test MSE under each rule for the bias: (3,)."""
    if procedure.centralized:
        return np.full(3, 0.02)
    return np.array([0.3 if procedure.returned == "solved" else 0.08, 0.05, 0.022])


@cache
def all_results(scale: str = "paper") -> Results:
    """Every run of every cohort at a scale."""
    sources = {
        (name, larger): Source(SETTINGS[name].sources[-1].dataset) for name in ALL for larger in (0, 1)
    }
    keys = {key for cohort in COHORTS for key in cohort.keys(SCALES[scale], sources)}
    return Results(result_of(key, scale) for key in sorted(keys, key=repr))
