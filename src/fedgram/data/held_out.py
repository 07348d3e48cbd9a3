"""Rows kept for testing: a random part of every client's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from zlib import crc32

import numpy as np

from fedgram._util.arrays import Array, as_float
from fedgram._util.errors import InputError
from fedgram.data.problem import Problem, Split


def hold_out(problem: Problem, test_fraction: float, seed: int = 0) -> Problem:
    """The problem with this part of every client's rows, drawn at random, for testing instead of training."""
    if problem.test:
        raise InputError(f"'{problem.name}' has test rows already; hold out none.", field="test")
    train, test = divided(problem.train, test_fraction, seed)
    made = {**problem.provenance, "test_fraction": test_fraction, "seed": seed}
    return replace(problem, train=train, test=test, provenance=made)


def divided(
    rows: Mapping[str, Split], test_fraction: float, seed: int
) -> tuple[dict[str, Split], dict[str, Split]]:
    """Training and test rows of every client, the latter empty if none are kept.

    They are drawn by the client's name, the same wherever it is: among others, or at a site of its own.
    """
    if not 0.0 <= as_float(test_fraction) < 1.0:
        raise InputError(
            f"The test fraction must be at least 0 and below 1, not {test_fraction}.", field="test_fraction"
        )
    train, test = {}, {}
    for client, split in rows.items():
        rng = np.random.default_rng([seed, crc32(str(client).encode(errors="replace"))])
        order = rng.permutation(len(split)) if test_fraction else np.arange(len(split))
        tested = round(test_fraction * len(split))
        train[client], test[client] = _chosen(split, order[tested:]), _chosen(split, order[:tested])
        _check_left(train[client], len(split), client, test_fraction)
    return train, test if test_fraction else {}


def _chosen(split: Split, rows: Array) -> Split:
    return Split(split.inputs[rows], split.targets[rows])


def _check_left(train: Split, rows: int, client: str, test_fraction: float) -> None:
    """Refuse a test part that takes the rows which the covariance of the targets needs."""
    needed = train.targets.shape[1] + 1
    if len(train) < min(needed, rows):
        raise InputError(
            f"A test fraction of {test_fraction:g} leaves {len(train):,} of the {rows:,} rows of client "
            f"'{client}' for training, which needs at least {needed}; lower it, or add rows.",
            client=client,
            field="test_fraction",
        )
