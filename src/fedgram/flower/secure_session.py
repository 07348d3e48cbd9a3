"""The server's part of secure sums: find clients, exchange keys, and open totals.

After a client drops out, the next sum starts a new session with the clients that are connected.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

import numpy as np
from flwr.app import RecordDict

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize
from fedgram._util.version import __version__
from fedgram.federation.secure_sums import (
    SEED_BYTES,
    default_threshold,
    from_bytes,
    open_sum,
)
from fedgram.flower.config import FederationConfig
from fedgram.flower.identity import verify_signature
from fedgram.flower.messages import GridTransport, Payload, RejectedReplyError, log, read_reply
from fedgram.flower.roster import POLL_INTERVAL, RETRY_INTERVAL, WRONG_KEY
from fedgram.flower.secure_messages import (
    FIXED_AXES,
    INTRODUCE,
    KEYS,
    REVEAL,
    SHARES,
    SUM,
    WORD_BYTES,
    check_words,
    from_words,
    secure_format,
    to_words,
)
from fedgram.runs.audit import ACCEPTED, REFUSED, AuditLog
from fedgram.theory.sum_prediction import Total

SUMS_PER_SESSION = 32
"""Sums that a session has keys for. A prediction takes about 10, and a round of training two."""
TAG_BYTES = 16
"""Bytes that authenticated encryption adds."""
SAME = ("version", "targets", "inputs", "parameters", "network", "width", "backbone_size")
"""Metadata that all clients must share, if they have it."""


@dataclass(frozen=True)
class Member:
    """A client of a secure federation: its node, and the metadata of its introduction."""

    node: int
    introduction: Mapping[str, Any]


class SecureSums:
    """Clients of a secure federation, and sums over them.

    `members` by name, in the order of names. A client is bound to the key and the rows of its introduction;
    `keys` and `fingerprints` are those of the clients of a resumed run.
    """

    def __init__(
        self, transport: GridTransport, config: FederationConfig, audit: AuditLog, federation: str,
        keys: Mapping[str, str] | None = None, fingerprints: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.transport, self.config, self.audit, self.federation = transport, config, audit, federation
        self.bound, self.fingerprints = dict(keys or {}), dict(fingerprints or {})
        self.members: dict[str, Member] = {}
        self.refused_nodes: dict[int, float] = {}
        self.problems: list[str] = []
        self.replaced_nodes: set[int] = set()
        self.session, self.used = "", SUMS_PER_SESSION
        self.keys: dict[str, list[bytes]] = {}
        self.sealed: dict[str, dict[str, bytes]] = {}
        self.present: tuple[str, ...] = ()
        self.is_interrupted = False

    @property
    def introduction(self) -> Mapping[str, Any]:
        """Metadata that all clients share."""
        return next(iter(self.members.values())).introduction

    @property
    def keys_of_members(self) -> dict[str, str]:
        """Identity keys of all clients."""
        return {name: str(each.introduction["key"]) for name, each in self.members.items()}

    @property
    def fingerprints_of_members(self) -> dict[str, str]:
        """Keyed hashes of the rows of all clients."""
        return {name: str(each.introduction["fingerprint"]) for name, each in self.members.items()}

    def count_validation_rows(self, clients: Iterable[str]) -> int:
        """Add up the validation rows that clients introduced themselves with."""
        return sum(self.members[name].introduction["validation_rows"] for name in clients)

    @property
    def threshold(self) -> int:
        """Shares that restore a secret of the session."""
        return default_threshold(len(self.keys))

    def wait_for_clients(self) -> None:
        """Wait for all clients."""
        deadline = time.monotonic() + self.config.reply_timeout
        self._refresh()
        while len(self.members) < self.config.clients:
            problems = " ".join(self.problems)
            refused = self.refused_nodes.keys() & set(self.transport.node_ids())
            if not self.members and len(refused) >= self.config.clients:  # asking again is useless
                raise InputError(
                    f"None of {len(refused)} connected sites can take part. {problems} Correct the run "
                    "config or the sites, and run again.",
                    field="clients",
                )
            if time.monotonic() > deadline:
                start_others = "Start the others or raise 'reply-timeout', and run again."
                raise InputError(
                    f"Only {len(self.members)} of {self.config.clients} clients connected within "
                    f"{self.config.reply_timeout:g} s: {', '.join(self.members) or 'none'}. "
                    f"{problems or start_others}",
                    field="clients",
                )
            time.sleep(POLL_INTERVAL)
            self._refresh()
        self.members = dict(sorted(self.members.items()))

    def sum(self, task: str, number: int, arrays: Mapping[str, Array], size: int, **metadata: int) -> Total:
        """Sum the clients' numbers of a task, `size` of them, for what the server broadcasts in a round.

        Clients that drop out are left out of the total; their numbers stay secret.
        """
        self._prepare()
        masked = self._collect(self.present, task, number, arrays, size, metadata)
        return self._open(masked, self.present, task, number)

    def sum_exactly(
        self, clients: Sequence[str], task: str, number: int, arrays: Mapping[str, Array], size: int
    ) -> Total | None:
        """Sum over exactly these clients; None if one drops out, and then nothing is opened."""
        self._prepare()
        if not set(clients) <= set(self.present):
            return None
        masked = self._collect(clients, task, number, arrays, size, {})
        if len(masked) < len(clients):
            return None
        return self._open(masked, clients, task, number)

    def _prepare(self) -> None:
        """Start a session if the last one has no keys left; take the next number."""
        if self.used >= SUMS_PER_SESSION or self.is_interrupted:
            self._start_session()
        self.used += 1

    def _collect(
        self, asked: Sequence[str], task: str, number: int, arrays: Mapping[str, Array], size: int,
        metadata: Mapping[str, int],
    ) -> dict[str, Array]:  # fmt: skip
        """Ask clients for their masked numbers."""
        common = {"session": self.session, "number": self.used, "round": number}
        request = Payload(arrays, {**common, **metadata, "task": task, "clients": list(asked)})
        replies = self._send(SUM, dict.fromkeys(asked, request), {"L": size})
        masked = {
            name: from_bytes(b"".join(from_words(each.arrays["masked"]))) for name, each in replies.items()
        }
        if len(masked) < len(asked):  # the others may be back for the next sum
            self.is_interrupted = True
        return masked

    def _open(self, masked: Mapping[str, Array], asked: Sequence[str], task: str, number: int) -> Total:
        """Ask for shares and open the total of the clients that sent masked numbers."""
        sent, dropped = sorted(masked), [name for name in asked if name not in masked]
        self._check_enough(sent)
        shares = self._reveal(number, sent, dropped)
        total = open_sum(self.session, self.used, self.keys, masked, dropped, shares, self.threshold)
        self.audit.append(
            "sum", task=task, round=number, session=self.session, number=self.used, clients=sent,
            dropped=dropped, revealed=sorted(shares),
        )  # fmt: skip
        return Total(total, tuple(sent))

    def _start_session(self) -> None:
        """Exchange public keys, then encrypted shares of the secrets behind them."""
        self._refresh()
        self.session, self.used, self.keys, self.is_interrupted = token_hex(16), 0, {}, False
        nodes = set(self.transport.node_ids())
        connected = [name for name, each in self.members.items() if each.node in nodes]
        request = Payload(metadata={"session": self.session, "sums": SUMS_PER_SESSION, "round": 0})
        replies = self._send(KEYS, dict.fromkeys(connected, request), {"K": SUMS_PER_SESSION + 1})
        keys = {name: from_words(replies[name].arrays["keys"]) for name in connected if name in replies}
        names = list(keys)
        self._check_enough(names)
        threshold = default_threshold(len(names))
        identities = [str(self.members[name].introduction["key"]) for name in names]
        metadata = {
            "session": self.session, "clients": names, "threshold": threshold, "identities": identities,
            "round": 0,
        }  # fmt: skip
        signatures = np.stack([replies[name].arrays["keys_signature"] for name in names])
        request = Payload({"keys": _stack_keys(keys), "signatures": signatures}, metadata)
        words = (2 * SUMS_PER_SESSION * SEED_BYTES + TAG_BYTES) // WORD_BYTES
        replies = self._send(SHARES, dict.fromkeys(names, request), {"M": len(names), "X": words})
        self.keys = keys
        self.sealed = {
            name: dict(zip(names, from_words(reply.arrays["sealed"]), strict=True))
            for name, reply in replies.items()
        }
        self.present = tuple(name for name in names if name in self.sealed)
        self._check_enough(self.present)

    def _reveal(self, number: int, sent: list[str], dropped: list[str]) -> dict[str, dict[str, bytes]]:
        """Ask every client that sent numbers for its shares; return them by client."""
        named = [*sent, *dropped]
        metadata = {"session": self.session, "number": self.used, "round": number, "sent": sent}
        if dropped:  # Flower cannot send an empty list
            metadata["dropped"] = dropped
        # A client that left before it shared its secrets is in no sum, so its shares are never asked for.
        nothing = bytes(len(next(iter(next(iter(self.sealed.values())).values()))))
        requests = {
            name: Payload(
                {
                    "sealed": to_words(
                        self.sealed.get(each, {}).get(name, nothing) for each in sorted(self.keys)
                    )
                },
                metadata,
            )
            for name in sent
        }
        replies = self._send(REVEAL, requests, {"M": len(named)})
        return {
            name: dict(zip(named, from_words(reply.arrays["shares"]), strict=True))
            for name, reply in replies.items()
        }

    def _check_enough(self, names: Sequence[str]) -> None:
        needed = max(2, self.threshold if self.keys else 0)
        if len(names) < needed:
            raise InputError(
                f"Only {pluralize(len(names), 'client')} replied in a secure sum "
                f"({', '.join(names) or 'none'}); it needs {needed}. Wait for the others and run again.",
                field="clients",
            )

    def _send(
        self, kind: str, payloads: Mapping[str, Payload], sizes: Mapping[str, int]
    ) -> dict[str, Payload]:
        """Send a payload to each client; return the replies that pass all checks."""
        nonce = token_hex(16)
        common = {"nonce": nonce, "federation": self.federation}
        requests = {
            self.members[name].node: replace(each, metadata={**each.metadata, **common})
            for name, each in payloads.items()
        }
        arrived, replies = self.transport.send(kind, requests), {}
        for name in payloads:
            node, known = self.members[name].node, self.members[name].introduction
            if node not in arrived:
                log.warning("Client '%s' did not reply to '%s'.", name, kind)
                continue
            try:
                reply = self._read(kind, arrived[node], nonce, sizes)
                if any(reply.metadata[key] != known[key] for key in ("client", "key", "rows", "fingerprint")):
                    raise RejectedReplyError("its key, name or rows are not those of the introduction")
                if reply.metadata["round"] != payloads[name].metadata["round"]:
                    raise RejectedReplyError("it is for another round")
                replies[name] = reply
            except RejectedReplyError as error:
                log.warning("Refused the '%s' reply of client '%s': %s.", kind, name, error)
                self.audit.append("reply", client=name, node=str(node), outcome=REFUSED, reason=str(error))
        return replies

    def _read(self, kind: str, records: RecordDict, nonce: str, sizes: Mapping[str, int]) -> Payload:
        expected = secure_format(kind, self.config.run.procedure, standardize=self.config.standardize)
        reply = read_reply(records, expected, {**FIXED_AXES, **sizes})
        if reply.error:
            raise RejectedReplyError(reply.error.rstrip("."))
        if reply.metadata["nonce"] != nonce:
            raise RejectedReplyError("it answers another request")
        verify_signature(reply)
        check_words(reply.arrays.values())
        return reply

    def _refresh(self) -> None:
        """Query new nodes; a restarted client may have another node."""
        nodes, now, nonce = set(self.transport.node_ids()), time.monotonic(), token_hex(16)
        waiting = {node for node, asked in self.refused_nodes.items() if now - asked < RETRY_INTERVAL}
        new = sorted(nodes - {each.node for each in self.members.values()} - self.replaced_nodes - waiting)
        request = Payload(metadata={"nonce": nonce})
        for node, records in self.transport.send(INTRODUCE, dict.fromkeys(new, request)).items():
            try:
                reply = self._read(INTRODUCE, records, nonce, {})
                self._register(node, reply)
            except RejectedReplyError as error:
                self.refused_nodes[node] = now
                problem = f"Refused node {node}: {error}."
                log.warning(problem)
                self.problems = [*dict.fromkeys([*self.problems, problem])]
                self.audit.append("introduction", node=str(node), outcome=REFUSED, reason=str(error))

    def _register(self, node: int, reply: Payload) -> None:
        given, name = reply.metadata, str(reply.metadata["client"])
        known = self.members.get(name)
        if known is None and len(self.members) >= self.config.clients:
            raise RejectedReplyError(f"client '{name}' connected after the start")
        if self.bound and name not in self.bound:
            raise RejectedReplyError(f"client '{name}' is not in the run that is resumed")
        bound = known.introduction["key"] if known else self.bound.get(name, given["key"])
        if given["key"] != bound:
            raise RejectedReplyError(f"it has the name of site '{name}' but {WRONG_KEY}")
        rows = (
            known.introduction["fingerprint"] if known else self.fingerprints.get(name, given["fingerprint"])
        )
        if given["fingerprint"] != rows:
            raise RejectedReplyError(f"the rows of client '{name}' changed since the start of the run")
        first = self.introduction if self.members else {**given, "version": __version__}
        for key in SAME:
            ours, theirs = first.get(key), given.get(key)
            if ours != theirs:
                raise RejectedReplyError(f"client '{name}' has another {key}: {theirs}, not {ours}")
        if known is not None:
            self.replaced_nodes.add(known.node)  # a node that has gone stays in Flower's list for a while
        self.members[name] = Member(node, given)
        self.refused_nodes.pop(node, None)
        self.audit.append(
            "introduction", client=name, node=str(node), outcome=ACCEPTED, key=given["key"],
            rows=given["rows"], fingerprint=given["fingerprint"], reply=reply.digest(),
            signature=given["signature"],
        )  # fmt: skip


def _stack_keys(keys: Mapping[str, list[bytes]]) -> Array:
    """Return public keys as words (M, K, 8)."""
    flat = to_words(key for each in keys.values() for key in each)
    return flat.reshape(len(keys), -1, flat.shape[-1])
