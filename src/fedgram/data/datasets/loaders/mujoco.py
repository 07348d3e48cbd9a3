"""MuJoCo locomotion: an expert's action from the observation.

`swimmer`, `hopper`, `halfcheetah` and `walker` read JAT's published files (Apache 2.0): Parquet with one row
per episode, and the nested lists `continuous_observations` and `continuous_actions`. `swimmer-rollouts` etc.
read rollouts in the same layout that were made for this project: they are GENERATED, not JAT. Their variants
name the policy, and whether it acted by its mode (`det`) or sampled (`stoch`).

The paper uses the first 4,000 training transitions at their stored scale. It does not state the rest:
- Transitions are counted through the episodes in stored order, regardless of their lengths.
- Test rows: the paper has none. We use the next 2,000 transitions, or as many as there are; each goes to the
  client with the nearest interval of training targets. They may begin in the last training episode.
- The seed has no effect.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.datasets.dataset import Dataset, Options, make_provenance, translate_read_errors
from fedgram.data.datasets.preprocessing import TABULAR_CLIENTS
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.data.splits import split_by_projection

TRAIN_ROWS, TEST_ROWS = 4_000, 2_000
COLUMNS = ("continuous_observations", "continuous_actions")
WIDTHS = {"swimmer": (8, 2), "hopper": (11, 3), "halfcheetah": (17, 6), "walker": (17, 6)}
"""Numbers of observations and actions of each environment."""


def load(dataset: Dataset, files: Sequence[Path], options: Options) -> Problem:
    """Load 4,000 training transitions of 4 clients, and test ones: inputs (N, D) float32, targets (N, C)."""
    widths = WIDTHS[dataset.name.removesuffix("-rollouts")]
    rows = read_transitions(files[0], widths, TRAIN_ROWS + TEST_ROWS)
    if len(rows) < TRAIN_ROWS:
        needs = f"The dataset '{dataset.name}' needs {TRAIN_ROWS:,} transitions"
        raise InputError(f"{needs}, but '{files[0]}' has {len(rows):,}.", field=str(files[0]))
    train, test = rows.take(slice(TRAIN_ROWS)), rows.take(slice(TRAIN_ROWS, None))
    targets = tuple(f"action {c + 1}" for c in range(widths[1]))
    splits = split_by_projection(train, test, TABULAR_CLIENTS)
    return Problem(dataset.name, dataset.kind, *splits, targets, make_provenance(files, options))


def read_transitions(path: Path, widths: tuple[int, int], wanted: int) -> Split:
    """Read the first `wanted` transitions, or all if there are fewer, in stored order and scale."""
    observations: list[Array] = []
    actions: list[Array] = []
    count = 0
    with translate_read_errors(path, f"a Parquet file of episodes ({COLUMNS[0]}, {COLUMNS[1]})"):
        for episode in _read_episodes(path):
            observed, acted = (np.asarray(values, dtype=np.float32) for values in episode)
            _check_episode(f"Episode {len(actions) + 1}", widths, observed, acted)
            observations.append(observed)
            actions.append(acted)
            count += len(acted)
            if count >= wanted:
                break
    if not count:
        raise InputError(f"'{path}' has no transitions.", field=str(path))
    return Split(np.concatenate(observations)[:wanted], np.concatenate(actions)[:wanted])


def _read_episodes(path: Path) -> Iterator[tuple[Any, ...]]:
    """Yield observations (T, D) and actions (T, C) of each episode as lists."""
    import duckdb

    # One thread reads no more than we fetch: JAT's files are a hundred times what we need.
    with duckdb.connect(config={"threads": 1}) as connection:
        query = f"SELECT {', '.join(COLUMNS)} FROM read_parquet(?)"
        rows = connection.execute(query, [glob.escape(str(path))])
        while episode := rows.fetchone():
            yield episode


def _check_episode(where: str, widths: tuple[int, int], observed: Array, acted: Array) -> None:
    """Check that there is one finite observation per action, both of the expected width."""
    shapes = tuple((len(acted), width) for width in widths)
    if (observed.shape, acted.shape) != shapes:
        raise InputError(
            f"{where} has observations of shape {observed.shape} and actions of shape {acted.shape}, not "
            f"{shapes[0]} and {shapes[1]}. Check that it is the right environment.",
            field=COLUMNS[0],
        )
    is_bad = ~(np.isfinite(observed).all(axis=1) & np.isfinite(acted).all(axis=1))
    if is_bad.any():
        place = f"in transition {int(is_bad.argmax()) + 1}"
        raise InputError(
            f"{where} has a value that is not finite, {place}. Drop the episode.", field=COLUMNS[0]
        )
