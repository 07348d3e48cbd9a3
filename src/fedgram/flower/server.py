"""The server's side of a federation: exchange moments once, then average heads, every round on disk."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from uuid import uuid4

import numpy as np

import fedgram
from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.locks import lock_folders
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import Payload
from fedgram.flower.roster import Roster, Transport, setup_of
from fedgram.flower.server_state import LastReturns
from fedgram.runs import Account, Runs, StoredRun
from fedgram.runs.expectation import SYMBOLS, expectation
from fedgram.runs.record import Round
from fedgram.theory.geometry import psd
from fedgram.theory.predict import predict

MEMORY = "federation.safetensors"


def run_server(
    office: Transport, plan: FederationConfig, told: Callable[[str], None] = lambda sentence: None
) -> StoredRun:
    """Train a federation from its start, or after its last finished round; the run as it is on disk."""
    runs, members = Runs(plan.out), Roster(office, plan, told)
    with lock_folders([runs.place(plan.name, plan.backbone, plan.run)]):
        if begun := runs.named(plan.name, plan.backbone, plan.run):
            members.recall(begun)
            runs.find(setup_of(list(members.known.values()), plan))  # refuses another plan before any waiting
        if begun is None or not begun.over:
            members.gather()
        server = Server(members, told)
        for number in range(server.record.account.rounds + 1, plan.settings.rounds + 1):
            server.round(number)
        return server.record


class Server:
    """A server between rounds: the run's record, the shared head and bias, and what clients returned last."""

    def __init__(self, members: Roster, told: Callable[[str], None]) -> None:
        self.members, self.told = members, told
        moments = members.moments
        self.client_weights = dict(zip(members.names, moments.client_weights, strict=True))
        pooled = moments.pooled
        self.exchange = {"mean": pooled.mean, "covariance": pooled.covariance, "within": pooled.within}
        prediction = predict(moments, members.plan.settings.penalty)
        self.expected = expectation(prediction, members.plan.run.procedure)
        for note in prediction.notes:
            told(note)
        runs, setup = Runs(members.plan.out), setup_of(list(members.known.values()), members.plan)
        stored = runs.find(setup)
        if stored is None:
            self._begin(StoredRun(runs.folder_of(setup), setup, _account(members)))
        else:
            self._resume(stored)

    def _begin(self, record: StoredRun) -> None:
        first = next(iter(self.members.known.values()))
        self.record, self.memory = record, LastReturns(uuid4().hex)
        self.head, self.bias = first.head, first.bias
        self.memory.write(record.folder / MEMORY)
        record.begin(self.members.moments, self.head, self.bias)

    def _resume(self, record: StoredRun) -> None:
        if record.account.stopped:
            raise InputError(f"The run in '{record.folder}' was given up: {record.account.stopped}.")
        self.record, self.memory = record, LastReturns.read(record.folder / MEMORY)
        rounds = record.rounds()
        self.head, self.bias = (rounds[-1].head, rounds[-1].bias) if rounds else record.initial
        if not record.complete:
            self.told(f"Going on after round {len(rounds)} of {record.setup.settings.rounds}.")

    def round(self, number: int) -> None:
        """Broadcast, average what came back, let clients measure it, and write the round."""
        started = time.perf_counter()
        shared = {"head": self.head, "bias": self.bias, **self.exchange}
        self.members.refresh()
        answers = self._ask("train", number, shared, self.members.node_of)
        answers = {name: each for name, each in answers.items() if self.members.unchanged(name, each)}
        self._check(number, answers)
        for client, answer in answers.items():
            self.memory.remember(client, answer.arrays)
            if number > 1 and not answer.words["after"]:
                self.told(f"Client '{client}' had no network, and began with the one that the seed draws.")
        average = self.memory.average(self.client_weights)
        self.memory.write(self.record.folder / MEMORY)
        found = self._ask("evaluate", number, average | self.exchange, answers)
        self.head, self.bias = average["head"], average["bias"]
        self.record.record(self._round(number, answers, found))
        seconds = (*self.record.account.seconds, time.perf_counter() - started)
        self.record = replace(self.record, account=replace(self.record.account, seconds=seconds))
        self.record.save()
        self.members.under_way = True
        self._tell(number, answers, found)

    def _ask(
        self, what: str, number: int, arrays: Mapping[str, Array], clients: Iterable[str]
    ) -> dict[str, Payload]:
        """The answers of some clients, by name, of those that answered."""
        words = {"round": number, "federation": self.memory.federation}
        node_of = {client: self.members.node_of[client] for client in clients}
        answers = self.members.ask(what, {node: Payload(arrays, words) for node in node_of.values()})
        return {client: answers[node] for client, node in node_of.items() if node in answers}

    def _check(self, number: int, answers: Mapping[str, Payload]) -> None:
        """Stop where nobody answered, and give a run up of which a network diverged."""
        if not answers:
            raise InputError(
                f"No client answered in round {number} within {self.members.plan.patience:g} s; what is "
                "finished is kept, and the same command goes on from there.",
                field="clients",
            )
        for client, answer in answers.items():
            if answer.arrays["diverged"]:
                reason = f"client '{client}' diverged in round {number}"
                self.record = replace(self.record, account=replace(self.record.account, stopped=reason))
                self.record.save()
                raise InputError(f"The run was given up: {reason}.", client=client)

    def _round(self, number: int, answers: Mapping[str, Payload], found: Mapping[str, Payload]) -> Round:
        """What is recorded; of a client that did not answer, what it returned last, and NaN else."""
        names, memory = self.members.names, self.memory

        def each(letters: Mapping[str, Payload], name: str, like: Array) -> Array:
            absent = np.full_like(like, np.nan, dtype=np.float64)
            return np.stack([letters[c].arrays[name] if c in letters else absent for c in names])

        one, three = np.zeros(()), np.zeros(3)
        return Round(
            number=number,
            head=self.head,
            bias=self.bias,
            returned_heads=np.stack([memory.returned(client, "head", self.head) for client in names]),
            returned_biases=np.stack([memory.returned(client, "bias", self.bias) for client in names]),
            local_objective=each(answers, "local_objective", one),
            shared_objective=each(found, "objective", one),
            train_mse=each(found, "train_mse", three),
            test_mse=each(found, "test_mse", three),
            clipped=each(answers, "clipped", one),
            training_loss=each(answers, "loss", one),
        )

    def _tell(self, number: int, answers: Mapping[str, Payload], found: Mapping[str, Payload]) -> None:
        error = float(psd.relative_error(psd.gram(self.head), self.expected.gram))
        rounds, names = self.record.setup.settings.rounds, self.members.names
        silent = [name for name in names if name not in answers]
        away = f"; {', '.join(silent)} did not answer" if silent else ""
        unmeasured = [name for name in answers if name not in found]
        away += f"; {', '.join(unmeasured)} did not measure it" if unmeasured else ""
        self.told(
            f"Round {number} of {rounds}: {len(answers)} of {len(names)} clients{away}; the head's Gram is "
            f"{error:.1e} from {SYMBOLS[self.expected.target]}."
        )


def _account(members: Roster) -> Account:
    versions = {
        "fedgram": fedgram.__version__, "numpy": np.__version__, "python": platform.python_version(),
    }  # fmt: skip
    hardware = f"Flower federation of {len(members.names)} clients"
    return Account((), 1, "clients' own", hardware, 0, versions)
