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


TEST_FRACTION = 0.2


def given_problem(
    dataset: str, data_dir: Path | None, options: Options, columns: Columns, test_fraction: float | None
) -> Problem:
    """The dataset of a name, or the table in a file."""
    client, inputs, targets = columns
    given: dict[str, object] = {"--client": client, "--inputs": inputs, "--targets": targets}
    if dataset in registry.names() or not (Path(dataset).suffix or Path(dataset).exists()):
        _refuse(given | {"--test-fraction": test_fraction is not None}, "a CSV, TSV or Parquet file", dataset)
        return registry.load(dataset, data_dir, options)
    _refuse({"--variant": options.variant, "--larger": options.larger}, "a dataset with a name", dataset)
    if missing := [flag for flag, value in given.items() if not value]:
        raise InputError(f"Training on a table needs {missing[0]}.", field=missing[0])
    part = TEST_FRACTION if test_fraction is None else test_fraction
    return read_table(dataset, str(client), inputs, targets, part, options.seed)


def _refuse(flags: dict[str, object], kind: str, dataset: str) -> None:
    for flag, given in flags.items():
        if given:
            raise InputError(
                f"{flag} is for {kind}, and '{dataset}' is none; leave it out, or train on such.", field=flag
            )


def read_table(
    path: str, client: str, inputs: list[str], targets: list[str], test_fraction: float, seed: int
) -> Problem:
    """Rows of a CSV, TSV or Parquet file by client; of each client a random part is kept for testing."""
    if not 0.0 <= test_fraction < 1.0:
        raise InputError(
            f"--test-fraction must be at least 0 and below 1, not {test_fraction:g}.", field="test_fraction"
        )
    _check_named_once([client, *inputs, *targets])
    rows = _rows(path, client, (*inputs, *targets))
    rng, train, test = np.random.default_rng(seed), {}, {}
    for name, values in rows.items():
        order = rng.permutation(len(values)) if test_fraction else np.arange(len(values))
        tested = round(test_fraction * len(values))
        train[name] = _split(values[order[tested:]], len(inputs))
        test[name] = _split(values[order[:tested]], len(inputs))
        _check_left(train[name], len(values), name, test_fraction)
    made = {"file": str(path), "inputs": inputs, "test_fraction": test_fraction, "seed": seed}
    return Problem(Path(path).stem, "REAL", train, test if test_fraction else {}, tuple(targets), made)


def _split(values: Array, inputs: int) -> Split:
    """Inputs and targets of rows (N, inputs + C)."""
    return Split(values[:, :inputs].astype(np.float32), values[:, inputs:])


def _rows(path: str, client: str, columns: tuple[str, ...]) -> dict[str, Array]:
    """The columns (N, columns) of every client, in the order of the file."""
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
            connection.execute(
                "CREATE TEMP TABLE numbered AS SELECT *, row_number() OVER () AS row FROM data"
            )
            names, first = table.read("min(row)", "numbered GROUP BY client")
            found = connection.execute("SELECT * FROM numbered ORDER BY row").fetchnumpy()
    _check_clients(names, client, path)
    values = np.stack([np.ma.filled(found[f"y{i}"], np.nan) for i in range(len(columns))], axis=1)
    rows = {}
    for name, row in zip(names, first[:, 0].astype(int), strict=True):
        its = np.flatnonzero(found["client"] == found["client"][row - 1])
        rows[str(name)] = values[its]
        _check_numbers(values[its], its, str(name), columns, path)
    return rows


def _check_named_once(columns: list[str]) -> None:
    for name in columns:
        if columns.count(name) > 1:
            raise InputError(
                f"The column '{name}' is named more than once in --client, --inputs and --targets; name it "
                "once.",
                field=name,
            )


def _check_clients(names: list[str | None], client: str, path: str) -> None:
    if None in names:
        raise InputError(f"Some rows have no client in '{client}'; name one for each.", field=client)
    if len(names) < 2:
        held = f"only the client '{names[0]}'" if names else "no client"
        raise InputError(
            f"The column '{client}' of '{path}' holds {held}, but a federation needs at least two; name "
            "another column with --client, or add the rows of other clients.",
            field=client,
        )


def _check_numbers(values: Array, rows: Array, client: str, columns: tuple[str, ...], path: str) -> None:
    """Refuse what is missing, or infinite in the single precision of inputs; rows are those of the file."""
    bad = np.argwhere(~(np.abs(values) <= np.finfo(np.float32).max))
    if len(bad):
        row, column = bad[0]
        value, name = values[row, column], columns[column]
        what = f"no number in '{name}'" if np.isnan(value) else f"{value:g} in '{name}', which is too large"
        raise InputError(
            f"Data row {rows[row] + 1:,} of '{path}' (client '{client}') has {what}; correct it, or leave "
            "the row out.",
            client=client,
            field=name,
        )


def _check_left(train: Split, rows: int, client: str, test_fraction: float) -> None:
    """Refuse a test part that takes the rows which the covariance of the targets needs."""
    needed = train.targets.shape[1] + 1
    if len(train) < min(needed, rows):
        raise InputError(
            f"--test-fraction {test_fraction:g} leaves {len(train):,} of the {rows:,} rows of client "
            f"'{client}' for training, which needs at least {needed}; lower it, or add rows.",
            client=client,
            field="test_fraction",
        )
