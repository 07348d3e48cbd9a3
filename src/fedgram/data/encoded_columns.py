"""Columns of an encoding: what is pooled over sites, and how rows are encoded with it."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import SMALLEST_SQUARE, Array
from fedgram._util.text import tiny_column_message
from fedgram.data.columns import (
    Columns,
    check_present,
    column_error,
    indicate_levels,
    kind_of,
    locate,
    parse_column,
    parse_levels,
)
from fedgram.data.site_summary import ColumnSummary, weighted_median

# New rows have no --drop-missing or --impute of their own.
FILL_NEW_INPUTS = (
    "Drop the rows or fill the values. Models trained with --impute median (in Python impute='median') fill "
    "them."
)

NO_EFFECT = sys.float_info.max
"""Scale of inputs that are constant in training: a model has not learned what other values mean."""


@dataclass(frozen=True)
class NumberColumn:
    """A numeric column: pooled mean and standard deviation, and the value that replaces missing ones."""

    name: str
    mean: float
    scale: float
    median: float | None = None

    @classmethod
    def from_summaries(cls, name: str, summaries: Sequence[ColumnSummary]) -> NumberColumn:
        """Pool the sums of all sites; a tiny column is refused."""
        count = sum(each.count for each in summaries)
        center = summaries[0].center
        offset = math.fsum(each.total + each.count * (each.center - center) for each in summaries) / count
        squares = math.fsum(_squares_about(center, offset, each) for each in summaries)
        is_constant = squares == 0 and all(each.center == center for each in summaries)
        if squares / count < SMALLEST_SQUARE and not is_constant:
            raise column_error(tiny_column_message(f"Column '{name}'"), name, "")
        return cls(name, center + offset, math.sqrt(squares / count) or NO_EFFECT, weighted_median(summaries))

    @property
    def encoded_names(self) -> tuple[str, ...]:
        """Name of the encoded column."""
        return (self.name,)

    def encode(self, columns: Columns, site: str) -> Array:
        """Return the standardized column (N, 1)."""
        values = parse_column(columns, self.name, site)
        if kind_of(values) == "category":
            raise column_error(
                f"Column '{self.name}'{locate(site)} has text but had numbers in training. Convert it.",
                self.name,
                site,
            )
        if self.median is None:
            check_present(values, self.name, site, FILL_NEW_INPUTS)
        numbers = values if values.dtype.kind == "f" else np.full(len(values), np.nan)
        filled = np.where(np.isnan(numbers), self.median or 0.0, numbers)
        return ((filled - self.mean) / self.scale)[:, None]


@dataclass(frozen=True)
class CategoryColumn:
    """A category: one standardized 0/1 column per level; a row with 0 in all of them has no known level."""

    name: str
    levels: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    allows_missing: bool = False

    @classmethod
    def from_summaries(
        cls, name: str, summaries: Sequence[ColumnSummary], rows: int, allows_missing: bool
    ) -> CategoryColumn:
        """Take the union of all sites' levels, each with its fraction of all rows."""
        counts = sum((Counter(each.levels) for each in summaries), Counter[str]())
        levels = tuple(sorted(counts))
        mean = tuple(counts[level] / rows for level in levels)
        scale = tuple(math.sqrt(p * (1.0 - p)) or NO_EFFECT for p in mean)
        return cls(name, levels, mean, scale, allows_missing)

    @property
    def encoded_names(self) -> tuple[str, ...]:
        """Names of the encoded columns, such as 'sex=F'."""
        return tuple(f"{self.name}={level}" for level in self.levels)

    def encode(self, columns: Columns, site: str) -> Array:
        """Return the standardized 0/1 columns (N, levels)."""
        values = parse_levels(columns, self.name, site)
        if not self.allows_missing:
            check_present(values, self.name, site, FILL_NEW_INPUTS)
        return (indicate_levels(values, self.levels) - self.mean) / self.scale

    def unseen_levels(self, columns: Columns, site: str) -> list[str]:
        """Return the levels of these rows that no site had in training."""
        return sorted(set(parse_levels(columns, self.name, site).tolist()) - {"", *self.levels})


def _squares_about(center: float, offset: float, summary: ColumnSummary) -> float:
    """Return Σ (x − center − offset)²; center + offset would round the mean."""
    shift = (summary.center - center) - offset
    return summary.squares + 2.0 * shift * summary.total + summary.count * shift**2
