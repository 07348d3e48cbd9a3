"""Divide each site's rows into training, validation and test rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from fedgram._util.arrays import Array, as_float
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize

# Fraction of a site's training rows that choose the round and all strengths (64 / 16 / 20 % in all).
VALIDATION_FRACTION = 0.2

# A smaller site trains on all its rows: two test rows show nothing. The shared model serves it.
MIN_SITE_ROWS = 10


@dataclass(frozen=True, eq=False)
class RowParts:
    """Indices of one site's rows, ascending or in order of given times: train, validation and test."""

    train: Array
    validation: Array
    test: Array

    @property
    def fitted(self) -> Array:
        """Training and validation rows (ascending): all that a final model may see."""
        return np.sort(np.concatenate([self.train, self.validation]))


def hold_out(
    rows: Mapping[str, int],
    fraction: float = 0.2,
    seed: int = 0,
    order: Mapping[str, Any] | None = None,
) -> dict[str, RowParts]:
    """Divide every site's rows, at random or by time.

    Parameters
    ----------
    rows : dict of int
        Number of rows of each site.
    fraction : float
        Fraction of rows for testing, at least 0 and below 1. A fifth of the others is for validation.
    seed : int
        Seed of the random choice. A site's rows do not depend on the other sites.
    order : dict of arrays (N,), optional
        Times of every site's rows, as numbers or datetime64. The latest rows are for testing, and the latest
        before them for validation; of rows with equal times, the later row counts as later.

    Returns
    -------
    dict of RowParts
        Sites with fewer than `MIN_SITE_ROWS` rows have training rows only.

    Raises
    ------
    InputError
        If the fraction is out of range, or times are missing or not numbers or dates.

    Examples
    --------
    >>> parts = hold_out({"north": 10, "south": 3}, 0.2, order={"north": np.arange(10), "south": [1, 2, 3]})
    >>> parts["north"].train, parts["north"].validation, parts["north"].test
    (array([0, 1, 2, 3, 4, 5]), array([6, 7]), array([8, 9]))
    >>> parts["south"].train, parts["south"].test
    (array([0, 1, 2]), array([], dtype=int64))
    """
    if not 0.0 <= as_float(fraction) < 1.0:
        raise InputError(
            f"The test fraction must be at least 0 and below 1, not {fraction}.", field="test_fraction"
        )
    parts = {}
    for site, count in rows.items():
        ranked = _rank_rows(count, site, seed, order)
        test = min(round(fraction * count), count - 1) if count >= MIN_SITE_ROWS else 0
        parts[site] = _divide(*np.split(ranked, [count - test]), is_sorted=order is not None)
    return parts


def hold_out_where(
    is_test: Mapping[str, Any], seed: int = 0, order: Mapping[str, Any] | None = None
) -> dict[str, RowParts]:
    """Divide every site's rows where the test rows are given, such as those after a date.

    Parameters
    ----------
    is_test : dict of boolean arrays (N,)
        Which rows of each site are for testing.
    seed, order
        See `hold_out`; they choose validation rows.

    Returns
    -------
    dict of RowParts
        Sites with fewer than `MIN_SITE_ROWS` rows have no validation rows.

    Raises
    ------
    InputError
        If all rows of a site are for testing.

    Examples
    --------
    >>> hold_out_where({"north": np.arange(12) >= 10})["north"].test
    array([10, 11])
    """
    parts = {}
    for site, mask in is_test.items():
        is_held_out = np.asarray(mask, bool)
        ranked = _rank_rows(len(is_held_out), site, seed, order)
        others, test = ranked[~is_held_out[ranked]], ranked[is_held_out[ranked]]
        if not len(others):
            raise InputError(
                f"All {pluralize(len(test), 'row')} of site '{site}' are for testing. Leave some for "
                "training, or drop the site.",
                client=site,
                field="test",
            )
        parts[site] = _divide(others, test, is_sorted=order is not None)
    return parts


def _rank_rows(count: int, site: str, seed: int, order: Mapping[str, Any] | None) -> Array:
    """Return row indices, the first to train on first: in random order, or by time."""
    if order is None:
        # The site's name seeds the draw, so that a site gets the same rows alone and among others.
        return np.random.default_rng([seed, crc32(site.encode(errors="replace"))]).permutation(count)
    times = np.asarray(order[site])
    is_number = times.dtype.kind in "iuf"
    if times.shape != (count,) or not (is_number or times.dtype.kind == "M"):
        raise InputError(
            f"The times of site '{site}' must be {count:,} numbers or dates, not {times.dtype} of shape "
            f"{times.shape}.",
            client=site,
            field="time",
        )
    if missing := int((np.isnan(times) if is_number else np.isnat(times)).sum()):
        raise InputError(
            f"Site '{site}' has {pluralize(missing, 'row')} without a time. Fill the times, or drop the rows "
            "(--drop-missing).",
            client=site,
            field="time",
        )
    return np.argsort(times, kind="stable")


def _divide(others: Array, test: Array, *, is_sorted: bool) -> RowParts:
    """Take the last fifth of the ranked rows that are not for testing as validation rows.

    Rows that are not sorted by time get the order of the table.
    """
    has_validation = len(others) + len(test) >= MIN_SITE_ROWS
    held_out = round(VALIDATION_FRACTION * len(others)) if has_validation else 0
    parts = *np.split(others, [len(others) - held_out]), test
    return RowParts(*(parts if is_sorted else map(np.sort, parts)))
