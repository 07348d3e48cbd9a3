"""Runs side by side: every procedure of a setting over its seeds, measured against predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import describe_seeds, pluralize
from fedgram.runs import Setup, StoredRun
from fedgram.runs.expectation import SYMBOLS
from fedgram.runs.measure import RunMeasurement, measure
from fedgram.theory.geometry import psd

METRICS: dict[str, Callable[[RunMeasurement], float]] = {
    "error": lambda run: run.endpoint_error,
    "predicted gap": lambda run: float(psd.relative_error(run.expected.gram, run.prediction.centralized)),
    "measured gap": lambda run: float(run.error["centralized"][-1]),
    "trajectory": lambda run: run.median_trajectory_error,
    "delta": lambda run: run.last_delta,
    "objective gap": lambda run: run.median_objective_gap,
    "test MSE": lambda run: run.last_mse[1],
}
"""What is compared, after the last round: e_F to the procedure's target; e_F to G_cen that theory predicts
and that was found; median trajectory error; distance of the returned heads from the selected ones; median
relative gap of the clients' objectives; test MSE under the procedure's own bias rule."""


FAR = 0.05
"""Relative objective gaps from which on local training is called unfinished."""

LOST = 3.0
"""How many times its least value the test error may be after the last round."""


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds, the latter 0 for a single seed."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        if np.isnan(self.mean):
            return "none"
        if self.mean == 0:
            return "0"
        return f"{self.mean:.2e}" + (f" ± {self.deviation:.0e}" if self.deviation else "")


@dataclass(frozen=True, eq=False)
class Group:
    """Finished runs of one procedure that differ in their seed only, in its order."""

    runs: tuple[RunMeasurement, ...]

    @property
    def name(self) -> str:
        """The procedure in words."""
        return self.runs[0].setup.procedure.name

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs."""
        return tuple(run.setup.seed for run in self.runs)

    @property
    def target(self) -> str:
        """The symbol of the Gram that the procedure ends at."""
        return SYMBOLS[self.runs[0].expected.target]

    @property
    def errors(self) -> Array:
        """e_F to the target, (seeds, T + 1)."""
        return np.stack([run.target_error for run in self.runs])

    @property
    def predicted_errors(self) -> Array:
        """e_F of the exact recursion from each seed's start to the target, (seeds, T + 1)."""
        return np.stack([psd.relative_error(run.exact_grams, run.expected.gram) for run in self.runs])

    def spread(self, metric: str) -> Spread:
        """One of METRICS over seeds."""
        values = np.array([METRICS[metric](run) for run in self.runs])
        # of equal numbers the computed deviation is not 0 but their rounding
        return Spread(float(values.mean()), float(values.std(ddof=1)) if np.ptp(values) > 0 else 0.0)


@dataclass(frozen=True, eq=False)
class Comparison:
    """All procedures that were trained on the same data with the same network and protocol."""

    groups: tuple[Group, ...]

    @property
    def setup(self) -> Setup:
        """The setup of one of the runs."""
        return self.groups[0].runs[0].setup

    @property
    def title(self) -> str:
        """Data and network."""
        return f"{self.setup.data.name}, {self.setup.backbone}"

    @property
    def scale(self) -> str:
        """Kind of data and size of the experiment, which every picture and table must carry."""
        settings, penalty = self.setup.settings, self.setup.settings.penalty
        counts = [len(group.runs) for group in self.groups]
        fewer = f"{min(counts)} to " if min(counts) < max(counts) else ""
        return (
            f"{self.setup.data.kind} data, E = {settings.epochs}, {pluralize(settings.rounds, 'round')}, "
            f"{fewer}{pluralize(max(counts), 'seed')}, P = {settings.features}, "
            f"λ_H = {penalty.features:g}, λ_W = {penalty.head:g}"
        )

    def label(self, group: Group) -> str:
        """The procedure, with its seeds where others have other ones: then means are not over the same."""
        alike = len({each.seeds for each in self.groups}) == 1
        return group.name if alike else f"{group.name} ({describe_seeds(group.seeds)})"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the numbers do not say by themselves."""
        of_runs = (warning for group in self.groups for run in group.runs for warning in run.warnings)
        return *dict.fromkeys(of_runs), *self._unfinished(), *self._lost()

    def _unfinished(self) -> list[str]:
        """Which procedures' clients are far from their least objectives, where no prediction applies."""
        gaps = {self.label(group): group.spread("objective gap").mean for group in self.groups}
        far = [f"{_times(gap)} ({name})" for name, gap in gaps.items() if gap > FAR]
        if not far:
            return []
        return [
            f"Clients ended {', '.join(far)} above their least objectives. The prediction is for local "
            "training to its end, of networks that can fit every training row: more epochs come nearer to "
            "it, as far as these can."
        ]

    def _lost(self) -> list[str]:
        """Which procedures' networks predict much worse at the end than they did before."""
        errors = {self.label(group): [run.lasting_mse for run in group.runs] for group in self.groups}
        worst = {name: max(pairs, key=_growth) for name, pairs in errors.items()}
        lost = [
            f"{pair[0]:.2g} to {pair[1]:.2g} ({name})" for name, pair in worst.items() if _growth(pair) > 0
        ]
        if not lost:
            return []
        return [
            f"Test errors grew, even with a bias of each client's own: from {', '.join(lost)}. Networks that "
            "train for long may lose a few rows unlike all they were trained with: look at the errors row by "
            "row, or train fewer epochs."
        ]

    def document(self) -> dict[str, Any]:
        """One setting of `fedgram runs compare --json`."""
        return {
            "data": {"name": self.setup.data.name, "kind": self.setup.data.kind},
            "backbone": self.setup.backbone,
            "settings": self.setup.document()["settings"],
            "procedures": [_group_document(group) for group in self.groups],
            "warnings": list(self.warnings),
        }


def compare_runs(runs: Iterable[StoredRun]) -> list[Comparison]:
    """Finished runs by setting and procedure; copies of a run count once."""
    settings: dict[tuple[Any, ...], dict[str, dict[int, RunMeasurement]]] = {}
    for run in runs:
        if run.complete:
            setup = run.setup
            groups = settings.setdefault((setup.data, setup.backbone, setup.network, setup.settings), {})
            seeds = groups.setdefault(setup.procedure.name, {})
            if setup.seed not in seeds:
                seeds[setup.seed] = measure(run)
    return [Comparison(tuple(map(_group, groups.values()))) for groups in settings.values()]


def _group(runs: dict[int, RunMeasurement]) -> Group:
    return Group(tuple(runs[seed] for seed in sorted(runs)))


def _growth(errors: tuple[float, float]) -> float:
    """By how much the last error is above what it may be, given the least."""
    least, last = errors
    growth = last - LOST * least
    return growth if growth == growth else -np.inf  # without test rows, or one of the clients


def _times(gap: float) -> str:
    return f"{100 * gap:,.0f} %" if gap < 100 else f"{gap:.2g} times"


def _group_document(group: Group) -> dict[str, Any]:
    spreads = {name: group.spread(name) for name in METRICS}
    return {
        "procedure": group.name,
        "target": group.runs[0].expected.target,
        "seeds": list(group.seeds),
        "errors": group.errors.tolist(),
    } | {
        name.replace(" ", "_").lower(): None if np.isnan(spread.mean) else vars(spread)
        for name, spread in spreads.items()
    }
