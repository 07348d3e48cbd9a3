"""Train every procedure and seed of a problem, in as few stacks as memory allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from operator import index
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgram._util.errors import InputError, check_type
from fedgram._util.locks import lock_folders
from fedgram._util.text import pluralize
from fedgram.data.problem import Problem
from fedgram.federation.clients import check_starts
from fedgram.nets.model import Backbone, Model, example, fingerprint, name_of, operations_per_row
from fedgram.runs import Runs, Setup, StoredRun
from fedgram.runs.manifest import Data
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.predict import predict
from fedgram.training import devices
from fedgram.training.plan import plan_stacks
from fedgram.training.preflight import preflight_warnings
from fedgram.training.stack_training import StackPlan, StackTraining, Status, Task


def train(
    problem: Problem,
    backbone: Backbone,
    procedures: Iterable[str | Procedure],
    seeds: Iterable[int],
    settings: TrainConfig | None = None,
    *,
    folder: str | Path = "runs",
    device: str = "auto",
    backbone_name: str | None = None,
    keep_models: bool = True,
    on_epoch: Callable[[Status], None] = lambda status: None,
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> tuple[StoredRun, ...]:
    """Train all procedures with all seeds, and return their runs as they lie under `folder`.

    backbone: a name, a module to start from, or a function that draws a new one; backbone_name is what its
    results are filed under. Runs that are finished are kept; a stack that was stopped goes on after its
    last round. `on_epoch` hears of every epoch, `on_warning` what a person should know.
    """
    check_type(problem, Problem, "Problem.from_arrays, from_frame or from_datasets makes one")
    settings = settings or TrainConfig()
    prediction = predict(problem.moments, settings.penalty)
    place, results = devices.named(device), Runs(Path(folder))
    if settings.precision == "bf16" and place.type == "cpu":
        raise InputError("bf16 is for a GPU; on a CPU train with precision fp32.", field="precision")
    runs = _runs(procedures, seeds)
    check_starts(backbone, [run.procedure for run in runs])
    task = Task(problem, backbone, settings, place, prediction, results, keep_models, on_epoch, on_warning)
    model, inputs = example(backbone, next(iter(problem.train.values())), settings.features)
    network = (backbone_name or name_of(backbone), model.size, fingerprint(model, inputs))
    data = summarize(problem)
    setups = [Setup(run.procedure, run.seed, settings, *network, data) for run in runs]
    left = [setup for setup in setups if not ((run := results.find(setup)) and run.over)]
    devices.check_hours(device, place, len(left) * _operations(problem, model, inputs, settings))
    for note in (*prediction.notes, *preflight_warnings(problem, model, inputs, prediction)):
        on_warning(note)
    with lock_folders(map(results.folder_of, left)), devices.threads_for(model.size, place):
        for stack in plan_stacks(task, setups):
            _train(task, stack)
    found = tuple(run for setup in setups if (run := results.find(setup)) is not None)
    if keep_models and (bare := [run for run in found if run.complete and not run.has_model]):
        on_warning(
            f"No networks were kept of {pluralize(len(bare))} finished before: to predict with some, train "
            "in "
            "another folder."
        )
    return found


def _train(task: Task, stack: StackPlan) -> None:
    try:
        with devices.current(task.device):
            StackTraining(task, stack).train()
    except torch.OutOfMemoryError:
        raise InputError(
            f"{task.device} ran out of memory with {pluralize(len(stack.setups))} at once; finished rounds "
            "are kept. Free its memory, or train fewer procedures or seeds at a time.",
            field="memory",
        ) from None


def _runs(procedures: Iterable[str | Procedure], seeds: Iterable[int]) -> list[Run]:
    """Every procedure with every seed, each once."""
    named = [procedures] if isinstance(procedures, str) else procedures
    parsed = [each if isinstance(each, Procedure) else Procedure.parse(each) for each in named]
    if not isinstance(seeds, Iterable):
        raise InputError(f"Seeds are given one by one, such as range(3), not as {seeds}.", field="seeds")
    runs = dict.fromkeys(Run(procedure, seed) for procedure, seed in product(parsed, map(_seed, seeds)))
    if not runs:
        raise InputError("Name at least one procedure and one seed.", field="procedure")
    return list(runs)


def _operations(problem: Problem, model: Model, inputs: Tensor, settings: TrainConfig) -> float:
    """Of a run: of all rows in all epochs forward, and twice that backward."""
    rows = sum(map(len, problem.train.values()))
    return 3.0 * operations_per_row(model, inputs) * rows * settings.epochs * settings.rounds


def _seed(given: Any) -> int:
    try:
        seed = index(given)  # NumPy's whole numbers, too
    except TypeError:
        seed = -1
    if seed < 0:
        raise InputError(f"A seed is a whole number from 0 on, not {given}.", field="seeds")
    return seed


def summarize(problem: Problem) -> Data:
    """Return what a run records about its problem."""
    tested = [len(problem.test[client]) if problem.test else 0 for client in problem.clients]
    return Data(
        name=problem.name,
        kind=problem.kind,
        digest=problem.digest,
        targets=problem.moments.targets,
        clients=problem.clients,
        train_rows=tuple(len(split) for split in problem.train.values()),
        test_rows=tuple(tested),
        provenance={
            **problem.provenance,
            "input_type": str(next(iter(problem.train.values())).inputs.dtype),
        },
    )
