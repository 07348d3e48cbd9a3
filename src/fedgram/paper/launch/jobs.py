"""The runs that are missing, in calls of `train`: as many as possible in one stack, and none unwanted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgram._util.errors import InputError
from fedgram._util.text import pluralize
from fedgram.paper.networks.results import Result, RunKey
from fedgram.paper.networks.scales import Scale
from fedgram.paper.networks.settings import Source, Variety
from fedgram.runs.procedure import Procedure

if TYPE_CHECKING:
    from fedgram.training import Status

Progress = Callable[["Status"], None]
Warned = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One call of `train`: all procedures with all seeds, for settings that share a dataset."""

    settings: tuple[str, ...]
    source: Source
    backbone: str
    epochs: int
    rounds: int
    larger: bool
    procedures: tuple[Procedure, ...]
    seeds: tuple[int, ...]
    scale: Scale

    @property
    def name(self) -> str:
        """What is trained, in words."""
        runs = pluralize(len(self.procedures) * len(self.seeds))
        more = ", larger" if self.larger else ""
        return f"{self.source.dataset}{more}, {self.backbone}, E = {self.epochs}, {runs}"


def jobs_of(keys: Iterable[RunKey], sources: Mapping[Variety, Source], scale: Scale) -> list[Job]:
    """Jobs that train these runs and no others.

    Runs of one dataset, network and protocol go together; of these, procedures with the same seeds. The
    same keys give the same jobs, so that a stack that was stopped is found again.
    """
    settings: dict[RunKey, dict[str, None]] = defaultdict(dict)
    seeds: dict[RunKey, dict[Procedure, set[int]]] = defaultdict(lambda: defaultdict(set))
    for key in keys:
        stack = replace(key, setting="", procedure=Procedure(), seed=0)  # what its runs have in common
        settings[stack][key.setting] = None
        seeds[stack][key.procedure].add(key.seed)
    return [
        Job(
            settings=tuple(names),
            source=sources[next(iter(names)), stack.larger],
            backbone=stack.backbone,
            epochs=stack.epochs,
            rounds=stack.rounds,
            larger=stack.larger,
            procedures=procedures,
            seeds=common,
            scale=scale,
        )
        for stack, names in settings.items()
        for common, procedures in _products(seeds[stack])
    ]


def _products(wanted: Mapping[Procedure, set[int]]) -> list[tuple[tuple[int, ...], tuple[Procedure, ...]]]:
    """Procedures grouped by their seeds."""
    groups: dict[tuple[int, ...], list[Procedure]] = defaultdict(list)
    for procedure, seeds in wanted.items():
        groups[tuple(sorted(seeds))].append(procedure)
    return [(seeds, tuple(procedures)) for seeds, procedures in groups.items()]


@dataclass(frozen=True, eq=False)
class Ran:
    """What a job found, names of runs that diverged, or why the data cannot be used."""

    results: tuple[Result, ...] = ()
    diverged: tuple[str, ...] = ()
    refused: str = ""

    def __str__(self) -> str:
        if self.refused:
            return "not run"
        return f"given up: {', '.join(self.diverged)}" if self.diverged else "finished"


def run_job(
    job: Job,
    root: Path,
    data_folder: Path,
    device: str,
    on_epoch: Progress = lambda status: None,
    on_warning: Warned = lambda sentence: None,
) -> Ran:
    """Train what a job names under `<out>/<scale>/runs` and measure it; runs that diverged are left out."""
    from fedgram.paper.launch.collect import protocol_folder, result, settings_of
    from fedgram.training import train

    try:
        problem = job.scale.problem(job.source, data_folder, job.larger)
    except InputError as error:  # files are there, and yet too few or damaged: other jobs need not wait
        return Ran(refused=error.message)
    runs = train(
        problem, job.backbone, job.procedures, job.seeds, job.scale.settings(job.epochs, job.rounds),
        folder=root / protocol_folder(job.epochs, job.rounds, job.larger), device=device,
        keep_models=False,  # of ResNet-18, those of a setting alone would take gigabytes
        on_epoch=on_epoch, on_warning=on_warning,
    )  # fmt: skip
    complete, settings = [run for run in runs if run.complete], settings_of(problem.name, job.scale)
    return Ran(
        tuple(result(run, name, job.scale, job.larger) for run in complete for name in settings),
        tuple(run.setup.run.name for run in runs if not run.complete),
    )


@dataclass(frozen=True)
class Place:
    """What all jobs share: the folder of runs, the data directory, the device, and who is told."""

    root: Path
    data_folder: Path
    device: str
    on_epoch: Progress
    on_warning: Warned


Engine = Callable[[Sequence[Job], Place], Iterator[tuple[Job, Ran]]]


def local(jobs: Sequence[Job], place: Place) -> Iterator[tuple[Job, Ran]]:
    """Each job in turn, in this process."""
    for job in jobs:
        yield job, run_job(job, place.root, place.data_folder, place.device, place.on_epoch, place.on_warning)


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
