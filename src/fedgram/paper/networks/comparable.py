"""Select the runs that a figure, a table or a claim may compare, and describe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedgram._util.text import pluralize
from fedgram.data.problem import Kind
from fedgram.paper.networks.cohorts import FIVE, Cohort, Condition
from fedgram.paper.networks.results import Result, RunKey
from fedgram.paper.networks.scales import SCALES, Scale
from fedgram.paper.networks.settings import ALL, SETTINGS, Variety

KINDS: tuple[Kind, ...] = ("REAL", "RE-RENDERED", "GENERATED")
TITLES = {name: setting.title for name, setting in SETTINGS.items()}
Row = tuple[Result, ...]
"""Runs of one setting and seed, one for each of several conditions."""


@dataclass(frozen=True, eq=False)
class ComparableRuns:
    """Runs of one scale, and of one dataset in each setting."""

    scale: Scale
    datasets: Mapping[Variety, str]
    by_key: Mapping[RunKey, Result]

    @classmethod
    def from_results(cls, results: Iterable[Result]) -> ComparableRuns:
        """Keep the largest scale with results, and real data rather than stand-ins."""
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
        """Runs of a condition, or of a procedure in the paper's protocol, by seed."""
        if isinstance(condition, str):
            condition = Condition(condition)
        dataset = self.datasets.get((setting, condition.larger), "")
        keys = [condition.key(setting, dataset, seed, self.scale) for seed in seeds]
        return [self.by_key[key] for key in keys if key in self.by_key]

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings with runs, in the paper's order."""
        run = {key.setting for key in self.by_key}
        return tuple(name for name in ALL if name in run)

    def everywhere(self, condition: str | Condition, cohort: Cohort) -> list[Result]:
        """Runs of a condition in the settings and seeds of a cohort, by setting and seed."""
        return [run for setting in cohort.settings for run in self.runs(setting, condition, cohort.seeds)]

    def rows(self, conditions: Iterable[str | Condition], cohort: Cohort) -> list[Row]:
        """One row for each setting and seed of a cohort that has a run under every condition."""
        return pair_runs(*(self.everywhere(each, cohort) for each in conditions))

    def matched(self, conditions: Iterable[str | Condition], cohort: Cohort) -> ComparableRuns:
        """Keep settings and seeds of a cohort that all conditions with runs share.

        Keeps all runs if they share none.
        """
        kept = _common(self.everywhere(each, cohort) for each in conditions)
        return self._only(kept) if kept else self

    def same_seeds(self, conditions: Sequence[str | Condition]) -> ComparableRuns:
        """Keep, in each setting, the seeds that all conditions with runs there share."""
        by_setting = ([self.runs(setting, each) for each in conditions] for setting in ALL)
        return self._only(run for groups in by_setting for run in _common(groups))

    def _only(self, runs: Iterable[Result]) -> ComparableRuns:
        return replace(self, by_key={run.key: run for run in runs})


def pair_runs(*groups: Sequence[Result]) -> list[Row]:
    """Match runs of several groups by setting and seed; drop runs without a match."""
    tables = [{(run.setting, run.seed): run for run in group} for group in groups]
    return [
        tuple(table[key] for table in tables) for key in tables[0] if all(key in table for table in tables)
    ]


def _common(groups: Iterable[Sequence[Result]]) -> list[Result]:
    """Runs of the settings and seeds that all nonempty groups share."""
    present = [group for group in groups if group]
    return [run for row in pair_runs(*present) for run in row] if present else []


def describe_runs(runs: Iterable[Result]) -> list[str]:
    """Describe runs in lines: kind of data, stand-ins, scale, epochs, rounds and seeds."""
    by_setting: dict[str, list[Result]] = {}
    for run in sorted(runs, key=lambda run: ALL.index(run.setting)):
        by_setting.setdefault(run.setting, []).append(run)
    titles: dict[tuple[str, str, str], list[str]] = {}
    for setting, group in by_setting.items():
        kinds = " and ".join(kind for kind in KINDS if any(run.kind == kind for run in group))
        stand_in = "" if group[0].dataset == setting else f"{group[0].dataset} for "
        protocol = f"{group[0].scale} scale, {describe_epochs(group)}, {_rounds(group)}, {_seeds(group)}"
        titles.setdefault((kinds, stand_in, protocol), []).append(TITLES[setting])
    return [
        f"{kinds} data: {stand_in}{', '.join(names)} ({protocol})"
        for (kinds, stand_in, protocol), names in titles.items()
    ] or ["not run"]


def describe_epochs(runs: Iterable[Result]) -> str:
    """'E = 400', 'E = 400 and 4000', or 'E = 50 to 4000' for more than two."""
    epochs = sorted({run.epochs for run in runs})
    between = " and " if len(epochs) == 2 else " to "
    return f"E = {between.join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))}"


def _rounds(runs: list[Result]) -> str:
    """Number of rounds; independent starts apart, because the paper needs only their first round."""
    common = {run.rounds for run in runs if not run.procedure.independent}
    independent = {run.rounds for run in runs if run.procedure.independent} - common
    parts = [pluralize(max(common), "round")] if common else []
    return ", ".join(
        [*parts, *(f"{pluralize(each, 'round')} from independent starts" for each in independent)]
    )


def _seeds(runs: list[Result]) -> str:
    """Number of seeds, and the fewest of any condition."""
    conditions: dict[tuple[object, ...], set[int]] = {}
    for run in runs:
        condition = (run.procedure, run.backbone, run.epochs, run.rounds, run.larger)
        conditions.setdefault(condition, set()).add(run.seed)
    seeds, fewest = set().union(*conditions.values()), min(map(len, conditions.values()))
    return pluralize(len(seeds), "seed") + (f", of some {fewest}" if fewest < len(seeds) else "")
