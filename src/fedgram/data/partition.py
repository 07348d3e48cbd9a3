"""Splitting rows over clients, as the paper does it (Appendix E.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError


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
