"""Train every procedure and seed of a problem, in as few stacks as memory allows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import product
from operator import index
from pathlib import Path
from typing import Any

import torch

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError, check_type
from fedgram._util.locks import lock_folders
from fedgram._util.text import pluralize
from fedgram.data.problem import Problem
from fedgram.federation.clients import check_independent_starts
from fedgram.nets.model import Backbone, Model, default_name, draw_example, fingerprint, operations_per_row
from fedgram.runs import Runs, Setup, StoredRun
from fedgram.runs.manifest import Data
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.store import MODEL
from fedgram.runs.tensor_files import RESTORE
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.moments import Moments
from fedgram.theory.predict import predict
from fedgram.training import devices
from fedgram.training.plan import plan_stacks
from fedgram.training.preflight import preflight_warnings
from fedgram.training.progress import show_progress
from fedgram.training.stack_training import StackPlan, StackTraining, Status, Task

LOG = logging.getLogger(__name__)


def train(
    problem: Problem,
    backbone: Backbone,
    procedures: Iterable[str | Procedure],
    seeds: Iterable[int],
    config: TrainConfig | None = None,
    *,
    folder: str | Path = "runs",
    device: str = "auto",
    backbone_name: str | None = None,
    keep_models: bool = True,
    on_epoch: Callable[[Status], None] | None = None,
    on_warning: Callable[[str], None] = LOG.warning,
) -> tuple[StoredRun, ...]:
    """Train all procedures with all seeds, and store every round.

    Finished runs are skipped. A stack that was interrupted continues after its last round. If no procedure is
    compared with a prediction, clients with too few rows for a covariance of their targets are left out.

    Parameters
    ----------
    problem : Problem
        Inputs (N_m, ...) and targets (N_m, C) of each client.
    backbone : str, module, or function
        A name, a module with its initial weights, or a function that returns a new module. It maps inputs
        (B, ...) to vectors (B, D).
    procedures : iterable of str or Procedure
        Such as "ordinary" or "proximal+corrected".
    seeds : iterable of int
        Each procedure is trained with each seed.
    config : TrainConfig, optional
        Rounds, epochs, penalties, optimizer.
    folder : path
        Runs are stored under `<folder>/<dataset>/<backbone>/<procedure>/seed-<n>/`.
    device : str
        'auto', 'cpu', 'cuda' or 'cuda:N'.
    backbone_name : str, optional
        Folder name of the backbone; by default its own name.
    keep_models : bool
        Save the networks that clients predict with, which `predict_rows` needs.
    on_epoch : function of Status, optional
        Called after every epoch. By default progress is shown in a terminal or notebook.
    on_warning : function of str
        Called with every warning; by default the log gets them.

    Returns
    -------
    tuple of StoredRun
        In the order of procedures, then seeds.

    Raises
    ------
    InputError
        If an argument is invalid, memory is too small, or a run in the folder has other settings.

    Examples
    --------
    >>> import tempfile, numpy as np, fedgram
    >>> x = np.random.default_rng(0).standard_normal((2, 20, 3))
    >>> problem = fedgram.Problem.from_arrays(list(x), [x[0, :, :2], 2 * x[1, :, :2]])
    >>> config = fedgram.TrainConfig(rounds=2, epochs=1, features=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     runs = fedgram.train(problem, "resmlp-small", ["ordinary"], [0, 1], config, folder=folder)
    >>> [run.setup.run.name for run in runs]
    ['ordinary/seed-0', 'ordinary/seed-1']
    """
    config, runs = config or TrainConfig(), Runs(Path(folder))
    _validate(problem, config, device)
    wanted = parse_runs(procedures, seeds)
    if all(run.procedure.without_limit for run in wanted):
        problem = _leave_out_small_clients(problem, wanted, on_warning)
    prediction = predict(problem.moments, config.penalty)
    with show_progress() if on_epoch is None else nullcontext(on_epoch) as report:
        task = Task(
            problem, backbone, config, devices.resolve_device(device), prediction, runs, keep_models, report,
            on_warning,
        )  # fmt: skip
        setups = _plan(task, wanted, backbone_name, device)
        return _run(task, setups)


def _validate(problem: Problem, config: TrainConfig, device: str) -> None:
    hint = "Build it with Problem.from_arrays, from_frame or from_datasets"
    check_type(problem, Problem, "train()", hint)
    check_type(config, TrainConfig, "config=", "Build it with TrainConfig(rounds=8, epochs=4000)")
    devices.check_precision(devices.resolve_device(device), config.precision)


def check_trainable(problem: Problem) -> None:
    """Raise InputError if fewer than two clients have a covariance of their targets: `train` needs them."""
    if sum(_has_covariance(split.targets) for split in problem.train.values()) < 2:
        _ = problem.moments  # raises an error that names the client


def _leave_out_small_clients(
    problem: Problem, wanted: Sequence[Run], on_warning: Callable[[str], None]
) -> Problem:
    """Leave out clients whose targets have no covariance, unless fewer than two would remain."""
    small = [client for client in problem.clients if not _has_covariance(problem.train[client].targets)]
    if not small or len(problem.clients) - len(small) < 2:
        return problem
    reasons = (f"'{client}' ({_why_without_covariance(problem.train[client].targets)})" for client in small)
    has_shared_network = any(run.procedure.has_shared_network for run in wanted)
    on_warning(
        f"Left out {pluralize(len(small), 'client')}: {', '.join(reasons)}. "
        + ("A shared model can predict" if has_shared_network else "These runs have no model for")
        + " their rows."
    )
    return problem.without_clients(small)


def _why_without_covariance(targets: Array) -> str:
    rows, count = targets.shape
    return pluralize(rows, "training row") if rows <= count else "a constant target"


def _has_covariance(targets: Array) -> bool:
    try:
        Moments.from_arrays({"client": targets})
    except InputError:
        return False
    return True


def parse_runs(procedures: Iterable[str | Procedure], seeds: Iterable[int]) -> list[Run]:
    """Combine every procedure with every seed, without repetitions."""
    names = [procedures] if isinstance(procedures, str) else procedures
    parsed = [each if isinstance(each, Procedure) else Procedure.parse(each) for each in names]
    if not isinstance(seeds, Iterable):
        raise InputError(f"seeds must be a list, not {seeds}. Pass range(3), for example.", field="seeds")
    runs = dict.fromkeys(Run(procedure, seed) for procedure, seed in product(parsed, map(_parse_seed, seeds)))
    if not runs:
        raise InputError("Name at least one procedure and one seed.", field="procedure")
    return list(runs)


def _parse_seed(value: Any) -> int:
    try:
        seed = index(value)  # accepts NumPy integers
    except TypeError:
        seed = -1
    if seed < 0:
        raise InputError(f"A seed must be an integer of at least 0, not {value}.", field="seeds")
    return seed


def _plan(task: Task, runs: list[Run], backbone_name: str | None, device: str) -> list[Setup]:
    """Describe the runs, and warn or refuse before anything is trained."""
    problem, config = task.problem, task.config
    check_independent_starts(task.backbone, [run.procedure for run in runs])
    model, inputs = draw_example(task.backbone, next(iter(problem.train.values())), config.features)
    network = (backbone_name or default_name(task.backbone), model.size, fingerprint(model, inputs))
    data = summarize(problem)
    setups = [Setup(run.procedure, run.seed, config, *network, data) for run in runs]
    rows = sum(map(len, problem.train.values())) * config.epochs * config.rounds * len(_pending(task, setups))
    _check_cpu_hours(model, inputs, rows, device)
    limit = None if all(run.procedure.without_limit for run in runs) else task.prediction
    for warning in (*task.prediction.notes, *preflight_warnings(problem, model, inputs, limit)):
        task.on_warning(warning)
    return setups


def _check_cpu_hours(model: Model, inputs: torch.Tensor, rows: int, device: str) -> None:
    """Reject long CPU training that device 'auto' chose."""
    passes = 3.0  # the backward pass takes twice the operations of the forward pass
    most_per_row = 2.0 * model.size * inputs[0].numel()  # a weight is used at most once per number of a row
    if devices.estimate_cpu_hours(passes * most_per_row * rows) <= devices.MAX_CPU_HOURS:
        return  # an exact count would load the compiler of torch, which takes longer than small trainings
    hours = devices.estimate_cpu_hours(passes * operations_per_row(model, inputs) * rows)
    work = f"about {hours:,.0f} hours of training on this CPU"
    devices.check_cpu_hours(device, hours, work, "Use fewer epochs, fewer runs or a smaller backbone")


def _pending(task: Task, setups: list[Setup]) -> list[Setup]:
    return [setup for setup in setups if not ((run := task.runs.find(setup)) and run.is_finished)]


def _run(task: Task, setups: list[Setup]) -> tuple[StoredRun, ...]:
    """Train the runs that are not finished; return all of them."""
    folders = map(task.runs.folder_of, _pending(task, setups))
    with lock_folders(folders), devices.limit_threads(setups[0].parameters, task.device):
        for stack in plan_stacks(task, setups):
            _run_stack(task, stack)
    stored = tuple(run for setup in setups if (run := task.runs.find(setup)) is not None)
    if task.keep_models:
        _warn_without_models(task, [run for run in stored if run.complete and not run.has_model])
    return stored


def _warn_without_models(task: Task, runs: list[StoredRun]) -> None:
    """Warn about complete runs whose networks are not stored."""
    for run in runs:
        if run.lacks_model:
            task.on_warning(f"'{run.folder / MODEL}' is missing. {RESTORE}.")
    if bare := [run for run in runs if not run.lacks_model]:
        task.on_warning(
            f"{pluralize(len(bare))} finished earlier without saved networks. Train in another folder to get "
            "them."
        )


def _run_stack(task: Task, stack: StackPlan) -> None:
    try:
        with devices.use_device(task.device):
            StackTraining(task, stack).train()
    except torch.OutOfMemoryError:
        raise InputError(
            f"{task.device} ran out of memory with {pluralize(len(stack.setups))} at once; finished rounds "
            "are stored. Free memory, or train fewer procedures or seeds at a time.",
            field="memory",
        ) from None


def summarize(problem: Problem) -> Data:
    """Describe a problem for the manifest of a run."""
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
