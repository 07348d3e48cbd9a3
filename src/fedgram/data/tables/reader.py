"""Create DuckDB views of a table from files or memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import quote_first, quote_list
from fedgram.data.tables.conversions import NUMERIC_TYPE, convert_client
from fedgram.data.tables.diagnostics import bad_where, missing_column, not_numeric, translate_errors
from fedgram.data.tables.file_reader import split_by_kind
from fedgram.data.tables.files import (
    folder_keys,
    is_text,
    sql_name,
    sql_text,
)
from fedgram.data.tables.source import SourceTable, connect_duckdb

# DuckDB infers from the bounds of a Parquet column that it has no NaN, but these bounds ignore NaN.
FIND_NAN = "SET disabled_optimizers = 'statistics_propagation'"

_DECIMAL = {"FLOAT", "DOUBLE", "DECIMAL"}
_RENAMED = re.compile(r"(.+)_\d+")


@contextmanager
def open_table(
    source: Any,
    client: str | None,
    site: str,
    targets: Sequence[str],
    where: str | None,
    others: Sequence[str] = (),
) -> Iterator[SourceTable]:
    """Open and check a table until the end of the block; all rows belong to `site` if `client` is None."""
    with connect_duckdb() as connection:
        table = SourceTable(
            connection, source, client or site, tuple(targets), where, client is None, tuple(others)
        )
        with translate_errors(table):
            open_source(table)
            yield table


def read_column_names(path: str) -> list[str]:
    """Read the column names of a table's first file."""
    with connect_duckdb() as connection:
        table = SourceTable(connection, path, "", (), None)
        with translate_errors(table):
            table.open_files()
            return table.reader.read_header(table.files[0])


def open_source(table: SourceTable) -> None:
    """Create the view `source`, and check that its columns exist and its targets are numeric."""
    table.open_files()
    columns = _create_view(table, {})
    _check_ambiguous_columns(table, columns)
    _check_folder_columns(table)
    for name in table.columns:
        if name not in columns:
            raise missing_column(table, name, list(columns))
    _check_client_types(table)
    for rows in table.reader.select_strictly(table.files):
        table.connection.execute(f"SELECT count(*) FROM ({rows})")
    # By default the first rows of a CSV file set the types, and 1.5 after many whole numbers is an error.
    numbers = {
        name: "BOOLEAN" if _is_boolean(table, name, columns[name]) else "DOUBLE" for name in table.targets
    }
    columns = _create_view(table, dict.fromkeys(table.columns, "VARCHAR") | numbers)
    for name in table.targets:
        if not NUMERIC_TYPE.fullmatch(columns[name]):
            raise not_numeric(table, name, columns[name])


def _is_boolean(table: SourceTable, name: str, kind: str) -> bool:
    """Whether a column has truth values only; DuckDB reads y and n as text, unlike yes and no."""
    if kind != "VARCHAR":
        return kind == "BOOLEAN"
    column = sql_name(name)
    values = f"count({column}), count(TRY_CAST(trim({column}) AS BOOLEAN))"
    found, boolean = table.connection.execute(f"SELECT {values} FROM source").fetchall()[0]
    return bool(found == boolean > 0)


def _create_view(table: SourceTable, types: dict[str, str]) -> dict[str, str]:
    """Create the view `source` with these types of CSV columns; return the type of every column."""
    source = table.source
    if table.files:
        rows = table.reader.select(table.files, types)
        table.connection.execute(f"CREATE OR REPLACE TEMP VIEW source AS {rows}")
    elif hasattr(source, "__len__") and not isinstance(source, (list, tuple, Mapping)):
        table.connection.register("source", _with_positive_strides(source))
    else:
        found = "an empty list" if source == [] else type(source).__name__
        raise InputError(
            f"Unsupported source: {found}. Pass a path, a list of paths, or a pandas or pyarrow table.",
            field="source",
        )
    return column_types(table, "source")


def _with_positive_strides(source: Any) -> Any:
    """Copy a reversed data frame (df[::-1]), which DuckDB cannot read."""
    columns = source.items() if hasattr(source, "iloc") else []
    arrays = [column.to_numpy() for _, column in columns if isinstance(column.dtype, np.dtype)]
    return source.copy() if any(values.strides[0] < 0 for values in arrays) else source


def column_types(table: SourceTable, rows: str) -> dict[str, str]:
    """Return DuckDB's type of every column of a view or query."""
    return {name: kind for name, kind, *_ in table.connection.execute(f"DESCRIBE {rows}").fetchall()}


def _check_ambiguous_columns(table: SourceTable, columns: Iterable[str]) -> None:
    """Reject a name that several columns share: DuckDB would read the first, and rename the others."""
    known = {name.lower() for name in columns}
    if not any((renamed := _RENAMED.fullmatch(name)) and renamed[1] in known for name in known):
        return
    for place, names, renamed_names in _column_names(table, list(columns)):
        for name in table.columns:
            meant = {
                own.lower()
                for own, renamed in zip(names, renamed_names, strict=False)
                if name.lower() in (own.lower(), renamed.lower())
            }
            same = [own for own in names if own.lower() in meant]
            if len(same) > 1:
                raise InputError(
                    f"'{name}' matches several columns of {place}: {quote_list(same)} (case is ignored). "
                    "Rename all but one.",
                    field=name,
                )


def _column_names(table: SourceTable, columns: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each file or table, its own column names, and DuckDB's names for them."""
    for file in table.files:
        renamed = column_types(table, table.reader.select([file], {}))
        yield f"'{file}'", table.reader.read_header(file), list(renamed)
    if not table.files:
        # In pyarrow `columns` are arrays, not names.
        names = "column_names" if hasattr(type(table.source), "column_names") else "columns"
        yield str(table), [str(name) for name in getattr(table.source, names, [])], columns


def _check_folder_columns(table: SourceTable) -> None:
    """Reject a column that is in files and in folder names: DuckDB would read the folder names."""
    for same in split_by_kind(table.files):
        keys = [key for key in folder_keys(same) if _is_used(key, table)] if same else []
        rows = table.reader.select(same, {}, folders=False)
        own = {name.lower() for name in column_types(table, rows)} if keys else set()
        for key in keys:
            if key.lower() in own:
                raise InputError(
                    f"'{key}' is both a column in the files of {table} and a folder name, '{key}=...'. "
                    "Rename the column or the folders.",
                    field=key,
                )


def _is_used(name: str, table: SourceTable) -> bool:
    in_condition = re.search(rf"\b{re.escape(name)}\b", table.where or "", re.IGNORECASE)
    return in_condition is not None or name.lower() in map(str.lower, table.columns)


def _check_client_types(table: SourceTable) -> None:
    """Reject files that name a client 7.0, true or 0.1000000015 where others name it 7, True or 0.1."""
    files = table.files
    if table.is_single or all(map(is_text, files)) or table.client in folder_keys(files):
        return  # in text files and folder names, all clients are text
    kinds: dict[str, str] = {}
    for file in files:
        types = {} if is_text(file) else column_types(table, table.reader.select([file], {}))
        kind = "VARCHAR" if is_text(file) else types.get(table.client, "")
        kinds.setdefault(kind.partition("(")[0], file)
    has_two_forms = "BOOLEAN" in kinds or ("VARCHAR" in kinds and not _DECIMAL.isdisjoint(kinds))
    if {"FLOAT", "DOUBLE"} <= set(kinds) and _has_rounded_clients(table):
        kinds, has_two_forms = {kind: kinds[kind] for kind in ("FLOAT", "DOUBLE")}, True
    if len(kinds) > 1 and has_two_forms:
        (kind, file), (other_kind, other_file), *_ = kinds.items()
        raise InputError(
            f"Clients in '{table.client}' have type {kind} in '{file}' but {other_kind} in '{other_file}', "
            "so one client may get two names. Convert them to text.",
            field=table.client,
        )


def _has_rounded_clients(table: SourceTable) -> bool:
    """Whether numbers of the view `source` come from single precision and are not exact, as 0.1 is not."""
    name = sql_name(table.client)
    single = f"TRY_CAST({name} AS FLOAT)"
    rounded = f"{name} = {single}::DOUBLE AND {name} <> {single}::VARCHAR::DOUBLE"
    return table.connection.execute(f"FROM source WHERE {rounded} LIMIT 1").fetchone() is not None


def check_in_every_file(table: SourceTable, columns: Iterable[str]) -> None:
    """Reject a file that lacks a column of the others: DuckDB would read its rows as missing values."""
    for file in table.files:
        own = {name.lower() for name in column_types(table, table.reader.select([file], {}))}
        for name in columns:
            if name.lower() not in own:
                raise InputError(
                    f"'{file}' has no column '{name}', but other files do. Add it, or drop the file.",
                    field=name,
                )


def select_rows(table: SourceTable, drop_missing: bool) -> None:
    """Create the view `data`; drop_missing empties all targets of a row that lacks one."""
    import duckdb

    if table.where is not None:
        if not table.where.strip():
            raise InputError("The condition (--where) is empty. Write one, or leave it out.", field="where")
        table.connection.execute(FIND_NAN)
    rows = f"SELECT * FROM ({_nan_as_missing(table)}) WHERE ({table.where or True}\n)"  # \n ends a comment
    try:
        if len(table.connection.extract_statements(f"{rows} LIMIT 0")) > 1:
            raise duckdb.ProgrammingError("more than one statement")
        table.connection.execute(f"{rows} LIMIT 0")
    except (duckdb.ProgrammingError, duckdb.DataError, duckdb.PermissionException) as error:
        raise bad_where(table, error) from None
    selected = [f"CAST({sql_name(name)} AS DOUBLE) AS y{number}" for number, name in enumerate(table.targets)]
    selected += [f"{sql_name(name)} AS x{number}" for number, name in enumerate(table.others)]
    client = sql_text(table.client) if table.is_single else _client_column(table)
    data = f"SELECT {client} AS client, {', '.join(selected)} FROM ({rows})"
    if drop_missing:
        table.connection.execute(FIND_NAN)
        complete = " AND ".join(f"NOT isnan(y{number})" for number in range(len(table.targets)))
        emptied = table.per_target("CASE WHEN complete THEN y{0} END AS y{0}")
        flagged = f"SELECT *, {complete} AS complete FROM ({data})"
        data = f"SELECT * EXCLUDE (complete) REPLACE ({emptied}) FROM ({flagged})"
    table.connection.execute(f"CREATE TEMP VIEW data AS {data}")


def leave_out_small_clients(table: SourceTable, min_rows: int, on_warning: Callable[[str], None]) -> None:
    """Drop clients with fewer complete rows from the view `data`, and name them."""
    if min_rows < 0:
        raise InputError(f"--min-rows must be 0 or more, not {min_rows}.", field="min_rows")
    if not min_rows:
        return
    table.connection.execute(FIND_NAN)
    complete = " AND ".join(f"NOT isnan(y{number})" for number in range(len(table.targets)))
    table.connection.execute(
        "ALTER VIEW data RENAME TO all_data; CREATE TEMP TABLE small_clients AS SELECT client FROM all_data "
        f"WHERE trim(client::VARCHAR) <> '' GROUP BY client HAVING count_if({complete}) < {min_rows}; "
        "CREATE TEMP VIEW data AS FROM all_data ANTI JOIN small_clients USING (client)"
    )
    names, _ = table.read_by_client("0", "small_clients")
    if not names:
        return
    if table.connection.execute("FROM data LIMIT 1").fetchone() is None:
        raise InputError(
            f"No client of {table} has {min_rows:,} complete rows. Lower --min-rows.", field="min_rows"
        )
    on_warning(f"Left out because of fewer than {min_rows:,} rows: {quote_first([*map(str, names)])}.")


def _nan_as_missing(table: SourceTable) -> str:
    """Return SQL for all rows with NaN as NULL for the condition: DuckDB orders NaN above all numbers."""
    kinds = column_types(table, "source") if table.where else {}
    numbers = [sql_name(name) for name, kind in kinds.items() if kind in ("FLOAT", "DOUBLE")]
    missing = ", ".join(f"CASE WHEN NOT isnan({name}) THEN {name} END AS {name}" for name in numbers)
    return f"SELECT * REPLACE ({missing}) FROM source" if numbers else "FROM source"


def _client_column(table: SourceTable) -> str:
    """Return SQL for the names of clients, which are the same in text files and Parquet files."""
    detected = kind = column_types(table, "source")[table.client]
    if kind == "VARCHAR" and table.files:
        detected = column_types(table, table.reader.select(table.files, {}))[table.client]
    return convert_client(kind, detected).format(sql_name(table.client))


def number_clients(table: SourceTable) -> None:
    """Create the table `client_numbers` with a number for each client of the view `data`."""
    table.connection.execute(
        "CREATE OR REPLACE TEMP TABLE client_numbers AS SELECT client, row_number() OVER () AS number "
        "FROM (SELECT DISTINCT client FROM data)"
    )


def stack_targets(columns: Mapping[str, Array], targets: int) -> Array:
    """Stack the fetched columns y0, y1, ... to (N, C), with NaN for missing values."""
    return np.stack([np.ma.filled(columns[f"y{number}"], np.nan) for number in range(targets)], axis=1)
