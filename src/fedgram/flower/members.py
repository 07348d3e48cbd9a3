"""Who takes part: what clients say of themselves, held against each other and against the start."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedgram.errors import InputError
from fedgram.flower.letter import Letter
from fedgram.flower.plan import Plan
from fedgram.moments import Moments
from fedgram.psd import Array
from fedgram.runs.manifest import Data, Setup

PAUSE = 1.0
"""Seconds between two looks at which nodes there are."""


class Office(Protocol):
    """How the server reaches the nodes."""

    def nodes(self) -> Sequence[int]:
        """Those that are connected."""

    def ask(self, what: str, letters: Mapping[int, Letter]) -> dict[int, Letter]:
        """Send a letter to each of some nodes; what those answered who did in time."""


@dataclass(frozen=True, eq=False)
class Member:
    """A client as it introduced itself: N_m, μ_m (C,) and Σ_m (C, C) of its targets, and its beginnings.

    head (C, P) and bias (C,) are those that the seed draws, the same for all.
    """

    client: str
    rows: int
    test_rows: int
    targets: tuple[str, ...]
    backbone: str
    parameters: int
    network: str
    digest: str
    mean: Array
    covariance: Array
    head: Array
    bias: Array

    @classmethod
    def of(cls, letter: Letter) -> Member:
        """The client of an introduction."""
        words: dict[str, Any] = {**letter.words, **letter.arrays}
        return cls(**words | {"targets": tuple(words["targets"])})


class Members:
    """The clients of a federation in order of name, and the nodes through which they are reached now.

    Once all are there it is closed to others; once a round is finished, and training under way, a client that
    cannot go on is away like one that does not answer.
    """

    def __init__(self, office: Office, plan: Plan, told: Callable[[str], None]) -> None:
        self.office, self.plan, self.told = office, plan, told
        self.known: dict[str, Member] = {}
        self.node_of: dict[str, int] = {}
        self.strangers: set[int] = set()
        self.closed = False
        self.under_way = False

    def gather(self) -> None:
        """Wait until all clients have introduced themselves; from then on no other is let in."""
        deadline = time.monotonic() + self.plan.patience
        while True:
            self.refresh()
            if len(self.known) >= self.plan.clients:
                break
            if time.monotonic() > deadline:
                raise InputError(
                    f"Only {len(self.known)} of {self.plan.clients} clients are there after "
                    f"{self.plan.patience:g} s ({', '.join(sorted(self.known)) or 'none'}); start the "
                    "others, and run this again.",
                    field="clients",
                )
            time.sleep(PAUSE)
        self.known = dict(sorted(self.known.items()))
        self.closed = True

    def refresh(self) -> None:
        """Ask nodes that are new who they are; a client that was restarted may be at another node."""
        nodes = set(self.office.nodes())
        self.node_of = {client: node for client, node in self.node_of.items() if node in nodes}
        new = nodes - set(self.node_of.values()) - self.strangers
        for node, letter in self.ask("introduce", {node: Letter() for node in sorted(new)}).items():
            self._meet(node, Member.of(letter))

    def ask(self, what: str, letters: Mapping[int, Letter]) -> dict[int, Letter]:
        """What nodes answer; a client that says why it cannot ends a run that is not yet under way."""
        answers = self.office.ask(what, letters)
        names = {node: f"Client '{client}'" for client, node in self.node_of.items()}
        for node, answer in answers.items():
            if answer.refusal:
                sentence = f"{names.get(node, 'A client')} could not {what}: {answer.refusal}"
                if not self.under_way:
                    raise InputError(sentence, field=what)
                self.told(sentence)
        return {node: answer for node, answer in answers.items() if not answer.refusal}

    def _meet(self, node: int, member: Member) -> None:
        name, before = member.client, self.known.get(member.client)
        if name in self.node_of:
            raise InputError(f"Two nodes say that they are client '{name}'; rename one.", client=name)
        if before is None and self.closed:
            self.strangers.add(node)
            self.told(f"Client '{name}' came after the start, and does not take part.")
            return
        if before is None:
            self._check_alike(member)
        elif before.digest != member.digest:
            raise InputError(
                f"Client '{name}' has other rows than at the start; give it back its rows, or begin anew.",
                client=name,
            )
        self.known[name] = before or member
        self.node_of[name] = node

    def _check_alike(self, member: Member) -> None:
        """Refuse a client whose head could not be averaged with those of the others."""
        for first in list(self.known.values())[:1]:
            for what in ("targets", "backbone", "parameters"):
                ours, theirs = getattr(first, what), getattr(member, what)
                if ours != theirs:
                    raise InputError(
                        f"Client '{member.client}' has {what} {_shown(theirs)}, but client '{first.client}' "
                        f"{_shown(ours)}; all clients need the same.",
                        client=member.client,
                        field=what,
                    )

    @property
    def names(self) -> tuple[str, ...]:
        """All clients, in order."""
        return tuple(self.known)

    @property
    def moments(self) -> Moments:
        """Of all clients' targets."""
        members = list(self.known.values())
        return Moments(
            count=np.array([each.rows for each in members], dtype=np.float64),
            mean=np.stack([each.mean for each in members]),
            covariance=np.stack([each.covariance for each in members]),
            clients=self.names,
            targets=members[0].targets,
        )

    @property
    def setup(self) -> Setup:
        """What makes the run."""
        members, plan = list(self.known.values()), self.plan
        digests = "".join(each.digest for each in members)
        data = Data(
            name=plan.name,
            kind=plan.kind,
            digest=hashlib.sha256(digests.encode()).hexdigest(),
            targets=members[0].targets,
            clients=self.names,
            train_rows=tuple(each.rows for each in members),
            test_rows=tuple(each.test_rows for each in members),
            provenance={"trained by": "a Flower federation"},
        )
        first = members[0]
        network = first.backbone, first.parameters, first.network
        return Setup(plan.run.procedure, plan.run.seed, plan.settings, *network, data)


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
