"""Episodes of an agent in the layout of JAT's Parquet files, read no further than they are needed.

One row for each episode; the columns `continuous_observations` and `continuous_actions` are lists, one item
for each transition, of lists of numbers.
"""

from __future__ import annotations

import glob
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.dataset import readable
from fedgram.data.problem import Split

COLUMNS = ("continuous_observations", "continuous_actions")

Episode = tuple[Any, ...]
"""Observations (T, D) and actions (T, C) of one episode, as lists."""


def transitions(path: Path, widths: tuple[int, int], wanted: int) -> Split:
    """The first `wanted` transitions of a file, or all if it has fewer, in stored order and scale.

    widths D and C of an observation and an action -> inputs (N, D) float32, targets (N, C) float64.
    """
    observations: list[Array] = []
    actions: list[Array] = []
    count = 0
    read = _reader()
    with readable(path, f"a Parquet file of episodes ({COLUMNS[0]}, {COLUMNS[1]})"):
        for episode in read(path):
            observed, acted = (np.asarray(values, dtype=np.float32) for values in episode)
            _check_episode(f"episode {len(actions) + 1}", widths, observed, acted)
            observations.append(observed)
            actions.append(acted)
            count += len(acted)
            if count >= wanted:
                break
    if not count:
        raise InputError(f"'{path}' has no transitions.", field=str(path))
    inputs, targets = np.concatenate(observations)[:wanted], np.concatenate(actions)[:wanted]
    return Split(inputs, targets.astype(np.float64))


def _reader() -> Callable[[Path], Iterator[Episode]]:
    """Whichever library is installed: the project needs DuckDB, but a training machine may lack it."""
    for library, reader in READERS.items():
        if importlib.util.find_spec(library):
            return reader
    raise InputError("Reading Parquet files needs DuckDB or pyarrow: pip install duckdb.", field="duckdb")


def _duckdb_episodes(path: Path) -> Iterator[Episode]:
    import duckdb

    # With one thread no more is read than is asked for: JAT's files are a hundred times what we need.
    with duckdb.connect(config={"threads": 1}) as connection:
        rows = connection.execute(
            f"SELECT {', '.join(COLUMNS)} FROM read_parquet(?)", [glob.escape(str(path))]
        )
        while episode := rows.fetchone():
            yield episode


def _pyarrow_episodes(path: Path) -> Iterator[Episode]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        missing = set(COLUMNS) - set(file.schema_arrow.names)
        if missing:
            raise ValueError(f'column "{min(missing)}" not found')
        for batch in file.iter_batches(batch_size=1, columns=list(COLUMNS)):
            for row in batch.to_pylist():
                yield row[COLUMNS[0]], row[COLUMNS[1]]


READERS = {"duckdb": _duckdb_episodes, "pyarrow": _pyarrow_episodes}


def _check_episode(where: str, widths: tuple[int, int], observed: Array, acted: Array) -> None:
    """One observation for each action, both of the widths expected, and all of them finite."""
    shapes = (len(acted), widths[0]), (len(acted), widths[1])
    if (observed.shape, acted.shape) != shapes:
        raise InputError(
            f"{where} has observations of shape {observed.shape} and actions of shape {acted.shape}, where "
            f"{shapes[0]} and {shapes[1]} are expected: is it another environment?",
            field=COLUMNS[0],
        )
    bad = ~(np.isfinite(observed).all(axis=1) & np.isfinite(acted).all(axis=1))
    if bad.any():
        step = int(bad.argmax()) + 1
        raise InputError(
            f"{where} has a value that is not finite, in transition {step}; leave out the episode first.",
            field=COLUMNS[0],
        )
