"""The server: exchange moments once, then average heads and store every round."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Mapping
from dataclasses import replace
from uuid import uuid4

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import remove_temporary_files
from fedgram._util.locks import lock_folders
from fedgram._util.version import __version__
from fedgram.flower.checks import ReturnLimits, check_evaluation, find_doubtful_moments
from fedgram.flower.config import FederationConfig
from fedgram.flower.initial_head import draw_initial_head
from fedgram.flower.limits import Limit, find_limit
from fedgram.flower.messages import GridTransport, Payload
from fedgram.flower.roster import Check, Roster
from fedgram.flower.server_state import ServerState
from fedgram.runs import Account, Runs, StoredRun
from fedgram.runs.audit import AUDIT, AuditLog
from fedgram.runs.check import STATE
from fedgram.runs.expectation import expectation
from fedgram.runs.record import Round
from fedgram.theory.geometry import psd
from fedgram.theory.predict import predict

log = logging.getLogger("flwr")


def run_server(transport: GridTransport, config: FederationConfig) -> StoredRun:
    """Train a federation, or resume it after its last finished round; return the stored run."""
    runs = Runs(config.out)
    folder = runs.folder(config.name, config.backbone, config.run)
    with lock_folders([folder]):
        remove_temporary_files(folder)
        stored = runs.load(config.name, config.backbone, config.run)
        state = ServerState(uuid4().hex) if stored is None else ServerState.read(folder / STATE)
        audit = AuditLog.open(folder / AUDIT, state.audited)
        roster = Roster(transport, config, state, audit)
        if stored is not None:
            roster.load(stored)
            runs.find(roster.build_setup())  # rejects another config before waiting
        if stored is None or not stored.is_finished:
            audit.append("start", version=__version__, federation=state.federation_id)
            roster.wait_for_clients()
        server = Server(roster, stored)
        for number in range(server.record.account.rounds + 1, config.settings.rounds + 1):
            server.run_round(number)
        return server.record


class Server:
    """The stored run, the shared head and bias, and every client's last return."""

    def __init__(self, roster: Roster, stored: StoredRun | None) -> None:
        self.roster, self.state, self.audit = roster, roster.state, roster.audit
        moments, config = roster.moments, roster.config
        self.client_weights = dict(zip(roster.names, moments.client_weights, strict=True))
        self.target_means = dict(
            zip(roster.names, moments.mean * (not config.run.procedure.centered), strict=True)
        )
        pooled = moments.pooled
        self.pooled = {"mean": pooled.mean, "covariance": pooled.covariance, "within": pooled.within}
        prediction = predict(moments, config.settings.penalty)
        self.expected = expectation(prediction, config.run.procedure)
        self.limits: dict[tuple[str, ...], Limit] = {}
        for note in prediction.notes:
            log.warning(note)
        for client, weight in self.client_weights.items():
            if weight > 0.5:
                log.warning(
                    "Client '%s' has %.0f %% of all rows, so no aggregation can outvote it.",
                    client, 100 * weight,
                )  # fmt: skip
        if stored is None:
            self._start()
        else:
            self._resume(stored)

    def _start(self) -> None:
        setup, config = self.roster.build_setup(), self.roster.config
        versions = {
            "fedgram": __version__, "numpy": np.__version__, "python": platform.python_version(),
        }  # fmt: skip
        hardware = f"Flower federation of {len(self.roster.names)} clients"
        account = Account((), 1, "clients' own", hardware, 0, versions)
        self.record = StoredRun(Runs(config.out).folder_of(setup), setup, account)
        self.head, self.bias = draw_initial_head(config, len(setup.data.targets))
        self._write_state()
        self.record.begin(self.roster.moments, self.head, self.bias)

    def _resume(self, record: StoredRun) -> None:
        if record.account.stopped:
            raise InputError(
                f"The run in '{record.folder}' stopped: {record.account.stopped}. Start another run."
            )
        self.record = record
        rounds = record.rounds()
        self.head, self.bias = (rounds[-1].head, rounds[-1].bias) if rounds else record.initial
        if not record.complete:
            log.info("Resuming after round %d of %d.", len(rounds), record.setup.settings.rounds)

    def run_round(self, number: int) -> None:
        """Broadcast the head, average the returns, let clients evaluate the average, store the round."""
        started = time.perf_counter()
        self.roster.refresh()
        limits = self._build_limits(number)
        shared = {"head": self.head, "bias": self.bias, **self.pooled}
        replies = self._send(
            "train", number, shared, self.roster.active,
            lambda client, reply: limits[client].check(reply, number),
        )  # fmt: skip
        for client, reply in replies.items():
            self.state.update(client, reply.arrays)
            if number > 1 and not reply.metadata["after"]:
                log.warning("Client '%s' has no stored network; it started from the initial one.", client)
        self._write_state()  # before a stop: suspensions survive it
        self._check_replies(number, replies)
        self._check_moments(number, replies, limits)
        average = self.state.average(self.client_weights, self.roster.config.aggregation)
        penalty, clients = self.roster.config.settings.penalty, self.roster.clients
        measured = self._send(
            "evaluate", number, average | self.pooled, {name: self.roster.node_of[name] for name in replies},
            lambda client, reply: check_evaluation(reply, clients[client], average["head"], penalty),
        )  # fmt: skip
        self.head, self.bias = average["head"], average["bias"]
        self.record.record(self._build_round(number, replies, measured))
        seconds = (*self.record.account.seconds, time.perf_counter() - started)
        self.record = replace(self.record, account=replace(self.record.account, seconds=seconds))
        counted = [name for name in self.roster.names if name in self.state.counted]
        self.audit.append("round", round=number, counted=counted, average=Payload(average).digest())
        self._write_state()
        self.record.save()
        self.roster.has_trained = True
        self._log_round(number, replies, measured)

    def _write_state(self) -> None:
        self.state.audited = self.audit.last
        self.state.write(self.record.folder / STATE)

    def _send(
        self, kind: str, number: int, arrays: Mapping[str, Array], nodes: Mapping[str, int], check: Check
    ) -> dict[str, Payload]:
        """Send the same payload to some clients and return the accepted replies by client."""
        payload = Payload(arrays, {"round": number, "federation": self.state.federation_id})
        return self.roster.send(kind, payload, nodes, check)

    def _build_limits(self, number: int) -> dict[str, ReturnLimits]:
        """Derive what each client may return from the moments of all and from the last returns."""
        broadcast = {"head": self.head, "bias": self.bias}
        size = float(np.sqrt(psd.trace(self.pooled["covariance"])))
        spread = self.state.spread(broadcast) if number > 1 else None
        initial = float((self.record.initial[0] ** 2).sum())
        return {
            name: ReturnLimits(
                info, gram, self.target_means[name], size, self.record.setup.settings.penalty, broadcast,
                initial, spread,
            )
            for (name, info), gram in zip(self.roster.clients.items(), self.expected.grams, strict=True)
        }  # fmt: skip

    def _check_replies(self, number: int, replies: Mapping[str, Payload]) -> None:
        """Stop if no reply counts."""
        if replies:
            return
        standings = self.state.standings
        diverged = f"diverged in round {number}"
        if all(diverged in (standings[name].suspended or "") for name in self.roster.names):
            reason = f"every client {diverged}"
            self.record = replace(self.record, account=replace(self.record.account, stopped=reason))
            self.record.save()
            raise InputError(f"The run stopped: {reason}. Lower the learning rate.", field="clients")
        raise InputError(
            f"No client replied in round {number} within {self.roster.config.reply_timeout:g} s. Run the "
            f"same command again to resume after the last finished round. {' '.join(self.roster.problems)}"
            .rstrip(),
            field="clients",
        )  # fmt: skip

    def _check_moments(
        self, number: int, replies: Mapping[str, Payload], limits: Mapping[str, ReturnLimits]
    ) -> None:
        """Warn of clients that train to other moments than they claim; the first round is too early."""
        returned = {client: reply.arrays for client, reply in replies.items()}
        doubts = find_doubtful_moments(returned, limits) if number > 1 else {}
        for client, reason in doubts.items():
            log.warning("The moments of client '%s' are in doubt in round %d: %s.", client, number, reason)
            self.audit.append("doubt", client=client, round=number, reason=reason)

    def _build_round(
        self, number: int, replies: Mapping[str, Payload], measured: Mapping[str, Payload]
    ) -> Round:
        """Collect a round; an absent client has its last head and bias, and NaN for all else."""
        trained = {client: reply.arrays for client, reply in replies.items()}
        evaluated = {client: reply.arrays for client, reply in measured.items()}
        returned = self.state.counted

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
            if self.state.is_suspended(name):
                log.warning("Client '%s' is suspended; averaging without it.", name)
            elif name not in replies:
                action = "using its last head" if name in self.state.arrays else "averaging without it"
                log.warning("Client '%s' did not reply in round %d; %s.", name, number, action)
            elif name not in measured:
                log.warning("Client '%s' did not evaluate round %d.", name, number)
        limit = self._find_limit(tuple(name for name in names if name in self.state.counted))
        error = float(psd.relative_error(psd.gram(self.head), limit.gram))
        log.info(
            "Round %d of %d: %d of %d clients replied; relative distance of the head's Gram to %s: %.1e.",
            number, self.record.setup.settings.rounds, len(replies), len(names), limit.name, error,
        )  # fmt: skip

    def _find_limit(self, counted: tuple[str, ...]) -> Limit:
        """Return the limit of training with these clients; a median takes up to a second."""
        if counted not in self.limits:
            aggregation = self.roster.config.aggregation
            self.limits[counted] = find_limit(self.expected, self.roster.names, counted, aggregation)
        return self.limits[counted]
