"""Where jobs run: one after another here, or spread over the GPUs of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram.paper.networks.jobs import Job, Progress, Ran, Warned, run_job


@dataclass(frozen=True)
class Place:
    """What all jobs share: the folder of runs, the data directory, the device, and who is told."""

    root: Path
    data_folder: Path
    device: str
    progress: Progress
    warned: Warned


Engine = Callable[[Sequence[Job], Place], Iterator[tuple[Job, Ran]]]


def local(jobs: Sequence[Job], place: Place) -> Iterator[tuple[Job, Ran]]:
    """Each job in turn, in this process."""
    for job in jobs:
        yield job, run_job(job, place.root, place.data_folder, place.device, place.progress, place.warned)


def ray(jobs: Sequence[Job], place: Place) -> Iterator[tuple[Job, Ran]]:
    """A task of one GPU for each job (one CPU where the cluster has no GPU), as they end.

    The cluster is the one that RAY_ADDRESS names, or this machine. Its machines must see the folder of runs
    and the data directory under the same paths.
    """
    cluster: Any = _ray()
    if not cluster.is_initialized():
        cluster.init(log_to_driver=False)
    needs = {"num_gpus": 1} if cluster.cluster_resources().get("GPU") else {"num_cpus": 1}
    task = cluster.remote(**needs)(run_job)
    root, data_folder = place.root.absolute(), place.data_folder.absolute()
    waiting = {task.remote(job, root, data_folder, place.device): job for job in jobs}
    while waiting:
        (done,), _ = cluster.wait(list(waiting), num_returns=1)
        yield waiting.pop(done), _result(cluster, done)


ENGINES: dict[str, Engine] = {"local": local, "ray": ray}


def engine_of(name: str) -> Engine:
    """The engine of that name."""
    if name not in ENGINES:
        raise InputError(f"There is no engine '{name}'; there are {', '.join(ENGINES)}.", field="engine")
    return ENGINES[name]


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError('--engine ray needs Ray: pip install "fedgram[cluster]".', field="engine") from None
    return ray


def _result(cluster: Any, done: Any) -> Ran:
    """What a task returned; what it refused is refused here with the same sentence."""
    try:
        found: Ran = cluster.get(done)
    except cluster.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise error.cause from None
        raise
    return found
