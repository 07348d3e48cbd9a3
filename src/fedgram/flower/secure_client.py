"""The client's part of secure sums: answer each message once, from keys in its private folder.

A session's secret, the public keys of all clients and hashes of the answered requests are in one file (mode
0600). The next session of the federation deletes it. A repeated request gets the same answer. Another
request for the same sum is refused: two answers under one mask would show their difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import read_json
from fedgram._util.text import quote_list
from fedgram.federation.secure_sums import NUMBER_BYTES, Number, Participant, default_threshold, to_bytes
from fedgram.flower.messages import ALONE_ERRORS, BLENDS, EVALUATE, Payload, averaged_arrays, reply_format
from fedgram.flower.scaling import measure_columns
from fedgram.flower.secure_chooser import error_numbers, tested_names
from fedgram.flower.secure_messages import (
    BLENDED,
    EVALUATED,
    FINISHED,
    INTRODUCE,
    KEYS,
    MOMENTS,
    REVEAL,
    ROUND,
    SCALES,
    SHARES,
    SUM,
    TRAINED,
    TRIED,
    from_words,
    read_sealed,
    to_words,
)
from fedgram.runs.procedure import Procedure
from fedgram.runs.signatures import is_signed
from fedgram.runs.store import safe_name
from fedgram.runs.tensor_files import write_document
from fedgram.theory.sum_prediction import moment_numbers, round_numbers

if TYPE_CHECKING:
    from fedgram.flower.client import Client

PEERS = "peers.json"
"""File with the identity keys of other sites, beside the folders of federations."""
MOST_SUMS = 1024
"""Largest number of sums that a site prepares keys for."""


class SecureSession:
    """The file of a session at a site."""

    def __init__(self, client: Client, request: Payload) -> None:
        site, session = client.site, str(request.metadata["session"])
        self.folder = site.own_folder / "secure"
        federation = self.folder / safe_name(str(request.metadata["federation"]))
        self.path = federation / f"{safe_name(session)}.json"
        if self.path.exists():
            self.state: dict[str, Any] = read_json(self.path)
        else:
            self.state = {"secret": token_bytes(32).hex(), "answered": {}}
            for ended in federation.glob("*.json"):  # its secret would unmask recorded messages
                ended.unlink()
        self.participant = Participant(site.name, session, bytes.fromhex(self.state["secret"]))

    @property
    def keys(self) -> dict[str, list[bytes]]:
        """Public keys of all clients."""
        if "keys" not in self.state:
            raise InputError("This secure session has no keys yet. Start a new run.", field="secure")
        return {name: [bytes.fromhex(key) for key in keys] for name, keys in self.state["keys"].items()}

    def check_number(self, number: int) -> None:
        """Reject a number outside the session, whose secrets would be those of another sum."""
        sums = len(next(iter(self.keys.values()))) - 1
        if not 1 <= number <= sums:
            raise InputError(
                f"Unknown secure sum: {number}. The session has 1 to {sums}; start a new run.", field="secure"
            )

    def check_peers(self, keys: dict[str, list[bytes]], request: Payload) -> None:
        """Verify that each site signed its keys, with the identity that it had in the first session."""
        identities = dict(zip(keys, map(str, request.metadata["identities"]), strict=True))
        signatures = zip(keys, from_words(request.arrays["signatures"]), strict=True)
        for name, signature in signatures:
            statement = _key_statement(self.participant, name, keys[name])
            if not is_signed(identities[name], statement.hex(), signature.hex()):
                raise InputError(
                    f"Site '{name}' did not sign the keys that the server sent. Ask the server's operator "
                    "why, then start a new run.",
                    field="secure",
                )
        path = self.folder / PEERS
        known: dict[str, str] = read_json(path) if path.exists() else {}
        if changed := [name for name in identities if known.get(name, identities[name]) != identities[name]]:
            raise InputError(
                f"Site '{changed[0]}' has another identity key than in the first secure session. Ask that "
                f"site; if its key is new, delete '{path}'.",
                field="secure",
            )
        write_document(path, known | identities)

    def record_request(self, what: str, request: Payload) -> None:
        """Record the request for a step; raise InputError if another one was recorded."""
        unsigned = {name: value for name, value in request.metadata.items() if name != "nonce"}
        digest = replace(request, metadata=unsigned).digest()
        if self.state["answered"].setdefault(what, digest) != digest:
            raise InputError(
                f"The server asked twice, with different requests, for {what} of a secure session. Start a "
                "new run.",
                field="secure",
            )
        self.write()

    def write(self) -> None:
        """Write the file; call it before the answer leaves the site."""
        write_document(self.path, self.state)


def introduce(client: Client, request: Payload) -> Payload:
    """Describe rows and network without moments."""
    return replace(client.describe(request), arrays={})


def send_keys(client: Client, request: Payload) -> Payload:
    """Send a public key for encryption and one for each sum of the session."""
    sums = int(request.metadata["sums"])
    if not 1 <= sums <= MOST_SUMS:
        raise InputError(
            f"Invalid number of sums in a secure session: {sums}. Use 1 to {MOST_SUMS}.", field="secure"
        )
    session = SecureSession(client, request)
    session.record_request("keys", request)
    keys = session.participant.public_keys(sums)
    statement = _key_statement(session.participant, client.site.name, keys)
    signature = client.site.load_key().key.sign(statement)
    arrays = {"keys": to_words(keys), "keys_signature": to_words([signature])[0]}
    return Payload(arrays, request.round)


def send_shares(client: Client, request: Payload) -> Payload:
    """Send shares of all secrets, encrypted for each client."""
    session, names = SecureSession(client, request), [str(name) for name in request.metadata["clients"]]
    threshold = int(request.metadata["threshold"])
    keys = dict(zip(names, map(from_words, request.arrays["keys"]), strict=True))
    sums = len(next(iter(keys.values()))) - 1
    if keys.get(client.site.name) != session.participant.public_keys(sums):
        raise InputError("The server sent other keys than this site's. Start a new run.", field="secure")
    if len(set(names)) < 2 or threshold < default_threshold(len(names)):
        raise InputError(
            f"Invalid secure session: {len(names)} clients with threshold {threshold}. Use at least two "
            "clients and a threshold above half of them.",
            field="secure",
        )
    session.check_peers(keys, request)
    session.record_request("shares", request)
    if "sealed" not in session.state:  # shares are random: a repeated request gets the same ones
        sealed = session.participant.share_secrets(keys, threshold)
        session.state |= {
            "keys": {name: [key.hex() for key in each] for name, each in keys.items()},
            "threshold": threshold,
            "sealed": {name: each.hex() for name, each in sealed.items()},
        }
        session.write()
    stored = session.state["sealed"]
    return Payload({"sealed": to_words(bytes.fromhex(stored[name]) for name in names)}, request.round)


def send_masked(client: Client, request: Payload) -> Payload:
    """Compute this client's numbers of a task and send them masked."""
    number, names = int(request.metadata["number"]), [str(name) for name in request.metadata["clients"]]
    session = SecureSession(client, request)
    keys = session.keys
    session.check_number(number)
    is_known = set(names) <= keys.keys() and client.site.name in names
    if not is_known or len(set(names)) < max(2, session.state["threshold"]):
        raise InputError(
            f"Too few or unknown clients in a secure sum: {quote_list(names)}. Start a new run.",
            field="secure",
        )
    values = TASKS[str(request.metadata["task"])](client, request)
    session.record_request(f"sum {number}", request)
    masked = to_bytes(session.participant.mask(number, values, keys, names))
    starts = range(0, len(masked), NUMBER_BYTES)
    words = to_words(masked[start : start + NUMBER_BYTES] for start in starts)
    return Payload({"masked": words}, request.round)


def send_revealed(client: Client, request: Payload) -> Payload:
    """Reveal a share of the seed or of the key of each client, never of both."""
    number, session = int(request.metadata["number"]), SecureSession(client, request)
    keys = session.keys
    session.check_number(number)
    sent, dropped = ([str(name) for name in request.metadata.get(part, [])] for part in ("sent", "dropped"))
    if set(sent) & set(dropped) or len(set(sent)) < max(2, session.state["threshold"]):
        raise InputError(
            f"Too few clients sent numbers for secure sum {number}, or some also dropped out: "
            f"{quote_list(sent)}. Start a new run.",
            field="secure",
        )
    session.record_request(f"shares of sum {number}", request)
    sealed = dict(zip(sorted(keys), read_sealed(request), strict=True))
    shares = session.participant.reveal(number, sent, dropped, keys, sealed)
    return Payload({"shares": to_words(shares[name] for name in (*sent, *dropped))}, request.round)


def _sum_scales(client: Client, request: Payload) -> list[Number]:
    return [*measure_columns(client.site).numbers()]


def _sum_round(client: Client, request: Payload) -> list[Number]:
    return round_numbers(client.site.moments, client.config.settings.penalty, request.arrays["head"])


def _sum_moments(client: Client, request: Payload) -> list[Number]:
    return moment_numbers(client.site.moments, client.config.settings.penalty)


def _sum_trained(client: Client, request: Payload) -> list[Number]:
    """Return N_m, N_m times the arrays of a trained reply, and the error of a model trained alone."""
    reply = client.train(request)
    if reply.arrays["diverged"]:
        raise InputError(f"The network of site '{client.site.name}' diverged. Lower the learning rate.")
    numbers = weighted_numbers(
        len(client.site.train), reply.arrays, trained_names(client.config.run.procedure)
    )
    return [*numbers, float(reply.arrays["local_error"])] if "local_error" in reply.arrays else numbers


def _sum_evaluated(client: Client, request: Payload) -> list[Number]:
    """Return N_m, N_m times training errors, test rows n, n times test errors, and sums over rows."""
    reply = client.evaluate(request)
    if reply.error:
        raise InputError(reply.error, field="round")
    names = ("objective", "train_mse")
    numbers = weighted_numbers(len(client.site.train), reply.arrays, names)
    tested = {"test_mse": np.nan_to_num(reply.arrays["test_mse"])}
    numbers += weighted_numbers(client.site.test_rows, tested, tested)
    sums = summed_names(client.config.run.procedure)
    return numbers + [value for name in sums for value in np.ravel(reply.arrays[name]).tolist()]


def _sum_tried(client: Client, request: Payload) -> list[Number]:
    """Return errors of trials on validation rows, and their products for a standard error over clients.

    Errors are divided by tr Σ_cen: the choice does not depend on units, and secure sums have no large
    numbers.
    """
    errors = client.try_strengths(request).arrays["errors"] / _unit(request)
    return [*error_numbers(errors, has_scatter=bool(request.metadata["has_scatter"]))]


def _sum_blended(client: Client, request: Payload) -> list[Number]:
    """Return validation rows, and sums over them that compare the shared model with the one trained alone."""
    arrays, rows = client.blend(request).arrays, client.site.validation_rows
    scaled = {name: arrays[name] / _unit(request) for name in ("errors", ALONE_ERRORS)}
    sums = {**arrays, **scaled}
    return [float(rows), *np.concatenate([sums[name] for name in (*BLENDS, ALONE_ERRORS)]).tolist()]


def _unit(request: Payload) -> float:
    """Return tr Σ_cen, or 1 if all targets are constant."""
    return float(np.trace(request.arrays["covariance"])) or 1.0


def _sum_finished(client: Client, request: Payload) -> list[Number]:
    """Return test rows n, and n times the test errors of the chosen model and of the one trained alone."""
    reply, rows = client.finish(request), client.site.test_rows
    chosen = float(reply.arrays["test_mse"]) if rows else 0.0
    # a network alone that diverged counts as one that joining does not change
    errors = {
        name: np.nan_to_num(reply.arrays[name], nan=chosen)
        for name in tested_names(client.config.run.procedure)
    }
    return weighted_numbers(rows, errors, errors)


def weighted_numbers(rows: int, arrays: Any, names: Iterable[str]) -> list[Number]:
    """Return the number of rows, and arrays times it, flattened in the order of their names."""
    flat: list[Array] = [np.ravel(arrays[name]) for name in names]
    return [float(rows), *(rows * np.concatenate(flat)).tolist()]


def trained_names(procedure: Procedure) -> tuple[str, ...]:
    """Arrays of a trained return that are averaged, in the order of a sum."""
    return (*averaged_arrays(procedure), "local_objective")


def summed_names(procedure: Procedure) -> tuple[str, ...]:
    """Arrays of an evaluation that are added up, in the order of a sum."""
    weighted = {"objective", "train_mse", "test_mse"}
    return tuple(name for name in reply_format(EVALUATE, procedure).arrays if name not in weighted)


def _key_statement(participant: Participant, name: str, keys: Iterable[bytes]) -> bytes:
    """Hash the statement that these are a site's public keys in this session."""
    content = sha256(f"fedgram secure keys {participant.session} {name!r} ".encode())
    for key in keys:
        content.update(key)
    return content.digest()


TASKS = {
    SCALES: _sum_scales,
    ROUND: _sum_round,
    MOMENTS: _sum_moments,
    TRAINED: _sum_trained,
    EVALUATED: _sum_evaluated,
    TRIED: _sum_tried,
    BLENDED: _sum_blended,
    FINISHED: _sum_finished,
}
"""What a client adds to each sum."""

SECURE_ANSWERS = {
    INTRODUCE: introduce,
    KEYS: send_keys,
    SHARES: send_shares,
    SUM: send_masked,
    REVEAL: send_revealed,
}
"""What a client does with each message of a secure federation."""


def check_allowed(kind: str, is_secure: bool) -> None:
    """Refuse messages that would reveal what secure sums hide."""
    if is_secure != (kind in SECURE_ANSWERS):
        raise InputError(
            f"Refused the message '{kind}': this site takes part in "
            f"{'secure' if is_secure else 'plain'} federations only. Change 'secure' in the run config.",
            field="secure",
        )
