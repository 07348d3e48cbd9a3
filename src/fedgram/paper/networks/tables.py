"""The paper's tables about networks as data, ours computed beside each number, and tables of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import pluralize
from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import FIVE, START_PAIRS, THREE, WEIGHTS, Cohort, Condition, proximal
from fedgram.paper.networks.comparable import TITLES, ComparableRuns
from fedgram.paper.networks.metrics import (
    Metric,
    change,
    closer_in_direction,
    direction,
    endpoint,
    error,
    last_delta,
    objective_gap,
    removed,
    test_mse,
    train_mse,
    trajectory,
)
from fedgram.paper.networks.provenance import PREDICTING, corrected, late_test_errors, pair_values, values
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.settings import ALL
from fedgram.runs.procedure import BIAS_RULES

Style = Literal["number", "plain", "percent", "seconds"]
Samples = Callable[[ComparableRuns, Cohort, str | Condition], Array]
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
        return f"{self.run:,} of {pluralize(self.needed)}" if self.run else "not run"

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
        shown = ComparableRuns.from_results(results)
        groups = [self._matched(shown, number) for number in range(len(self.groups))]
        return {row.label: self._cells(groups, row) for row in self.rows}

    def _matched(self, shown: ComparableRuns, group: int) -> ComparableRuns:
        """The same settings and seeds in all rows of a group of columns, where these are of one cohort."""
        of, conditions = zip(*(row.sources[group] for row in self.rows), strict=True)
        return shown.matched(conditions, of[0]) if len(set(of)) == 1 else shown

    def _cells(self, shown: Sequence[ComparableRuns], row: Row) -> list[Cell]:
        sources = zip(shown, self.groups, row.sources, strict=True)
        places = [(its, column, *source) for its, group, source in sources for column in group]
        return [_cell(*place, number) for place, number in zip(places, row.paper, strict=True)]


def _cell(
    shown: ComparableRuns, column: Column, cohort: Cohort, condition: str | Condition, paper: float | None
) -> Cell:
    samples = column.samples(shown, cohort, condition)
    ours = float(column.statistic(samples)) if len(samples) else None
    needed = len(cohort.settings) * len(shown.scale.seeds(cohort.seeds))
    comparable = paper if shown.scale.name == "paper" else None
    return Cell(comparable, ours, len(samples), needed, column.style)


def per_run(metric: Metric) -> Samples:
    """A quantity of every run of a condition."""
    return lambda shown, cohort, condition: values(shown.everywhere(condition, cohort), metric)


def gpu_seconds(shown: ComparableRuns, cohort: Cohort, condition: str | Condition) -> Array:
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


PAPER_HOURS, PAPER_RUNS = 1_415, 764
"""GPU-hours of the paper's network experiments, and of how many runs (Appendix E, Compute)."""


def _alone(setting: str, seeds: tuple[int, ...]) -> Cohort:
    return Cohort((setting,), seeds, ())


ENDPOINT, TRAJECTORY = (
    Column("endpoint e_F", per_run(endpoint)),
    Column("trajectory e_F", per_run(trajectory)),
)
DELTA = Column("δ_last", per_run(last_delta))
TURNED, FIRST, LAST = (
    Column("corrected: round 1 d", per_run(direction("centralized", 1))),
    Column("corrected: round 1 e_F", per_run(error("centralized", 1))),
    Column("corrected: last e_F", per_run(endpoint)),
)
ERRORS = (
    Column("e_F to G⋆", per_run(error("barycenter"))),
    Column("e_F to G_cen", per_run(error("centralized"))),
)
DIRECTIONS = (
    Column("d to G⋆", per_run(direction("barycenter"))),
    Column("d to G_cen", per_run(direction("centralized"))),
    Column("closer to G⋆", per_run(lambda run: float(closer_in_direction(run))), "percent", np.mean),
)
TARGETS = "Medians over runs. Without correction errors are to G⋆, with it to G_cen."
TRAJECTORIES = f"{TARGETS} Trajectory errors are to the exact recursion from the same start."
SAME = (
    "All rows are over the same settings and seeds, those that every row has of which any were run; over all "
    "that was run where they share none."
)
ROBUSTNESS = "Median direction errors, and the share of runs closer in direction to G⋆ than to G_cen."

SELECTION = SideBySide(
    "Selection and moment correction", "Table 4", f"{TRAJECTORIES} {SAME}",
    ((ENDPOINT, TRAJECTORY, DELTA), (TURNED, FIRST, LAST)),
    (
        Row("ordinary", ((cohorts.MAIN, "ordinary"), (cohorts.MAIN, "corrected")),
            (1.63e-2, 3.44e-2, 1.85e-1, 8.35e-2, 3.08e-1, 5.06e-3)),
        Row("proximal", ((cohorts.MAIN, "proximal"), (cohorts.MAIN, "proximal+corrected")),
            (2.90e-4, 3.39e-4, 4.47e-3, 4.21e-3, 2.29e-2, 7.08e-5)),
    ),
)  # fmt: skip

WEIGHT_NUMBERS = (
    (1.91e-1, 1.43e-5, 1.71e-2), (1.19e-1, 1.49e-5, 7.38e-3), (3.73e-2, 1.53e-5, 9.14e-4),
    (5.33e-3, 4.05e-5, 3.08e-4), (3.31e-2, 1.40e-3, 4.17e-3), (1.32e-1, 1.81e-2, 4.26e-2),
    (3.56e-1, 1.57e-1, 3.80e-1),
)  # fmt: skip
WEIGHT = SideBySide(
    "Proximal weight and local fitting", "Table 5", f"{TARGETS} {SAME}",
    ((DELTA, Column("relative gap of the objective", per_run(objective_gap)), ENDPOINT),),
    tuple(
        Row(f"ρ = {weight:g}", ((cohorts.RHO, proximal(weight)),), numbers)
        for weight, numbers in zip(WEIGHTS, WEIGHT_NUMBERS, strict=True)
    ),
)  # fmt: skip

ALIGNMENT = SideBySide(
    "Alignment, proximal and ordinary training", "Table 6", f"{TRAJECTORIES} {SAME}",
    ((DELTA, TRAJECTORY, ENDPOINT), (FIRST, LAST)),
    tuple(
        Row(name, ((cohorts.ALIGNMENT, name), (cohorts.ALIGNMENT_CORRECTED, corrected(name))), numbers)
        for name, numbers in (
            ("ordinary", (1.87e-1, 6.75e-2, 1.86e-2, 5.20e-1, 7.07e-3)),
            ("proximal", (6.35e-3, 3.63e-4, 3.24e-4, 2.38e-2, 7.06e-5)),
            ("aligned", (1.54e-4, 1.12e-4, 1.10e-4, 8.38e-5, 6.27e-5)),
        )
    ),
)  # fmt: skip

MISMATCH_NUMBERS = (
    (0.157, 0.154),
    (0.101, 0.105),
    (0.177, 0.181),
    (0.236, 0.237),
    (0.046, 0.060),
    (0.070, 0.083),
)
MISMATCH = SideBySide(
    "Cost of mismatched coordinates in one averaging", "Table 7",
    "Median share of the objective that alignment removes, by the clients' initial backbones, over pairs of "
    "runs.",
    (tuple(Column(start, removed_share(start), "percent") for start in START_PAIRS),),
    tuple(
        Row(TITLES[setting], ((_alone(setting, FIVE), ""),), numbers)
        for setting, numbers in zip(cohorts.ALIGNED, MISMATCH_NUMBERS, strict=True)
    ),
)  # fmt: skip

ARCHITECTURE = SideBySide(
    "Architecture and data size", "Table 8", ROBUSTNESS, (DIRECTIONS,),
    (
        Row("residual CNN", ((cohorts.ARCHITECTURE, cohorts.CNN),), (1.45e-2, 5.24e-1, 1.0)),
        Row("residual CNN, corrected", ((cohorts.ARCHITECTURE, cohorts.CNN_CORRECTED),),
            (5.05e-1, 1.93e-3, 0.0)),
        Row("ResNet-34", ((cohorts.ARCHITECTURE, cohorts.RESNET34),), (1.29e-2, 5.19e-1, 1.0)),
        Row("larger data, E = 1000", ((cohorts.LARGER_DATA, cohorts.LARGER),), (9.55e-3, 5.63e-1, 1.0)),
    ),
)  # fmt: skip

FULL_MODEL = SideBySide(
    "Full-model averaging", "Table 8", ROBUSTNESS, (DIRECTIONS,),
    (
        Row("E = 400", ((cohorts.FULL_MODEL, cohorts.FULL_SHORT),), (4.41e-1, 1.82e-1, 0.27)),
        Row("E = 4000", ((cohorts.FULL_MODEL, cohorts.FULL),), (2.14e-2, 6.20e-1, 1.0)),
        Row("E = 4000, corrected", ((cohorts.FULL_MODEL, cohorts.FULL_CORRECTED),), (6.22e-1, 8.08e-3, 0.0)),
    ),
)  # fmt: skip

CHANGES = (
    Column("change of train MSE", change_of(train_mse), "percent"),
    Column("change of test MSE", change_of(test_mse), "percent"),
)
PREDICTION = SideBySide(
    "Geometry and prediction under one recipe", "Table 9",
    "Medians; changes are against ordinary training of the same setting and seed.",
    ((*ERRORS, *CHANGES),),
    tuple(
        Row(name, ((cohorts.PREDICTION, name),), numbers)
        for name, numbers in (
            ("ordinary", (1.37e-2, 5.04e-1, None, None)),
            ("proximal", (1.54e-4, 4.96e-1, -0.002, -0.001)),
            ("proximal+corrected", (6.23e-1, 7.03e-5, -0.020, -0.015)),
        )
    ),
)  # fmt: skip

SELECTING = ("ordinary", "proximal", "aligned", "solved")
BOTH = (*SELECTING, *map(corrected, SELECTING))
ENDPOINTS = SideBySide(
    "Endpoints in every setting", "ours", f"{TARGETS} The paper gives no numbers by setting.",
    tuple((Column(name, per_run(endpoint)),) for name in BOTH),
    tuple(
        Row(TITLES[each], tuple((_alone(each, THREE), name) for name in BOTH), (None,) * len(BOTH))
        for each in ALL
    ),
)  # fmt: skip
COSTS = SideBySide(
    "GPU-seconds of a run", "ours",
    "Medians over runs that a GPU trained at the paper's scale. Runs of one stack share its time equally, so "
    f"columns that one stack trained are the same. The paper's {PAPER_RUNS} runs of all settings and budgets "
    f"took an estimated {PAPER_HOURS:,} hours of GH200 GPUs (Appendix E, Compute): "
    f"{3600 * PAPER_HOURS / PAPER_RUNS:,.0f} s a run on average, images included.",
    tuple((Column(name, gpu_seconds, "seconds"),) for name in SELECTING),
    tuple(
        Row(label, tuple((Cohort(settings, THREE, ()), name) for name in SELECTING), (None,) * len(SELECTING))
        for label, settings in (("all settings", ALL), *((TITLES[each], (each,)) for each in ALL))
    ),
)  # fmt: skip


def _test_errors(rule: str) -> SideBySide:
    return SideBySide(
        f"Test error with the {rule} bias", "ours",
        "Test MSE, median over runs and the last half of their rounds. The figure has the range: where it "
        "is wide, some rounds were accidents. Centralized training has no clients: every rule is the same.",
        tuple((Column(name, late_test_mse(rule), "plain"),) for name in PREDICTING),
        tuple(
            Row(TITLES[each], tuple((_alone(each, THREE), name) for name in PREDICTING),
                (None,) * len(PREDICTING))
            for each in ALL
        ),
    )  # fmt: skip


TABLES: dict[str, Sequence[SideBySide]] = {
    "beyond-solved": (ENDPOINTS, COSTS),
    "beyond-prediction": tuple(map(_test_errors, BIAS_RULES)),
    "dnn-main": (SELECTION,),
    "dnn-rho": (WEIGHT,),
    "dnn-alignment": (ALIGNMENT, MISMATCH),
    "dnn-architecture": (ARCHITECTURE,),
    "dnn-full-model": (FULL_MODEL,),
    "dnn-prediction": (PREDICTION,),
}
"""Tables by the name of their experiment."""
