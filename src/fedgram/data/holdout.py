"""Divide each site's rows into training, validation and test rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from fedgram._util.arrays import Array, as_float, is_whole_number
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize

# Fraction of a site's training rows that choose the round and all strengths (64 / 16 / 20 % in all).
VALIDATION_FRACTION = 0.2

# A smaller site trains on all its rows if others are larger: two test rows show nothing. The shared model
# serves it.
MIN_SITE_ROWS = 10

# If all sites are smaller, those with this many rows are divided: together they have enough test rows.
MIN_ROWS_OF_SMALL_SITES = 5

# To keep rows with equal times together, up to this many times as many, or as few, rows are held out.
MOST_MOVED = 2


def check_test_fraction(fraction: float) -> None:
    """Reject a fraction of rows for testing that is out of range."""
    if not 0.0 <= as_float(fraction) < 1.0:
        raise InputError(
            f"The test fraction must be at least 0 and below 1, not {fraction}.", field="test_fraction"
        )


def check_validation_fraction(fraction: float) -> None:
    """Reject a fraction of training rows for validation that is out of range."""
    if not 0.0 < as_float(fraction) < 1.0:
        raise InputError(
            f"The validation fraction must be between 0 and 1, not {fraction}.", field="validation"
        )


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


def divide_rows(
    rows: Mapping[str, int],
    fraction: float = 0.2,
    seed: int = 0,
    order: Mapping[str, Any] | None = None,
    validation_fraction: float = VALIDATION_FRACTION,
) -> dict[str, RowParts]:
    """Divide every site's rows, at random or by time.

    Parameters
    ----------
    rows : dict of int
        Number of rows of each site.
    fraction : float
        Fraction of rows for testing, at least 0 and below 1.
    seed : int
        Seed of the random choice. A site's rows do not depend on the other sites.
    order : dict of arrays (N,), optional
        Times of every site's rows, as numbers or datetime64. The latest rows are for testing, and the latest
        before them for validation. Rows with equal times stay together, so fractions are approximate, unless
        this would hold out more than twice or less than half of the rows; then they are divided at random.
    validation_fraction : float
        Fraction of the other rows for validation, between 0 and 1.

    Returns
    -------
    dict of RowParts
        Sites with fewer than `MIN_SITE_ROWS` rows have training rows only, unless all sites are that small.

    Raises
    ------
    InputError
        If a fraction is out of range, or times are missing or not numbers or dates.

    Examples
    --------
    >>> parts = divide_rows({"north": 10, "south": 3}, order={"north": np.arange(10), "south": [1, 2, 3]})
    >>> parts["north"].train, parts["north"].validation, parts["north"].test
    (array([0, 1, 2, 3, 4, 5]), array([6, 7]), array([8, 9]))
    >>> parts["south"].train, parts["south"].test
    (array([0, 1, 2]), array([], dtype=int64))
    """
    check_test_fraction(fraction)
    check_validation_fraction(validation_fraction)
    parts, least = {}, least_divided(rows.values())
    for site, count in rows.items():
        ranked, times = _rank_rows(count, site, seed, order)
        test = min(round(fraction * count), count - 1) if count >= least else 0
        place = count - _keep_times_together(times, test)
        share = validation_fraction if count >= least else 0.0
        parts[site] = _divide(ranked[:place], ranked[place:], share, times)
    return parts


def least_divided(counts: Iterable[int]) -> int:
    """Return how many rows a site needs to get validation and test rows, from the row counts of all sites.

    Examples
    --------
    >>> least_divided([40, 8]), least_divided([8, 8])
    (10, 5)
    """
    has_large_site = max(counts, default=0) >= MIN_SITE_ROWS
    return MIN_SITE_ROWS if has_large_site else MIN_ROWS_OF_SMALL_SITES


def divide_rows_where(
    is_test: Mapping[str, Any], seed: int = 0, order: Mapping[str, Any] | None = None
) -> dict[str, RowParts]:
    """Divide every site's rows where the test rows are given, such as those after a date.

    Parameters
    ----------
    is_test : dict of boolean arrays (N,)
        Which rows of each site are for testing.
    seed, order
        See `divide_rows`; they choose validation rows.

    Returns
    -------
    dict of RowParts
        Sites with fewer than `MIN_SITE_ROWS` rows have no validation rows, unless all sites are that small.

    Raises
    ------
    InputError
        If all rows of a site are for testing.

    Examples
    --------
    >>> divide_rows_where({"north": np.arange(12) >= 10})["north"].test
    array([10, 11])
    """
    parts, least = {}, least_divided(map(len, is_test.values()))
    for site, mask in is_test.items():
        is_held_out = np.asarray(mask, bool)
        count = len(is_held_out)
        ranked, times = _rank_rows(count, site, seed, order)
        others, test = ranked[~is_held_out[ranked]], ranked[is_held_out[ranked]]
        if not len(others):
            raise InputError(
                f"All {pluralize(len(test), 'row')} of site '{site}' are for testing. Leave some for "
                "training, or drop the site.",
                client=site,
                field="test",
            )
        share = VALIDATION_FRACTION if count >= least else 0.0
        parts[site] = _divide(others, test, share, None if times is None else times[~is_held_out[ranked]])
    return parts


def draw_validation_rows(
    site: str, rows: int, targets: int, fraction: float, seed: int = 0
) -> tuple[Array, Array]:
    """Draw a site's validation rows from its training rows; return what stays for training, and them.

    Enough rows stay for a covariance of the targets with full rank. Rows keep their order. They depend on the
    site's name, not on other sites: a site that divides its rows alone gets the same.

    Examples
    --------
    >>> train, validation = draw_validation_rows("north", 10, 1, 0.2)
    >>> len(train), len(validation)
    (8, 2)
    """
    order = site_generator(site, seed, 1).permutation(rows)  # 1: another draw than that of test rows
    count = max(0, min(round(fraction * rows), rows - targets - 1))
    return np.sort(order[count:]), np.sort(order[:count])


def site_generator(site: str, seed: int, *purpose: int) -> np.random.Generator:
    """Return the generator of a site's draws: the site's name counts, so it draws the same alone."""
    if not is_whole_number(seed):
        raise InputError(f"A seed must be a whole number of at least 0, not {seed}.", field="seed")
    return np.random.default_rng([int(seed), crc32(str(site).encode(errors="replace")), *purpose])


def _rank_rows(
    count: int, site: str, seed: int, order: Mapping[str, Any] | None
) -> tuple[Array, Array | None]:
    """Return row indices, the first to train on first, and their times: in random order, or by time."""
    if order is None:
        return site_generator(site, seed).permutation(count), None
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
    ranked = np.lexsort((site_generator(site, seed, 2).permutation(count), times))  # 2: a draw of its own
    return ranked, times[ranked]


def _keep_times_together(times: Array | None, held_out: int) -> int:
    """Return how many of the last rows to hold out so that no time is on both sides, near `held_out`."""
    if times is None or not held_out:
        return held_out
    later = len(times) - 1 - np.flatnonzero(times[1:] > times[:-1])  # rows after each change of the time
    later = later[(later <= MOST_MOVED * held_out) & (MOST_MOVED * later >= held_out)]
    return int(later[np.abs(later - held_out).argmin()]) if len(later) else held_out


def _divide(others: Array, test: Array, fraction: float, times: Array | None) -> RowParts:
    """Take the last of the ranked rows that are not for testing as validation rows, a fraction of them.

    Rows without times get the order of the table.
    """
    held_out = min(round(fraction * len(others)), max(len(others) - 1, 0))  # one row is for training
    if times is not None:
        held_out = _keep_times_together(times[: len(others)], held_out)
    parts = *np.split(others, [len(others) - held_out]), test
    return RowParts(*(map(np.sort, parts) if times is None else parts))
