"""Tables about networks: the paper's numbers beside ours, and tables of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import pluralize
from fedgram.paper.claims import load_claims
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
from fedgram.paper.networks.metrics import Findings, Found, Metric, Value
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
    """A column: a statistic of the samples from its runs.

    claim: part of the ids of its claims. sign: -1 if the claims count a fall as positive.
    """

    title: str
    samples: Samples
    style: Style = "number"
    statistic: Callable[[Array], float] = np.median
    claim: str = ""
    sign: int = 1


@dataclass(frozen=True)
class Line:
    """A row: the runs behind each group of columns; claims: ids of its claims, with {} for the column."""

    label: str
    sources: tuple[tuple[Cohort, str | Condition], ...]
    claims: str = ""


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

        The paper's numbers appear only beside results of its whole protocol.
        """
        shown = ComparableRuns.from_results(results)
        groups = [self._matched(shown, number) for number in range(len(self.groups))]
        claims = load_claims() if shown.scale.is_full else []
        paper = {claim.id: claim.value for claim in claims if isinstance(claim.value, float)}
        return {row.label: self._cells(groups, row, paper) for row in self.rows}

    def _matched(self, shown: ComparableRuns, group: int) -> ComparableRuns:
        """Keep the same settings and seeds in all rows of a group of columns, if these have one cohort."""
        of, conditions = zip(*(row.sources[group] for row in self.rows), strict=True)
        return shown.matched(conditions, of[0]) if len(set(of)) == 1 else shown

    def _cells(self, shown: Sequence[ComparableRuns], row: Line, paper: Mapping[str, float]) -> list[Cell]:
        cells = []
        for its, group, (cohort, condition) in zip(shown, self.groups, row.sources, strict=True):
            needed = len(cohort.settings) * len(its.scale.seeds(cohort.seeds))
            for column in group:
                samples = column.samples(its, cohort, condition)
                ours = float(column.statistic(samples)) if len(samples) else None
                number = paper.get(row.claims.format(column.claim))
                number = None if number is None else column.sign * number
                cells.append(Cell(number, ours, len(samples), needed, column.style))
        return cells

    def measure(self, shown: ComparableRuns, fair: bool = True) -> Found:
        """Measure the claims of columns about single runs; fair: see `Findings.fair`."""
        found: Found = {}
        for row in self.rows:
            for group, (cohort, condition) in zip(self.groups, row.sources, strict=True):
                runs = Findings(cohort, shown)
                for column in group:
                    if isinstance(column.samples, PerRun):
                        value = column.samples.over_rows(column.statistic)
                        measured = runs.fair(condition, value) if fair else runs.over((condition,), value)
                        found[row.claims.format(column.claim)] = measured
        return found


@dataclass(frozen=True)
class PerRun:
    """Quantity of every run of a condition."""

    metric: Metric

    def __call__(self, shown: ComparableRuns, cohort: Cohort, condition: str | Condition) -> Array:
        """Return the quantity of each run, (runs,)."""
        return metrics.values(shown.everywhere(condition, cohort), self.metric)

    def over_rows(self, statistic: Callable[[Array], float]) -> Value:
        """Return the function from rows of single runs to a statistic of the quantity."""
        if statistic is np.median:
            return metrics.Median(self.metric)
        return lambda rows: float(statistic(metrics.values([run for (run,) in rows], self.metric)))


def gpu_seconds(shown: ComparableRuns, cohort: Cohort, condition: str | Condition) -> Array:
    """Seconds of runs on a GPU at the paper's scale; only these compare with the paper's."""
    runs = shown.everywhere(condition, cohort) if shown.scale.is_full else []
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


def _per_run(title: str, metric: Metric, claim: str) -> Column:
    return Column(title, PerRun(metric), claim=claim)


ENDPOINT = _per_run("endpoint e_F", metrics.endpoint, "endpoint")
TRAJECTORY = _per_run("trajectory e_F", metrics.trajectory, "trajectory")
DELTA = _per_run("δ_last", metrics.last_delta, "delta")
GAP = _per_run("relative gap of the objective", metrics.objective_gap, "objective")
TURNED = _per_run("corrected: round 1 d", metrics.direction("centralized", 1), "corrected-direction-1")
FIRST = _per_run("corrected: round 1 e_F", metrics.error("centralized", 1), "corrected-1")
LAST = _per_run("corrected: last e_F", metrics.endpoint, "corrected-8")
ERRORS = (
    _per_run("e_F to G⋆", metrics.error("barycenter"), "barycenter"),
    _per_run("e_F to G_cen", metrics.error("centralized"), "centralized"),
)
CLOSER = PerRun(lambda run: float(metrics.closer_in_direction(run)))
DIRECTIONS = (
    _per_run("d to G⋆", metrics.direction("barycenter"), "to-barycenter"),
    _per_run("d to G_cen", metrics.direction("centralized"), "to-centralized"),
    Column("closer to G⋆", CLOSER, "percent", np.mean, "closer"),
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
    ((ENDPOINT, TRAJECTORY, DELTA), (TURNED, FIRST, replace(LAST, claim="corrected-endpoint"))),
    tuple(
        Line(name, ((cohorts.MAIN, name), (cohorts.MAIN, with_correction(name))), f"main-{name}-{{}}")
        for name in ("ordinary", "proximal")
    ),
)  # fmt: skip
WEIGHT = SideBySide(
    "Proximal weight and local fitting", "Table 5", f"{TARGETS} {SAME}",
    ((DELTA, GAP, ENDPOINT),),
    tuple(
        Line(f"ρ = {weight:g}", ((cohorts.RHO, proximal(weight)),), f"rho-{weight:g}-{{}}")
        for weight in WEIGHTS
    ),
)  # fmt: skip
ALIGNMENT = SideBySide(
    "Alignment, proximal and ordinary training", "Table 6", f"{TRAJECTORIES} {SAME}",
    ((DELTA, TRAJECTORY, ENDPOINT), (FIRST, LAST)),
    tuple(
        Line(name, ((cohorts.ALIGNMENT, name), (cohorts.ALIGNMENT_CORRECTED, with_correction(name))),
             f"alignment-{name}-{{}}")
        for name in ("ordinary", "proximal", "aligned")
    ),
)  # fmt: skip
MISMATCH = SideBySide(
    "Cost of mismatched coordinates in one averaging", "Table 7",
    "Median share of the objective that alignment removes, by the clients' initial backbones, over pairs of "
    "runs.",
    (tuple(Column(start, removed_share(start), "percent", claim=start) for start in START_PAIRS),),
    tuple(
        Line(TITLES[setting], ((_alone(setting, FIVE), ""),), f"mismatched-{{}}-{setting}")
        for setting in cohorts.ALIGNED
    ),
)  # fmt: skip
ARCHITECTURE = SideBySide(
    "Architecture and data size", "Table 8", ROBUSTNESS, (DIRECTIONS,),
    (
        Line("residual CNN", ((cohorts.ARCHITECTURE, cohorts.CNN),), "cnn-{}"),
        Line("residual CNN, corrected", ((cohorts.ARCHITECTURE, cohorts.CNN_CORRECTED),), "cnn-corrected-{}"),
        Line("ResNet-34", ((cohorts.ARCHITECTURE, cohorts.RESNET34),), "resnet34-{}"),
        Line("larger data, E = 1000", ((cohorts.LARGER_DATA, cohorts.LARGER),), "larger-{}"),
    ),
)  # fmt: skip
FULL_MODEL = SideBySide(
    "Full-model averaging", "Table 8", ROBUSTNESS, (DIRECTIONS,),
    (
        Line("E = 400", ((cohorts.FULL_MODEL, cohorts.FULL_SHORT),), "full-400-{}"),
        Line("E = 4000", ((cohorts.FULL_MODEL, cohorts.FULL),), "full-4000-{}"),
        Line("E = 4000, corrected", ((cohorts.FULL_MODEL, cohorts.FULL_CORRECTED),), "full-corrected-{}"),
    ),
)  # fmt: skip
CHANGES = (
    Column("change of train MSE", change_of(metrics.train_mse), "percent", claim="train", sign=-1),
    Column("change of test MSE", change_of(metrics.test_mse), "percent", claim="test", sign=-1),
)
PREDICTION = SideBySide(
    "Geometry and prediction under one recipe", "Table 9",
    "Medians; changes are against ordinary training of the same setting and seed.",
    ((*ERRORS, *CHANGES),),
    tuple(
        Line(name, ((cohorts.PREDICTION, name),), f"prediction-{name.removeprefix('proximal+')}-{{}}")
        for name in ("ordinary", "proximal", "proximal+corrected")
    ),
)  # fmt: skip
SELECTING = ("ordinary", "proximal", "aligned", "solved")
BOTH = (*SELECTING, *map(with_correction, SELECTING))
ENDPOINTS = SideBySide(
    "Endpoints in every setting", "ours", f"{TARGETS} The paper gives no numbers by setting.",
    tuple((Column(name, PerRun(metrics.endpoint)),) for name in BOTH),
    tuple(Line(TITLES[each], tuple((_alone(each, THREE), name) for name in BOTH)) for each in ALL),
)  # fmt: skip
COSTS = SideBySide(
    "GPU-seconds of a run", "ours",
    "Medians over runs that a GPU trained at the paper's scale. Runs of one stack share its time equally, so "
    f"columns that one stack trained are the same. The paper's {PAPER_RUNS} runs of all settings and budgets "
    f"took an estimated {PAPER_HOURS:,} hours of GH200 GPUs (Appendix E, Compute): "
    f"{3600 * PAPER_HOURS / PAPER_RUNS:,.0f} s a run on average, images included.",
    tuple((Column(name, gpu_seconds, "seconds"),) for name in SELECTING),
    tuple(
        Line(label, tuple((Cohort(settings, THREE, ()), name) for name in SELECTING))
        for label, settings in (("all settings", ALL), *((TITLES[each], (each,)) for each in ALL))
    ),
)  # fmt: skip


def _test_errors(rule: str) -> SideBySide:
    return SideBySide(
        f"Test error with the {rule} bias", "ours",
        "Test MSE, median over runs and the last half of their rounds. The figure has the range: where it "
        "is wide, some rounds are outliers. Centralized training has no clients: every rule is the same.",
        tuple((Column(name, late_test_mse(rule), "plain"),) for name in PREDICTING),
        tuple(Line(TITLES[each], tuple((_alone(each, THREE), name) for name in PREDICTING)) for each in ALL),
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
