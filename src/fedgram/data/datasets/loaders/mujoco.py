"""MuJoCo locomotion: an expert's action from the observation, in four environments.

`swimmer`, `hopper`, `halfcheetah` and `walker` read what JAT publishes (Apache 2.0): Parquet files with one
row for each episode, and the columns `continuous_observations` and `continuous_actions`, lists of lists of
numbers. `swimmer-rollouts` and so on read rollouts that were made for this project in the same layout: they
are GENERATED, and not JAT. Their variants name the policy, and whether it acted by its mode (`det`) or
sampled (`stoch`).

The paper takes the first 4,000 training transitions at their stored scale. What it does not state:
- Transitions are counted through the episodes in stored order, whatever the length of each.
- Test rows: the paper has none. We take the next 2,000 transitions, as many as there are, and give each to
  the client whose interval of training targets is nearest. They may begin in the last training episode.
- The seed plays no part.
"""

from __future__ import annotations

import glob
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.datasets.dataset import Dataset, Download, Options, provenance, readable, require
from fedgram.data.datasets.preprocessing import refuse_larger, split_by_projection
from fedgram.data.problem import Kind, Problem, Split

TRAIN_ROWS, TEST_ROWS = 4_000, 2_000
VARIANTS = ("ppo_stoch", "tqc_det", "tqc_stoch")  # the first is the default, the nearest in kind to JAT


@dataclass(frozen=True)
class Environment:
    """An environment with D observations and C actions, and JAT's first file of training episodes.

    The file's address holds a revision at which it lay there under this name.
    """

    name: str
    observations: int
    actions: int
    jat_revision: str
    jat_file: str

    @property
    def download(self) -> Download:
        """JAT publishes no checksum; the revision fixes the content."""
        repository = "https://huggingface.co/datasets/jat-project/jat-dataset/resolve"
        return Download(f"{repository}/{self.jat_revision}/{self.jat_file}", self.jat_file)


ENVIRONMENTS = (
    Environment(
        "swimmer", 8, 2, "bb2a30f396f5aff8c251c017eba2db57815f36b4",
        "mujoco-swimmer/train-00000-of-00001-69ddb327f3417d6e.parquet",
    ),
    Environment(
        "hopper", 11, 3, "a13c778bf88cc9e33e8482fe4dc197e459bcd9ab",
        "mujoco-hopper/train-00000-of-00001-c3171ebcb257ae3b.parquet",
    ),
    Environment(
        "halfcheetah", 17, 6, "97100f8505d4aba50f1d265eb5beaf71dbe3ea81",
        "mujoco-halfcheetah/train-00000-of-00002-8c263be2db3712c6.parquet",
    ),
    Environment(
        "walker", 17, 6, "2ba91202d429d2d06c3f16e0158dbcb1c4821552",
        "mujoco-walker/train-00000-of-00002-e9a5a483750835a3.parquet",
    ),
)  # fmt: skip


def find_jat(folder: Path, options: Options, *, environment: Environment) -> Sequence[Path]:
    """JAT's first file of training episodes, in the data directory or a folder in it."""
    pattern = f"mujoco-{environment.name}/train-00000-of-*.parquet"
    found = sorted(folder.glob(pattern)) or sorted(folder.glob(f"*/{pattern}"))
    return found[:1] or [require(folder / environment.jat_file, environment.name, "JAT's training episodes")]


def find_rollouts(folder: Path, options: Options, *, environment: Environment) -> Sequence[Path]:
    """The rollouts of one variant."""
    file = f"mujoco_{environment.name}_{options.variant or VARIANTS[0]}.parquet"
    return [require(folder / file, f"{environment.name}-rollouts", "the generated rollouts")]


def load(
    files: Sequence[Path], options: Options, *, name: str, kind: Kind, environment: Environment
) -> Problem:
    """4,000 training transitions of 4 clients, and test ones: inputs (N, D) float32, targets (N, C)."""
    refuse_larger(name, options)
    widths = environment.observations, environment.actions
    rows = transitions(files[0], widths, TRAIN_ROWS + TEST_ROWS)
    if len(rows) < TRAIN_ROWS:
        raise InputError(
            f"The dataset '{name}' needs {TRAIN_ROWS:,} transitions, but '{files[0]}' has {len(rows):,}.",
            field=str(files[0]),
        )
    train = Split(rows.inputs[:TRAIN_ROWS], rows.targets[:TRAIN_ROWS])
    test = Split(rows.inputs[TRAIN_ROWS:], rows.targets[TRAIN_ROWS:])
    trained, tested = split_by_projection(train, test)
    names = tuple(f"action {c + 1}" for c in range(environment.actions))
    return Problem(name, kind, trained, tested, names, provenance(files, options))


def _jat(environment: Environment) -> Dataset:
    return Dataset(
        name=environment.name,
        kind="REAL",
        title=f"MuJoCo {environment.name}, expert episodes of JAT",
        licence="Apache 2.0",
        citation="Gallouédec et al., Jack of All Trades, Master of Some, arXiv:2402.09844, 2024; "
        "Todorov et al., MuJoCo, IROS 2012",
        published="https://huggingface.co/datasets/jat-project/jat-dataset",
        find=partial(find_jat, environment=environment),
        load=partial(load, name=environment.name, kind="REAL", environment=environment),
        downloads=(environment.download,),
    )


def _rollouts(environment: Environment) -> Dataset:
    name = f"{environment.name}-rollouts"
    return Dataset(
        name=name,
        kind="GENERATED",
        title=f"MuJoCo {environment.name}, rollouts of public MIT-licensed expert policies; not JAT",
        licence="made for this project",
        citation="Todorov et al., MuJoCo, IROS 2012",
        published="not published",
        find=partial(find_rollouts, environment=environment),
        load=partial(load, name=name, kind="GENERATED", environment=environment),
        obtain=f"Roll out a policy of your own in JAT's layout, or use '{environment.name}', the published "
        f"data; files are named mujoco_{environment.name}_VARIANT.parquet.",
        variants=VARIANTS,
    )


DATASETS = (*map(_jat, ENVIRONMENTS), *map(_rollouts, ENVIRONMENTS))


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
