"""Counts and seeds as people write them."""

from __future__ import annotations

from collections.abc import Collection


def counted(number: int, noun: str = "run") -> str:
    """'1 run' or '1,234 runs'."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def seeds_in_words(seeds: Collection[int]) -> str:
    """'seed 0', 'seeds 0, 3', and 'seeds 0 to 4' for more than two without a gap."""
    first, last = min(seeds), max(seeds)
    if first == last:
        return f"seed {first}"
    if len(seeds) == last - first + 1 > 2:
        return f"seeds {first} to {last}"
    return f"seeds {', '.join(map(str, sorted(seeds)))}"
