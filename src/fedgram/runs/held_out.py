"""Errors of a run's final models on test rows, by client and target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.runs.paired_bootstrap import FEWEST_ROWS


@dataclass(frozen=True, eq=False)
class HeldOutErrors:
    """Mean squared errors and target variances on test rows.

    rows (M,); mse and variance (M, C): of each client, NaN without test rows; total_variance (C,): of all
    clients' rows together.
    """

    rows: Array
    mse: Array
    variance: Array
    total_variance: Array

    @classmethod
    def from_predictions(cls, predicted: Sequence[Array], targets: Sequence[Array]) -> HeldOutErrors:
        """Compare predictions (N_m, C) of each client with its targets (N_m, C)."""
        nothing = np.full(targets[0].shape[1], np.nan)
        squares = ((f - y) ** 2 for f, y in zip(predicted, targets, strict=True))
        everything = np.concatenate(targets)
        return cls(
            rows=np.array([len(y) for y in targets]),
            mse=np.stack([each.mean(axis=0) if len(each) else nothing for each in squares]),
            variance=np.stack([_variance(y) if len(y) else nothing for y in targets]),
            total_variance=_variance(everything) if len(everything) else nothing,
        )

    @property
    def total_mse(self) -> Array:
        """Mean squared error (C,) over all clients' rows; NaN without test rows."""
        if not self.rows.any():
            return np.full_like(self.total_variance, np.nan)
        return self.rows @ np.nan_to_num(self.mse) / self.rows.sum()

    @property
    def r2(self) -> Array:
        """Coefficient of determination (M, C) at each client; NaN with few rows or equal targets."""
        return np.where(self.rows[:, None] >= FEWEST_ROWS, _r2(self.mse, self.variance), np.nan)

    @property
    def total_r2(self) -> Array:
        """Coefficient of determination (C,) over all clients' rows; NaN where targets do not vary."""
        return _r2(self.total_mse, self.total_variance)

    def document(self) -> dict[str, Any]:
        """Convert to JSON values, which `from_document` reads; NaN becomes null."""
        return {
            name: np.where(np.isnan(values), np.array(None), values).tolist()
            for name, values in vars(self).items()
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> HeldOutErrors:
        """Read the errors from a manifest."""
        return cls(**{name: np.array(document[name], dtype=np.float64) for name in cls.__dataclass_fields__})


def _variance(targets: Array) -> Array:
    """Variance (C,) of targets (N, C); exactly 0 if they are equal up to rounding."""
    deviations = targets - targets[0]  # the mean of equal targets is rounded
    is_rounding = np.abs(deviations).max(axis=0) <= 4 * np.finfo(float).eps * np.abs(targets).max(axis=0)
    return np.where(is_rounding, 0.0, deviations.var(axis=0))


def _r2(mse: Array, variance: Array) -> Array:
    return 1 - np.divide(mse, variance, out=np.full_like(mse, np.nan), where=variance > 0)
