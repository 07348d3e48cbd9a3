"""The server: exchange moments once, then average what clients return and store every round."""

from __future__ import annotations

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
from fedgram._util.text import quote_first
from fedgram._util.version import __version__
from fedgram.flower.checks import (
    ReturnLimits,
    check_evaluation,
    find_distant_starts,
    find_doubtful_moments,
    optimizer_reach,
)
from fedgram.flower.chooser import Chooser
from fedgram.flower.config import FederationConfig
from fedgram.flower.initial_head import draw_initial_head
from fedgram.flower.limits import Limit, find_limit
from fedgram.flower.messages import BACKBONE, EVALUATE, TRAIN, GridTransport, Payload, averaged_arrays, log
from fedgram.flower.roster import Check, Compare, Roster
from fedgram.flower.server_state import SHARED, ServerState
from fedgram.runs import Account, Runs, StoredRun
from fedgram.runs.audit import AUDIT, AuditLog
from fedgram.runs.check import STATE
from fedgram.runs.choice import describe_choice
from fedgram.runs.expectation import expectation
from fedgram.runs.joining import Joining
from fedgram.runs.local_progress import describe_progress, has_selected_heads, measure_progress
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Round
from fedgram.theory.geometry import psd
from fedgram.theory.predict import predict

HEAD_AND_BIAS = ("head", "bias")
ALREADY_FINISHED = "This run was already finished: nothing was trained. Choose another 'out' to train again."


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
        if stored is None or not is_done(stored, state):
            audit.append("start", version=__version__, federation=state.federation_id)
            roster.wait_for_clients()
        elif stored.account.stopped is None:
            log.info(ALREADY_FINISHED)
        server = Server(roster, stored)
        for number in range(server.record.account.rounds + 1, config.settings.rounds + 1):
            server.run_round(number)
        if not is_done(server.record, state):
            server.finish()
        return server.record


def is_done(stored: StoredRun, state: ServerState) -> bool:
    """Whether nothing is left to do: all rounds are trained, and models are chosen if there is a choice."""
    is_chosen = bool(stored.account.chosen) or not state.has_validation
    return stored.account.stopped is not None or (stored.complete and is_chosen)


def check_validation(procedure: Procedure, has_validation: bool) -> None:
    """Reject a procedure that chooses strengths on validation rows if no client has any."""
    if procedure.needs_validation and not has_validation:
        raise InputError(
            f"Procedure '{procedure.name}' chooses strengths on validation rows, but no client has any. Set "
            "'validation-fraction' in the run config.",
            field="validation-fraction",
        )


class Server:
    """The stored run, what all clients share, and every client's last return.

    `shared` has the head and bias, and the backbone and feature layer of a full model after round 1.
    """

    def __init__(self, roster: Roster, stored: StoredRun | None) -> None:
        self.roster, self.state, self.audit = roster, roster.state, roster.audit
        moments, config = roster.moments, roster.config
        self.procedure = config.run.procedure
        check_validation(self.procedure, self.state.has_validation)
        self.client_weights = dict(zip(roster.names, moments.client_weights, strict=True))
        self.target_means = dict(
            zip(roster.names, moments.mean * (not config.run.procedure.centered), strict=True)
        )
        pooled = moments.pooled
        self.pooled = {"mean": pooled.mean, "covariance": pooled.covariance, "within": pooled.within}
        self.pooled |= roster.scaling.to_arrays() if roster.scaling else {}
        prediction = predict(moments, config.settings.penalty)
        self.expected = expectation(prediction, config.run.procedure)
        self.limits: dict[tuple[str, ...], Limit] = {}
        self.chooser = Chooser(roster, self.send)
        for note in prediction.notes:
            log.warning(note)
        for client, weight in self.client_weights.items():
            if weight > 0.5:
                log.warning(
                    "Client '%s' has %.0f %% of all rows, so no aggregation can outvote it.",
                    client, 100 * weight,
                )  # fmt: skip
        self._warn_few_rows()
        if stored is None:
            self._start()
        else:
            self._resume(stored)

    def _warn_few_rows(self) -> None:
        """Warn of sums of features over so few rows that they can reveal these rows."""
        few = [
            name
            for name, info in self.roster.clients.items()
            if info.rows < info.width or 0 < info.validation_rows < info.width
        ]
        if few and self.procedure.moment_head:
            log.warning(
                "Fewer training or validation rows than features (%d) at %s: the sums that these clients "
                "send can reveal rows to the server. Set secure = true in the run config.",
                self.roster.clients[few[0]].width,
                quote_first(few),
            )  # fmt: skip

    def _start(self) -> None:
        setup, config = self.roster.build_setup(), self.roster.config
        versions = {
            "fedgram": __version__, "numpy": np.__version__, "python": platform.python_version(),
        }  # fmt: skip
        hardware = f"Flower federation of {len(self.roster.names)} clients"
        account = Account((), 1, "clients' own", hardware, 0, versions)
        self.record = StoredRun(Runs(config.out).folder_of(setup), setup, account)
        head, bias = draw_initial_head(config, len(setup.data.targets))
        self.shared: dict[str, Array] = {"head": head, "bias": bias}
        self.state.share(0, self.shared)
        self._write_state()
        self.record.begin(self.roster.moments, head, bias)

    def _resume(self, record: StoredRun) -> None:
        if record.account.stopped:
            raise InputError(
                f"The run in '{record.folder}' stopped: {record.account.stopped}. Lower 'learning-rate' and "
                "choose another 'out'."
            )
        self.record = record
        finished = record.account.rounds
        self.shared = self.state.own[SHARED, finished]
        if not record.complete:
            log.info("Resuming after round %d of %d.", finished, record.setup.settings.rounds)

    def run_round(self, number: int) -> None:
        """Broadcast, average the returns, let clients evaluate the average, store the round."""
        started = time.perf_counter()
        self.roster.refresh()
        limits, state = self._build_limits(number), self.state
        best = {"best": state.best.round, "best_local": state.best_local.round}
        replies = self.send(
            TRAIN, number, self.shared, self.roster.active,
            lambda client, reply: limits[client].check(reply, number),
            lambda replies: find_distant_starts(_arrays_of(replies), limits) if number == 1 else {}, **best,
        )  # fmt: skip
        if self.procedure.full_model:
            state.arrays.clear()  # the last backbone of an absent client does not fit those of others
        for client, reply in replies.items():
            state.update(client, {name: reply.arrays[name] for name in averaged_arrays(self.procedure)})
            if number > 1 and not reply.metadata["after"]:
                log.warning("Client '%s' has no stored network; it started from the initial one.", client)
        self._write_state()  # before a stop: suspensions survive it
        self._check_replies(number, replies)
        self._check_moments(number, replies, limits)
        average = state.average(self.client_weights, self.roster.config.aggregation)
        counted = state.counted  # before the evaluation, which may suspend clients
        penalty, clients = self.roster.config.settings.penalty, self.roster.clients
        measured = self.send(
            EVALUATE, number, average, {name: self.roster.node_of[name] for name in replies},
            lambda client, reply: check_evaluation(reply, clients[client], average.get("head"), penalty),
        )  # fmt: skip
        self.shared |= {name: average[name] for name in (*HEAD_AND_BIAS, *BACKBONE) if name in average}
        self.record.record(self._build_round(number, counted, replies, measured))
        if state.has_validation:
            self.shared |= self.chooser.choose_round(number, average, replies, measured)
        state.share(number, self.shared)
        seconds = (*self.record.account.seconds, time.perf_counter() - started)
        self.record = replace(self.record, account=replace(self.record.account, seconds=seconds))
        names = [name for name in self.roster.names if name in counted]
        self.audit.append("round", round=number, counted=names, average=Payload(average).digest())
        self._write_state()
        self.record.save()
        self.roster.has_trained = True
        self._log_round(number, replies, measured)
        if number == 1 and has_selected_heads(self.procedure):
            self._log_progress(replies)

    def finish(self) -> None:
        """Choose strengths and shares on validation rows; clients keep the models of the best round."""
        self.roster.refresh()
        chosen = self.chooser.finish(self.record.setup.settings.rounds)
        self.audit.append("choice", **chosen)
        self.record = replace(self.record, account=replace(self.record.account, chosen=chosen))
        self._write_state()
        self.record.save()
        log.info(describe_choice(chosen))
        data = self.record.setup.data
        if joining := Joining.from_chosen(chosen, data.clients, data.test_rows):
            log.info(joining.describe())

    def _write_state(self) -> None:
        self.state.audited = self.audit.last
        self.state.write(self.record.folder / STATE)

    def send(
        self,
        kind: str,
        number: int,
        arrays: Mapping[str, Array],
        nodes: Mapping[str, int],
        check: Check,
        compare: Compare = lambda replies: {},
        **others: int,
    ) -> dict[str, Payload]:
        """Send the same payload to some clients and return the accepted replies by client."""
        metadata = {"round": number, "federation": self.state.federation_id, **others}
        payload = Payload({**arrays, **self.pooled}, metadata)
        return self.roster.send(kind, payload, nodes, check, compare)

    def _build_limits(self, number: int) -> dict[str, ReturnLimits]:
        """Derive what each client may return from the moments of all and from the last returns."""
        size = float(np.sqrt(psd.trace(self.pooled["covariance"])))
        head_and_bias = {name: self.shared[name] for name in HEAD_AND_BIAS}
        spread = self.state.spread(head_and_bias) if number > 1 else None
        settings = self.record.setup.settings
        initial = float((self.record.initial[0] ** 2).sum())
        return {
            name: ReturnLimits(
                info, gram, self.target_means[name], size, settings.penalty, self.shared, initial,
                optimizer_reach(settings, info.rows), spread, self.procedure.returned,
            )
            for (name, info), gram in zip(self.roster.clients.items(), self.expected.grams, strict=True)
        }  # fmt: skip

    def _check_replies(self, number: int, replies: Mapping[str, Payload]) -> None:
        """Stop if no reply counts."""
        if replies:
            return
        diverged = f"diverged in round {number}"
        suspended = [each.suspended or "" for each in self.state.standings.values()]
        if len(suspended) == len(self.roster.names) and all(diverged in reason for reason in suspended):
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
        """Warn of clients that train to other moments than they claim; the first round is too early.

        Full models are averaged long before they converge to what their moments give.
        """
        is_known = number > 1 and not (self.procedure.local or self.procedure.full_model)
        doubts = find_doubtful_moments(_arrays_of(replies), limits) if is_known else {}
        for client, reason in doubts.items():
            log.warning("The moments of client '%s' are in doubt in round %d: %s.", client, number, reason)
            self.audit.append("doubt", client=client, round=number, reason=reason)

    def _build_round(
        self,
        number: int,
        returned: Mapping[str, Mapping[str, Array]],
        replies: Mapping[str, Payload],
        measured: Mapping[str, Payload],
    ) -> Round:
        """Collect a round; an absent client has its last head and bias, and NaN for all else."""
        trained, evaluated = _arrays_of(replies), _arrays_of(measured)
        head, bias = (self.shared[name] for name in HEAD_AND_BIAS)

        def stack(by_client: Mapping[str, Mapping[str, Array]], name: str, *shape: int) -> Array:
            absent = np.full(shape, np.nan)
            return np.stack([by_client.get(client, {}).get(name, absent) for client in self.roster.names])

        return Round(
            number=number,
            head=head,
            bias=bias,
            returned_heads=stack(returned, "head", *head.shape),
            returned_biases=stack(returned, "bias", *bias.shape),
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
                action = "using its last head" if self.state.arrays.get(name) else "averaging without it"
                action = "its errors are missing" if self.procedure.local else action
                log.warning("Client '%s' did not reply in round %d; %s.", name, number, action)
            elif name not in measured:
                log.warning("Client '%s' did not evaluate round %d.", name, number)
        log.info(
            "Round %d of %d: %d of %d clients replied%s%s.",
            number, self.record.setup.settings.rounds, len(replies), len(names), self._describe_head(),
            self._describe_validation(),
        )  # fmt: skip

    def _log_progress(self, replies: Mapping[str, Payload]) -> None:
        """Log how far the first round came toward the heads that the prediction assumes."""
        broadcast, _ = self.record.initial
        grams = dict(zip(self.roster.names, self.expected.grams, strict=True))
        returned = np.stack([reply.arrays["head"] for reply in replies.values()])
        progress = measure_progress(broadcast, returned, np.stack([grams[name] for name in replies]))
        log.info(describe_progress(self.procedure.name, list(replies), [progress]))

    def _describe_head(self) -> str:
        if self.procedure.without_limit:
            return ""
        limit = self._find_limit(tuple(name for name in self.roster.names if name in self.state.counted))
        error = float(psd.relative_error(psd.gram(self.shared["head"]), limit.gram))
        return f"; relative distance of the head's Gram to {limit.name}: {error:.1e}"

    def _describe_validation(self) -> str:
        if not self.state.has_validation:
            return ""
        name = "local" if self.procedure.local else "shared"
        return f"; mean squared error on validation rows: {self.state.mean_error(name):.4g}"

    def _find_limit(self, counted: tuple[str, ...]) -> Limit:
        """Return the limit of training with these clients; a median takes up to a second."""
        if counted not in self.limits:
            aggregation = self.roster.config.aggregation
            self.limits[counted] = find_limit(self.expected, self.roster.names, counted, aggregation)
        return self.limits[counted]


def _arrays_of(replies: Mapping[str, Payload]) -> dict[str, Mapping[str, Array]]:
    return {client: reply.arrays for client, reply in replies.items()}
