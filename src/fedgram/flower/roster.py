"""Who takes part: what clients say of themselves, held against each other and against the start."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

import fedgram
from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import Payload
from fedgram.runs import Setup, StoredRun
from fedgram.runs.manifest import FEDERATION, Data
from fedgram.theory.moments import Moments

PAUSE = 1.0
"""Seconds between two looks at which nodes there are."""

DOING = {"introduce": "introduce itself", "train": "train", "evaluate": "measure its errors"}
"""What the server asks, in words."""

_CHANGED = "Client '{}' has {} than at the start; give it back what it had, or begin anew."


class Transport(Protocol):
    """How the server reaches the nodes."""

    def nodes(self) -> Sequence[int]:
        """Those that are connected."""

    def ask(self, what: str, letters: Mapping[int, Payload]) -> dict[int, Payload]:
        """Send a letter to each of some nodes; what those answered who did in time."""


class Roster:
    """The clients of a federation in order of name, and the nodes through which they are reached now.

    Once all are there it is closed to others; once a round is finished, and training under way, a client that
    cannot go on is away like one that does not answer.
    """

    def __init__(self, office: Transport, plan: FederationConfig, told: Callable[[str], None]) -> None:
        self.office, self.plan, self.told = office, plan, told
        self.known: dict[str, ClientInfo] = {}
        self.node_of: dict[str, int] = {}
        self.ignored: set[int] = set()
        self.objections: list[str] = []
        self.closed = False
        self.under_way = False

    def recall(self, run: StoredRun) -> None:
        """Take the clients of a run that was begun before."""
        self.known = {member.client: member for member in ClientInfo.stored(run)}
        self.closed, self.under_way = True, run.account.rounds > 0

    def gather(self) -> None:
        """Wait until all clients are there; once training is under way, until one of them is."""
        wanted = 1 if self.under_way else self.plan.clients
        deadline = time.monotonic() + self.plan.patience
        self.refresh()
        while len(self.node_of) < wanted:
            if time.monotonic() > deadline and self.objections:
                raise InputError(" ".join(self.objections), field="client")
            if time.monotonic() > deadline:
                raise InputError(
                    f"Only {len(self.node_of)} of {self.plan.clients} clients are there after "
                    f"{self.plan.patience:g} s ({', '.join(sorted(self.node_of)) or 'none'}); start the "
                    "others, or raise 'patience' if they are slow, and run this again.",
                    field="clients",
                )
            time.sleep(PAUSE)
            self.refresh()
        if len(self.known) > self.plan.clients:
            raise InputError(
                f"There are {len(self.known)} clients ({', '.join(sorted(self.known))}), but the "
                f"configuration says {self.plan.clients}; stop those that do not belong, or correct it.",
                field="clients",
            )
        self.known = dict(sorted(self.known.items()))
        self.closed = True

    def refresh(self) -> None:
        """Ask nodes that are new who they are; a client that was restarted may be at another node."""
        nodes = set(self.office.nodes())
        self.node_of = {client: node for client, node in self.node_of.items() if node in nodes}
        new = nodes - set(self.node_of.values()) - self.ignored
        for node, letter in self.ask("introduce", {node: Payload() for node in sorted(new)}).items():
            self._meet(node, ClientInfo.from_payload(letter))

    def ask(self, what: str, letters: Mapping[int, Payload]) -> dict[int, Payload]:
        """What nodes answer; a client that says why it cannot ends a run that is not yet under way."""
        answers = self.office.ask(what, letters)
        for answer in answers.values():
            if answer.refusal:
                self._object(f"A client could not {DOING[what]}: {answer.refusal}")
        return {node: answer for node, answer in answers.items() if not answer.refusal}

    def unchanged(self, client: str, answer: Payload) -> bool:
        """Whether a client still has the targets that it introduced itself with."""
        same = self.known[client].has(answer)
        if not same:
            self._object(_CHANGED.format(client, "other rows"))
        return same

    def _meet(self, node: int, member: ClientInfo) -> None:
        name, before = member.client, self.known.get(member.client)
        if before is None and self.closed:
            self.ignored.add(node)
            self.told(f"Client '{name}' came after the start, and does not take part.")
            return
        if name in self.node_of and not self.closed:
            raise InputError(f"Two nodes say that they are client '{name}'; rename one.", client=name)
        if before is None:
            self._check_alike(member)
        elif changed := before.changed(member):
            self._object(_CHANGED.format(name, changed))
            return
        if name in self.node_of:
            self.ignored.add(self.node_of[name])  # it was restarted, and the old node is still listed
        self.known[name] = before or member
        self.node_of[name] = node

    def _object(self, sentence: str) -> None:
        """End a run that is not yet under way; after that, tell and go on without the client."""
        if not self.under_way:
            raise InputError(sentence, field="client")
        if sentence not in self.objections:  # it is asked again and again
            self.told(sentence)
            self.objections.append(sentence)

    def _check_alike(self, member: ClientInfo) -> None:
        """Refuse a client with other targets or another network than the first."""
        for first in list(self.known.values())[:1]:
            for what in ("targets", "parameters", "network"):
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
            mean=np.stack([each.own_mean for each in members]),
            covariance=np.stack([each.own_covariance for each in members]),
            clients=self.names,
            targets=members[0].targets,
        )


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, eq=False)
class ClientInfo:
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
    def from_payload(cls, letter: Payload) -> ClientInfo:
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
    def stored(cls, run: StoredRun) -> list[ClientInfo]:
        """The clients of a run as it was begun."""
        setup, moments, (head, bias) = run.setup, run.moments, run.initial
        network = setup.data.targets, setup.parameters, setup.network
        return [
            cls(client, rows, test_rows, *network, moments.mean[m], moments.covariance[m], head, bias)
            for m, (client, rows, test_rows) in enumerate(
                zip(setup.data.clients, setup.data.train_rows, setup.data.test_rows, strict=True)
            )
        ]

    def changed(self, other: ClientInfo) -> str | None:
        """What is different in another introduction; rows as far as target moments tell."""
        if self.rows != other.rows or not self._has(other.own_mean, other.own_covariance):
            return "other rows"
        if self.targets != other.targets:
            return "other targets"
        same = (self.parameters, self.network) == (other.parameters, other.network)
        return None if same else "another network"

    def has(self, answer: Payload) -> bool:
        """Whether an answer came with the moments of this introduction."""
        return self._has(answer.arrays["own_mean"], answer.arrays["own_covariance"])

    def _has(self, mean: Array, covariance: Array) -> bool:
        return np.array_equal(self.own_mean, mean) and np.array_equal(self.own_covariance, covariance)


def setup_of(members: Sequence[ClientInfo], plan: FederationConfig) -> Setup:
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
