"""Counts, seeds, lists and suggestions as people write them."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any


def pluralize(number: int, noun: str = "run") -> str:
    """'1 run' or '1,234 runs'."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def split_names(text: str) -> list[str]:
    """What a text names with commas; what has a comma itself stands in quotes."""
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    return [name for line in lines for part in line if (name := part.strip())]


def as_names(given: Any) -> tuple[str, ...]:
    """Names as text; one alone may stand without a list, and may be a number."""
    alone = isinstance(given, str) or not isinstance(given, Iterable)
    return (str(given),) if alone else tuple(map(str, given))


def quote_list(names: Sequence[str]) -> str:
    """Names in quotes, the first twenty of them."""
    return ", ".join(f"'{name}'" for name in names[:20]) + (", ..." if len(names) > 20 else "")


def dropped_rows_message(rows: int) -> str:
    """What is said of rows that lack a value."""
    return f"Left out for a missing value: {pluralize(rows, 'row')}."


def suggest(name: str, names: Iterable[str]) -> str:
    """How a sentence about an unknown name ends: "; did you mean 'x'?" where x is near, else "."."""
    near = get_close_matches(name.lower(), list(names), n=1)
    return f"; did you mean '{near[0]}'?" if near else "."


def describe_seeds(seeds: Collection[int]) -> str:
    """'seed 0', 'seeds 0, 3', and 'seeds 0 to 4' for more than two without a gap."""
    first, last = min(seeds), max(seeds)
    if first == last:
        return f"seed {first}"
    if len(seeds) == last - first + 1 > 2:
        return f"seeds {first} to {last}"
    return f"seeds {', '.join(map(str, sorted(seeds)))}"
