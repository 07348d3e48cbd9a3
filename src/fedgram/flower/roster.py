"""Track connected clients, and refuse replies that fail a check."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import numpy as np
from flwr.app import RecordDict

from fedgram._util.errors import InputError
from fedgram._util.files import read_json
from fedgram.flower.checks import DivergedError
from fedgram.flower.config import FederationConfig
from fedgram.flower.identity import verify_signature
from fedgram.flower.introduction import ClientInfo, find_distant_columns, read_introduction
from fedgram.flower.messages import (
    QUERY,
    GridTransport,
    Payload,
    RejectedReplyError,
    log,
    read_reply,
    reply_format,
)
from fedgram.flower.scaling import Scaling, name_inputs
from fedgram.flower.server_state import SCALING, ServerState, Standing
from fedgram.runs import Setup, StoredRun
from fedgram.runs.audit import ACCEPTED, REFUSED, AuditLog
from fedgram.runs.manifest import FEDERATION, VALIDATION_ROWS, Data
from fedgram.runs.readmission import READMIT
from fedgram.theory.moments import Moments

POLL_INTERVAL = 1.0
"""Seconds between two queries of the node list."""

RETRY_INTERVAL = 30.0
"""Seconds until a refused node is asked again: a message starts a process at the site."""

Check = Callable[[str, Payload], None]
"""Raises RejectedReplyError for a client's reply that must not count."""

Compare = Callable[[Mapping[str, Payload]], Mapping[str, str]]
"""Compares the replies of all clients that passed their checks; returns why some must not count."""

CHANGED = "it changed its {} after the start. Undo the change or start a new run"
WRONG_KEY = "another key than at the first exchange"


class ReportedError(Exception):
    """A failure that the client itself reports; it does not count as a refused reply."""


class Roster:
    """The clients of a federation, sorted by name, and the nodes that they run on.

    Clients cannot join after the start (`is_closed`). A client whose reply is refused counts as absent, and
    after `max_rejections` refused replies it is suspended.
    """

    def __init__(
        self, transport: GridTransport, config: FederationConfig, state: ServerState, audit: AuditLog
    ) -> None:
        self.transport, self.config, self.state, self.audit = transport, config, state, audit
        self.clients: dict[str, ClientInfo] = {}
        self.node_of: dict[str, int] = {}
        self.ignored_nodes: set[int] = set()
        self.refused_nodes: dict[int, float] = {}
        self.problems: list[str] = []
        self.is_closed = False
        self.has_trained = False

    @property
    def names(self) -> tuple[str, ...]:
        """All client names, sorted."""
        return tuple(self.clients)

    @property
    def active(self) -> dict[str, int]:
        """Nodes of the connected clients that are not suspended."""
        return {name: node for name, node in self.node_of.items() if not self.state.is_suspended(name)}

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
        first, rows = clients[0], sum(each.validation_rows for each in clients)
        validation = {VALIDATION_ROWS: rows} if rows else {}
        data = Data(
            name=config.name,
            kind=config.kind,
            digest=content.hexdigest(),
            targets=first.targets,
            clients=self.names,
            train_rows=tuple(each.rows for each in clients),
            test_rows=tuple(each.test_rows for each in clients),
            provenance={"trained by": FEDERATION, **config.row_selection, **validation},
        )
        network, run = (config.backbone, first.parameters, first.network), config.run
        return Setup(run.procedure, run.seed, config.settings, *network, data, config.aggregation.name)

    def load(self, run: StoredRun) -> None:
        """Take the clients of a stored run."""
        setup, moments = run.setup, run.moments
        sizes = self.state.sizes
        network = setup.data.targets, setup.parameters, setup.network, sizes["D"], sizes["S"]
        validation = {client: each.validation_rows for client, each in self.state.standings.items()}
        rows = zip(setup.data.clients, setup.data.train_rows, setup.data.test_rows, strict=True)
        self.clients = {
            client: ClientInfo(
                client, train, test, validation.get(client, 0), *network, moments.mean[m],
                moments.covariance[m],
            )
            for m, (client, train, test) in enumerate(rows)
        }  # fmt: skip
        self.is_closed, self.has_trained = True, run.account.rounds > 0

    def wait_for_clients(self) -> None:
        """Wait for all clients, or for one if the first round is finished."""
        wanted = 1 if self.has_trained else self.config.clients
        deadline = time.monotonic() + self.config.reply_timeout
        self.refresh()
        while len(self.active if self.has_trained else self.node_of) < wanted:
            if time.monotonic() > deadline:
                connected = ", ".join(sorted(self.node_of)) or "none"
                start_others = "Start the others or raise 'reply-timeout', and run again."
                remedy = " ".join(self.problems) or start_others
                raise InputError(
                    f"Only {len(self.node_of)} of {self.config.clients} clients connected within "
                    f"{self.config.reply_timeout:g} s: {connected}. {remedy}",
                    field="clients",
                )
            self._check_refusals()
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
        self.state.standings = {
            name: each for name, each in self.state.standings.items() if name in self.clients
        }
        first = next(iter(self.clients.values()))
        self.state.sizes = {"D": first.width, "S": first.backbone_size}
        if self.config.standardize and self.scaling is None:
            self._standardize()
        self.is_closed = True

    def _check_refusals(self) -> None:
        """Stop if all clients of the run are connected and none can take part; asking again is useless."""
        refused = self.refused_nodes.keys() & set(self.transport.node_ids())
        if not self.clients and len(refused) >= self.config.clients:
            raise InputError(
                f"None of {len(refused)} connected sites can take part. {' '.join(self.problems)} Correct "
                "the run config or the sites, and run again.",
                field="clients",
            )

    @property
    def scaling(self) -> Scaling | None:
        """Pooled means and scales of all columns, known when all clients are."""
        return Scaling.from_arrays(self.state.own.get((SCALING, 0), {}))

    def _standardize(self) -> None:
        """Pool the columns of all clients, and convert their moments."""
        infos = list(self.clients.values())
        for client, reason in find_distant_columns(self.clients).items():
            self._report(f"The moments of client '{client}' are in doubt: {reason}.")
            self.audit.append("doubt", client=client, reason=reason)
        scaling = Scaling.pool([each.columns for each in infos], infos[0].inputs)
        if constant := scaling.describe_constants(name_inputs(self.config.row_selection, infos[0].inputs)):
            log.warning(constant)
        self.state.own[SCALING, 0] = scaling.to_arrays()
        self.clients = {name: info.standardize(scaling) for name, info in self.clients.items()}

    def refresh(self) -> None:
        """Readmit clients, and query new nodes; a restarted client may have another node."""
        self._readmit(self.audit.path.with_name(READMIT))
        nodes, now = set(self.transport.node_ids()), time.monotonic()
        self.node_of = {client: node for client, node in self.node_of.items() if node in nodes}
        if not self.is_closed:  # who leaves before the start does not take part
            self.clients = {client: info for client, info in self.clients.items() if client in self.node_of}
        waiting = {node for node, asked in self.refused_nodes.items() if now - asked < RETRY_INTERVAL}
        new = sorted(nodes - set(self.node_of.values()) - self.ignored_nodes - waiting)
        payload = Payload(metadata={"nonce": token_hex(16)})
        for node, records in self.transport.send(QUERY, dict.fromkeys(new, payload)).items():
            try:
                reply = self._read(QUERY, records, payload)
                self._register(node, reply)
            except (RejectedReplyError, ReportedError) as error:
                self.refused_nodes[node] = now
                is_refused = isinstance(error, RejectedReplyError)
                self._report(
                    f"Refused node {node}: {error}."
                    if is_refused
                    else f"Node {node} rejected the 'query' message: {error}"
                )
                self.audit.append("introduction", node=str(node), outcome=REFUSED, reason=str(error))

    def send(
        self,
        kind: str,
        payload: Payload,
        nodes: Mapping[str, int],
        check: Check,
        compare: Compare = lambda replies: {},
    ) -> dict[str, Payload]:
        """Send a payload to clients; return the replies that pass all checks, by client."""
        request = replace(payload, metadata={**payload.metadata, "nonce": token_hex(16)})
        number = request.metadata["round"]
        self.audit.append("request", kind=kind, round=number, clients=list(nodes), request=request.digest())
        arrived = self.transport.send(kind, dict.fromkeys(nodes.values(), request))
        replies, refused = {}, {}
        for client, node in nodes.items():
            if node not in arrived:
                self._audit_reply(client, node, request, "absent")
                continue
            try:
                reply = self._read(kind, arrived[node], request)
                self._check_identity(client, reply, number)
                check(client, reply)
                replies[client] = reply
            except ReportedError as error:
                self._report(f"Client '{client}' rejected the '{kind}' message: {error}")
                self._audit_reply(client, node, request, "failed", reason=str(error))
            except RejectedReplyError as error:
                refused[client] = error
        refused |= {client: RejectedReplyError(reason) for client, reason in compare(replies).items()}
        for client, rejection in refused.items():
            replies.pop(client, None)
            self._audit_reply(client, nodes[client], request, REFUSED, reason=str(rejection))
            self._count_rejection(client, kind, number, rejection)
        for client, reply in replies.items():
            self._audit_reply(client, nodes[client], request, ACCEPTED, reply=reply)
        return replies

    def _read(self, kind: str, records: RecordDict, request: Payload) -> Payload:
        """Read a reply to a request; raise unless it has its format, its nonce and a valid signature."""
        first = next(iter(self.clients.values()), None)
        sizes = {"P": self.config.settings.features, "C": len(first.targets) if first else 0}
        sizes |= self.state.sizes
        expected = reply_format(kind, self.config.run.procedure, standardize=self.config.standardize)
        reply = read_reply(records, expected, sizes)
        if reply.error:
            raise ReportedError(reply.error)
        if reply.metadata["nonce"] != request.metadata["nonce"]:
            raise RejectedReplyError("it answers another request")
        verify_signature(reply)
        return reply

    def _check_identity(self, client: str, reply: Payload, number: int) -> None:
        given, standing = reply.metadata, self.state.standings[client]
        if given["client"] != client:
            raise RejectedReplyError(f"it is from site '{given['client']}'")
        if given["key"] != standing.key:
            raise RejectedReplyError(WRONG_KEY)
        if given["rows"] != self.clients[client].rows or given["fingerprint"] != standing.fingerprint:
            raise RejectedReplyError(CHANGED.format("rows"))
        if given["round"] != number:
            raise RejectedReplyError(f"it is for round {given['round']}")

    def _register(self, node: int, reply: Payload) -> None:
        info = read_introduction(reply, self.config.settings.features)
        info = info.standardize(self.scaling) if self.scaling else info
        name, known, given = info.client, self.clients.get(info.client), reply.metadata
        if known is None and self.is_closed:
            self.ignored_nodes.add(node)
            log.warning("Client '%s' connected after the start; ignoring it.", name)
            return
        bound = self.state.standings.get(name)
        if bound is not None and given["key"] != bound.key:
            raise RejectedReplyError(f"it has the name of site '{name}' but {WRONG_KEY}")
        if name in self.node_of and not self.is_closed:
            raise RejectedReplyError(f"Two nodes have the client name '{name}'. Rename one")
        if known is None:
            self._check_consistent(info)
        elif change := known.find_change(info) or self._find_other_rows(bound, reply):
            raise RejectedReplyError(f"site '{name}': {CHANGED.format(change)}")
        if name in self.node_of:  # the client restarted, but its old node is still listed
            self.ignored_nodes.add(self.node_of[name])
        if bound is None:
            self.state.standings[name] = Standing(given["key"], given["fingerprint"], info.validation_rows)
        self.refused_nodes.pop(node, None)
        self.clients[name] = replace(known or info, validation_rows=info.validation_rows)
        self.node_of[name] = node
        self.audit.append(
            "introduction", client=name, node=str(node), outcome=ACCEPTED, key=given["key"], rows=info.rows,
            fingerprint=given["fingerprint"], reply=reply.digest(), signature=given["signature"],
        )  # fmt: skip

    def _find_other_rows(self, bound: Standing | None, reply: Payload) -> str | None:
        is_other = bound is not None and bound.fingerprint != reply.metadata["fingerprint"]
        return "rows" if is_other else None

    def _check_consistent(self, info: ClientInfo) -> None:
        """Reject a client whose targets or network differ from the first client's."""
        for first in list(self.clients.values())[:1]:
            for field in ("targets", "inputs", "parameters", "network", "width", "backbone_size"):
                ours, theirs = getattr(first, field), getattr(info, field)
                if ours != theirs:
                    raise RejectedReplyError(
                        f"Clients '{first.client}' and '{info.client}' differ in {field}: {_format(ours)} "
                        f"and {_format(theirs)}. All clients need the same"
                    )

    def _count_rejection(self, client: str, kind: str, number: int, error: RejectedReplyError) -> None:
        standing = self.state.standings[client]
        standing.rejections += 1
        self._report(f"Refused the '{kind}' reply of client '{client}' in round {number}: {error}.")
        if isinstance(error, DivergedError):
            self._suspend(client, f"its network diverged in round {number}")
        elif standing.rejections >= self.config.max_rejections:
            self._suspend(client, f"{standing.rejections} replies were refused, the last because {error}")

    def _suspend(self, client: str, reason: str) -> None:
        self.state.standings[client].suspended = reason
        self.audit.append("suspend", client=client, reason=reason)
        self._report(
            f"Suspended client '{client}': {reason}. Let it back in with 'fedgram runs readmit "
            f"{self.audit.path.parent} {client}'."
        )

    def _readmit(self, path: Path) -> None:
        """Let clients back in that an operator named with `fedgram runs readmit`."""
        taken = path.with_suffix(".taken")
        for each in (taken, path):  # the first remains if the server stopped here
            if each.exists():
                each.replace(taken)  # a request that comes now gets a file of its own
                self._let_back_in(read_json(taken))
                taken.unlink()

    def _let_back_in(self, has_new_keys: Mapping[str, bool]) -> None:
        for client, has_new_key in has_new_keys.items():
            if (standing := self.state.standings.get(client)) is None:
                continue
            standing.rejections, standing.suspended = 0, None
            if has_new_key:
                del self.state.standings[client]
                self.node_of.pop(client, None)
            self.refused_nodes.clear()
            self.audit.append("readmit", client=client, new_key=bool(has_new_key))
            log.info("Readmitted client '%s'.", client)

    def _audit_reply(
        self, client: str, node: int, request: Payload, outcome: str, reply: Payload | None = None,
        reason: str | None = None,
    ) -> None:  # fmt: skip
        signed = {} if reply is None else {"reply": reply.digest(), "signature": reply.metadata["signature"]}
        self.audit.append(
            "reply", client=client, node=str(node), round=request.metadata["round"], outcome=outcome,
            reason=reason, **signed,
        )  # fmt: skip

    def _report(self, problem: str) -> None:
        """Log each problem once."""
        if problem not in self.problems:
            log.warning(problem)
            self.problems.append(problem)


def _format(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
