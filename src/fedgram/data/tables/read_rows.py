"""Read a table's rows for training, testing or prediction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import quote_list
from fedgram.data.columns import check_present, indicate_levels, is_missing, level_name, parse_levels
from fedgram.data.holdout import VALIDATION_FRACTION, RowParts, divide_rows
from fedgram.data.problem import Kind, Problem
from fedgram.data.site_summary import ColumnSummary, Impute
from fedgram.data.split import Split
from fedgram.data.splits import split_rows
from fedgram.data.tables.conversions import convert_level
from fedgram.data.tables.diagnostics import missing_client_hint
from fedgram.data.tables.files import sql_text
from fedgram.data.tables.reader import (
    check_in_every_file,
    column_types,
    open_table,
    select_rows,
    stack_targets,
)
from fedgram.data.tables.source import SourceTable
from fedgram.data.tables.times import convert_time, to_times
from fedgram.data.validation import check_unique_columns, client_name
from fedgram.theory.validation import check_names

TEST_FRACTION = 0.2


@dataclass(frozen=True)
class TableSpec:
    """Columns and rows to read from a table. Without a client column, all rows belong to `site`.

    With `value`, only the rows of the client column that have this value are read; they belong to `site`.
    `impute` and `categories` are for `read_site_tables`, which finds medians and the levels of categories.
    `levels` are known ones, of inputs that become one 0/1 column per level. `fill` has the value of missing
    inputs by name; that of a category does not count, because a missing one has no level.
    """

    client: str | None
    inputs: list[str]
    targets: list[str]
    test_fraction: float | None = None
    where: str | None = None
    drop_missing: bool = False
    site: str = ""
    value: str | None = None
    kind: Kind | None = None
    time: str | None = None
    impute: Impute = None
    categories: Sequence[str] = ()
    levels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fill: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def required_flags(self) -> dict[str, object]:
        """Values of the command-line flags that a table needs."""
        return {"--client": self.client, "--inputs": self.inputs, "--targets": self.targets}

    @property
    def flags(self) -> dict[str, object]:
        """Values of all command-line flags for tables; false values are unset."""
        return self.required_flags | {
            "--where": self.where,
            "--drop-missing": self.drop_missing,
            "--test-fraction": None if self.test_fraction is None else f"{self.test_fraction:g}",
            "--kind": self.kind,
            "--time": self.time,
            "--impute": self.impute,
            "--categories": self.categories,
        }

    @property
    def held_out(self) -> float:
        """Fraction of every client's rows for testing."""
        return TEST_FRACTION if self.test_fraction is None else self.test_fraction

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the inputs and targets."""
        return (*self.inputs, *self.targets)

    @property
    def value_columns(self) -> tuple[str, ...]:
        """Names of the columns whose values are read; that of a category once per level."""
        return tuple(name for name in self.columns for _ in self.levels.get(name, [name]))

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the columns that must be numeric."""
        return tuple(name for name in self.columns if name not in self.levels)


def read_table(path: str, spec: TableSpec, seed: int) -> Problem:
    """Read the rows of a CSV, TSV or Parquet file as a problem."""
    train, test, dropped = read_splits(path, spec, seed)
    provenance = {
        "file": str(path), "inputs": spec.inputs, "where": spec.where, "rows_left_out": dropped,
        "test_fraction": spec.held_out, "seed": seed,
    }  # fmt: skip
    return Problem(table_name(path), spec.kind or "REAL", train, test, tuple(spec.targets), provenance)


def table_name(path: str) -> str:
    """Return a file's name without its suffix, or its folder's name for a glob such as '*.csv'."""
    place = Path(path).absolute()
    name = Path(place.name.removesuffix(".gz")).stem
    return name if name.strip("*?") else place.parent.name


def read_splits(
    path: str, spec: TableSpec, seed: int, input_type: type = np.float32
) -> tuple[dict[str, Split], dict[str, Split], int]:
    """Read training and test rows by client, and count the dropped rows."""
    splits, _, dropped = _read_clients(path, spec, input_type)
    return *split_rows(splits, spec.held_out, seed), dropped


def read_parts(
    path: str, spec: TableSpec, seed: int, validation_fraction: float, input_type: type
) -> tuple[dict[str, Split], dict[str, Split], dict[str, Split], int]:
    """Read training, validation and test rows by client, and count the dropped rows.

    The rows with the latest `spec.time` are for testing and the latest before them for validation, as with
    `divide_rows`. A client without rows for one of them is left out there.
    """
    splits, times, dropped = _read_clients(path, spec, input_type)
    for name, own in times.items():
        check_present(own, str(spec.time), name, "Fill the times, or drop the rows (drop-missing = true).")
    counts = {name: len(split) for name, split in splits.items()}
    parts = divide_rows(counts, spec.held_out, seed, times, validation_fraction or VALIDATION_FRACTION)

    def take(choose: Callable[[RowParts], Array]) -> dict[str, Split]:
        return {name: splits[name].take(rows) for name, each in parts.items() if len(rows := choose(each))}

    train = take(lambda each: each.train if validation_fraction else each.fitted)
    validation = take(lambda each: each.validation) if validation_fraction else {}
    return train, validation, take(lambda each: each.test), dropped


def _read_clients(
    path: str, spec: TableSpec, input_type: type
) -> tuple[dict[str, Split], dict[str, Array], int]:
    """Read rows and, with `spec.time`, times by client, and count the rows dropped for missing values."""
    check_unique_columns([*([spec.client] if spec.client else []), *spec.columns])
    clients, client, values, times = _read(path, spec)
    check_several_clients(clients, spec, f"'{path}'")
    is_complete = ~np.isnan(values).any(axis=1) & np.isin(client, list(clients.values())) & ~is_missing(times)
    is_kept = is_complete | (not spec.drop_missing)
    splits, own_times = {}, {}
    for name, number in clients.items():
        rows = np.flatnonzero((client == number) & is_kept)
        _check_numbers(values[rows], rows, name, spec, path)
        inputs, targets = np.split(values[rows], [-len(spec.targets)], axis=1)
        splits[name], own_times[name] = Split(inputs.astype(input_type), targets), times[rows]
    _check_not_rounded(values[is_kept], splits, spec, path)
    return splits, own_times, int((~is_kept).sum())


def _check_not_rounded(values: Array, splits: Mapping[str, Split], spec: TableSpec, path: str) -> None:
    """Reject an input whose values, of all (N, columns), are so small that its column in `splits` is 0."""
    is_zero = ~np.any([split.inputs.any(axis=0) for split in splits.values()], axis=0)
    for number in np.flatnonzero(is_zero & (np.nan_to_num(values[:, : len(is_zero)]) != 0).any(axis=0)):
        name, largest = spec.value_columns[number], np.nanmax(np.abs(values[:, number]))
        raise InputError(
            f"All values in '{name}' of '{path}' are 0 in single precision: the largest is {largest:.2g}. "
            "Multiply them by a large number, or drop the column.",
            field=name,
        )


def read_inputs(path: str, spec: TableSpec) -> tuple[list[str], Array]:
    """Read the client (N,) and the numbers (N, columns) of every row, in file order."""
    clients, client, values, _ = _read(path, spec)
    for name, number in clients.items():
        rows = np.flatnonzero(client == number)
        _check_numbers(values[rows], rows, name, spec, path)
    names = {number: name for name, number in clients.items()}
    return [names[number] for number in client], values


def _read(path: str, spec: TableSpec) -> tuple[dict[str, int], Array, Array, Array]:
    """Read a number per client name, the number of each row's client (N,), values (N, columns), times (N,).

    Without `spec.time` all times are 0.
    """
    with _open_site(path, spec, spec.numbers) as table:
        time = "0.0::DOUBLE"
        if spec.time:
            key = f"x{len(spec.levels)}"
            time = convert_time(table, key, spec.time, column_types(table, "data")[key]).format(key)
        clients, found = fetch_rows(table, spec, f"{_select_columns(table, spec)}, {time} AS time")
    numbers = stack_targets(found, len(spec.numbers))
    columns = {name: numbers[:, [place]] for place, name in enumerate(spec.numbers)}
    for place, (name, levels) in enumerate(spec.levels.items()):
        columns[name] = _encode_levels(found[f"x{place}"], name, levels, spec.site)
    for name, value in spec.fill.items():
        missing = 0.0 if name in spec.levels else float(value)
        columns[name] = np.where(np.isnan(columns[name]), missing, columns[name])
    values = np.hstack([columns[name] for name in spec.columns])
    return clients, found["client"], values, to_times(found["time"])


@contextmanager
def _open_site(path: str, spec: TableSpec, numbers: Sequence[str]) -> Iterator[SourceTable]:
    """Open a table with these numeric columns and those with levels, and select its rows."""
    others = (*spec.levels, *([spec.time] if spec.time else []))
    with open_table(path, spec.client, spec.site, numbers, spec.where, others) as table:
        check_in_every_file(table, table.columns)
        select_rows(table, drop_missing=False)
        if spec.value is not None:
            _keep_client(table, spec.value, spec.site)
        yield table


def _select_columns(table: SourceTable, spec: TableSpec) -> str:
    """Return SQL for the columns of the view `data`, with categories converted."""
    types = column_types(table, "data")
    keys = [f"x{number}" for number in range(len(spec.levels))]
    levels = ", ".join(f"{convert_level(types[key]).format(key)} AS {key}" for key in keys)
    return "* EXCLUDE (client)" + (f" REPLACE ({levels})" if levels else "")


def summarize_inputs(path: str, spec: TableSpec) -> dict[str, ColumnSummary]:
    """Count the levels of `spec.categories` at a site, and with `spec.impute` find medians of all inputs."""
    names = spec.categories
    numbers = [name for name in spec.inputs if spec.impute and name not in names]
    spec = replace(spec, levels=dict.fromkeys(names, ()))
    with _open_site(path, spec, numbers) as table:
        _, found = fetch_rows(table, spec, _select_columns(table, spec))
    columns = {name: found[f"x{place}"] for place, name in enumerate(names)}
    values = {name: parse_levels(columns, name, spec.site) for name in names}
    values |= {name: np.ma.filled(found[f"y{place}"], np.nan) for place, name in enumerate(numbers)}
    return {name: ColumnSummary.from_values(name, each, spec.impute) for name, each in values.items()}


def list_clients(path: str, client: str) -> list[str]:
    """Return the names in a client column, in order."""
    with open_table(path, client, "", (), None) as table:
        select_rows(table, drop_missing=False)
        names, _ = table.read_by_client("0", "data GROUP BY client")
    return [name for name in names if name is not None]


def _encode_levels(values: Array, name: str, levels: Sequence[str], site: str) -> Array:
    """Return a 0/1 column per level (N, levels), NaN where the value is missing; reject other levels."""
    texts, levels = parse_levels({name: values}, name, site), [level_name(level) for level in levels]
    if unknown := sorted(set(texts.tolist()) - {"", *levels}):
        raise InputError(
            f"Column '{name}' of site '{site}' has other levels than 'categories' gives it: "
            f"{quote_list(unknown)}. Add them, or correct the table.",
            client=site,
            field=name,
        )
    return np.where(texts[:, None] == "", np.nan, indicate_levels(texts, levels))


def _keep_client(table: SourceTable, value: str, site: str) -> None:
    """Keep only the rows of the view `data` whose client has this name, and let them belong to the site."""
    found = table.connection.execute("SELECT DISTINCT client, client::VARCHAR FROM data").fetchall()
    names = {text: name.strip() for client, text in found if (name := client_name(client))}
    kept = [text for text, name in names.items() if name == value.strip()]
    column = f"the column '{table.client}' of {table}"
    check_names(tuple(kept), len(kept), "client", f" in {column}")
    if not kept:
        raise InputError(
            f"No row has the value '{value}' in {column}, which has {quote_list(sorted(names.values()))}. "
            "Correct 'value' (default: the site's name) or 'column'.",
            client=site,
            field="value",
        )
    table.connection.execute("ALTER VIEW data RENAME TO every_client")
    table.connection.execute(
        f"CREATE TEMP VIEW data AS SELECT * REPLACE ({sql_text(site)} AS client) FROM every_client "
        f"WHERE client::VARCHAR = {sql_text(kept[0])}"
    )


def fetch_rows(table: SourceTable, spec: TableSpec, columns: str) -> tuple[dict[str, int], dict[str, Array]]:
    """Fetch a number per client name, and SQL columns of the view `data` with each row's `client` number."""
    table.connection.execute(
        f"CREATE TEMP TABLE numbered AS SELECT client, {columns}, row_number() OVER () AS row FROM data"
    )
    # A client's number is that of its first row: not all types of names compare as arrays.
    names, numbers = table.read_by_client("min(row)", "numbered GROUP BY client")
    by_number = "SELECT * EXCLUDE (client), min(row) OVER (PARTITION BY client) AS client"
    found = table.connection.execute(f"{by_number} FROM numbered ORDER BY row").fetchnumpy()
    _check_clients(names, spec, table)
    clients = {name: int(number) for name, (number,) in zip(names, numbers, strict=True) if name is not None}
    return clients, found


def check_several_clients(clients: Collection[str], spec: TableSpec, source: str) -> None:
    """Reject a client column with fewer than two clients."""
    if spec.client is not None and spec.value is None and len(clients) < 2:
        found = f"only the client '{next(iter(clients))}'" if clients else "no client"
        raise InputError(
            f"The column '{spec.client}' of {source} has {found}, but a federation needs at least two. "
            "Choose another column (--client), or add rows of other clients.",
            field=spec.client,
        )


def _check_clients(names: list[str | None], spec: TableSpec, table: SourceTable) -> None:
    if not names and spec.where:
        raise InputError(f'No rows of {table} match the condition "{spec.where}". Widen it.', field="where")
    if not names:
        raise InputError(f"No rows in {table}. Add some.", field="source")
    if None in names and not spec.drop_missing:
        flag = " (--drop-missing)" if spec.targets else ""
        raise InputError(
            f"Some rows have no client in '{spec.client}'. Name it, or drop the rows{flag}."
            f"{missing_client_hint(table)}",
            field=spec.client,
        )


def _check_numbers(values: Array, rows: Array, client: str, spec: TableSpec, path: str) -> None:
    """Reject a value that is missing, or infinite in single precision; `rows` numbers the values' rows."""
    bad = np.argwhere(~(np.abs(values) <= np.finfo(np.float32).max))
    if not len(bad):
        return
    row, column = bad[0]
    value, name = values[row, column], spec.value_columns[column]
    which = f"Row {rows[row] + 1:,} that --where keeps" if spec.where else f"Data row {rows[row] + 1:,}"
    place = f"{which} of '{path}' (client '{client}')"
    if spec.value is not None:
        place = f"Row {rows[row] + 1:,} of client '{client}' in '{path}'"
    kind = "level" if name in spec.levels else "number"
    what = f"no {kind} in '{name}'" if np.isnan(value) else f"{value:g} in '{name}', which is too large"
    is_one_site = spec.client is None or spec.value is not None  # of a federation, or rows to predict
    flag = "" if is_one_site or not spec.targets or spec.drop_missing else " (missing values: --drop-missing)"
    remedy = "Correct it"
    if is_one_site and spec.targets and np.isnan(value):
        remedy = "Fill missing inputs (fill)" if name in spec.inputs else remedy
        flag = " (drop-missing = true)"
    raise InputError(
        f"{place} has {what}. {remedy}, or drop the row{flag}.",
        client=client,
        field=name,
    )
