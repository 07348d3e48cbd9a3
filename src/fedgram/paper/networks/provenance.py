"""Numbers of the runs in a figure or a table, and in words what runs they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import pluralize
from fedgram.paper.networks.cohorts import BETTER_PREDICTION
from fedgram.paper.networks.comparable import KINDS, TITLES, paired
from fedgram.paper.networks.metrics import Metric, PairMetric
from fedgram.paper.networks.results import Result
from fedgram.paper.networks.settings import ALL
from fedgram.runs.procedure import BIAS_RULES, Procedure

Reference = Literal["barycenter", "centralized", "within"]

PREDICTING = tuple(each.procedure for each in BETTER_PREDICTION.conditions)
"""Procedures whose test errors are compared, centralized training last."""


def corrected(procedure: str) -> str:
    """The same procedure with moment correction."""
    return replace(Procedure.parse(procedure), corrected=1.0).name


def values(runs: Sequence[Result], metric: Metric) -> Array:
    """A quantity of each run: (runs,)."""
    return np.array([metric(run) for run in runs])


def pair_values(first: Sequence[Result], second: Sequence[Result], metric: PairMetric) -> Array:
    """A quantity of runs paired by setting and seed: (pairs,)."""
    return np.array([metric(*pair) for pair in paired(first, second)])


def late_test_errors(runs: Sequence[Result], rule: str) -> Array:
    """Test MSE under a rule for the bias after each round of the last half: (runs with test rows, rounds)."""
    errors = [run.test_mse[run.rounds // 2 :, BIAS_RULES.index(rule)] for run in runs]
    return np.array([each for each in errors if not np.isnan(each).any()])


def provenance(runs: Iterable[Result]) -> list[str]:
    """What is shown, in lines: kind of data, what stands for a setting, scale, epochs, rounds, seeds."""
    by_setting: dict[str, list[Result]] = {}
    for run in sorted(runs, key=lambda run: ALL.index(run.setting)):
        by_setting.setdefault(run.setting, []).append(run)
    titles: dict[tuple[str, str, str], list[str]] = {}
    for setting, group in by_setting.items():
        key = (_kinds(group), _stand_in(setting, group[0].dataset), _protocol(group))
        titles.setdefault(key, []).append(TITLES[setting])
    return [
        f"{kinds} data: {stand_in}{', '.join(names)} ({protocol})"
        for (kinds, stand_in, protocol), names in titles.items()
    ] or ["not run"]


def _stand_in(setting: str, dataset: str) -> str:
    return "" if dataset == setting else f"{dataset} for "


def _kinds(runs: list[Result]) -> str:
    return " and ".join(kind for kind in KINDS if any(run.kind == kind for run in runs))


def _protocol(runs: list[Result]) -> str:
    return f"{runs[0].scale} scale, {epochs_in_words(runs)}, {_rounds(runs)}, {_seeds(runs)}"


def _seeds(runs: list[Result]) -> str:
    """'3 seeds', and of how few some of what is shown is."""
    kinds: dict[tuple[object, ...], set[int]] = {}
    for run in runs:
        kind = (run.procedure, run.backbone, run.epochs, run.rounds, run.larger)
        kinds.setdefault(kind, set()).add(run.seed)
    seeds, fewest = set().union(*kinds.values()), min(map(len, kinds.values()))
    return pluralize(len(seeds), "seed") + (f", of some {fewest}" if fewest < len(seeds) else "")


def epochs_in_words(runs: Iterable[Result]) -> str:
    """'E = 400', 'E = 400 and 4000', or 'E = 50 to 4000' for more than two."""
    epochs = sorted({run.epochs for run in runs})
    between = " and " if len(epochs) == 2 else " to "
    return f"E = {between.join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))}"


def _rounds(runs: list[Result]) -> str:
    """How many rounds; those of independent starts apart, of which the paper needs only the first."""
    common = {run.rounds for run in runs if not run.procedure.independent}
    independent = {run.rounds for run in runs if run.procedure.independent} - common
    parts = [pluralize(max(common), "round")] if common else []
    return ", ".join(
        [*parts, *(f"{pluralize(each, 'round')} from independent starts" for each in independent)]
    )
