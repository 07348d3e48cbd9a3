"""Run independent tasks on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from fedgram._util.errors import InputError
from fedgram._util.imports import import_optional

Task = TypeVar("Task")
Shared = TypeVar("Shared")
Outcome = TypeVar("Outcome")


ENGINES = ("local", "ray")


def check_engine(engine: str) -> str:
    """Reject an unknown engine."""
    if engine not in ENGINES:
        raise InputError(f"Unknown engine: '{engine}'. Engines are {', '.join(ENGINES)}.", field="engine")
    return engine


def run_on_ray(
    function: Callable[[Task, Shared], Outcome], tasks: Sequence[Task], shared: Shared
) -> Iterator[tuple[Task, Outcome]]:
    """Call function(task, shared) for each task on a GPU of its own (a CPU if the cluster has no GPU).

    RAY_ADDRESS selects the cluster; the default is this machine. Yields each task with its outcome, in the
    order in which they finish.

    Raises
    ------
    InputError
        If Ray is not installed, or if a task raises one.
    """
    message = "--engine ray needs Ray. Install it with pip install 'fedgram[cluster]'."
    ray = import_optional("ray", message, "engine")
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    needs = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
    remote, stored = ray.remote(**needs)(function), ray.put(shared)  # stored once, not with every task
    waiting = {remote.remote(task, stored): task for task in tasks}
    while waiting:
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        try:
            yield waiting.pop(done), ray.get(done)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise error.cause from None
            raise
