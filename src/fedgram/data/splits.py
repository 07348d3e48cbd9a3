"""Split rows into training and test rows, and partition them over clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError, check_type
from fedgram.data.holdout import check_test_fraction, site_generator
from fedgram.data.problem import Problem
from fedgram.data.split import Split


def hold_out(problem: Problem, test_fraction: float, seed: int = 0) -> Problem:
    """Move a random fraction of every client's rows from training to testing.

    Parameters
    ----------
    problem : Problem
        Without test rows.
    test_fraction : float
        Fraction of each client's rows, at least 0 and below 1.
    seed : int
        Seed of the random choice. A client's rows do not depend on the other clients.

    Returns
    -------
    Problem

    Raises
    ------
    InputError
        If the problem has test rows, or if too few training rows remain for the targets' covariance.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram import Problem, hold_out
    >>> rows = np.arange(10.0)[:, None]
    >>> problem = hold_out(Problem.from_arrays([rows, rows], [rows, rows]), 0.2)
    >>> [len(split) for split in problem.test.values()]
    [2, 2]
    """
    check_type(problem, Problem, "hold_out()", "Build it with Problem.from_arrays")
    if problem.test:
        raise InputError(f"'{problem.name}' already has test rows. Do not hold out more.", field="test")
    train, test = split_rows(problem.train, test_fraction, seed)
    provenance = {**problem.provenance, "test_fraction": test_fraction, "seed": seed}
    return replace(problem, train=train, test=test, provenance=provenance)


def split_rows(
    rows: Mapping[str, Split], test_fraction: float, seed: int
) -> tuple[dict[str, Split], dict[str, Split]]:
    """Split every client's rows into training and test rows; without test rows the second dict is empty.

    A client gets the same rows alone and among others.
    """
    check_test_fraction(test_fraction)
    train, test = {}, {}
    for client, split in rows.items():
        order = site_generator(client, seed).permutation(len(split))
        order = order if test_fraction else np.arange(len(split))
        held_out = round(test_fraction * len(split))
        train[client], test[client] = split.take(order[held_out:]), split.take(order[:held_out])
        check_training_rows(client, len(train[client]), len(split), split.targets.shape[1], test_fraction)
    return train, test if test_fraction else {}


def check_training_rows(client: str, left: int, rows: int, targets: int, test_fraction: float) -> None:
    """Reject a test fraction that leaves a client too few of its rows; the moments report too few at all."""
    needed = targets + 1  # rows that a covariance of full rank takes
    if left < min(needed, rows):
        message = (
            f"A test fraction of {test_fraction:g} leaves {left:,} of the {rows:,} rows of client '{client}' "
            f"for training, but {needed} are needed. Lower it, or add rows."
        )
        raise InputError(message, client=client, field="test_fraction")


@dataclass(frozen=True, eq=False)
class Projection:
    """Partition of training rows by the position of their targets along one direction.

    direction (C,): leading eigenvector of the targets' second-moment matrix. rows: indices of each client's
    training rows. low, high (M,): interval of positions of each client.
    """

    direction: Array
    rows: tuple[Array, ...]
    low: Array
    high: Array

    def assign(self, targets: Array) -> Array:
        """Return the client with the nearest training interval for each target, (N, C) -> (N,)."""
        position = (targets @ self.direction)[:, None]
        return np.maximum(self.low - position, position - self.high).argmin(axis=1)


def partition_by_projection(targets: Array, clients: int) -> Projection:
    """Sort training targets (N, C) along their leading direction, and cut the order into equal groups.

    The last N mod M rows of the order belong to no client.
    """
    if clients < 1:
        raise InputError(f"The number of clients must be at least 1, not {clients}.", field="clients")
    size = len(targets) // clients
    if size == 0:
        raise InputError(f"Cannot split {len(targets)} rows over {clients} clients.", field="clients")
    _, basis = np.linalg.eigh(targets.T @ targets / len(targets))
    direction = basis[:, -1] * np.sign(basis[np.abs(basis[:, -1]).argmax(), -1])  # the sign is a convention
    position = targets @ direction
    order = np.argsort(position, kind="stable")[: size * clients]
    rows = tuple(np.split(order, clients))
    low, high = (np.array([bound(position[row]) for row in rows]) for bound in (np.min, np.max))
    return Projection(direction, rows, low, high)


def split_by_projection(train: Split, test: Split, clients: int) -> tuple[dict[str, Split], dict[str, Split]]:
    """Partition training rows by projection, and assign test rows to the nearest client.

    Without test rows the second dict is empty.
    """
    projection = partition_by_projection(train.targets, clients)
    client = projection.assign(test.targets)
    names = [f"client {m + 1}" for m in range(clients)]
    train_rows = {name: train.take(rows) for name, rows in zip(names, projection.rows, strict=True)}
    test_rows = {name: test.take(client == m) for m, name in enumerate(names)}
    return train_rows, test_rows if len(test) else {}


def partition_at_random(rng: np.random.Generator, rows: int, clients: int) -> tuple[Array, ...]:
    """Deal row indices to clients at random, in groups whose sizes differ by at most one."""
    return tuple(np.array_split(rng.permutation(rows), clients))
