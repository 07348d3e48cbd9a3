"""The server: exchange moments once, then average heads and store every round."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import uuid4

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.locks import lock_folders
from fedgram._util.version import __version__
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import GridTransport, Payload
from fedgram.flower.roster import Roster
from fedgram.flower.server_state import LastReturns
from fedgram.runs import Account, Runs, StoredRun
from fedgram.runs.expectation import SYMBOLS, expectation
from fedgram.runs.record import Round
from fedgram.theory.geometry import psd
from fedgram.theory.predict import predict

LAST_RETURNS = "federation.safetensors"

log = logging.getLogger("flwr")


def run_server(transport: GridTransport, config: FederationConfig) -> StoredRun:
    """Train a federation, or resume it after its last finished round; return the stored run."""
    runs, roster = Runs(config.out), Roster(transport, config)
    with lock_folders([runs.folder(config.name, config.backbone, config.run)]):
        if stored := runs.load(config.name, config.backbone, config.run):
            roster.load(stored)
            runs.find(roster.build_setup())  # rejects another config before waiting
        if stored is None or not stored.is_finished:
            roster.wait_for_clients()
        server = Server(roster, stored)
        for number in range(server.record.account.rounds + 1, config.settings.rounds + 1):
            server.run_round(number)
        return server.record


class Server:
    """The stored run, the shared head and bias, and every client's last return."""

    def __init__(self, roster: Roster, stored: StoredRun | None) -> None:
        self.roster = roster
        moments, config = roster.moments, roster.config
        self.client_weights = dict(zip(roster.names, moments.client_weights, strict=True))
        pooled = moments.pooled
        self.pooled = {"mean": pooled.mean, "covariance": pooled.covariance, "within": pooled.within}
        prediction = predict(moments, config.settings.penalty)
        self.expected = expectation(prediction, config.run.procedure)
        for note in prediction.notes:
            log.warning(note)
        if stored is None:
            self._start()
        else:
            self._resume(stored)

    def _start(self) -> None:
        setup, first = self.roster.build_setup(), next(iter(self.roster.clients.values()))
        versions = {
            "fedgram": __version__, "numpy": np.__version__, "python": platform.python_version(),
        }  # fmt: skip
        hardware = f"Flower federation of {len(self.roster.names)} clients"
        account = Account((), 1, "clients' own", hardware, 0, versions)
        self.record = StoredRun(Runs(self.roster.config.out).folder_of(setup), setup, account)
        self.last_returns = LastReturns(uuid4().hex)
        self.head, self.bias = first.head, first.bias
        self.last_returns.write(self.record.folder / LAST_RETURNS)
        self.record.begin(self.roster.moments, self.head, self.bias)

    def _resume(self, record: StoredRun) -> None:
        if record.account.stopped:
            raise InputError(
                f"The run in '{record.folder}' stopped: {record.account.stopped}. Start another run."
            )
        self.record, self.last_returns = record, LastReturns.read(record.folder / LAST_RETURNS)
        rounds = record.rounds()
        self.head, self.bias = (rounds[-1].head, rounds[-1].bias) if rounds else record.initial
        if not record.complete:
            log.info("Resuming after round %d of %d.", len(rounds), record.setup.settings.rounds)

    def run_round(self, number: int) -> None:
        """Broadcast the head, average the returns, let clients evaluate the average, store the round."""
        started = time.perf_counter()
        self.roster.refresh()
        shared = {"head": self.head, "bias": self.bias, **self.pooled}
        replies = self._send("train", number, shared, self.roster.node_of)
        replies = {name: each for name, each in replies.items() if self.roster.has_same_rows(name, each)}
        self._check_replies(number, replies)
        for client, reply in replies.items():
            self.last_returns.update(client, reply.arrays)
            if number > 1 and not reply.metadata["after"]:
                log.warning("Client '%s' has no stored network; it started from the initial one.", client)
        average = self.last_returns.average(self.client_weights)
        self.last_returns.write(self.record.folder / LAST_RETURNS)
        measured = self._send("evaluate", number, average | self.pooled, replies)
        self.head, self.bias = average["head"], average["bias"]
        self.record.record(self._build_round(number, replies, measured))
        seconds = (*self.record.account.seconds, time.perf_counter() - started)
        self.record = replace(self.record, account=replace(self.record.account, seconds=seconds))
        self.record.save()
        self.roster.has_trained = True
        self._log_round(number, replies, measured)

    def _send(
        self, message_type: str, number: int, arrays: Mapping[str, Array], clients: Iterable[str]
    ) -> dict[str, Payload]:
        """Send the same payload to some clients and return the replies by client."""
        payload = Payload(arrays, {"round": number, "federation": self.last_returns.federation_id})
        node_of = {client: self.roster.node_of[client] for client in clients}
        replies = self.roster.send(message_type, dict.fromkeys(node_of.values(), payload))
        return {client: replies[node] for client, node in node_of.items() if node in replies}

    def _check_replies(self, number: int, replies: Mapping[str, Payload]) -> None:
        """Stop if no client replied or if a network diverged."""
        if not replies:
            raise InputError(
                f"No client replied in round {number} within {self.roster.config.reply_timeout:g} s. Run the "
                "same command again to resume after the last finished round.",
                field="clients",
            )
        for client, reply in replies.items():
            if reply.arrays["diverged"]:
                reason = f"client '{client}' diverged in round {number}"
                self.record = replace(self.record, account=replace(self.record.account, stopped=reason))
                self.record.save()
                raise InputError(f"The run stopped: {reason}. Lower the learning rate.", client=client)

    def _build_round(
        self, number: int, replies: Mapping[str, Payload], measured: Mapping[str, Payload]
    ) -> Round:
        """Collect a round; an absent client has its last head and bias, and NaN for all else."""
        trained = {client: reply.arrays for client, reply in replies.items()}
        evaluated = {client: reply.arrays for client, reply in measured.items()}
        returned = self.last_returns.arrays

        def stack(by_client: Mapping[str, Mapping[str, Array]], name: str, *shape: int) -> Array:
            absent = {name: np.full(shape, np.nan)}
            return np.stack([by_client.get(client, absent)[name] for client in self.roster.names])

        return Round(
            number=number,
            head=self.head,
            bias=self.bias,
            returned_heads=stack(returned, "head", *self.head.shape),
            returned_biases=stack(returned, "bias", *self.bias.shape),
            local_objective=stack(trained, "local_objective"),
            shared_objective=stack(evaluated, "objective"),
            train_mse=stack(evaluated, "train_mse", 3),
            test_mse=stack(evaluated, "test_mse", 3),
            clipped=stack(trained, "clipped"),
            training_loss=stack(trained, "loss"),
        )

    def _log_round(
        self, number: int, replies: Mapping[str, Payload], measured: Mapping[str, Payload]
    ) -> None:
        names = self.roster.names
        for name in names:
            if name not in replies:
                action = "using its last head" if name in self.last_returns.arrays else "averaging without it"
                log.warning("Client '%s' did not reply in round %d; %s.", name, number, action)
            elif name not in measured:
                log.warning("Client '%s' did not evaluate round %d.", name, number)
        error = float(psd.relative_error(psd.gram(self.head), self.expected.gram))
        log.info(
            "Round %d of %d: %d of %d clients replied; relative distance of the head's Gram to %s: %.1e.",
            number, self.record.setup.settings.rounds, len(replies), len(names),
            SYMBOLS[self.expected.target], error,
        )  # fmt: skip
