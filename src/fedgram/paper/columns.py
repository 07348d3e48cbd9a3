"""Small things that all experiments do with columns of results."""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.tables import Table


def columns(shape: tuple[int, ...], **values: Array | float | str) -> Table:
    """A table with one row for each entry of an array of this shape, to which every value is broadcast."""
    return {name: np.broadcast_to(np.asarray(value), shape).ravel() for name, value in values.items()}


def concatenated(tables: list[Table]) -> Table:
    """The rows of all tables, which have the same columns."""
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def extent(values: Array) -> tuple[float, float]:
    """Smallest and largest value."""
    return float(values.min()), float(values.max())


def largest(values: Array | list[Array]) -> float:
    """Largest absolute value."""
    return float(np.abs(values).max())
