"""Track connected clients and reject inconsistent ones."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.version import __version__
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import GridTransport, Payload
from fedgram.runs import Setup, StoredRun
from fedgram.runs.manifest import FEDERATION, Data
from fedgram.theory.moments import Moments

POLL_INTERVAL = 1.0
"""Seconds between two queries of the node list."""

CHANGED = "Client '{}' changed its {} after the start. Undo the change or start a new run."

log = logging.getLogger("flwr")


@dataclass(frozen=True, eq=False)
class ClientInfo:
    """A client's description of itself.

    own_mean μ_m (C,) and own_covariance Σ_m (C, C) of its targets; initial head (C, P) and bias (C,), which
    depend on the seed only; `network` is a fingerprint.
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
    def from_payload(cls, payload: Payload) -> ClientInfo:
        """Read a description; reject other versions of fedgram."""
        values = {**payload.metadata, **payload.arrays}
        version = values.get("version")
        if version != __version__:
            raise InputError(
                f"Client '{values.get('client')}' runs fedgram {version}, but the server runs "
                f"{__version__}. Install the same version.",
                field="version",
            )
        values["targets"] = tuple(values["targets"])
        return cls(**{each.name: values[each.name] for each in fields(cls)})

    def find_change(self, other: ClientInfo) -> str | None:
        """Compare with a later description; changed rows show in the target moments only."""
        if self.rows != other.rows or not self.has_moments(other.own_mean, other.own_covariance):
            return "rows"
        if self.targets != other.targets:
            return "targets"
        is_same = (self.parameters, self.network) == (other.parameters, other.network)
        return None if is_same else "network"

    def has_moments(self, mean: Array, covariance: Array) -> bool:
        """Whether the target moments are exactly these."""
        return np.array_equal(self.own_mean, mean) and np.array_equal(self.own_covariance, covariance)


class Roster:
    """The clients of a federation, sorted by name, and the nodes that they run on.

    Clients cannot join after the start (`is_closed`). Until the first round is finished (`has_trained`), an
    inconsistent client stops the run; later it counts as absent.
    """

    def __init__(self, transport: GridTransport, config: FederationConfig) -> None:
        self.transport, self.config = transport, config
        self.clients: dict[str, ClientInfo] = {}
        self.node_of: dict[str, int] = {}
        self.ignored_nodes: set[int] = set()
        self.problems: list[str] = []
        self.is_closed = False
        self.has_trained = False

    @property
    def names(self) -> tuple[str, ...]:
        """All client names, sorted."""
        return tuple(self.clients)

    @property
    def moments(self) -> Moments:
        """Target moments of all clients."""
        clients = list(self.clients.values())
        return Moments(
            count=np.array([each.rows for each in clients], dtype=np.float64),
            mean=np.stack([each.own_mean for each in clients]),
            covariance=np.stack([each.own_covariance for each in clients]),
            clients=self.names,
            targets=clients[0].targets,
        )

    def build_setup(self) -> Setup:
        """Build the setup of the run; target moments and the row selection identify the rows."""
        clients, config = list(self.clients.values()), self.config
        content = hashlib.sha256(json.dumps(config.row_selection).encode())
        for each in clients:
            content.update(f"{each.client} {each.rows} {each.targets} ".encode())
            content.update(each.own_mean.tobytes() + each.own_covariance.tobytes())
        first = clients[0]
        data = Data(
            name=config.name,
            kind=config.kind,
            digest=content.hexdigest(),
            targets=first.targets,
            clients=self.names,
            train_rows=tuple(each.rows for each in clients),
            test_rows=tuple(each.test_rows for each in clients),
            provenance={"trained by": FEDERATION, **config.row_selection},
        )
        network = config.backbone, first.parameters, first.network
        return Setup(config.run.procedure, config.run.seed, config.settings, *network, data)

    def load(self, run: StoredRun) -> None:
        """Take the clients of a stored run."""
        setup, moments, (head, bias) = run.setup, run.moments, run.initial
        network = setup.data.targets, setup.parameters, setup.network
        rows = zip(setup.data.clients, setup.data.train_rows, setup.data.test_rows, strict=True)
        self.clients = {
            client: ClientInfo(
                client, train, test, *network, moments.mean[m], moments.covariance[m], head, bias
            )
            for m, (client, train, test) in enumerate(rows)
        }
        self.is_closed, self.has_trained = True, run.account.rounds > 0

    def wait_for_clients(self) -> None:
        """Wait for all clients, or for one if the first round is finished."""
        wanted = 1 if self.has_trained else self.config.clients
        deadline = time.monotonic() + self.config.reply_timeout
        self.refresh()
        while len(self.node_of) < wanted:
            if time.monotonic() > deadline:
                raise InputError(
                    " ".join(self.problems)
                    or f"Only {len(self.node_of)} of {self.config.clients} clients connected within "
                    f"{self.config.reply_timeout:g} s: {', '.join(sorted(self.node_of)) or 'none'}. Start "
                    "the others or raise 'reply-timeout', and run again.",
                    field="clients",
                )
            time.sleep(POLL_INTERVAL)
            self.refresh()
        if len(self.clients) > self.config.clients:
            raise InputError(
                f"{len(self.clients)} clients connected, but the run config has clients = "
                f"{self.config.clients}: {', '.join(sorted(self.clients))}. Stop the extra ones or change "
                "'clients'.",
                field="clients",
            )
        self.clients = dict(sorted(self.clients.items()))
        self.is_closed = True

    def refresh(self) -> None:
        """Query new nodes; a restarted client may have another node."""
        nodes = set(self.transport.node_ids())
        self.node_of = {client: node for client, node in self.node_of.items() if node in nodes}
        new = nodes - set(self.node_of.values()) - self.ignored_nodes
        for node, reply in self.send("query", {node: Payload() for node in sorted(new)}).items():
            self._register(node, ClientInfo.from_payload(reply))

    def send(self, message_type: str, payloads: Mapping[int, Payload]) -> dict[int, Payload]:
        """Send payloads and return the replies that report no error, by node."""
        replies = self.transport.send(message_type, payloads)
        for reply in replies.values():
            if reply.error:
                self._report(f"A client rejected the '{message_type}' message: {reply.error}")
        return {node: reply for node, reply in replies.items() if not reply.error}

    def has_same_rows(self, client: str, reply: Payload) -> bool:
        """Whether a training reply has the target moments of the start."""
        is_same = self.clients[client].has_moments(reply.arrays["own_mean"], reply.arrays["own_covariance"])
        if not is_same:
            self._report(CHANGED.format(client, "rows"))
        return is_same

    def _register(self, node: int, info: ClientInfo) -> None:
        name, known = info.client, self.clients.get(info.client)
        if known is None and self.is_closed:
            self.ignored_nodes.add(node)
            log.warning("Client '%s' connected after the start; ignoring it.", name)
            return
        if name in self.node_of and not self.is_closed:
            raise InputError(f"Two nodes have the client name '{name}'. Rename one.", client=name)
        if known is None:
            self._check_consistent(info)
        elif change := known.find_change(info):
            self._report(CHANGED.format(name, change))
            return
        if name in self.node_of:
            self.ignored_nodes.add(
                self.node_of[name]
            )  # the client restarted, but its old node is still listed
        self.clients[name] = known or info
        self.node_of[name] = node

    def _check_consistent(self, info: ClientInfo) -> None:
        """Reject a client whose targets or network differ from the first client's."""
        for first in list(self.clients.values())[:1]:
            for field in ("targets", "parameters", "network"):
                ours, theirs = getattr(first, field), getattr(info, field)
                if ours != theirs:
                    raise InputError(
                        f"Clients '{first.client}' and '{info.client}' differ in {field}: {_format(ours)} "
                        f"and {_format(theirs)}. All clients need the same.",
                        client=info.client,
                        field=field,
                    )

    def _report(self, problem: str) -> None:
        """Stop before the first round is finished; later, log each problem once."""
        if not self.has_trained:
            raise InputError(problem, field="client")
        if problem not in self.problems:
            log.warning(problem)
            self.problems.append(problem)


def _format(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
