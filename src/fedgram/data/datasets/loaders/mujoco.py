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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.datasets.dataset import (
    Dataset,
    Download,
    Options,
    find_files,
    make_provenance,
    translate_read_errors,
)
from fedgram.data.datasets.preprocessing import TABULAR_CLIENTS, reject_larger
from fedgram.data.problem import Kind, Problem, Split
from fedgram.data.splits import split_by_projection

TRAIN_ROWS, TEST_ROWS = 4_000, 2_000
COLUMNS = ("continuous_observations", "continuous_actions")
VARIANTS = ("ppo_stoch", "tqc_det", "tqc_stoch")  # the first is the default, the most similar to JAT


@dataclass(frozen=True)
class Environment:
    """An environment with D observations and C actions, and JAT's first file of training episodes.

    JAT publishes no checksum, but the revision in the file's URL fixes its content.
    """

    name: str
    observations: int
    actions: int
    jat_revision: str
    jat_file: str


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
    """Find JAT's first file of training episodes."""
    pattern, what = f"mujoco-{environment.name}/train-00000-of-*.parquet", "JAT's training episodes"
    return find_files(folder, [pattern], environment.name, what, missing=environment.jat_file)[:1]


def find_rollouts(folder: Path, options: Options, *, environment: Environment) -> Sequence[Path]:
    """Find the rollouts of one variant."""
    file = f"mujoco_{environment.name}_{options.variant or VARIANTS[0]}.parquet"
    return find_files(folder, [file], f"{environment.name}-rollouts", "the generated rollouts")


def load(
    files: Sequence[Path], options: Options, *, name: str, kind: Kind, environment: Environment
) -> Problem:
    """Load 4,000 training transitions of 4 clients, and test ones: inputs (N, D) float32, targets (N, C)."""
    reject_larger(name, options)
    rows = read_transitions(files[0], environment, TRAIN_ROWS + TEST_ROWS)
    if len(rows) < TRAIN_ROWS:
        raise InputError(
            f"The dataset '{name}' needs {TRAIN_ROWS:,} transitions, but '{files[0]}' has {len(rows):,}.",
            field=str(files[0]),
        )
    train, test = rows.take(slice(TRAIN_ROWS)), rows.take(slice(TRAIN_ROWS, None))
    targets = tuple(f"action {c + 1}" for c in range(environment.actions))
    splits = split_by_projection(train, test, TABULAR_CLIENTS)
    return Problem(name, kind, *splits, targets, make_provenance(files, options))


def read_transitions(path: Path, environment: Environment, wanted: int) -> Split:
    """Read the first `wanted` transitions, or all if there are fewer, in stored order and scale."""
    observations: list[Array] = []
    actions: list[Array] = []
    count = 0
    with translate_read_errors(path, f"a Parquet file of episodes ({COLUMNS[0]}, {COLUMNS[1]})"):
        for episode in _read_episodes(path):
            observed, acted = (np.asarray(values, dtype=np.float32) for values in episode)
            _check_episode(f"Episode {len(actions) + 1}", environment, observed, acted)
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


def _check_episode(where: str, environment: Environment, observed: Array, acted: Array) -> None:
    """Check that there is one finite observation per action, both of the expected width."""
    shapes = (len(acted), environment.observations), (len(acted), environment.actions)
    if (observed.shape, acted.shape) != shapes:
        raise InputError(
            f"{where} has observations of shape {observed.shape} and actions of shape {acted.shape}, not "
            f"{shapes[0]} and {shapes[1]}. Check that it is the right environment.",
            field=COLUMNS[0],
        )
    is_bad = ~(np.isfinite(observed).all(axis=1) & np.isfinite(acted).all(axis=1))
    if is_bad.any():
        step = int(is_bad.argmax()) + 1
        raise InputError(
            f"{where} has a value that is not finite, in transition {step}. Drop the episode.",
            field=COLUMNS[0],
        )


def _jat_dataset(environment: Environment) -> Dataset:
    repository = "https://huggingface.co/datasets/jat-project/jat-dataset"
    url = f"{repository}/resolve/{environment.jat_revision}/{environment.jat_file}"
    return Dataset(
        name=environment.name,
        kind="REAL",
        title=f"MuJoCo {environment.name}, expert episodes of JAT",
        license="Apache 2.0",
        citation="Gallouédec et al., Jack of All Trades, Master of Some, arXiv:2402.09844, 2024; "
        "Todorov et al., MuJoCo, IROS 2012",
        published=repository,
        find=partial(find_jat, environment=environment),
        load=partial(load, name=environment.name, kind="REAL", environment=environment),
        downloads=(Download(url, environment.jat_file),),
    )


def _rollouts_dataset(environment: Environment) -> Dataset:
    name = f"{environment.name}-rollouts"
    return Dataset(
        name=name,
        kind="GENERATED",
        title=f"MuJoCo {environment.name}, rollouts of public MIT-licensed expert policies; not JAT",
        license="made for this project",
        citation="Todorov et al., MuJoCo, IROS 2012",
        published="not published",
        find=partial(find_rollouts, environment=environment),
        load=partial(load, name=name, kind="GENERATED", environment=environment),
        obtain=f"Roll out your own policy in JAT's layout as mujoco_{environment.name}_VARIANT.parquet, or "
        f"use the published '{environment.name}'.",
        variants=VARIANTS,
    )


DATASETS = (*map(_jat_dataset, ENVIRONMENTS), *map(_rollouts_dataset, ENVIRONMENTS))
