"""What tabular datasets share, and images with them: scales of columns, and clients by target projection."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.dataset import Options
from fedgram.data.partition import by_projection
from fedgram.data.problem import Split

CLIENTS = 4  # of every tabular dataset of the paper


def statistics(values: Array, names: Sequence[str]) -> tuple[Array, Array]:
    """Mean and standard deviation (1/N) of the columns of training rows (N, D) -> (D,), (D,)."""
    constant = np.flatnonzero((values == values[:1]).all(axis=0))
    if constant.size:
        name = names[constant[0]]
        raise InputError(
            f"The column '{name}' is constant over all {len(values):,} training rows, so it has no scale.",
            field=name,
        )
    return values.mean(axis=0), values.std(axis=0)


def split_by_projection(
    train: Split, test: Split, clients: int = CLIENTS
) -> tuple[dict[str, Split], dict[str, Split]]:
    """Training rows in equal groups along the leading target direction, test rows to the nearest group.

    Without test rows the second is empty.
    """
    projection = by_projection(train.targets, clients)
    assigned = projection.assigned(test.targets)
    names = [f"client {m + 1}" for m in range(clients)]
    trained = {name: _rows(train, rows) for name, rows in zip(names, projection.rows, strict=True)}
    tested = {name: _rows(test, np.flatnonzero(assigned == m)) for m, name in enumerate(names)}
    return trained, tested if len(test) else {}


def refuse_larger(name: str, options: Options) -> None:
    """The paper enlarges two image datasets only: asking that of another one is a mistake."""
    if options.larger:
        raise InputError(
            f"The dataset '{name}' has no larger training set; leave out --larger.", field="larger"
        )


def _rows(split: Split, rows: Array) -> Split:
    return Split(split.inputs[rows], split.targets[rows])
