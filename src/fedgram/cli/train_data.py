"""What `fedgram train` trains on: a dataset by name, or a person's own table."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgram.data import registry
from fedgram.data.dataset import Options
from fedgram.data.problem import Problem, Split
from fedgram.errors import InputError

if TYPE_CHECKING:
    from fedgram.psd import Array

Columns = tuple[str | None, list[str], list[str]]
"""Names of the column of clients, of inputs and of targets in a person's own table."""


def given_problem(
    dataset: str, data_dir: Path | None, options: Options, columns: Columns, test_fraction: float
) -> Problem:
    """The dataset of a name, or the table in a file."""
    if dataset in registry.names() or not (Path(dataset).suffix or Path(dataset).exists()):
        return registry.load(dataset, data_dir, options)
    client, inputs, targets = columns
    given = {"--client": client, "--inputs": inputs, "--targets": targets}
    if missing := [flag for flag, value in given.items() if not value]:
        raise InputError(f"Training on a table needs {missing[0]}.", field=missing[0])
    return read_table(dataset, str(client), inputs, targets, test_fraction, options.seed)


def read_table(
    path: str, client: str, inputs: list[str], targets: list[str], test_fraction: float, seed: int
) -> Problem:
    """Rows of a CSV, TSV or Parquet file by client; of each client a random part is kept for testing."""
    if not 0.0 <= test_fraction < 1.0:
        raise InputError(
            f"--test-fraction must be at least 0 and below 1, not {test_fraction:g}.", field="test_fraction"
        )
    rows = _rows(path, client, (*inputs, *targets))
    rng, train, test = np.random.default_rng(seed), {}, {}
    for name, values in rows.items():
        order = rng.permutation(len(values)) if test_fraction else np.arange(len(values))
        tested = round(test_fraction * len(values))
        train[name] = _split(values[order[tested:]], len(inputs))
        test[name] = _split(values[order[:tested]], len(inputs))
    made = {"file": str(path), "inputs": inputs, "test_fraction": test_fraction, "seed": seed}
    return Problem(Path(path).stem, "REAL", train, test if test_fraction else {}, tuple(targets), made)


def _split(values: Array, inputs: int) -> Split:
    """Inputs and targets of rows (N, inputs + C)."""
    return Split(values[:, :inputs].astype(np.float32), values[:, inputs:])


def _rows(path: str, client: str, columns: tuple[str, ...]) -> dict[str, Array]:
    """The columns (N, columns) of every client, NaN where a value is missing."""
    import duckdb

    from fedgram.sources import SourceTable, explained, open_source, select_rows

    with (
        tempfile.TemporaryDirectory() as spill,
        duckdb.connect(config={"temp_directory": spill}) as connection,
    ):
        table = SourceTable(connection, path, client, columns, None)
        with explained(table):
            open_source(table)
            select_rows(table, drop_missing=False)
            names, _ = table.read("count(*)", "data GROUP BY client")
            found = connection.execute("SELECT * FROM data").fetchnumpy()
    if None in names:
        raise InputError(f"Some rows have no client in '{client}'; name one for each.", field=client)
    values = np.stack([np.ma.filled(found[f"y{i}"], np.nan) for i in range(len(columns))], axis=1)
    of_row = np.array([str(name) for name in found["client"]])
    return {str(name): values[of_row == str(name)] for name in names}
