"""Format counts, seeds, lists and suggestions as text."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

LONGEST_NAME = 200
"""Characters of the longest name that another machine may send."""


def pluralize(number: int, noun: str = "run") -> str:
    """Format '1 run' or '1,234 runs'."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def percent(fraction: float) -> str:
    """Format a fraction as a percentage: two significant digits below 10%, else whole percents."""
    value = 100 * fraction
    return f"{value:.0f}%" if abs(value) >= 9.95 else f"{value:.2g}%"


def percent_range(fractions: Any) -> str:
    """Format the least and the largest of an array of fractions: '2%', or '1% to 3%' if they differ."""
    low, high = (percent(round(float(end), 12)) for end in (fractions.min(), fractions.max()))  # no 1e-14%
    return low if low == high else f"{low} to {high}"


def format_bytes(count: int) -> str:
    """Format a number of bytes: 3.2 MB."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:  # three digits of more are 1e+03
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def format_duration(seconds: float) -> str:
    """Format a duration for a progress report: 90 s, 7 min."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def escape_text(text: str, limit: int = 300) -> str:
    """Escape control characters and lone surrogates, and cut long text, for logs and terminals."""
    shown = text if len(text) <= limit else f"{text[:limit]}..."
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown)


def is_valid_name(name: object) -> bool:
    """Whether a name is text that logs, files and terminals show as it is."""
    return isinstance(name, str) and bool(name.strip()) and name.isprintable() and len(name) <= LONGEST_NAME


def split_names(text: str) -> list[str]:
    """Split a list at commas; quotes protect commas inside a name."""
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    return [name for line in lines for part in line if (name := part.strip())]


def join_names(names: Iterable[str]) -> str:
    """Join names with commas, so that `split_names` returns them."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def number_targets(count: int) -> tuple[str, ...]:
    """Name targets without a name: 'target 1', 'target 2', ..."""
    return tuple(f"target {c + 1}" for c in range(count))


def as_names(names: Any) -> tuple[str, ...]:
    """Convert one name or several, texts or numbers, to a tuple of texts."""
    is_single = isinstance(names, str) or not isinstance(names, Iterable)
    return (str(names),) if is_single else tuple(map(str, names))


def quote_list(names: Sequence[str]) -> str:
    """Quote names, the first twenty of them, and join them with commas."""
    return ", ".join(f"'{name}'" for name in names[:20]) + (", ..." if len(names) > 20 else "")


def quote_first(names: Sequence[str]) -> str:
    """Quote the first five names and count the rest: 'A', 'B', 'C', 'D', 'E' and 2 more."""
    return quote_list(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def same_but_for_case(names: Iterable[str], kind: str) -> str | None:
    """Return a sentence about two names that differ only in case, if there are such names.

    Examples
    --------
    >>> same_but_for_case(["Oslo", "Bergen", "oslo"], "site")
    "The site names 'Oslo' and 'oslo' differ only in case and count as two. Rename one if they are the same."
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            return (
                f"The {kind} names '{other}' and '{name}' differ only in case and count as two. Rename one "
                "if they are the same."
            )
    return None


def dropped_rows_message(rows: int) -> str:
    """Format the log line about rows that lack a value."""
    return f"Dropped {pluralize(rows, 'row')} with a missing value."


def suggest(name: str, names: Iterable[str]) -> str:
    """Format the end of a message about an unknown name: "; did you mean 'x'?", or "." if none is similar."""
    near = find_closest(name, names)
    return f"; did you mean '{near}'?" if near else "."


def find_closest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of the names, whatever their case; None if none is similar."""
    spelled = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), spelled, n=1)
    return spelled[near[0]] if near else None


def describe_seeds(seeds: Collection[int]) -> str:
    """Format 'seed 0', 'seeds 0, 3', or 'seeds 0 to 4' for three or more without a gap."""
    first, last = min(seeds), max(seeds)
    if first == last:
        return f"seed {first}"
    if len(seeds) == last - first + 1 > 2:
        return f"seeds {first} to {last}"
    return f"seeds {', '.join(map(str, sorted(seeds)))}"


def tiny_column_message(column: str) -> str:
    """Say that the values of a column differ by so little that their squares become 0."""
    return (
        f"{column} has differences below 1.5e-154, whose squares are too small to compute with. Multiply it "
        "by a large number, or drop it."
    )
