"""Which runs are trained at once: stacks that go on from their checkpoints, and new ones for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from fedgram.runs import Setup
from fedgram.runs.store import Checkpoint, checkpoints
from fedgram.training import memory
from fedgram.training.stack_training import StackPlan, Task


def plan_stacks(task: Task, setups: Sequence[Setup]) -> list[StackPlan]:
    """The stacks that are left to train; refuses a run folder that was made by other settings."""
    begun = {setup: stored for setup in setups if (stored := task.runs.find(setup)) is not None}
    over = {setup for setup, stored in begun.items() if stored.over}
    if over:
        task.on_warning(f"Runs that are finished already: {len(over)} of {len(setups)}.")
    held = _resumed(task, list(begun))
    resumed = [stack for stack in held if not over.issuperset(stack.setups)]
    _forget([stack for stack in held if stack not in resumed])
    taken = over.union(*(stack.setups for stack in resumed))
    anew = [setup for setup in setups if setup not in taken]
    _forget_checkpoints_of(task, anew)
    stacks = [*resumed, *_stacked(task, anew)]
    return [_numbered(task, stacks, position) for position in range(len(stacks))]


def _resumed(task: Task, begun: Sequence[Setup]) -> list[StackPlan]:
    """The stacks whose checkpoint holds wanted runs only, trained by these settings."""
    by_run = {setup.run: setup for setup in begun}
    stacks = []
    for checkpoint in _checkpoints(task, begun):
        held = tuple(by_run[run] for run in checkpoint.runs if run in by_run)
        if held and Checkpoint.for_setups(checkpoint.path.parent, held).path == checkpoint.path:
            stacks.append(StackPlan(held, checkpoint))
    return stacks


def _forget(finished: Sequence[StackPlan]) -> None:
    """Remove checkpoints that outlived their stack, which was stopped between its last record and its end."""
    for stack in finished:
        if stack.resumed is not None:
            stack.resumed.remove()


def _forget_checkpoints_of(task: Task, setups: Sequence[Setup]) -> None:
    """Remove the checkpoints of runs that start anew: they hold others, too, which are not wanted now."""
    runs = {setup.run for setup in setups}
    for checkpoint in _checkpoints(task, setups):
        if runs.intersection(checkpoint.runs):
            task.on_warning(
                f"'{checkpoint.path}' holds runs that are not wanted now, so its others start anew."
            )
            checkpoint.remove()


def _checkpoints(task: Task, setups: Sequence[Setup]) -> list[Checkpoint]:
    return list(checkpoints(task.runs.setting_folder(setups[0]))) if setups else []


def _stacked(task: Task, setups: Sequence[Setup]) -> list[StackPlan]:
    """Federated and centralized runs apart, in stacks of nearly equal size that fit the device."""
    stacks = []
    for centralized in (False, True):
        group = [setup for setup in setups if setup.procedure.centralized == centralized]
        if group:
            runs = [setup.run for setup in group]
            fits = memory.fitting(task.problem, task.backbone, runs, task.settings, task.device)
            size = ceil(len(group) / ceil(len(group) / fits))
            parts = [tuple(group[start : start + size]) for start in range(0, len(group), size)]
            if len(parts) > 1:
                task.on_warning(
                    f"{len(group)} runs do not fit into the memory of {task.device} at once: they are "
                    f"trained in {len(parts)} stacks of up to {size}."
                )
            stacks += [StackPlan(part) for part in parts]
    return stacks


def _numbered(task: Task, stacks: Sequence[StackPlan], position: int) -> StackPlan:
    """A stack that knows its place, and how much comes after it."""
    later = sum(len(stack.setups) for stack in stacks[position + 1 :])
    epochs = task.settings.rounds * task.settings.epochs
    return replace(stacks[position], number=position + 1, of=len(stacks), later=epochs * later)
