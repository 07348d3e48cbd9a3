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
"""Procedure that `advise` recommends to sites that gain by joining."""

ALONE, HEAD, FEDAVG, POOLED = "local", "ordinary", "full-model", "centralized"

LABELS = {
    ALONE: "alone",
    HEAD: "shared head",
    FEDAVG: "FedAvg",
    AUTO: "moment head with site effects",
    POOLED: "pooled",
}
"""Name of each procedure for people."""

Verdict = Literal["join", "alone", "undecided"]


@dataclass(frozen=True, eq=False)
class Errors:
    """Held-out errors of one procedure in the targets' own units.

    rmse and r2 (C,): over all sites; site_rmse (M, C): NaN without test rows; standardized_mse: mean over
    rows and targets, each divided by the pooled variance.
    """

    name: str
    standardized_mse: float
    rmse: Array
    r2: Array
    site_rmse: Array

    def __repr__(self) -> str:
        return f"Errors('{self.name}', standardized MSE {self.standardized_mse:.3g})"


@dataclass(frozen=True, eq=False)
class SiteAdvice:
    """Answer for one site.

    difference: standardized MSE alone minus federated, with a 95 % interval from a paired bootstrap over its
    test rows; positive if joining helps. rmse_change (C,) with low and high (C,): RMSE alone minus federated
    in the targets' units.
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
    """Comparison of procedures on held-out rows, for every site and in total."""

    targets: tuple[str, ...]
    recommended: str
    procedures: tuple[Errors, ...]
    sites: tuple[SiteAdvice, ...]
    exchanged: tuple[str, ...]
    backbone: str
    config: TrainConfig
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        counts = Counter(site.verdict for site in self.sites)
        verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict))
        return f"Advice({pluralize(len(self.sites), 'site')}: {verdicts})"

    def document(self) -> dict[str, Any]:
        """Convert to the JSON of `fedgram advise --json`."""
        names = [each.name for each in self.procedures]
        return {
            "targets": list(self.targets),
            "recommended": self.recommended,
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
                    "rmse": {
                        name: self._by_target(errors.site_rmse[m])
                        for name, errors in zip(names, self.procedures, strict=True)
                    },
                    "difference": dict(
                        zip(("mean", "low", "high"), map(_number, site.difference), strict=True)
                    ),
                    "verdict": site.verdict,
                }
                for m, site in enumerate(self.sites)
            ],
            "exchanged": list(self.exchanged),
            "notes": list(self.notes),
        }

    def _by_target(self, values: Array) -> dict[str, float | None]:
        return dict(zip(self.targets, map(_number, values.tolist()), strict=True))


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
