"""Where training runs: in this process, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedgram._util.cluster import check_engine, run_on_ray
from fedgram.data.problem import Problem
from fedgram.nets.model import Backbone
from fedgram.runs import StoredRun
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from fedgram.training.trainer import LOG, parse_runs, train

Task = TypeVar("Task")
Shared = TypeVar("Shared")
Outcome = TypeVar("Outcome")


def run_tasks(
    engine: str, function: Callable[[Task, Shared], Outcome], tasks: Iterable[Task], shared: Shared
) -> list[Outcome]:
    """Return function(task, shared) of each task, in their order."""
    listed = list(tasks)
    if check_engine(engine) == "local":
        return [function(task, shared) for task in listed]
    outcomes = dict(run_on_ray(function, listed, shared))
    return [outcomes[task] for task in listed]


@dataclass(frozen=True, eq=False)
class _Request:
    """Arguments of `train` that all parts share."""

    problem: Problem
    backbone: Backbone
    config: TrainConfig | None
    options: Mapping[str, Any]


def train_on_ray(
    problem: Problem,
    backbone: Backbone,
    procedures: Iterable[str | Procedure],
    seeds: Iterable[int],
    config: TrainConfig | None = None,
    *,
    folder: str | Path = "runs",
    on_epoch: Callable[[Any], None] | None = None,
    on_warning: Callable[[str], None] = LOG.warning,
    **options: Any,
) -> tuple[StoredRun, ...]:
    """Train as `train` does, on all GPUs of a Ray cluster.

    Every seed is one stack, or every procedure if there is a single seed. All machines must see the folder
    under the same path. Parameters, results and errors are those of `train`; there are no calls of on_epoch,
    which another process cannot make.
    """
    runs = parse_runs(procedures, seeds)
    request = _Request(problem, backbone, config, {"folder": Path(folder).absolute(), **options})
    stored: dict[Run, StoredRun] = {}
    warned: set[str] = set()
    for part, (trained, warnings) in run_on_ray(_train_part, _divide(runs), request):
        stored |= {run.setup.run: run for run in trained}
        for warning in warnings:
            if warning not in warned:
                on_warning(warning)
        warned |= set(warnings)
        on_warning(f"Finished {len(stored)} of {len(runs)}: {', '.join(run.name for run in part)}.")
    return tuple(stored[run] for run in runs if run in stored)


def _divide(runs: list[Run]) -> list[tuple[Run, ...]]:
    """Put the runs of each seed into a part, or those of each procedure if there is a single seed."""
    by_seed = len({run.seed for run in runs}) > 1
    parts: dict[Any, list[Run]] = {}
    for run in runs:
        parts.setdefault(run.seed if by_seed else run.procedure, []).append(run)
    return [tuple(part) for part in parts.values()]


def _train_part(part: tuple[Run, ...], request: _Request) -> tuple[tuple[StoredRun, ...], list[str]]:
    """Train runs; also return the warnings, which another process cannot show."""
    procedures, seeds = ({getattr(run, name): None for run in part} for name in ("procedure", "seed"))
    warnings: list[str] = []
    trained = train(
        request.problem, request.backbone, procedures, seeds, request.config,
        on_warning=warnings.append, **request.options,
    )  # fmt: skip
    return trained, warnings


TRAINERS = {"local": train, "ray": train_on_ray}
