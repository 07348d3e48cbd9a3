"""A client as the server knows it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

import fedgram
from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.flower.letter import Letter
from fedgram.flower.plan import Plan
from fedgram.runs import Setup, StoredRun
from fedgram.runs.manifest import FEDERATION, Data


@dataclass(frozen=True, eq=False)
class Member:
    """A client as it introduced itself: N_m, μ_m (C,) and Σ_m (C, C) of its targets, and its beginnings.

    head (C, P) and bias (C,) are those that the seed draws, the same for all; network is a fingerprint.
    """

    client: str
    rows: int
    test_rows: int
    targets: tuple[str, ...]
    parameters: int
    network: str
    own_mean: Array
    own_covariance: Array
    head: Array
    bias: Array

    @classmethod
    def of(cls, letter: Letter) -> Member:
        """The client of an introduction, which has to come from the same version."""
        given = {**letter.words, **letter.arrays}
        version = given.get("version")
        if version != fedgram.__version__:
            raise InputError(
                f"Client '{given.get('client')}' runs fedgram {version}, and the server "
                f"{fedgram.__version__}; install the same.",
                field="version",
            )
        given["targets"] = tuple(given["targets"])
        return cls(**{each.name: given[each.name] for each in fields(cls)})

    @classmethod
    def stored(cls, run: StoredRun) -> list[Member]:
        """The clients of a run as it was begun."""
        setup, moments, (head, bias) = run.setup, run.moments, run.initial
        network = setup.data.targets, setup.parameters, setup.network
        return [
            cls(client, rows, test_rows, *network, moments.mean[m], moments.covariance[m], head, bias)
            for m, (client, rows, test_rows) in enumerate(
                zip(setup.data.clients, setup.data.train_rows, setup.data.test_rows, strict=True)
            )
        ]

    def changed(self, other: Member) -> str | None:
        """What is different in another introduction; rows as far as target moments tell."""
        if self.rows != other.rows or not self._has(other.own_mean, other.own_covariance):
            return "other rows"
        if self.targets != other.targets:
            return "other targets"
        same = (self.parameters, self.network) == (other.parameters, other.network)
        return None if same else "another network"

    def has(self, answer: Letter) -> bool:
        """Whether an answer came with the moments of this introduction."""
        return self._has(answer.arrays["own_mean"], answer.arrays["own_covariance"])

    def _has(self, mean: Array, covariance: Array) -> bool:
        return np.array_equal(self.own_mean, mean) and np.array_equal(self.own_covariance, covariance)


def setup_of(members: Sequence[Member], plan: Plan) -> Setup:
    """What makes the run of these clients.

    Target moments and what the configuration says of rows stand for the rows themselves, which nobody sees.
    """
    content = hashlib.sha256(json.dumps(plan.rows).encode())
    for each in members:
        content.update(f"{each.client} {each.rows} {each.targets} ".encode())
        content.update(each.own_mean.tobytes() + each.own_covariance.tobytes())
    first = members[0]
    data = Data(
        name=plan.name,
        kind=plan.kind,
        digest=content.hexdigest(),
        targets=first.targets,
        clients=tuple(each.client for each in members),
        train_rows=tuple(each.rows for each in members),
        test_rows=tuple(each.test_rows for each in members),
        provenance={"trained by": FEDERATION, **plan.rows},
    )
    network = plan.backbone, first.parameters, first.network
    return Setup(plan.run.procedure, plan.run.seed, plan.settings, *network, data)
