"""Advice to sites: what each gains by joining, measured on held-out rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.text import escape_text, pluralize
from fedgram.runs.train_config import TrainConfig

AUTO = "full-model+moment-head+site-effects+blended"
"""Procedure that `advise` recommends to sites that should join."""

ALONE, HEAD, FEDAVG, POOLED = "local", "ordinary", "full-model", "centralized"

LABELS = {
    ALONE: "alone",
    HEAD: "shared head",
    FEDAVG: "FedAvg",
    AUTO: "moment head with site effects",
    POOLED: "pooled",
}
"""Name of each procedure for people."""

Alone = Literal["network", "ridge regression", "mean"]
"""What sites predict with if they do not join."""

ALONE_LABELS: dict[Alone, str] = {
    "network": "the network that each site trains",
    "ridge regression": "ridge regression on each site's rows",
    "mean": "the mean of each site's targets",
}
"""Each of them in words."""

LEAST_GAIN = 0.01
"""Part of the mean squared error: if the interval has no gain of this size, joining is not recommended."""

Verdict = Literal["join", "alone", "undecided", "untested"]
"""Clear gain, clear loss, neither, or too few test rows to tell."""


@dataclass(frozen=True, eq=False)
class Errors:
    """Held-out errors of one procedure in the targets' own units.

    rmse and r2 (C,): over all sites; site_rmse and site_r2 (M, C): NaN without test rows, and R² where a
    target does not vary; standardized_mse: mean over rows and targets, each divided by the pooled variance.
    """

    name: str
    standardized_mse: float
    rmse: Array
    r2: Array
    site_rmse: Array
    site_r2: Array

    def __repr__(self) -> str:
        return f"Errors('{self.name}', standardized MSE {self.standardized_mse:.3g})"


@dataclass(frozen=True, eq=False)
class SiteAdvice:
    """Answer for one site.

    difference: standardized MSE alone minus federated, with a 95 % interval from a paired bootstrap over its
    test rows (`fedgram.runs.paired_bootstrap`); positive if joining helps. rmse_change (C,) with low and high
    (C,): RMSE alone minus federated in the targets' units.
    """

    name: str
    rows: int
    test_rows: int
    difference: tuple[float, float, float]
    rmse_change: Array
    low: Array
    high: Array
    verdict: Verdict

    def __repr__(self) -> str:
        return f"SiteAdvice('{escape_text(self.name, 80)}', {self.verdict})"


@dataclass(frozen=True, eq=False)
class Advice(DisplayMethods):
    """Comparison of procedures on held-out rows, for every site and in total.

    Parameters
    ----------
    targets : tuple of str
        Names of the C targets.
    recommended : str
        Procedure to train: `AUTO` to join, 'local' to work alone.
    procedures : tuple of Errors
        Held-out errors of each procedure, over all sites and by site.
    sites : tuple of SiteAdvice
        Answer for each site.
    alone : 'network', 'ridge regression' or 'mean'
        What sites predict with alone: the method with the least error over the test rows of all sites.
    total_change : tuple of float
        Relative change of the mean squared error over all sites by joining, and its 95 % interval; NaN for
        the interval of too few test rows.
    exchanged : tuple of str
        What leaves each site under the recommended procedure; empty for 'local'.
    backbone : str
        Name of the network.
    config : TrainConfig
        Rounds, epochs and optimizer of the comparison.
    notes : tuple of str
        Sentences, such as sites with too few rows or a better alternative.

    `advise` has an example.
    """

    targets: tuple[str, ...]
    recommended: str
    procedures: tuple[Errors, ...]
    sites: tuple[SiteAdvice, ...]
    alone: Alone
    total_change: tuple[float, float, float]
    exchanged: tuple[str, ...]
    backbone: str
    config: TrainConfig
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        counts = Counter(site.verdict for site in self.sites)
        verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict))
        return f"Advice({pluralize(len(self.sites), 'site')}: {verdicts})"

    @property
    def has_skill(self) -> bool:
        """Whether some procedure predicts a target better than a constant would, or the target has no R²."""
        best = np.fmax.reduce([each.r2 for each in self.procedures])
        return not bool((best <= 0).all())

    def document(self) -> dict[str, Any]:
        """Convert to the JSON of `fedgram advise --json`."""
        return {
            "targets": list(self.targets),
            "recommended": self.recommended,
            "has_skill": self.has_skill,
            "alone": self.alone,
            "procedures": [
                {
                    "name": each.name,
                    "standardized_mse": each.standardized_mse,
                    "rmse": self._by_target(each.rmse),
                    "r2": self._by_target(each.r2),
                }
                for each in self.procedures
            ],
            "sites": [
                {
                    "name": site.name,
                    "rows": site.rows,
                    "test_rows": site.test_rows,
                    "rmse": {each.name: self._by_target(each.site_rmse[m]) for each in self.procedures},
                    "r2": {each.name: self._by_target(each.site_r2[m]) for each in self.procedures},
                    "difference": _estimate(site.difference),
                    "verdict": site.verdict,
                }
                for m, site in enumerate(self.sites)
            ],
            "total_change": _estimate(self.total_change),
            "exchanged": list(self.exchanged),
            "notes": list(self.notes),
        }

    def _by_target(self, values: Array) -> dict[str, float | None]:
        return dict(zip(self.targets, map(_number, values.tolist()), strict=True))


def _estimate(values: tuple[float, float, float]) -> dict[str, float | None]:
    return dict(zip(("mean", "low", "high"), map(_number, values), strict=True))


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
