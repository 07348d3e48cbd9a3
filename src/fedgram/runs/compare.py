"""Compare runs: procedures of a setting over seeds, measured and predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.text import describe_seeds, escape_text, pluralize
from fedgram.runs import Setup, StoredRun
from fedgram.runs.expectation import SYMBOLS
from fedgram.runs.manifest import MEAN
from fedgram.runs.measure import RunMeasurement, measure
from fedgram.theory.geometry import psd

Metric = Callable[[RunMeasurement], float]


def _of_limit(metric: Metric) -> Metric:
    """Return NaN instead of a metric of the theory for procedures without a limit of averaged heads."""
    return lambda run: np.nan if run.setup.without_limit else metric(run)


METRICS: dict[str, Metric] = {
    "error": _of_limit(lambda run: run.endpoint_error),
    "predicted gap": _of_limit(lambda run: run.predicted_gap),
    "measured gap": _of_limit(lambda run: float(run.error["centralized"][-1])),
    "trajectory": _of_limit(lambda run: run.median_trajectory_error),
    "delta": _of_limit(lambda run: run.last_delta),
    "objective gap": _of_limit(lambda run: run.median_objective_gap),
    "test MSE": lambda run: run.last_mse[1],
}
"""Metrics after the last round: e_F to the procedure's target; e_F to G_cen, predicted and measured; median
trajectory error; distance of returned heads from selected ones; median relative objective gap; test MSE under
the procedure's bias rule."""

UNFINISHED = 0.05
"""Relative objective gap above which local training counts as unfinished."""

GROWN = 3.0
"""Ratio of the last to the least test error above which it counts as grown."""


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the deviation is 0 for one seed."""

    mean: float
    deviation: float

    @classmethod
    def from_values(cls, values: Array) -> Spread:
        """Summarize one value per seed."""
        # the computed deviation of equal numbers is rounding, not 0
        return cls(float(values.mean()), float(values.std(ddof=1)) if np.ptp(values) > 0 else 0.0)

    def __str__(self) -> str:
        if np.isnan(self.mean):
            return "none"
        if self.mean == 0:
            return "0"
        return f"{self.mean:.2e}" + (f" ± {self.deviation:.0e}" if self.deviation else "")


@dataclass(frozen=True, eq=False)
class Group:
    """Finished runs of one procedure, ordered by seed."""

    runs: tuple[RunMeasurement, ...]

    def __repr__(self) -> str:
        return f"Group('{escape_text(self.name, 80)}', {describe_seeds(self.seeds)})"

    @property
    def name(self) -> str:
        """Name of the procedure."""
        return self.runs[0].setup.procedure.name

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs."""
        return tuple(run.setup.seed for run in self.runs)

    @property
    def target(self) -> str:
        """Symbol of the procedure's target Gram, or 'none'."""
        return "none" if self.without_limit else SYMBOLS[self.runs[0].expected.target]

    @property
    def without_limit(self) -> str:
        """Why the procedure has no target Gram; empty if it has one."""
        return self.runs[0].setup.without_limit

    @property
    def errors(self) -> Array:
        """e_F to the target, (seeds, T + 1)."""
        return np.stack([run.target_error for run in self.runs])

    @property
    def predicted_errors(self) -> Array:
        """e_F of the exact recursion from each seed's start to the target, (seeds, T + 1)."""
        return np.stack([psd.relative_error(run.exact_grams, run.expected.gram) for run in self.runs])

    def spread(self, metric: str) -> Spread:
        """Summarize one of METRICS over seeds."""
        return Spread.from_values(np.array([METRICS[metric](run) for run in self.runs]))


@dataclass(frozen=True, eq=False)
class Comparison(DisplayMethods):
    """Procedures with the same data, network and protocol."""

    groups: tuple[Group, ...]

    def __repr__(self) -> str:
        return f"Comparison('{escape_text(self.title, 80)}', {pluralize(len(self.groups), 'procedure')})"

    @property
    def setup(self) -> Setup:
        """Setup of the first run."""
        return self.groups[0].runs[0].setup

    @property
    def title(self) -> str:
        """Names of dataset, backbone, and an aggregation other than the mean."""
        setup = self.setup
        other = f", {setup.aggregation}" if setup.aggregation != MEAN else ""
        return f"{setup.data.name}, {setup.backbone}{other}"

    @property
    def scale(self) -> str:
        """Kind of data and size of the experiment, for every figure and table."""
        config, penalty = self.setup.settings, self.setup.settings.penalty
        counts = [len(group.runs) for group in self.groups]
        fewer = f"{min(counts)} to " if min(counts) < max(counts) else ""
        return (
            f"{self.setup.data.kind} data, E = {config.epochs}, {pluralize(config.rounds, 'round')}, "
            f"{fewer}{pluralize(max(counts), 'seed')}, P = {config.features}, "
            f"λ_H = {penalty.features:g}, λ_W = {penalty.head:g}"
        )

    def label(self, group: Group) -> str:
        """Name the procedure, with its seeds if procedures differ in them."""
        same_seeds = len({each.seeds for each in self.groups}) == 1
        return group.name if same_seeds else f"{group.name} ({describe_seeds(group.seeds)})"

    @property
    def limited(self) -> tuple[Group, ...]:
        """Procedures whose averaged head has a predicted limit."""
        return tuple(group for group in self.groups if not group.without_limit)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of METRICS that at least one procedure has; without test rows, none has a test MSE."""
        return tuple(
            name for name in METRICS if any(not np.isnan(group.spread(name).mean) for group in self.groups)
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the runs, of missing limits, of unfinished training and of grown test errors."""
        of_runs = (warning for group in self.groups for run in group.runs for warning in run.warnings)
        return (
            *dict.fromkeys(of_runs),
            *self._note_missing_limits(),
            *self._warn_unfinished(),
            *self._warn_grown_errors(),
        )

    def _note_missing_limits(self) -> list[str]:
        """Say which groups have no limit, if others have one or the procedure itself would have one."""
        return [
            f"'{group.name}' is not compared with the limit of averaged heads: {group.without_limit}."
            for group in self.groups
            if group.without_limit and (self.limited or not group.runs[0].setup.procedure.without_limit)
        ]

    def _warn_unfinished(self) -> list[str]:
        gaps = {self.label(group): group.spread("objective gap").mean for group in self.limited}
        far = [f"{_format_gap(gap)} ({name})" for name, gap in gaps.items() if gap > UNFINISHED]
        if not far:
            return []
        return [
            "The prediction assumes that local training converges, but median local losses exceed their "
            f"minimum by {', '.join(far)}. Train more epochs."
        ]

    def _warn_grown_errors(self) -> list[str]:
        # Validation rows choose the models of another round.
        errors = {
            self.label(group): [run.lasting_mse for run in group.runs if run.chosen_test_mse is None]
            for group in self.groups
        }
        worst = {name: max(pairs, key=_growth) for name, pairs in errors.items() if pairs}
        grown = [
            f"{pair[0]:.2g} to {pair[1]:.2g} ({name})" for name, pair in worst.items() if _growth(pair) > 0
        ]
        if not grown:
            return []
        return [
            f"Test errors grew, even with private biases: from {', '.join(grown)}. Inspect errors row by row "
            "for outliers, or train fewer epochs."
        ]

    def document(self) -> dict[str, Any]:
        """Convert to one setting of `fedgram runs compare --json`."""
        return {
            "data": {"name": self.setup.data.name, "kind": self.setup.data.kind},
            "backbone": self.setup.backbone,
            "settings": self.setup.document()["settings"],
            "procedures": [_group_document(group) for group in self.groups],
            "warnings": list(self.warnings),
        }


def compare_runs(runs: Iterable[StoredRun]) -> list[Comparison]:
    """Group finished runs by setting and procedure, and measure them; copies of a run count once."""
    settings: dict[tuple[Any, ...], dict[str, dict[int, RunMeasurement]]] = {}
    for run in runs:
        if run.has_result:
            setup = run.setup
            protocol = (setup.data, setup.backbone, setup.network, setup.settings, setup.aggregation)
            groups = settings.setdefault(protocol, {})
            seeds = groups.setdefault(setup.procedure.name, {})
            if setup.seed not in seeds:
                seeds[setup.seed] = measure(run)
    return [
        Comparison(tuple(Group(tuple(runs[seed] for seed in sorted(runs))) for runs in groups.values()))
        for groups in settings.values()
    ]


def _growth(errors: tuple[float, float]) -> float:
    """Return how far the last error exceeds GROWN times the least; -inf without test rows."""
    least, last = errors
    growth = last - GROWN * least
    return -np.inf if np.isnan(growth) else growth


def _format_gap(gap: float) -> str:
    return f"{100 * gap:,.0f} %" if gap < 100 else f"{gap:.2g} times"


def _group_document(group: Group) -> dict[str, Any]:
    spreads = {name: group.spread(name) for name in METRICS}
    return {
        "procedure": group.name,
        "target": None if group.without_limit else group.runs[0].expected.target,
        "seeds": list(group.seeds),
        "errors": [] if group.without_limit else group.errors.tolist(),
    } | {
        name.replace(" ", "_").lower(): None if np.isnan(spread.mean) else vars(spread)
        for name, spread in spreads.items()
    }
