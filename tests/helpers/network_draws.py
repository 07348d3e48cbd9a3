"""Runs of the network experiments whose numbers are drawn one by one, so that none of them is another."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cache

import numpy as np

from fedgram.paper.networks.results import Result, RunKey
from fedgram.runs.procedure import Procedure
from fedgram.theory.geometry import psd
from tests.helpers.network_results import result_of

TABULAR = ("beijing", "swimmer", "hopper", "halfcheetah", "walker")
IMAGES = ("mpiigaze", "300w-lp", "dsprites", "3dshapes", "cifar-geo")
ALL = TABULAR + IMAGES


class Runs(dict[RunKey, Result]):
    """Runs, drawn as they are asked for."""

    def one(self, words, setting, seed, epochs=4000, backbone=None, larger=False, rounds=8):
        """The run of a procedure in words."""
        backbone = backbone or ("resmlp" if setting in TABULAR else "resnet18")
        key = RunKey(setting, setting, backbone, Procedure.parse(words), seed, epochs, rounds, larger)
        if key not in self:
            self[key] = drawn(key)
        return self[key]

    def of(self, quantity, words, settings=ALL, seeds=3, **condition):
        """A quantity of the run of every setting and seed: (settings, seeds)."""
        return np.array(
            [
                [quantity(self.one(words, setting, seed, **condition)) for seed in range(seeds)]
                for setting in settings
            ]
        )

    def median(self, quantity, words, settings=ALL, seeds=3, **condition):
        """The median over all settings and seeds."""
        return np.median(self.of(quantity, words, settings, seeds, **condition))


@cache
def some_result() -> Result:
    """What a run has beside the numbers that are drawn."""
    return result_of(RunKey("beijing", "beijing", "resmlp", Procedure(), 0, 4000, 1, False), "paper")


def drawn(key: RunKey) -> Result:
    """The run of a key: errors fall with its epochs, and losses with what selects."""
    rng = np.random.default_rng(zlib.crc32(repr(key).encode()))
    rounds, procedure = key.rounds, key.procedure
    lower = 0.95 if procedure.proximal or procedure.returned == "aligned" else 1.0

    def numbers(*shape):
        return 10 ** rng.uniform(-2, 0, shape) * 1000 / key.epochs

    def losses(*shape):
        return lower * rng.uniform(0.9, 1.1, shape)

    def errors():
        return {name: numbers(rounds + 1) for name in ("within", "barycenter", "centralized")}

    return replace(
        some_result(), **{name: value for name, value in vars(key).items() if name != "rounds"},
        target="centralized" if procedure.corrected else "barycenter",
        barycenter=psd.symmetric(numbers(2, 2)), centralized=psd.symmetric(numbers(2, 2)),
        within=psd.symmetric(numbers(2, 2)), grams=psd.symmetric(numbers(rounds + 1, 2, 2)),
        gap_terms=numbers(3), least_variance=float(numbers()), error=errors(), direction_error=errors(),
        trajectory_error=numbers(rounds + 1), delta=numbers(rounds), objective_gap=numbers(rounds, 4),
        shared_objective=losses(rounds), train_mse=losses(rounds, 3), test_mse=losses(rounds, 3),
    )  # fmt: skip
