"""An experiment on the unconstrained feature model: parts, measure, draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.claims import Measurement
from fedgram.paper.storage import Table

Scale = Literal["full", "quick"]
Results = Mapping[str, Table]
Found = dict[str, Measurement]
"""Measurements by the id of their claim."""


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


def make_table(shape: tuple[int, ...], **values: Array | float | str) -> Table:
    """Make a table with one row per entry of an array of this shape; values are broadcast to it."""
    return {name: np.broadcast_to(np.asarray(value), shape).ravel() for name, value in values.items()}


def concatenate(tables: list[Table]) -> Table:
    """Concatenate the rows of tables with the same columns."""
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def group_by_size(tables: Iterable[Table], *columns: str) -> dict[tuple[int, ...], Table]:
    """Concatenate the tables of each size, smallest first; columns name the numbers that make a size."""
    sizes: dict[tuple[int, ...], list[Table]] = {}
    for table in tables:
        sizes.setdefault(tuple(int(table[name][0]) for name in columns), []).append(table)
    return {size: concatenate(sizes[size]) for size in sorted(sizes)}


def extent(values: Array) -> tuple[float, float]:
    """Smallest and largest value."""
    return float(values.min()), float(values.max())


def redraws_of(*samples: Iterable[float]) -> tuple[tuple[float, ...], ...]:
    """Further draws of each number of a claim, as a `Measurement` takes them."""
    return tuple(tuple(map(float, each)) for each in samples)


def largest(values: Array | list[Array]) -> float:
    """Largest absolute value."""
    return float(np.abs(values).max())
