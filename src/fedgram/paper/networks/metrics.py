"""Quantities of runs, and measurements of claims over the runs of a cohort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.claims import Measurement
from fedgram.paper.networks.cohorts import Cohort, Condition
from fedgram.paper.networks.comparable import ComparableRuns, Row, pair_runs
from fedgram.paper.networks.results import Result
from fedgram.runs.procedure import BIAS_RULES

SHARED = BIAS_RULES.index("shared")
Reference = Literal["barycenter", "centralized", "within"]
Metric = Callable[[Result], float]
PairMetric = Callable[[Result, Result], float]
Comparison = Callable[[Result, Result], bool]
Value = Callable[[list[Row]], float | bool | tuple[float, float]]
Found = dict[str, Measurement | None]
"""Measurement of each claim; None if nothing was run."""


@dataclass(frozen=True)
class Findings:
    """Measurements over the runs of a cohort, paired by setting and seed as in the paper.

    A procedure as text means that condition of the main protocol. Only runs at the paper's scale count.
    """

    cohort: Cohort
    shown: ComparableRuns

    def at(self, setting: str) -> Findings:
        """Measure over the cohort's part in one setting."""
        return replace(self, cohort=self.cohort.at(setting))

    def median(self, condition: Condition | str, metric: Metric) -> Measurement | None:
        """Median of a quantity over the runs of a condition."""
        return self.over((condition,), Median(metric))

    def fair(self, condition: Condition | str, value: Value) -> Measurement | None:
        """Value over all runs of a condition; if some are missing, over those that all conditions share.

        In the paper, all rows of a table cover the same settings and seeds. What the missing runs can still
        give depends on all runs of the condition.
        """
        own = self.over((condition,), value)
        if own is None or not own.partial:
            return own
        matched = self.shown.matched(self.cohort.conditions, self.cohort)
        shared = replace(self, shown=matched).over((condition,), value)
        return shared and replace(shared, possible=own.possible)

    def always(self, holds: Callable[..., bool], *conditions: Condition | str) -> Measurement | None:
        """Whether a statement is true for every setting and seed."""
        return self.over(conditions, every(holds))

    def share(self, holds: Callable[..., bool], *conditions: Condition | str) -> Measurement | None:
        """Share of settings and seeds for which a statement is true."""
        return self.over(conditions, lambda rows: float(np.mean([bool(holds(*row)) for row in rows])))

    def over(
        self, conditions: tuple[Condition | str, ...], value: Value, as_one: bool = False
    ) -> Measurement | None:
        """Value over the rows of these conditions, with the numbers of runs and of needed runs.

        as_one: the paper trains once for all conditions of a row, and counts one run.
        """
        rows, each = self.shown.rows(conditions, self.cohort), 1 if as_one else len(conditions)
        if not rows:
            return None
        needed = len(self.cohort.settings) * len(self.cohort.seeds) * each
        if not self.shown.scale.is_full:
            return Measurement(value(rows), run=0, needed=needed, about=f"{self.shown.scale.name} scale")
        run, stand_ins = len(rows) * each, _stand_ins(rows, as_one)
        possible = value.bound(rows, self.cohort) if isinstance(value, Median) else None
        return Measurement(value(rows), run=run, needed=needed, stand_ins=stand_ins, possible=possible)


@dataclass(frozen=True)
class Median:
    """Median of a nonnegative quantity over single runs, or over settings of the median over seeds."""

    metric: Metric
    is_by_setting: bool = False

    def __call__(self, rows: list[Row]) -> float:
        """Median over rows of one run each."""
        groups = by_setting(rows) if self.is_by_setting else [rows]
        return _median_of_medians([self._values(group) for group in groups])

    def bound(self, rows: list[Row], cohort: Cohort) -> tuple[float, float]:
        """Smallest and largest median over the whole cohort, whatever its missing runs give."""
        if self.is_by_setting:
            groups = [[row for row in rows if row[0].setting == name] for name in cohort.settings]
            size = len(cohort.seeds)
        else:
            groups, size = [rows], len(cohort.settings) * len(cohort.seeds)
        found = [self._values(group) for group in groups]

        def fill(missing: float) -> float:
            return _median_of_medians([[*known, *[missing] * (size - len(known))] for known in found])

        return fill(0.0), fill(float("inf"))

    def _values(self, rows: list[Row]) -> list[float]:
        return [self.metric(run) for (run,) in rows]


def _median_of_medians(groups: list[list[float]]) -> float:
    return float(np.median([np.median(group) for group in groups]))


def _stand_ins(rows: list[Row], as_one: bool) -> int:
    """Number of runs, or of rows that count as one, that were trained on stand-in data."""
    flags = [[run.kind != "REAL" for run in row] for row in rows]
    return sum(any(row) if as_one else sum(row) for row in flags)


def every(holds: Callable[..., bool]) -> Callable[[list[Row]], bool]:
    """Whether a statement is true for every row."""
    return lambda rows: all(bool(holds(*row)) for row in rows)


def both(first: Measurement | None, second: Measurement | None) -> Measurement | None:
    """Combine two statements about different runs; None unless something was run for each."""
    if first is None or second is None:
        return None
    return Measurement(
        bool(first.value) and bool(second.value),
        run=first.run + second.run,
        needed=first.needed + second.needed,
        stand_ins=first.stand_ins + second.stand_ins,
        about=first.about,  # the scale, which is the same for both
    )


def medians(rows: Sequence[Row], metric: Metric) -> Array:
    """Median of a quantity over all rows for each condition, (conditions,)."""
    return np.median([[metric(run) for run in row] for row in rows], axis=0)


def by_setting(rows: Sequence[Row]) -> list[list[Row]]:
    """Group rows by their setting."""
    names = dict.fromkeys(row[0].setting for row in rows)
    return [[row for row in rows if row[0].setting == name] for name in names]


def values(runs: Sequence[Result], metric: Metric) -> Array:
    """Quantity of each run, (runs,)."""
    return np.array([metric(run) for run in runs])


def pair_values(first: Sequence[Result], second: Sequence[Result], metric: PairMetric) -> Array:
    """Quantity of runs paired by setting and seed, (pairs,)."""
    return np.array([metric(*pair) for pair in pair_runs(first, second)])


def late_test_errors(runs: Sequence[Result], rule: str) -> Array:
    """Test MSE under a bias rule after each round of the last half: (runs with test rows, rounds)."""
    errors = [run.test_mse[run.rounds // 2 :, BIAS_RULES.index(rule)] for run in runs]
    return np.array([each for each in errors if not np.isnan(each).any()])


def endpoint(run: Result) -> float:
    """e_F of the last Gram to the Gram that the procedure converges to."""
    return float(run.target_error[-1])


def trajectory(run: Result) -> float:
    """Median over rounds 1..T of e_F to the exact recursion."""
    return float(np.median(run.trajectory_error[1:]))


def last_delta(run: Result) -> float:
    """Distance of the returned heads from the selected ones in the last round."""
    return float(run.delta[-1])


def objective_gap(run: Result) -> float:
    """Median over clients of the relative objective gap in the last round."""
    return float(np.median(run.objective_gap[-1]))


def error(reference: str, at: int = -1) -> Metric:
    """e_F to a reference after a round, by default the last one."""
    return lambda run: float(run.error[reference][min(at, run.rounds)])


def direction(reference: str, at: int = -1) -> Metric:
    """Direction error d to a reference after a round, by default the last one."""
    return lambda run: float(run.direction_error[reference][min(at, run.rounds)])


def smaller(metric: Metric) -> Comparison:
    """Whether a quantity is smaller in the first of two runs."""
    return lambda one, other: metric(one) < metric(other)


def change(metric: Metric) -> PairMetric:
    """metric(one) / metric(other) - 1 of two runs."""
    return lambda one, other: metric(one) / metric(other) - 1


def removed(raw: Result, aligned: Result) -> float:
    """(L_raw - L_al) / L_raw: share of the objective that alignment removes from the first averaging."""
    return float(1 - aligned.shared_objective[0] / raw.shared_objective[0])


def closer_in_direction(run: Result) -> bool:
    """Whether the last Gram is closer in direction to G_⋆ than to G_cen."""
    return direction("barycenter")(run) < direction("centralized")(run)


def train_mse(run: Result) -> float:
    """Training MSE at the end, with the shared bias as in the paper."""
    return float(run.train_mse[-1, SHARED])


def test_mse(run: Result) -> float:
    """Test MSE at the end, with the shared bias as in the paper."""
    return float(run.test_mse[-1, SHARED])
