"""Rows kept for testing: a random part of every client's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, eq=False)
class Projection:
    """A partition of training rows by their targets' position along one direction.

    direction (C,), the leading eigenvector of the targets' second-moment matrix; rows, indices of each
    client's training rows; low and high (M,), the interval of positions that each client holds.
    """

    direction: Array
    rows: tuple[Array, ...]
    low: Array
    high: Array

    def assigned(self, targets: Array) -> Array:
        """The client whose training interval is nearest to each target (N, C) -> (N,)."""
        position = (targets @ self.direction)[:, None]
        return np.maximum(self.low - position, position - self.high).argmin(axis=1)


def by_projection(targets: Array, clients: int) -> Projection:
    """Sort training targets (N, C) along their leading second-moment direction; cut into equal groups.

    Where N is no multiple of the number of clients, the last N mod M rows of the order are left out, so
    that every client holds the same number.
    """
    size = len(targets) // clients
    if size == 0:
        raise InputError(f"{len(targets)} rows cannot be split over {clients} clients.", field="clients")
    _, basis = np.linalg.eigh(targets.T @ targets / len(targets))
    direction = basis[:, -1] * np.sign(basis[np.abs(basis[:, -1]).argmax(), -1])  # the sign is a convention
    position = targets @ direction
    order = np.argsort(position, kind="stable")[: size * clients]
    rows = tuple(np.split(order, clients))
    low, high = (np.array([bound(position[row]) for row in rows]) for bound in (np.min, np.max))
    return Projection(direction, rows, low, high)


def evenly_at_random(rng: np.random.Generator, rows: int, clients: int) -> tuple[Array, ...]:
    """Indices of `rows` rows dealt to clients at random, in groups whose sizes differ by at most one."""
    return tuple(np.array_split(rng.permutation(rows), clients))
