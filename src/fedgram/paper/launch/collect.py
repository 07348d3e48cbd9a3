"""Turn stored runs into results."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from fedgram.data.problem import Kind
from fedgram.paper.networks.results import Result, Results, RunKey
from fedgram.paper.networks.scales import COMPARABLE, Scale
from fedgram.paper.networks.settings import ALL, SETTINGS
from fedgram.runs import Runs, StoredRun
from fedgram.runs.expectation import references
from fedgram.runs.measure import measure
from fedgram.runs.store import find_checkpoints
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.explain import explain

LARGER = "-larger"


def collect(root: Path, scale: Scale, known: Container[RunKey] = ()) -> Results:
    """Measure all complete runs in `<out>/<scale>/runs` that are not known yet.

    Needs neither the data nor torch. Skips runs with other settings than the scale's, and runs of an
    unfinished stack: `train` needs all of them to continue it.
    """
    results: list[Result] = []
    for folder in sorted(root.glob("*/")):
        larger = folder.name.endswith(LARGER)
        for run in Runs(folder):
            epochs, rounds = run.setup.settings.epochs, run.setup.settings.rounds
            is_finished = run.complete and not any(find_checkpoints(run.folder.parents[1]))
            if is_finished and _has_protocol(run.setup.settings, scale):
                identity = run.setup.data.name, run.setup.backbone, run.setup.procedure, run.setup.seed
                names = find_settings(run.setup.data.name, scale)
                new = [name for name in names if RunKey(name, *identity, epochs, rounds, larger) not in known]
                results += make_results(run, new, scale, larger)
    return Results(results)


def _has_protocol(config: TrainConfig, scale: Scale) -> bool:
    """Whether a run followed the protocol of a scale, in any comparable precision."""
    protocol = scale.settings(config.epochs, config.rounds)
    return config.precision in COMPARABLE and replace(config, precision=protocol.precision) == protocol


def save_moments(root: Path, folder: Path) -> None:
    """Copy the target moments of each dataset from one of its runs, unless they are there."""
    for protocol in sorted(root.glob("*/")):
        for run in Runs(protocol):
            larger = LARGER if protocol.name.endswith(LARGER) else ""
            path = folder / f"moments-{run.setup.data.name}{larger}.json"
            if not path.exists():
                run.moments.save(path)


def protocol_folder(epochs: int, rounds: int, larger: bool) -> str:
    """Name of the folder in `<out>/<scale>/runs` for runs with this protocol."""
    return f"E{epochs}-rounds{rounds}" + (LARGER if larger else "")


def find_settings(dataset: str, scale: Scale) -> list[str]:
    """Find the settings that a dataset is trained for at a scale."""
    if scale.embedded:
        return [name for name in ALL if scale.source(name).dataset == dataset]
    return [name for name in ALL if dataset in {source.dataset for source in SETTINGS[name].sources}]


def make_results(run: StoredRun, settings: Sequence[str], scale: Scale, larger: bool) -> list[Result]:
    """Measure a complete run once, as one of each setting."""
    if not settings:
        return []
    found, setup, account = measure(run), run.setup, run.account
    grams = references(found.prediction)
    objective = np.stack([each.shared_objective for each in run.rounds()])
    result = Result(
        setting=settings[0],
        dataset=setup.data.name,
        kind=cast(Kind, setup.data.kind),
        backbone=setup.backbone,
        procedure=setup.procedure,
        seed=setup.seed,
        epochs=setup.settings.epochs,
        precision=setup.settings.precision,
        scale=scale.name,
        larger=larger,
        target=found.expected.target,
        barycenter=grams["barycenter"],
        centralized=grams["centralized"],
        within=grams["within"],
        gap_terms=explain(found.prediction).traces,
        grams=found.grams,
        returned_grams=found.local_grams,
        client_grams=found.prediction.grams,
        least_variance=float(found.prediction.activity.eigenvalue.min()),
        error={name: found.error[name] for name in grams},
        direction_error={name: found.direction_error[name] for name in grams},
        trajectory_error=found.trajectory_error,
        delta=found.delta,
        objective_gap=found.objective_gap,
        shared_objective=objective @ found.expected.client_weights,
        train_mse=found.train_mse,
        test_mse=found.test_mse,
        train_rows=sum(setup.data.train_rows),
        test_rows=sum(setup.data.test_rows),
        seconds=account.seconds_per_run,
        device=account.device,
        hardware=account.hardware,
        models_in_stack=account.stack * objective.shape[1],
    )
    return [replace(result, setting=name) for name in settings]
