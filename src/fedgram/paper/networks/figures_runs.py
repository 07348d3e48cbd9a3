"""Which runs a figure or a table is about, and in words what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedgram.data.problem import Kind
from fedgram.nets.procedure import BIAS_RULES, Procedure
from fedgram.paper.networks.cohorts import BETTER_PREDICTION, FIVE, Cohort, Condition
from fedgram.paper.networks.findings import Metric
from fedgram.paper.networks.results import Result, RunKey
from fedgram.paper.networks.scales import SCALES, Scale
from fedgram.paper.networks.settings import ALL, IMAGES, SETTINGS, TABULAR, Variety
from fedgram.phrases import counted
from fedgram.psd import Array

Reference = Literal["barycenter", "centralized", "within"]
Part = Literal["train", "test"]

KINDS: tuple[Kind, ...] = ("REAL", "RE-RENDERED", "GENERATED")
TITLES = {name: setting.title for name, setting in SETTINGS.items()}
PREDICTING = tuple(each.procedure for each in BETTER_PREDICTION.conditions)
"""Procedures whose test errors are compared, centralized training last."""
START_PAIRS: dict[str, tuple[Condition, Condition]] = {
    "common": (Condition("ordinary"), Condition("aligned")),
    "independent": (Condition("independent", rounds=1), Condition("aligned+independent", rounds=1)),
}
"""What is averaged as trained and after alignment, by how the clients' backbones begin."""


@dataclass(frozen=True, eq=False)
class Shown:
    """Runs that may stand in one figure or table: of one scale, and of one dataset in each setting."""

    scale: Scale
    datasets: Mapping[Variety, str]
    by_key: Mapping[RunKey, Result]

    @classmethod
    def of(cls, results: Iterable[Result]) -> Shown:
        """The largest scale that there are results of; real data rather than what stands in for it."""
        found = list(results)
        name = next((name for name in SCALES if any(run.scale == name for run in found)), "paper")
        found = [run for run in found if run.scale == name]
        found.sort(key=lambda run: (KINDS.index(run.kind), run.dataset))
        datasets: dict[Variety, str] = {}
        for run in found:
            datasets.setdefault((run.setting, run.larger), run.dataset)
        same = [run for run in found if run.dataset == datasets[run.setting, run.larger]]
        return cls(SCALES[name], datasets, {run.key: run for run in same})

    def runs(self, setting: str, condition: str | Condition, seeds: Sequence[int] = FIVE) -> list[Result]:
        """Runs of one condition, or of a procedure in the paper's protocol, by seed."""
        if isinstance(condition, str):
            condition = Condition(condition)
        dataset = self.datasets.get((setting, condition.larger), "")
        keys = [condition.key(setting, dataset, seed, self.scale) for seed in seeds]
        return [self.by_key[key] for key in keys if key in self.by_key]

    @property
    def settings(self) -> tuple[str, ...]:
        """All settings of tabular data if one was run, and all of images: the rows of a figure."""
        run = {setting for setting, _ in self.datasets}
        return tuple(name for kind in (TABULAR, IMAGES) if run.intersection(kind) for name in kind) or ALL

    @property
    def left_out(self) -> str:
        """What `settings` leaves out, in words; empty if nothing."""
        names = [TITLES[name] for name in ALL if name not in self.settings]
        return f"Not run: {', '.join(names)}." if names else ""

    def everywhere(
        self, condition: str | Condition, seeds: Sequence[int] = FIVE, settings: Sequence[str] = ALL
    ) -> list[Result]:
        """Runs of one condition in several settings, by setting and seed."""
        return [run for setting in settings for run in self.runs(setting, condition, seeds)]

    def matched(self, conditions: Iterable[str | Condition], cohort: Cohort) -> Shown:
        """Only settings and seeds of a cohort that every one of the conditions has of which any was run."""
        groups = [self.everywhere(each, cohort.seeds, cohort.settings) for each in conditions]
        kept = {run.key for row in paired(*filter(None, groups)) for run in row} if any(groups) else set()
        return replace(self, by_key={key: self.by_key[key] for key in kept}) if kept else self

    def same_seeds(self, conditions: Sequence[str | Condition]) -> Shown:
        """Of each setting only seeds that every one of the conditions has of which any was run there."""
        by_setting = ([self.runs(setting, each) for each in conditions] for setting in ALL)
        rows = [row for groups in by_setting if any(groups) for row in paired(*filter(None, groups))]
        return replace(self, by_key={run.key: run for row in rows for run in row})


def corrected(procedure: str) -> str:
    """The same procedure with moment correction."""
    return replace(Procedure.parse(procedure), corrected=1.0).name


def paired(*groups: Sequence[Result]) -> list[tuple[Result, ...]]:
    """Runs of several groups with the same setting and seed, side by side; the rest is left out."""
    tables = [{(run.setting, run.seed): run for run in group} for group in groups]
    common = [key for key in tables[0] if all(key in table for table in tables)]
    return [tuple(table[key] for table in tables) for key in common]


def values(runs: Sequence[Result], metric: Metric) -> Array:
    """A quantity of each run: (runs,)."""
    return np.array([metric(run) for run in runs])


def mse(runs: Sequence[Result], part: Part) -> Array:
    """MSE after the last round under the shared bias, which is the paper's: (runs,)."""
    errors = [run.train_mse if part == "train" else run.test_mse for run in runs]
    return np.array([each[-1, BIAS_RULES.index("shared")] for each in errors])


def mse_changes(base: Sequence[Result], runs: Sequence[Result], part: Part) -> Array:
    """MSE / MSE_base - 1 of runs paired by setting and seed: (pairs,)."""
    pairs = paired(base, runs)
    first, second = (mse([pair[side] for pair in pairs], part) for side in (0, 1))
    return second / first - 1


def late_test_errors(runs: Sequence[Result], rule: str) -> Array:
    """Test MSE under a rule for the bias after each round of the last half: (runs with test rows, rounds)."""
    errors = [run.test_mse[run.rounds // 2 :, BIAS_RULES.index(rule)] for run in runs]
    return np.array([each for each in errors if not np.isnan(each).any()])


def removed_fraction(raw: Sequence[Result], aligned: Sequence[Result]) -> Array:
    """(L_raw - L_al) / L_raw of the objective after the first averaging, for pairs of runs: (pairs,).

    Both runs of a pair train the same first round, so that they differ in the alignment and in what
    rounding grows to over its epochs.
    """
    pairs = paired(raw, aligned)
    return np.array([1 - second.shared_objective[0] / first.shared_objective[0] for first, second in pairs])


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
    seeds = counted(len({run.seed for run in runs}), "seed")
    return f"{runs[0].scale} scale, {epochs_in_words(runs)}, {_rounds(runs)}, {seeds}"


def epochs_in_words(runs: Iterable[Result]) -> str:
    """'E = 400', 'E = 400 and 4000', or 'E = 50 to 4000' for more than two."""
    epochs = sorted({run.epochs for run in runs})
    between = " and " if len(epochs) == 2 else " to "
    return f"E = {between.join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))}"


def _rounds(runs: list[Result]) -> str:
    """How many rounds; those of independent starts apart, of which the paper needs only the first."""
    common = {run.rounds for run in runs if not run.procedure.independent}
    independent = {run.rounds for run in runs if run.procedure.independent} - common
    parts = [counted(max(common), "round")] if common else []
    return ", ".join([*parts, *(f"{counted(each, 'round')} from independent starts" for each in independent)])
