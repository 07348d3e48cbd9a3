"""Partitions of `flwr-datasets` as clients: a problem to train on, or tables for a federation.

A partitioner deals the rows of a Hugging Face dataset to clients, for example by a Dirichlet draw. The
dataset may come from a local table; nothing here needs a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tomli_w

from fedgram._util.errors import InputError
from fedgram._util.files import write_bytes
from fedgram._util.text import as_names, quote_list
from fedgram.data.problem import Kind, Problem
from fedgram.data.split import Split
from fedgram.data.splits import hold_out
from fedgram.data.tables.read_rows import TEST_FRACTION


class Partitioner(Protocol):
    """What we use of a `flwr_datasets.partitioner.Partitioner` with a dataset."""

    @property
    def num_partitions(self) -> int:
        """Number of clients."""

    def load_partition(self, partition_id: int) -> Any:
        """Return the rows of a client as a `datasets.Dataset`."""


def problem_from_partitions(
    partitioner: Partitioner,
    *,
    inputs: str | Sequence[str],
    targets: str | Sequence[str],
    test_fraction: float = TEST_FRACTION,
    seed: int = 0,
    name: str = "partitions",
    kind: Kind = "REAL",
) -> Problem:
    """Build a problem with one client per partition.

    Parameters
    ----------
    partitioner : flwr_datasets.partitioner.Partitioner
        With its `dataset` set.
    inputs, targets : str or sequence of str
        Columns of numbers.
    test_fraction, seed
        Fraction of every client's rows for testing, and the seed of their draw.
    name, kind
        See `Problem`.

    Returns
    -------
    Problem
        A client is called by its natural ID where the partitioner has one, otherwise 'partition 1' and so on.

    Raises
    ------
    InputError
        If a column is missing, or if a partition is too small.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram.flower.partitions import problem_from_partitions
    >>> class Halves:                                  # instead of a partitioner of flwr-datasets
    ...     num_partitions = 2
    ...     def load_partition(self, number):
    ...         rows = np.arange(10.0) + 10 * number
    ...         return {"x": rows, "y": rows**2}
    >>> problem = problem_from_partitions(Halves(), inputs="x", targets="y")
    >>> {client: len(split) for client, split in problem.train.items()}
    {'partition 1': 8, 'partition 2': 8}
    """
    columns = as_names(inputs), as_names(targets)
    train = {}
    for number in range(partitioner.num_partitions):
        client, rows = name_partition(partitioner, number), partitioner.load_partition(number)
        found, wanted = (_read_columns(rows, names, client) for names in columns)
        train[client] = Split(found.astype(np.float32), wanted)
    return hold_out(Problem(name, kind, train, target_names=columns[1]), test_fraction, seed)


def write_sites_file(
    partitioner: Partitioner,
    folder: str | Path,
    *,
    inputs: str | Sequence[str],
    targets: str | Sequence[str],
    **settings: Any,
) -> Path:
    """Write a Parquet table per partition and a sites.toml file for `fedgram federate`; return its path.

    `settings` are further keys of the run config, with '_' for '-'.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sites = {}
    for number in range(partitioner.num_partitions):
        table = f"partition-{number + 1}.parquet"
        partitioner.load_partition(number).to_parquet(folder / table)
        sites[name_partition(partitioner, number)] = {"table": table}
    columns = {"inputs": list(as_names(inputs)), "targets": list(as_names(targets))}
    config = columns | {key.replace("_", "-"): value for key, value in settings.items()}
    write_bytes(folder / "sites.toml", tomli_w.dumps(config | {"sites": sites}).encode())
    return folder / "sites.toml"


def name_partition(partitioner: Partitioner, number: int) -> str:
    """Return the client's name of a partition, numbered from 0."""
    natural: Mapping[int, Any] = getattr(partitioner, "partition_id_to_natural_id", {})
    return str(natural.get(number, f"partition {number + 1}"))


def _read_columns(rows: Any, names: Sequence[str], client: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Stack columns of numbers, (N,) each, to (N, columns)."""
    known = getattr(rows, "column_names", None) or list(rows)
    if missing := [name for name in names if name not in known]:
        raise InputError(
            f"No column '{missing[0]}' in the dataset. Columns: {quote_list(known)}.", field=missing[0]
        )
    try:
        return np.stack([np.asarray(rows[name], dtype=np.float64) for name in names], axis=1)
    except (ValueError, TypeError):
        raise InputError(
            f"A column of {quote_list(names)} has a value at '{client}' that is not a number. Choose numeric "
            "columns.",
            client=client,
            field=names[0],
        ) from None
