"""Tables as data: columns of quantities, rows of runs, and cells with the paper's number beside ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import counted
from fedgram.paper.networks.cohorts import START_PAIRS, Cohort, Condition
from fedgram.paper.networks.figures_runs import late_test_errors, pair_values, values
from fedgram.paper.networks.findings import Metric, change, removed
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.shown import Shown

Style = Literal["number", "plain", "percent", "seconds"]
Samples = Callable[[Shown, Cohort, str | Condition], Array]
"""From what is shown, a cohort and a condition of it, to numbers for each run or pair of runs: (n, ...)."""


@dataclass(frozen=True)
class Cell:
    """A number of the paper, if it has one, beside ours, if any of the runs it needs was run.

    needed counts what belongs to the scale of what was run.
    """

    paper: float | None
    ours: float | None
    run: int
    needed: int
    style: Style

    @property
    def coverage(self) -> str:
        """How much of it was run."""
        return f"{self.run:,} of {counted(self.needed)}" if self.run else "not run"

    def shown(self, side: Literal["paper", "ours"]) -> str:
        """One of the two numbers as text, '-' where there is none."""
        value = self.paper if side == "paper" else self.ours
        return "-" if value is None else FORMATS[self.style](value)


FORMATS: dict[Style, Callable[[float], str]] = {
    "number": lambda value: f"{value:.2e}".replace("e-0", "e-").replace("e+00", ""),
    "plain": lambda value: f"{value:.3g}".replace("e+0", "e+"),
    "percent": lambda value: f"{100 * value:.1f} %",
    "seconds": lambda value: f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s",
}


@dataclass(frozen=True)
class Column:
    """What stands in a column: a statistic of the samples that its runs give."""

    title: str
    samples: Samples
    style: Style = "number"
    statistic: Callable[[Array], float] = np.median


@dataclass(frozen=True)
class Row:
    """A line: the runs behind each group of columns, and the paper's numbers for all columns."""

    label: str
    sources: tuple[tuple[Cohort, str | Condition], ...]
    paper: tuple[float | None, ...]


@dataclass(frozen=True)
class SideBySide:
    """A table: where it stands ('ours' if not in the paper), what it shows, groups of columns, rows."""

    title: str
    where: str
    about: str
    groups: tuple[tuple[Column, ...], ...]
    rows: tuple[Row, ...]

    @property
    def columns(self) -> list[Column]:
        """The columns of all groups."""
        return [column for group in self.groups for column in group]

    def filled(self, results: Results) -> dict[str, list[Cell]]:
        """Cells by the label of their row, from the results of the largest scale that there are any of.

        The paper's numbers stand only beside results of its own scale.
        """
        shown = Shown.of(results)
        groups = [self._matched(shown, number) for number in range(len(self.groups))]
        return {row.label: self._cells(groups, row) for row in self.rows}

    def _matched(self, shown: Shown, group: int) -> Shown:
        """The same settings and seeds in all rows of a group of columns, where these are of one cohort."""
        of, conditions = zip(*(row.sources[group] for row in self.rows), strict=True)
        return shown.matched(conditions, of[0]) if len(set(of)) == 1 else shown

    def _cells(self, shown: Sequence[Shown], row: Row) -> list[Cell]:
        sources = zip(shown, self.groups, row.sources, strict=True)
        places = [(its, column, *source) for its, group, source in sources for column in group]
        return [_cell(*place, number) for place, number in zip(places, row.paper, strict=True)]


def _cell(
    shown: Shown, column: Column, cohort: Cohort, condition: str | Condition, paper: float | None
) -> Cell:
    samples = column.samples(shown, cohort, condition)
    ours = float(column.statistic(samples)) if len(samples) else None
    needed = len(cohort.settings) * len(shown.scale.seeds(cohort.seeds))
    comparable = paper if shown.scale.name == "paper" else None
    return Cell(comparable, ours, len(samples), needed, column.style)


def per_run(metric: Metric) -> Samples:
    """A quantity of every run of a condition."""
    return lambda shown, cohort, condition: values(shown.everywhere(condition, cohort), metric)


def gpu_seconds(shown: Shown, cohort: Cohort, condition: str | Condition) -> Array:
    """Seconds of the runs that a GPU trained at the paper's scale, which alone compare with the paper's."""
    runs = shown.everywhere(condition, cohort) if shown.scale.name == "paper" else []
    return np.array([run.seconds for run in runs if run.on_gpu])


def late_test_mse(rule: str) -> Samples:
    """Test MSE under a rule for the bias after each round of the last half of every run: (runs, rounds)."""
    return lambda shown, cohort, condition: late_test_errors(shown.everywhere(condition, cohort), rule)


def change_of(metric: Metric) -> Samples:
    """The change of a quantity against ordinary training of the same setting and seed."""
    return lambda shown, cohort, condition: pair_values(
        shown.everywhere(condition, cohort), shown.everywhere("ordinary", cohort), change(metric)
    )


def removed_share(start: str) -> Samples:
    """The share of the objective that alignment removes from the first averaging."""
    raw, aligned = START_PAIRS[start]
    return lambda shown, cohort, condition: pair_values(
        shown.everywhere(raw, cohort), shown.everywhere(aligned, cohort), removed
    )
