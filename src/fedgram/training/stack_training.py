"""One stack of runs, trained from its start or its checkpoint, every round on disk before the next begins."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

import fedgram
from fedgram._util.arrays import Array
from fedgram.data.problem import Problem
from fedgram.federation.federation import Federation
from fedgram.nets.model import Backbone
from fedgram.runs import Account, Runs, Setup, StoredRun
from fedgram.runs.expectation import expectation
from fedgram.runs.record import Round, Run
from fedgram.runs.store import Checkpoint
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.geometry import psd
from fedgram.theory.predict import Prediction
from fedgram.training import devices


@dataclass(frozen=True)
class Status:
    """How far training is: told after every epoch.

    stack: number of the stack, of so many stacks; errors: e_F of each run to its target after the last
    finished round, empty before the first; seconds_left: until all stacks are trained; peak_memory in bytes.
    """

    runs: tuple[Run, ...]
    stack: int
    stacks: int
    round: int
    rounds: int
    epoch: int
    epochs: int
    seconds_left: float
    errors: Mapping[Run, float]
    peak_memory: int


@dataclass(frozen=True, eq=False)
class Task:
    """What all stacks share: the problem and how it is trained, where results go, and who is told."""

    problem: Problem
    backbone: Backbone
    settings: TrainConfig
    device: torch.device
    prediction: Prediction
    runs: Runs
    keep_models: bool
    on_epoch: Callable[[Status], None]
    on_warning: Callable[[str], None]


@dataclass(frozen=True)
class StackPlan:
    """Runs to be trained at once, number 1, 2, ... of several; resumed if they have been before.

    later: epochs times runs of the stacks that follow.
    """

    setups: tuple[Setup, ...]
    resumed: Checkpoint | None = None
    number: int = 1
    of: int = 1
    later: int = 0


class StackTraining:
    """A stack on its device, with the records of its runs."""

    def __init__(self, task: Task, stack: StackPlan) -> None:
        self.task, self.stack = task, stack
        if task.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(task.device)
        runs = [setup.run for setup in stack.setups]
        self.federation = Federation(task.problem, task.backbone, runs, task.settings, task.device)
        self.targets = {run: expectation(task.prediction, run.procedure).gram for run in runs}
        self.errors: dict[Run, float] = {}
        self.checkpoint = stack.resumed or Checkpoint.for_setups(
            task.runs.setting_folder(stack.setups[0]), stack.setups
        )
        self.records = {setup.run: self._record(setup) for setup in stack.setups}
        if stack.resumed is None:
            self._begin()
        else:
            self._resume(stack.resumed)
        self.begun, self.before = time.perf_counter(), self.federation.finished

    def train(self) -> None:
        """Train the rounds that are left; a run that diverges is given up, the others go on."""
        federation, started = self.federation, time.perf_counter()
        for found in federation.rounds(self._advanced):
            self._commit(found, time.perf_counter() - started)
            started = time.perf_counter()
            if len(federation.stopped) == len(federation.runs):
                break
        self.checkpoint.remove()

    def _record(self, setup: Setup) -> StoredRun:
        """A run of which no round is finished yet."""
        device = self.task.device
        versions = {
            "fedgram": fedgram.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
        account = Account(
            seconds=(),
            stack=len(self.stack.setups),
            device=str(device),
            hardware=devices.hardware(device),
            peak_memory=devices.peak_memory(device),
            versions=versions,
        )
        return StoredRun(self.task.runs.folder_of(setup), setup, account)

    def _begin(self) -> None:
        moments = self.task.problem.moments
        heads, biases = self.federation.head.cpu().numpy(), self.federation.bias.cpu().numpy()
        for record, head, bias in zip(self.records.values(), heads, biases, strict=True):
            record.begin(moments, head, bias)

    def _resume(self, checkpoint: Checkpoint) -> None:
        """Go on after the last round whose checkpoint was written; later files are written again."""
        federation = self.federation
        federation.load({name: torch.from_numpy(value) for name, value in checkpoint.read().items()})
        for run, record in self.records.items():
            stored = self.task.runs.find(record.setup)
            seconds = stored.account.seconds[: federation.finished] if stored else ()
            account = replace(record.account, seconds=seconds, stopped=federation.stopped.get(run))
            self.records[run] = replace(record, account=account)
        self.task.on_warning(f"Runs that go on after round {federation.finished}: {len(federation.runs)}.")

    def _commit(self, found: Mapping[Run, Round], took: float) -> None:
        """Write a round of every run, then the checkpoint: until that is replaced, the round is redone."""
        federation = self.federation
        for r, run in enumerate(federation.runs):
            if run in found:
                self._record_round(run, found[run], took)
            elif self.records[run].account.stopped is None:
                self._give_up(run)
            if self.records[run].complete and self.task.keep_models:
                self.records[run].keep_model(self._model(r))
            self.records[run].save()
        if federation.finished < self.task.settings.rounds:
            state = {name: value.cpu().numpy() for name, value in federation.state().items()}
            self.checkpoint.write(state)

    def _record_round(self, run: Run, round: Round, took: float) -> None:
        record, peak = self.records[run], devices.peak_memory(self.task.device)
        record.record(round)
        account = replace(record.account, seconds=(*record.account.seconds, took), peak_memory=peak)
        self.records[run] = replace(record, account=account)
        self.errors[run] = float(psd.relative_error(psd.gram(round.head), self.targets[run]))

    def _give_up(self, run: Run) -> None:
        record, reason = self.records[run], self.federation.stopped[run]
        self.records[run] = replace(record, account=replace(record.account, stopped=reason))
        self.errors.pop(run, None)
        self.task.on_warning(f"{run.name} was given up: {reason}.")

    def _model(self, run: int) -> dict[str, Array]:
        """Parameters and buffers of a run's clients, (M, ...) by name."""
        runs, dtype = len(self.federation.runs), self.federation.clients.stack.dtype
        models = {
            name: value[run::runs] for name, value in self.federation.models().items()
        }  # client by client
        return {
            name: (value.to(dtype) if value.is_floating_point() else value).cpu().numpy()
            for name, value in models.items()
        }

    def _advanced(self, epoch: int) -> None:
        task, stack, federation = self.task, self.stack, self.federation
        rounds, epochs = task.settings.rounds, task.settings.epochs
        behind = (federation.finished - self.before) * epochs + epoch
        ahead = (rounds - federation.finished) * epochs - epoch
        each = (time.perf_counter() - self.begun) / behind
        task.on_epoch(
            Status(
                runs=federation.runs,
                stack=stack.number,
                stacks=stack.of,
                round=federation.finished + 1,
                rounds=rounds,
                epoch=epoch,
                epochs=epochs,
                seconds_left=each * (ahead + stack.later / len(federation.runs)),
                errors=dict(self.errors),
                peak_memory=devices.peak_memory(task.device),
            )
        )
