"""Plan stacks: resume those with a checkpoint, and group the other runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from fedgram.runs import Setup
from fedgram.runs.store import Checkpoint, find_checkpoints
from fedgram.training import memory
from fedgram.training.stack_training import StackPlan, Task


def plan_stacks(task: Task, setups: Sequence[Setup]) -> list[StackPlan]:
    """Plan the stacks that remain to train; remove checkpoints that none of them resumes."""
    begun = {setup: stored for setup in setups if (stored := task.runs.find(setup)) is not None}
    finished = {setup for setup, stored in begun.items() if stored.is_finished}
    if finished:
        task.on_warning(f"Finished runs: {len(finished)} of {len(setups)}.")
    resumed = _find_resumable(task, list(begun), finished)
    taken = finished.union(*(stack.setups for stack in resumed))
    new = [setup for setup in setups if setup not in taken]
    _remove_checkpoints(task, new)
    stacks = [*resumed, *_group_into_stacks(task, new)]
    epochs = task.config.rounds * task.config.epochs
    return [
        replace(stack, number=n, of=len(stacks), later=epochs * sum(len(each.setups) for each in stacks[n:]))
        for n, stack in enumerate(stacks, start=1)
    ]


def _find_resumable(task: Task, begun: Sequence[Setup], finished: set[Setup]) -> list[StackPlan]:
    """Find stacks whose checkpoint contains only requested runs with these settings."""
    by_run = {setup.run: setup for setup in begun}
    stacks = []
    for checkpoint in _list_checkpoints(task, begun):
        setups = tuple(by_run[run] for run in checkpoint.runs if run in by_run)
        if not setups or Checkpoint.from_setups(checkpoint.path.parent, setups).path != checkpoint.path:
            continue
        if finished.issuperset(setups):
            checkpoint.remove()  # the process stopped between the last record and this removal
        else:
            stacks.append(StackPlan(setups, checkpoint))
    return stacks


def _remove_checkpoints(task: Task, setups: Sequence[Setup]) -> None:
    """Remove checkpoints of runs that start over because their stack has other runs as well."""
    runs = {setup.run for setup in setups}
    for checkpoint in _list_checkpoints(task, setups):
        if runs.intersection(checkpoint.runs):
            task.on_warning(
                f"'{checkpoint.path}' contains runs that were not requested. Its requested runs start over."
            )
            checkpoint.remove()


def _list_checkpoints(task: Task, setups: Sequence[Setup]) -> list[Checkpoint]:
    return list(find_checkpoints(task.runs.setting_folder(setups[0]))) if setups else []


def _group_into_stacks(task: Task, setups: Sequence[Setup]) -> list[StackPlan]:
    """Group federated and centralized runs separately, in stacks of nearly equal size that fit in memory."""
    stacks = []
    for centralized in (False, True):
        group = [setup for setup in setups if setup.procedure.centralized == centralized]
        if group:
            runs = [setup.run for setup in group]
            fits = memory.max_runs_at_once(task.problem, task.backbone, runs, task.config, task.device)
            size = ceil(len(group) / ceil(len(group) / fits))
            parts = [tuple(group[start : start + size]) for start in range(0, len(group), size)]
            if len(parts) > 1:
                task.on_warning(
                    f"{len(group)} runs do not fit into the memory of {task.device} at once. Training "
                    f"{len(parts)} stacks of up to {size}."
                )
            stacks += [StackPlan(part) for part in parts]
    return stacks
