"""An experiment on the unconstrained feature model: parts, measure, draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.storage import Table
from fedgram.theory.penalty import Penalty


def unequal(size: float) -> tuple[Penalty, Penalty]:
    """Return penalties that tell λ_H from λ_W, with λ_H λ_W = size²."""
    return Penalty(features=size / 2, head=2 * size), Penalty(features=2 * size, head=size / 2)


UNEQUAL = unequal(1.0)
"""Penalties with the product of the suites in Appendix D.2, D.3 and D.5."""

Scale = Literal["full", "quick"]
Results = Mapping[str, Table]
Found = dict[str, Any]
"""By the id of its claim, a `Measurement`, or a number, range or statement about all instances."""


@dataclass(frozen=True)
class Experiment:
    """One experiment, whose parts run in any order and process.

    parts: from a scale to parts by name, each a `functools.partial` of a module-level function, so that its
    arguments are its settings. measure: from the tables of the parts to numbers for the claims.
    draw: from the tables to a matplotlib figure.
    """

    name: str
    title: str
    where: str
    cost: str
    parts: Callable[[Scale], dict[str, partial[Table]]]
    measure: Callable[[Results], Found]
    draw: Callable[[Results], Any]

    def settings_of(self, part: partial[Table]) -> dict[str, Any]:
        """Settings of a part: its experiment, function and arguments."""
        return {"experiment": self.name, "function": part.func.__name__, **part.keywords}


def group_by_size(tables: Iterable[Table], *columns: str) -> dict[tuple[int, ...], Table]:
    """Concatenate the tables of each size, smallest first; columns name the numbers that make a size."""
    sizes: dict[tuple[int, ...], list[Table]] = {}
    for table in tables:
        sizes.setdefault(tuple(int(table[name][0]) for name in columns), []).append(table)
    return {size: Table.concatenate(sizes[size]) for size in sorted(sizes)}


def extent(values: Array, axis: int | None = None) -> tuple[Array, Array]:
    """Smallest and largest value, of all or along an axis."""
    return values.min(axis), values.max(axis)


def largest(values: Array | list[Array]) -> Array:
    """Largest absolute value."""
    return np.abs(values).max()
