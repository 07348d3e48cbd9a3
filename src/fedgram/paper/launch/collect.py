"""From stored runs to results: what `measure` finds of each, beside the prediction for its clients."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import cast

import numpy as np

from fedgram.data.problem import Kind
from fedgram.paper.networks.results import Result, Results, RunKey
from fedgram.paper.networks.scales import Scale
from fedgram.paper.networks.settings import ALL, SETTINGS
from fedgram.runs import Runs, Setup, StoredRun
from fedgram.runs.expectation import references
from fedgram.runs.measure import measure
from fedgram.runs.store import checkpoints
from fedgram.theory.explain import explain

LARGER = "-larger"


def collect(root: Path, scale: Scale, known: Container[RunKey] = ()) -> Results:
    """Results of all complete runs under `<out>/<scale>/runs`, but for those that are known already.

    Needs neither the data nor torch. Runs by other settings than the scale's are left out, and those beside
    an unfinished stack: `train` must be asked for all of them again to go on with it.
    """
    return Results(
        result(run, setting, scale, larger)
        for folder in sorted(root.glob("*/"))
        for larger in (folder.name.endswith(LARGER),)
        for run in Runs(folder)
        if run.complete and _of_scale(run, scale) and not _under_way(run)
        for setting in settings_of(run.setup.data.name, scale)
        if key_of(run.setup, setting, larger) not in known
    )


def key_of(setup: Setup, setting: str, larger: bool) -> RunKey:
    """What tells a run from the others of its scale."""
    settings = setup.settings
    return RunKey(
        setting, setup.data.name, setup.backbone, setup.procedure, setup.seed,
        settings.epochs, settings.rounds, larger,
    )  # fmt: skip


def _of_scale(run: StoredRun, scale: Scale) -> bool:
    settings = run.setup.settings
    return settings == scale.settings(settings.epochs, settings.rounds)


def _under_way(run: StoredRun) -> bool:
    return any(checkpoints(run.folder.parents[1]))


def protocol_folder(epochs: int, rounds: int, larger: bool) -> str:
    """The folder under `<out>/<scale>/runs` of all runs with these epochs, rounds and size of the data."""
    return f"E{epochs}-rounds{rounds}" + (LARGER if larger else "")


def settings_of(dataset: str, scale: Scale) -> list[str]:
    """The settings that a dataset is trained for at a scale."""
    if scale.embedded:
        return [name for name in ALL if scale.source(name).dataset == dataset]
    return [name for name in ALL if dataset in {source.dataset for source in SETTINGS[name].sources}]


def result(run: StoredRun, setting: str, scale: Scale, larger: bool) -> Result:
    """What a complete run found, as one of a setting."""
    found, setup, account = measure(run), run.setup, run.account
    grams = references(found.prediction)
    objective = np.stack([each.shared_objective for each in run.rounds()])
    return Result(
        setting=setting,
        dataset=setup.data.name,
        kind=cast(Kind, setup.data.kind),
        backbone=setup.backbone,
        procedure=setup.procedure,
        seed=setup.seed,
        epochs=setup.settings.epochs,
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
