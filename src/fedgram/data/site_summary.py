"""Summarize a site's columns as sums, from which all sites compute one encoding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from fedgram._util.arrays import SMALLEST_SQUARE, Array
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize
from fedgram.data.columns import (
    ColumnKind,
    Columns,
    check_commas,
    check_lengths,
    check_present,
    is_missing,
    kind_of,
    parse_column,
    parse_numbers,
)
from fedgram.data.validation import check_unique_columns

Impute = Literal["median"] | None

FILL_INPUTS = (
    "Drop the rows (--drop-missing), or fill the values with --impute median (in Python impute='median')."
)
FILL_TARGETS = "Fill the values, or drop the rows (--drop-missing)."

# More levels than this are names or free text, and one input each costs more than it tells.
MAX_LEVELS = 1000

# With more levels than this, most of them must occur more than once.
MOST_RARE_LEVELS = 20

# Text among more different numbers than this is a typing error; 'K' among the grades 1, 2, 3 is a level.
MAX_NUMBERS_AMONG_LEVELS = 20


@dataclass(frozen=True)
class ColumnSummary:
    """Sums over one site's rows of one column.

    kind: None if every value is missing. count: number of values n_m. center: mean c_m of numbers, rounded.
    total, squares: Σ (x − c_m) and Σ (x − c_m)². median: only with imputation. levels: number of rows per
    level of a category.
    """

    name: str
    kind: ColumnKind | None
    count: int
    center: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    median: float | None = None
    levels: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_values(cls, name: str, values: Array, impute: Impute = None) -> ColumnSummary:
        """Summarize a parsed column (N,); see `fedgram.data.columns.parse_column`."""
        present = values[~is_missing(values)]
        match kind_of(values):
            case "number":
                # The mean as first value + mean difference: that of a constant is the constant.
                center = float(present[0] + (present - present[0]).mean())
                centered = present - center
                total, squares = float(centered.sum()), float((centered**2).sum())
                if centered.any():  # so that a column whose squares become 0 is not taken for a constant
                    squares = max(squares, SMALLEST_SQUARE)
                median = float(np.median(present)) if impute else None
                return cls(name, "number", len(present), center, total, squares, median)
            case "category":
                found, counts = np.unique(present, return_counts=True)
                levels = dict(zip(found.tolist(), counts.tolist(), strict=True))
                return cls(name, "category", len(present), levels=levels)
            case None:
                return cls(name, None, 0)


@dataclass(frozen=True)
class SiteSummary:
    """What a site sends before training: counts, means, sums and levels, but no row.

    Parameters
    ----------
    site : str
    rows : int
        Number of training rows.
    inputs, targets : tuple of ColumnSummary
        One per column.
    impute : {"median", None}
        With "median", the summary has the site's median of every numeric input.
    """

    site: str
    rows: int
    inputs: tuple[ColumnSummary, ...]
    targets: tuple[ColumnSummary, ...]
    impute: Impute = None

    @classmethod
    def from_columns(
        cls,
        columns: Columns,
        site: str,
        *,
        inputs: Sequence[str],
        targets: Sequence[str],
        impute: Impute = None,
    ) -> SiteSummary:
        """Summarize one site's training rows.

        Parameters
        ----------
        columns : dict of arrays (N,)
            Values by column name. Text and booleans are categories.
        site : str
            Name of the site.
        inputs, targets : list of str
            Columns to summarize. Boolean targets count as 0 and 1.
        impute : {"median", None}
            None refuses missing inputs.

        Returns
        -------
        SiteSummary

        Raises
        ------
        InputError
            If a column is missing, has missing or infinite values, or has too many levels.

        Examples
        --------
        >>> rows = {"dose": [1.0, 3.0], "sex": ["F", "F"], "effect": [0.0, 2.0]}
        >>> summary = SiteSummary.from_columns(rows, "north", inputs=["dose", "sex"], targets=["effect"])
        >>> summary.inputs[0].center, summary.inputs[1].levels
        (2.0, {'F': 2})
        """
        if impute not in (None, "median"):
            raise InputError(f"Unknown imputation: '{impute}'. Use 'median' or None.", field="impute")
        check_columns_named(inputs, targets)
        parsed_inputs = {name: parse_column(columns, name, site) for name in inputs}
        parsed_targets = {name: parse_numbers(columns, name, site) for name in targets}
        check_lengths(parsed_inputs | parsed_targets, site)
        for name, values in parsed_inputs.items():
            check_commas(values, name, site)
        for name, values in parsed_targets.items():
            check_present(values, name, site, FILL_TARGETS)
        for name, values in parsed_inputs.items() if impute is None else ():
            check_present(values, name, site, FILL_INPUTS)
        summary = cls(
            site,
            len(next(iter(parsed_targets.values()))),
            tuple(ColumnSummary.from_values(name, values, impute) for name, values in parsed_inputs.items()),
            tuple(ColumnSummary.from_values(name, values) for name, values in parsed_targets.items()),
            impute,
        )
        for column in summary.inputs:
            check_levels(column.name, {site: column})
        return summary

    def document(self) -> dict[str, Any]:
        """Return the summary as JSON data; `from_document` restores it exactly."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> SiteSummary:
        """Restore a summary from `document()`.

        Raises
        ------
        InputError
            If the document is not that of a summary.
        """
        try:
            inputs, targets = (
                tuple(ColumnSummary(**column) for column in document[part]) for part in ("inputs", "targets")
            )
            return cls(document["site"], document["rows"], inputs, targets, document["impute"])
        except (KeyError, TypeError):
            raise InputError(
                "Cannot read a site's summary: fields are missing or unknown.", field="summary"
            ) from None


def check_columns_named(inputs: Sequence[str], targets: Sequence[str]) -> None:
    """Reject empty lists of columns, and a column named twice."""
    for names, what in ((inputs, "inputs"), (targets, "targets")):
        if not names:
            raise InputError(f"No {what} are named. Name at least one column (--{what}).", field=what)
    check_unique_columns([*inputs, *targets])


def check_levels(name: str, summaries: Mapping[str, ColumnSummary]) -> None:
    """Reject a category that is a numeric column with stray text, or that has very many levels."""
    site_of = {level: site for site, column in summaries.items() for level in column.levels}
    texts = [level for level in site_of if not is_number(level)]
    numbers = len(site_of) - len(texts)
    if numbers > MAX_NUMBERS_AMONG_LEVELS and 0 < len(texts) < numbers:
        raise InputError(
            f"Column '{name}' has text among its numbers, first '{texts[0][:40]}' at site "
            f"'{site_of[texts[0]]}'. Correct the text, or drop its rows.",
            client=site_of[texts[0]],
            field=name,
        )
    if len(site_of) > MAX_LEVELS:
        raise InputError(
            f"Column '{name}' has {pluralize(len(site_of), 'level')}, but a category may have {MAX_LEVELS:,} "
            "at most. Group the levels, or drop the column.",
            field=name,
        )


def check_repeats(name: str, summaries: Mapping[str, ColumnSummary]) -> None:
    """Reject a category that names rows: identifiers, dates, free text. Its levels would leave the sites."""
    levels = {level for column in summaries.values() for level in column.levels}
    rows = sum(column.count for column in summaries.values())
    if len(levels) > max(MOST_RARE_LEVELS, rows / 2):
        raise InputError(
            f"Column '{name}' has {len(levels):,} different texts in {rows:,} rows, such as "
            f"'{min(levels)[:40]}': they name rows, not categories. Drop it from the inputs, or convert it "
            "to numbers (a date to its month, for example).",
            field=name,
        )


def pool_levels(name: str, summaries: Mapping[str, ColumnSummary]) -> list[str]:
    """Return the levels of a category at all sites, in order; reject one that is no category."""
    check_levels(name, summaries)
    check_repeats(name, summaries)
    if levels := sorted({level for column in summaries.values() for level in column.levels}):
        return levels
    raise no_value(name)


def pool_median(name: str, summaries: Mapping[str, ColumnSummary]) -> float:
    """Return the value that fills an input of numbers at all sites."""
    median = weighted_median(summaries.values())
    if median is None:
        raise no_value(name)
    return median


def weighted_median(summaries: Iterable[ColumnSummary]) -> float | None:
    """Return the smallest of the sites' medians with at least half of the rows at sites up to it."""
    medians = sorted((each.median, each.count) for each in summaries if each.median is not None)
    half, rows = sum(count for _, count in medians) / 2, 0
    for median, count in medians:
        rows += count
        if rows >= half:
            return median
    return None


def no_value(name: str) -> InputError:
    """Return the error of a column that is missing everywhere."""
    return InputError(f"Column '{name}' has no value at any site. Drop it from the inputs.", field=name)


def is_number(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
