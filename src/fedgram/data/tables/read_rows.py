"""A person's own table as rows to train and test on: of all clients, or of one site."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgram._util.errors import InputError
from fedgram.data.problem import Kind, Problem, Split
from fedgram.data.splits import divided
from fedgram.data.tables.diagnostics import explained, nameless
from fedgram.data.validation import check_named_once
from fedgram.theory.validation import check_names

if TYPE_CHECKING:
    from fedgram._util.arrays import Array

TEST_FRACTION = 0.2


@dataclass(frozen=True)
class Reading:
    """How a person's own table is read: the columns of clients, inputs and targets, and which rows.

    Without a column of clients all rows belong to `site`.
    """

    client: str | None
    inputs: list[str]
    targets: list[str]
    test_fraction: float | None = None
    where: str | None = None
    drop_missing: bool = False
    site: str = ""
    kind: Kind | None = None

    @property
    def needed(self) -> dict[str, object]:
        """What must be said of a table."""
        return {"--client": self.client, "--inputs": self.inputs, "--targets": self.targets}

    @property
    def given(self) -> dict[str, object]:
        """All that was said."""
        chosen = {"--where": self.where, "--drop-missing": self.drop_missing}
        return self.needed | chosen | {"--test-fraction": self.test_fraction is not None, "--kind": self.kind}

    @property
    def tested(self) -> float:
        """The part of every client's rows that is kept for testing."""
        return TEST_FRACTION if self.test_fraction is None else self.test_fraction

    @property
    def leaving_out(self) -> str:
        """What to do about a row that lacks a number."""
        by_flag = self.client is not None and self.targets and not self.drop_missing
        return "leave the row out" + (" (missing values: --drop-missing)" if by_flag else "")

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that hold numbers."""
        return (*self.inputs, *self.targets)


def read_table(path: str, reading: Reading, seed: int) -> Problem:
    """Rows of a CSV, TSV or Parquet file by client; of each client a random part is kept for testing."""
    train, test, dropped = read_splits(path, reading, seed)
    made = {
        "file": str(path), "inputs": reading.inputs, "where": reading.where, "rows_left_out": dropped,
        "test_fraction": reading.tested, "seed": seed,
    }  # fmt: skip
    return Problem(_table_name(path), reading.kind or "REAL", train, test, tuple(reading.targets), made)


def _table_name(path: str) -> str:
    """The name of a file without its ending; that of its folder, if all of its files are meant."""
    place = Path(path).absolute()
    name = Path(place.name.removesuffix(".gz")).stem
    return name if name.strip("*?") else place.parent.name


def read_splits(path: str, reading: Reading, seed: int) -> tuple[dict[str, Split], dict[str, Split], int]:
    """Training and test rows by client, the latter empty if none are kept, and how many were left out."""
    check_named_once([*([reading.client] if reading.client else []), *reading.numbers])
    rows, dropped = _rows(path, reading)
    splits = {name: _split(values, len(reading.inputs)) for name, values in rows.items()}
    return *divided(splits, reading.tested, seed), dropped


def read_inputs(path: str, reading: Reading) -> tuple[list[str], Array]:
    """Of every row, in the order of the file: its client (N,), and its numbers (N, columns)."""
    clients, client, values = _read(path, reading)
    for name, number in clients.items():
        its = np.flatnonzero(client == number)
        _check_numbers(values[its], its, name, reading, path)
    names = {number: name for name, number in clients.items()}
    return [names[number] for number in client], values


def _split(values: Array, inputs: int) -> Split:
    """Inputs and targets of rows (N, inputs + C)."""
    return Split(values[:, :inputs].astype(np.float32), values[:, inputs:])


def _rows(path: str, reading: Reading) -> tuple[dict[str, Array], int]:
    """The columns (N, columns) of every client, in the order of the file, and how many rows were left out."""
    clients, client, values = _read(path, reading)
    _check_federation(list(clients), reading, path)
    complete = ~np.isnan(values).any(axis=1) & np.isin(client, list(clients.values()))
    kept = complete | (not reading.drop_missing)
    rows = {}
    for name, number in clients.items():
        its = np.flatnonzero((client == number) & kept)
        rows[name] = values[its]
        _check_numbers(values[its], its, name, reading, path)
    return rows, int((~kept).sum())


def _read(path: str, reading: Reading) -> tuple[dict[str, int], Array, Array]:
    """A number for every client's name, the number of each row's client (N,), and columns (N, columns)."""
    import duckdb

    from fedgram.data.tables.reader import open_source, select_rows
    from fedgram.data.tables.source import SourceTable

    with (
        tempfile.TemporaryDirectory() as spill,
        duckdb.connect(config={"temp_directory": spill}) as connection,
    ):
        table = SourceTable(
            connection, path, reading.client or reading.site, reading.numbers, reading.where,
            whole=reading.client is None,
        )  # fmt: skip
        with explained(table):
            open_source(table)
            select_rows(table, drop_missing=False)
            connection.execute(
                "CREATE TEMP TABLE numbered AS SELECT *, row_number() OVER () AS row FROM data"
            )
            # The number of a client is that of its first row: not all types of names compare as arrays.
            names, numbers = table.read("min(row)", "numbered GROUP BY client")
            by_number = "SELECT * EXCLUDE (client), min(row) OVER (PARTITION BY client) AS client"
            found = connection.execute(f"{by_number} FROM numbered ORDER BY row").fetchnumpy()
    _check_clients(names, reading, path)
    named = tuple(name for name in names if name is not None)
    check_names(named, len(named), "client")
    values = np.stack([np.ma.filled(found[f"y{i}"], np.nan) for i in range(len(reading.numbers))], axis=1)
    clients = {name: int(number) for name, (number,) in zip(names, numbers, strict=True) if name is not None}
    return clients, found["client"], values


def _check_clients(names: list[str | None], reading: Reading, path: str) -> None:
    client = reading.client
    if not names and reading.where:
        problem = f"The condition \"{reading.where}\" leaves no rows of '{path}'; widen it."
        raise InputError(problem, field="where")
    if not names and client is None:
        raise InputError(f"There are no rows in '{path}'; add some.", field="source")
    named = [name for name in names if name is not None]
    if len(named) < len(names) and not reading.drop_missing:
        raise InputError(
            f"Some rows have no client in '{client}'; name one for each, or leave them out"
            f"{' (--drop-missing)' if reading.targets else ''}{nameless(path)}",
            field=client,
        )


def _check_federation(named: list[str], reading: Reading, path: str) -> None:
    if reading.client is not None and len(named) < 2:
        held = f"only the client '{named[0]}'" if named else "no client"
        raise InputError(
            f"The column '{reading.client}' of '{path}' holds {held}, but a federation needs at least two; "
            "name another column with --client, or add the rows of other clients.",
            field=reading.client,
        )


def _check_numbers(values: Array, rows: Array, client: str, reading: Reading, path: str) -> None:
    """Refuse what is missing, or infinite in the single precision of inputs; rows are those read."""
    bad = np.argwhere(~(np.abs(values) <= np.finfo(np.float32).max))
    if len(bad):
        row, column = bad[0]
        value, name = values[row, column], reading.numbers[column]
        which = (
            f"Row {rows[row] + 1:,} that --where keeps" if reading.where else f"Data row {rows[row] + 1:,}"
        )
        what = f"no number in '{name}'" if np.isnan(value) else f"{value:g} in '{name}', which is too large"
        raise InputError(
            f"{which} of '{path}' (client '{client}') has {what}; correct it, or {reading.leaving_out}.",
            client=client,
            field=name,
        )
