"""Group missing runs into jobs, and run the jobs here or on a Ray cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fedgram._util.cluster import run_on_ray
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize
from fedgram.paper.networks.results import Result, RunKey
from fedgram.paper.networks.scales import Scale
from fedgram.paper.networks.settings import Source, Variety
from fedgram.runs.procedure import Procedure

if TYPE_CHECKING:
    from fedgram.training import Status

OnEpoch = Callable[["Status"], None]
OnWarning = Callable[[str], None]


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
        """Dataset, network, epochs and number of runs, for logs."""
        runs = pluralize(len(self.procedures) * len(self.seeds))
        more = ", larger" if self.larger else ""
        return f"{self.source.dataset}{more}, {self.backbone}, E = {self.epochs}, {runs}"


@dataclass(frozen=True)
class JobContext:
    """Values that all jobs share: folder of runs, data directory, device and callbacks."""

    root: Path
    data_folder: Path
    device: str
    on_epoch: OnEpoch = lambda status: None
    on_warning: OnWarning = lambda message: None


@dataclass(frozen=True, eq=False)
class JobOutcome:
    """Results of a job, names of its diverged runs, or the reason why its data cannot be used."""

    results: tuple[Result, ...] = ()
    diverged: tuple[str, ...] = ()
    data_error: str = ""

    def __str__(self) -> str:
        if self.data_error:
            return "not run"
        return f"diverged: {', '.join(self.diverged)}" if self.diverged else "finished"


def make_jobs(keys: Iterable[RunKey], sources: Mapping[Variety, Source], scale: Scale) -> list[Job]:
    """Make the jobs that train these runs and no others.

    Runs with the same dataset, network, protocol and seeds share a job. The same keys give the same jobs, so
    that training continues an interrupted stack.
    """
    settings: dict[RunKey, dict[str, None]] = defaultdict(dict)
    seeds: dict[RunKey, dict[Procedure, set[int]]] = defaultdict(lambda: defaultdict(set))
    for key in keys:
        stack = replace(key, setting="", procedure=Procedure(), seed=0)  # the part that its runs share
        settings[stack][key.setting] = None
        seeds[stack][key.procedure].add(key.seed)
    jobs = []
    for stack, names in settings.items():
        by_seeds: dict[tuple[int, ...], list[Procedure]] = defaultdict(list)
        for procedure, its_seeds in seeds[stack].items():
            by_seeds[tuple(sorted(its_seeds))].append(procedure)
        for common, procedures in by_seeds.items():
            jobs.append(Job(
                settings=tuple(names), source=sources[next(iter(names)), stack.larger], scale=scale,
                backbone=stack.backbone, epochs=stack.epochs, rounds=stack.rounds, larger=stack.larger,
                procedures=tuple(procedures), seeds=common,
            ))  # fmt: skip
    return jobs


def run_job(job: Job, context: JobContext) -> JobOutcome:
    """Train the runs of a job and measure those that did not diverge."""
    from fedgram.paper.launch.collect import find_settings, make_results, protocol_folder
    from fedgram.training import train

    try:
        problem = job.scale.problem(job.source, context.data_folder, job.larger)
    except InputError as error:  # damaged or incomplete files must not stop the other jobs
        return JobOutcome(data_error=error.message)
    runs = train(
        problem, job.backbone, job.procedures, job.seeds, job.scale.settings(job.epochs, job.rounds),
        folder=context.root / protocol_folder(job.epochs, job.rounds, job.larger), device=context.device,
        keep_models=False,  # ResNet-18 models of one setting take gigabytes
        on_epoch=context.on_epoch, on_warning=context.on_warning,
    )  # fmt: skip
    settings = find_settings(problem.name, job.scale)
    complete = [make_results(run, settings, job.scale, job.larger) for run in runs if run.complete]
    diverged = tuple(run.setup.run.name for run in runs if not run.complete)
    return JobOutcome(tuple(chain.from_iterable(complete)), diverged)


def run_jobs(engine: str, jobs: Sequence[Job], context: JobContext) -> Iterator[tuple[Job, JobOutcome]]:
    """Run jobs one after the other, or on Ray, each with one GPU (one CPU if the cluster has no GPU).

    All machines must see the folder of runs and the data directory under the same paths.
    """
    if engine == "local":
        return ((job, run_job(job, context)) for job in jobs)
    # Callbacks cannot be called from another process.
    remote = JobContext(context.root.absolute(), context.data_folder.absolute(), context.device)
    return run_on_ray(run_job, jobs, remote)
