"""Tables about networks: the paper's numbers beside ours, and tables of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import pluralize
from fedgram.paper.networks import cohorts, metrics
from fedgram.paper.networks.cohorts import (
    FIVE,
    PREDICTING,
    START_PAIRS,
    THREE,
    WEIGHTS,
    Cohort,
    Condition,
    proximal,
    with_correction,
)
from fedgram.paper.networks.comparable import TITLES, ComparableRuns
from fedgram.paper.networks.metrics import Metric
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.settings import ALL
from fedgram.runs.procedure import BIAS_RULES

Style = Literal["number", "plain", "percent", "seconds"]
Samples = Callable[[ComparableRuns, Cohort, str | Condition], Array]
"""From runs, a cohort and one of its conditions to numbers for each run or pair of runs: (n, ...)."""


@dataclass(frozen=True)
class Cell:
    """A number of the paper beside ours; None if there is none.

    run and needed: numbers of runs, or of pairs of runs, at the scale of our number.
    """

    paper: float | None
    ours: float | None
    run: int
    needed: int
    style: Style

    @property
    def coverage(self) -> str:
        """Number of runs, of those needed."""
        return f"{self.run:,} of {pluralize(self.needed)}" if self.run else "not run"

    def format(self, side: Literal["paper", "ours"]) -> str:
        """One of the two numbers as text, '-' if there is none."""
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
    """A column: a statistic of the samples from its runs."""

    title: str
    samples: Samples
    style: Style = "number"
    statistic: Callable[[Array], float] = np.median


@dataclass(frozen=True)
class Line:
    """A row: the runs behind each group of columns, and the paper's numbers for all columns."""

    label: str
    sources: tuple[tuple[Cohort, str | Condition], ...]
    paper: tuple[float | None, ...]


@dataclass(frozen=True)
class SideBySide:
    """A table of the paper, or of ours (where = 'ours'); about: a caption."""

    title: str
    where: str
    about: str
    groups: tuple[tuple[Column, ...], ...]
    rows: tuple[Line, ...]

    @property
    def columns(self) -> list[Column]:
        """Columns of all groups."""
        return [column for group in self.groups for column in group]

    def fill(self, results: Results) -> dict[str, list[Cell]]:
        """Compute the cells of each row, by its label, from the largest scale with results.

        The paper's numbers appear only beside results of its own scale.
        """
        shown = ComparableRuns.from_results(results)
        groups = [self._matched(shown, number) for number in range(len(self.groups))]
        return {row.label: self._cells(groups, row) for row in self.rows}

    def _matched(self, shown: ComparableRuns, group: int) -> ComparableRuns:
        """Keep the same settings and seeds in all rows of a group of columns, if these have one cohort."""
        of, conditions = zip(*(row.sources[group] for row in self.rows), strict=True)
        return shown.matched(conditions, of[0]) if len(set(of)) == 1 else shown

    def _cells(self, shown: Sequence[ComparableRuns], row: Line) -> list[Cell]:
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
    """Quantity of every run of a condition."""
    return lambda shown, cohort, condition: metrics.values(shown.everywhere(condition, cohort), metric)


def gpu_seconds(shown: ComparableRuns, cohort: Cohort, condition: str | Condition) -> Array:
    """Seconds of runs on a GPU at the paper's scale; only these compare with the paper's."""
    runs = shown.everywhere(condition, cohort) if shown.scale.name == "paper" else []
    return np.array([run.seconds for run in runs if run.on_gpu])


def late_test_mse(rule: str) -> Samples:
    """Test MSE under a bias rule after each round of the last half of every run: (runs, rounds)."""
    return lambda shown, cohort, condition: metrics.late_test_errors(
        shown.everywhere(condition, cohort), rule
    )


def change_of(metric: Metric) -> Samples:
    """Change of a quantity against ordinary training of the same setting and seed."""
    return lambda shown, cohort, condition: metrics.pair_values(
        shown.everywhere(condition, cohort), shown.everywhere("ordinary", cohort), metrics.change(metric)
    )


def removed_share(start: str) -> Samples:
    """Share of the objective that alignment removes from the first averaging."""
    raw, aligned = START_PAIRS[start]
    return lambda shown, cohort, condition: metrics.pair_values(
        shown.everywhere(raw, cohort), shown.everywhere(aligned, cohort), metrics.removed
    )


PAPER_HOURS, PAPER_RUNS = 1_415, 764
"""GPU-hours and number of runs of the paper's network experiments (Appendix E, Compute)."""


def _alone(setting: str, seeds: tuple[int, ...]) -> Cohort:
    return Cohort((setting,), seeds, ())


ENDPOINT, TRAJECTORY = (
    Column("endpoint e_F", per_run(metrics.endpoint)),
    Column("trajectory e_F", per_run(metrics.trajectory)),
)
DELTA = Column("δ_last", per_run(metrics.last_delta))
TURNED, FIRST, LAST = (
    Column("corrected: round 1 d", per_run(metrics.direction("centralized", 1))),
    Column("corrected: round 1 e_F", per_run(metrics.error("centralized", 1))),
    Column("corrected: last e_F", per_run(metrics.endpoint)),
)
ERRORS = (
    Column("e_F to G⋆", per_run(metrics.error("barycenter"))),
    Column("e_F to G_cen", per_run(metrics.error("centralized"))),
)
DIRECTIONS = (
    Column("d to G⋆", per_run(metrics.direction("barycenter"))),
    Column("d to G_cen", per_run(metrics.direction("centralized"))),
    Column("closer to G⋆", per_run(lambda run: float(metrics.closer_in_direction(run))), "percent", np.mean),
)
TARGETS = "Medians over runs. Without correction errors are to G⋆, with it to G_cen."
TRAJECTORIES = f"{TARGETS} Trajectory errors are to the exact recursion from the same start."
SAME = (
    "All rows cover the same settings and seeds: those that all rows with runs share, or all runs if they "
    "share none."
)
ROBUSTNESS = "Median direction errors, and the share of runs closer in direction to G⋆ than to G_cen."
SELECTION = SideBySide(
    "Selection and moment correction", "Table 4", f"{TRAJECTORIES} {SAME}",
    ((ENDPOINT, TRAJECTORY, DELTA), (TURNED, FIRST, LAST)),
    (
        Line("ordinary", ((cohorts.MAIN, "ordinary"), (cohorts.MAIN, "corrected")),
            (1.63e-2, 3.44e-2, 1.85e-1, 8.35e-2, 3.08e-1, 5.06e-3)),
        Line("proximal", ((cohorts.MAIN, "proximal"), (cohorts.MAIN, "proximal+corrected")),
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
    ((DELTA, Column("relative gap of the objective", per_run(metrics.objective_gap)), ENDPOINT),),
    tuple(
        Line(f"ρ = {weight:g}", ((cohorts.RHO, proximal(weight)),), numbers)
        for weight, numbers in zip(WEIGHTS, WEIGHT_NUMBERS, strict=True)
    ),
)  # fmt: skip
ALIGNMENT = SideBySide(
    "Alignment, proximal and ordinary training", "Table 6", f"{TRAJECTORIES} {SAME}",
    ((DELTA, TRAJECTORY, ENDPOINT), (FIRST, LAST)),
    tuple(
        Line(name, ((cohorts.ALIGNMENT, name), (cohorts.ALIGNMENT_CORRECTED, with_correction(name))), numbers)
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
        Line(TITLES[setting], ((_alone(setting, FIVE), ""),), numbers)
        for setting, numbers in zip(cohorts.ALIGNED, MISMATCH_NUMBERS, strict=True)
    ),
)  # fmt: skip
ARCHITECTURE = SideBySide(
    "Architecture and data size", "Table 8", ROBUSTNESS, (DIRECTIONS,),
    (
        Line("residual CNN", ((cohorts.ARCHITECTURE, cohorts.CNN),), (1.45e-2, 5.24e-1, 1.0)),
        Line("residual CNN, corrected", ((cohorts.ARCHITECTURE, cohorts.CNN_CORRECTED),),
            (5.05e-1, 1.93e-3, 0.0)),
        Line("ResNet-34", ((cohorts.ARCHITECTURE, cohorts.RESNET34),), (1.29e-2, 5.19e-1, 1.0)),
        Line("larger data, E = 1000", ((cohorts.LARGER_DATA, cohorts.LARGER),), (9.55e-3, 5.63e-1, 1.0)),
    ),
)  # fmt: skip
FULL_MODEL = SideBySide(
    "Full-model averaging", "Table 8", ROBUSTNESS, (DIRECTIONS,),
    (
        Line("E = 400", ((cohorts.FULL_MODEL, cohorts.FULL_SHORT),), (4.41e-1, 1.82e-1, 0.27)),
        Line("E = 4000", ((cohorts.FULL_MODEL, cohorts.FULL),), (2.14e-2, 6.20e-1, 1.0)),
        Line("E = 4000, corrected", ((cohorts.FULL_MODEL, cohorts.FULL_CORRECTED),), (6.22e-1, 8.08e-3, 0.0)),
    ),
)  # fmt: skip
CHANGES = (
    Column("change of train MSE", change_of(metrics.train_mse), "percent"),
    Column("change of test MSE", change_of(metrics.test_mse), "percent"),
)
PREDICTION = SideBySide(
    "Geometry and prediction under one recipe", "Table 9",
    "Medians; changes are against ordinary training of the same setting and seed.",
    ((*ERRORS, *CHANGES),),
    tuple(
        Line(name, ((cohorts.PREDICTION, name),), numbers)
        for name, numbers in (
            ("ordinary", (1.37e-2, 5.04e-1, None, None)),
            ("proximal", (1.54e-4, 4.96e-1, -0.002, -0.001)),
            ("proximal+corrected", (6.23e-1, 7.03e-5, -0.020, -0.015)),
        )
    ),
)  # fmt: skip
SELECTING = ("ordinary", "proximal", "aligned", "solved")
BOTH = (*SELECTING, *map(with_correction, SELECTING))
ENDPOINTS = SideBySide(
    "Endpoints in every setting", "ours", f"{TARGETS} The paper gives no numbers by setting.",
    tuple((Column(name, per_run(metrics.endpoint)),) for name in BOTH),
    tuple(
        Line(TITLES[each], tuple((_alone(each, THREE), name) for name in BOTH), (None,) * len(BOTH))
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
        Line(label, tuple((Cohort(settings, THREE, ()), name) for name in SELECTING),
             (None,) * len(SELECTING))
        for label, settings in (("all settings", ALL), *((TITLES[each], (each,)) for each in ALL))
    ),
)  # fmt: skip


def _test_errors(rule: str) -> SideBySide:
    return SideBySide(
        f"Test error with the {rule} bias", "ours",
        "Test MSE, median over runs and the last half of their rounds. The figure has the range: where it "
        "is wide, some rounds are outliers. Centralized training has no clients: every rule is the same.",
        tuple((Column(name, late_test_mse(rule), "plain"),) for name in PREDICTING),
        tuple(
            Line(TITLES[each], tuple((_alone(each, THREE), name) for name in PREDICTING),
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
