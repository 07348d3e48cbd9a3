"""An experiment of the paper is data: parts to run, claims to measure, a figure to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.claims import Measurement
from fedgram.paper.storage import Table

Scale = Literal["full", "quick"]
Results = Mapping[str, Table]
Part = Callable[[], Table]


@dataclass(frozen=True)
class Experiment:
    """One experiment: its parts run in any order and process, and their tables are all that is kept.

    parts(scale) names the parts; each is a `functools.partial` of a module-level function, so that its
    arguments are its settings. measure turns the tables into numbers for the claims; draw, into a
    matplotlib figure.
    """

    name: str
    title: str
    where: str
    cost: str
    parts: Callable[[Scale], dict[str, partial[Table]]]
    measure: Callable[[Results], dict[str, Measurement]]
    draw: Callable[[Results], Any]


def settings_of(part: partial[Table]) -> dict[str, Any]:
    """The settings of a part: its function and its arguments."""
    return {"function": f"{part.func.__module__}.{part.func.__qualname__}", **part.keywords}


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
