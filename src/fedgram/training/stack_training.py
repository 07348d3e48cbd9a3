"""Train one stack of runs, and store every round before the next begins."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedgram._util.arrays import Array
from fedgram._util.text import format_bytes, format_duration, pluralize
from fedgram._util.version import __version__
from fedgram.data.problem import Problem
from fedgram.federation.alone import choose_alone
from fedgram.federation.federation import Federation
from fedgram.federation.site_models import mean_squares
from fedgram.nets.model import Backbone
from fedgram.runs import Account, Runs, Setup, StoredRun
from fedgram.runs.expectation import expectation
from fedgram.runs.held_out import HeldOutErrors
from fedgram.runs.joining import measure_joining
from fedgram.runs.local_progress import (
    LocalProgress,
    describe_progress,
    has_selected_heads,
    measure_progress,
)
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Round, Run
from fedgram.runs.store import Checkpoint
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.geometry import psd
from fedgram.theory.predict import Prediction
from fedgram.training import devices


@dataclass(frozen=True)
class Status:
    """Progress after an epoch.

    stack: number of the current stack, of `stacks`; errors: e_F of each run to its target after the last
    finished round; seconds_left: estimate for all stacks; peak_memory in bytes.
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

    @property
    def done(self) -> int:
        """Number of finished epochs of the current stack."""
        return (self.round - 1) * self.epochs + self.epoch

    def __str__(self) -> str:
        stack = f"stack {self.stack} of {self.stacks}, " if self.stacks > 1 else ""
        errors = sorted(self.errors.values())
        found = f", errors to the prediction {errors[0]:.1e} to {errors[-1]:.1e}" if errors else ""
        return (
            f"{stack}round {self.round}/{self.rounds}, epoch {self.epoch}/{self.epochs}, "
            f"{format_duration(self.seconds_left)} left{found}, {format_bytes(self.peak_memory)}"
        )


@dataclass(frozen=True, eq=False)
class Task:
    """Inputs that all stacks share."""

    problem: Problem
    backbone: Backbone
    config: TrainConfig
    device: torch.device
    prediction: Prediction
    runs: Runs
    keep_models: bool
    on_epoch: Callable[[Status], None]
    on_warning: Callable[[str], None]


@dataclass(frozen=True)
class StackPlan:
    """Runs to train at once; stack number 1, 2, ... of `of`.

    resumed: the checkpoint to continue from; later: epochs times runs of the following stacks.
    """

    setups: tuple[Setup, ...]
    resumed: Checkpoint | None = None
    number: int = 1
    of: int = 1
    later: int = 0


class StackTraining:
    """A stack on its device, and the records of its runs."""

    def __init__(self, task: Task, stack: StackPlan) -> None:
        self.task, self.stack = task, stack
        if task.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(task.device)
        runs = [setup.run for setup in stack.setups]
        self.federation = Federation(task.problem, task.backbone, runs, task.config, task.device)
        self.expected = {run: expectation(task.prediction, run.procedure) for run in runs}
        self.errors: dict[Run, float] = {}
        self.checkpoint = stack.resumed or Checkpoint.from_setups(
            task.runs.setting_folder(stack.setups[0]), stack.setups
        )
        self.records = {setup.run: self._new_record(setup) for setup in stack.setups}
        if stack.resumed is None:
            self._begin()
        else:
            self._resume(stack.resumed)
        self.begun, self.before = time.perf_counter(), self.federation.finished

    def train(self) -> None:
        """Train the remaining rounds; runs that diverge stop, the others continue."""
        federation, started = self.federation, time.perf_counter()
        for records in federation.rounds(self._report_epoch):
            self._commit(records, time.perf_counter() - started)
            if federation.finished == 1:
                self._report_progress(records)
            started = time.perf_counter()
            if federation.stopped.keys() >= set(federation.recorded):
                break
        self.checkpoint.remove()

    def _new_record(self, setup: Setup) -> StoredRun:
        """Describe a run without finished rounds."""
        device = self.task.device
        versions = {
            "fedgram": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
        account = Account(
            seconds=(),
            stack=len(self.stack.setups),
            device=str(device),
            hardware=devices.describe_hardware(device),
            peak_memory=devices.peak_memory(device),
            versions=versions,
        )
        return StoredRun(self.task.runs.folder_of(setup), setup, account)

    def _begin(self) -> None:
        moments = self.task.problem.moments
        heads, biases = self.federation.head.cpu().numpy(), self.federation.bias.cpu().numpy()
        for r, record in enumerate(self.records.values()):  # companions of blended runs come last
            record.begin(moments, heads[r], biases[r])

    def _resume(self, checkpoint: Checkpoint) -> None:
        """Continue after the round of the checkpoint; files of later rounds are overwritten."""
        federation = self.federation
        federation.load({name: torch.from_numpy(value) for name, value in checkpoint.read().items()})
        for run, record in self.records.items():
            stored = self.task.runs.find(record.setup)
            seconds = stored.account.seconds[: federation.finished] if stored else ()
            account = replace(record.account, seconds=seconds, stopped=federation.stopped.get(run))
            self.records[run] = replace(record, account=account)
        self.task.on_warning(
            f"Resuming {pluralize(len(federation.recorded))} after round {federation.finished}."
        )

    def _commit(self, records: Mapping[Run, Round], seconds: float) -> None:
        """Write a round of every run, then the checkpoint; without the latter, the round is repeated."""
        federation = self.federation
        for run in federation.recorded:
            if run in records:
                self._record_round(run, records[run], seconds)
            elif self.records[run].account.stopped is None:
                self._stop(run)
            if self.records[run].complete:
                self._finish(run)
            self.records[run].save()
        if federation.finished < self.task.config.rounds:
            state = {name: value.cpu().numpy() for name, value in federation.state().items()}
            self.checkpoint.write(state)

    def _report_progress(self, records: Mapping[Run, Round]) -> None:
        """Log how far each site has come toward its selected head, one sentence per procedure."""
        found: dict[Procedure, list[LocalProgress]] = {}
        for run, round in records.items():
            if run in self.records and has_selected_heads(run.procedure):
                broadcast, _ = self.records[run].initial
                progress = measure_progress(broadcast, round.returned_heads, self.expected[run].grams)
                found.setdefault(run.procedure, []).append(progress)
        for procedure, runs in found.items():
            self.task.on_warning(describe_progress(procedure.name, self.task.problem.clients, runs))

    def _record_round(self, run: Run, round: Round, seconds: float) -> None:
        record, peak = self.records[run], devices.peak_memory(self.task.device)
        record.record(round)
        account = replace(record.account, seconds=(*record.account.seconds, seconds), peak_memory=peak)
        self.records[run] = replace(record, account=account)
        if not run.procedure.without_limit:
            self.errors[run] = float(psd.relative_error(psd.gram(round.head), self.expected[run].gram))

    def _stop(self, run: Run) -> None:
        record, reason = self.records[run], self.federation.stopped[run]
        self.records[run] = replace(record, account=replace(record.account, stopped=reason))
        self.errors.pop(run, None)
        self.task.on_warning(f"{run.name} stopped: {reason}.")

    def _finish(self, run: Run) -> None:
        """Record what was chosen on validation rows and the errors on test rows, and save the models."""
        models = self.federation.site_models(run)
        predicted = self.federation.predict(run, models, "test")
        account = replace(self.records[run].account, tested=self._test_errors(predicted).document())
        if models.chosen:
            targets = self.federation.clients.data.target_arrays("test")
            errors, alone_method = {"test_mse": mean_squares(predicted, targets)}, {}
            if models.local:
                alone = self.federation.predict_alone(run)
                alone_method["alone"] = method = choose_alone(alone, targets)
                errors |= measure_joining(
                    predicted, alone[method], targets,
                    in_time_order=self.task.problem.is_in_time_order,
                )  # fmt: skip
            measured = {
                name: [None if np.isnan(each) else each for each in values.tolist()]
                for name, values in errors.items()
            }
            account = replace(account, chosen={**models.chosen, **measured, **alone_method})
        self.records[run] = record = replace(self.records[run], account=account)
        if self.task.keep_models:
            record.save_model(models.to_arrays(self.federation.clients.stack.dtype))

    def _test_errors(self, predicted: list[Array]) -> HeldOutErrors:
        """Compare predictions of all test rows, which are one client's in a centralized run."""
        targets = [split.targets for split in self.task.problem.test.values()]
        if not targets:
            targets = [split.targets[:0] for split in self.task.problem.train.values()]
        ends = np.cumsum([len(each) for each in targets])
        return HeldOutErrors.from_predictions(np.split(np.concatenate(predicted), ends[:-1]), targets)

    def _report_epoch(self, epoch: int) -> None:
        task, stack, federation = self.task, self.stack, self.federation
        rounds, epochs = task.config.rounds, task.config.epochs
        done = (federation.finished - self.before) * epochs + epoch
        remaining = (rounds - federation.finished) * epochs - epoch
        each = (time.perf_counter() - self.begun) / done
        task.on_epoch(
            Status(
                runs=federation.recorded,
                stack=stack.number,
                stacks=stack.of,
                round=federation.finished + 1,
                rounds=rounds,
                epoch=epoch,
                epochs=epochs,
                seconds_left=each * (remaining + stack.later / len(federation.recorded)),
                errors=dict(self.errors),
                peak_memory=devices.peak_memory(task.device),
            )
        )
