"""A table as DuckDB views, from files or memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fedgram._util.errors import InputError
from fedgram._util.text import quote_list
from fedgram.data.tables.diagnostics import bad_where, no_column, not_numbers
from fedgram.data.tables.files import (
    by_reader,
    counts_of_lines,
    files_of,
    folder_keys,
    holds_text,
    own_columns,
    paths_of,
    rows_of,
    sql_name,
    sql_text,
)
from fedgram.data.tables.source import SourceTable

# DuckDB takes the bounds of a Parquet column to mean that no value in it is NaN, but they leave NaN out.
FIND_NAN = "SET disabled_optimizers = 'statistics_propagation'"

_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*|BOOLEAN")
_DECIMAL, _DIGITS = {"FLOAT", "DOUBLE", "DECIMAL"}, re.compile(r"\(.*\)")
_RENAMED = re.compile(r"(.+)_\d+")


def open_source(table: SourceTable) -> None:
    """Make the view `source`, and check that the columns asked for are there and the targets are numbers."""
    columns = _load(table, {})
    _check_told_apart(table, columns)
    _check_folders(table)
    for name in table.columns:
        if name not in columns:
            raise no_column(table, name, list(columns))
    _check_clients_alike(table)
    for lines in counts_of_lines(files_of(paths_of(table.source))):
        table.connection.execute(lines)
    # Left alone, the first rows of a CSV file set the types, and 1.5 after many whole numbers is an error.
    numbers = {name: "BOOLEAN" if columns[name] == "BOOLEAN" else "DOUBLE" for name in table.targets}
    columns = _load(table, dict.fromkeys(table.columns, "VARCHAR") | numbers)
    for name in table.targets:
        if not _NUMBER.fullmatch(columns[name]):
            raise not_numbers(table, name, columns[name])


def _load(table: SourceTable, types: dict[str, str]) -> dict[str, str]:
    """Make the view `source` with these types of CSV columns; return the type of every column."""
    if paths := paths_of(table.source):
        rows = rows_of(files_of(paths), types)
        table.connection.execute(f"CREATE OR REPLACE TEMP VIEW source AS {rows}")
    elif hasattr(table.source, "__len__") and not isinstance(table.source, (list, tuple, Mapping)):
        table.connection.register("source", _forwards(table.source))
    else:
        raise InputError(
            "A source is a path, a list of paths or a table in memory (pandas, pyarrow), not "
            f"{_called(table.source)}; make a table of it first.",
            field="source",
        )
    return _types(table, "source")


def _forwards(source: Any) -> Any:
    """The table; a data frame that was turned round (df[::-1]) is copied, as DuckDB cannot read it."""
    columns = source.items() if hasattr(source, "iloc") else []
    plain = [column.to_numpy() for _, column in columns if isinstance(column.dtype, np.dtype)]
    return source.copy() if any(values.strides[0] < 0 for values in plain) else source


def _called(source: object) -> str:
    return type(source).__name__ if source != [] else "an empty list"


def _types(table: SourceTable, rows: str) -> dict[str, str]:
    """The type of every column."""
    return {name: kind for name, kind, *_ in table.connection.execute(f"DESCRIBE {rows}").fetchall()}


def _check_told_apart(table: SourceTable, columns: Iterable[str]) -> None:
    """Refuse a name that several columns have: DuckDB would take the first, and rename the others."""
    known = {name.lower() for name in columns}
    if not any((made := _RENAMED.fullmatch(name)) and made[1] in known for name in known):
        return
    for place, own, read in _namings(table, list(columns)):
        for name in table.columns:
            alike = _alike(name.lower(), own, read)
            if len(alike) > 1:
                raise InputError(
                    f"'{name}' could be any of the columns {quote_list(alike)} of {place} (capitals do not "
                    "count); rename all but one of them.",
                    field=name,
                )


def _namings(table: SourceTable, columns: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Of every file, or of the table in memory: what it is called, its names of columns, and DuckDB's."""
    for file in files_of(paths_of(table.source)):
        yield f"'{file}'", own_columns(table.connection, file), list(_types(table, rows_of([file], {})))
    if not paths_of(table.source):
        # pyarrow has the arrays themselves in `columns`
        names = "column_names" if hasattr(type(table.source), "column_names") else "columns"
        yield str(table), [str(name) for name in getattr(table.source, names, [])], columns


def _alike(name: str, own: list[str], read: list[str]) -> list[str]:
    """The columns that a name could stand for, as it is or as DuckDB has given it."""
    pairs = [(mine.lower(), theirs.lower()) for mine, theirs in zip(own, read, strict=False)]
    meant = {mine for mine, theirs in pairs if name in (mine, theirs)}
    return [each for each in own if each.lower() in meant]


def _check_folders(table: SourceTable) -> None:
    """Refuse a name that folders give beside the files in them: DuckDB would take the folders' values."""
    for files in by_reader(files_of(paths_of(table.source))).values():
        asked = [key for key in folder_keys(files) if _asked_for(key, table)]
        own = {name.lower() for name in _types(table, rows_of(files, {}, folders=False))} if asked else set()
        for key in asked:
            if key.lower() in own:
                raise InputError(
                    f"'{key}' is both a column in the files of {table} and in the names of their folders, "
                    f"'{key}=...'; rename the column or the folders.",
                    field=key,
                )


def _check_clients_alike(table: SourceTable) -> None:
    """Refuse files that call a client 7.0 or true where others call it 7 or True."""
    files = [] if table.whole else files_of(paths_of(table.source))
    if all(map(holds_text, files)) or table.client in folder_keys(files):
        return  # in text, and in names of folders, all clients are text
    kinds: dict[str, str] = {}
    for file in files:
        kind = "VARCHAR" if holds_text(file) else _types(table, rows_of([file], {})).get(table.client, "")
        kinds.setdefault(_DIGITS.sub("", kind), file)
    if len(kinds) > 1 and ("BOOLEAN" in kinds or ("VARCHAR" in kinds and not _DECIMAL.isdisjoint(kinds))):
        (one, first), (other, second), *_ = kinds.items()
        raise InputError(
            f"The clients in '{table.client}' are of type {one} in '{first}' and of type {other} in "
            f"'{second}', which may give one client two names; make all of them text.",
            field=table.client,
        )


def _asked_for(name: str, table: SourceTable) -> bool:
    in_condition = re.search(rf"\b{re.escape(name)}\b", table.where or "", re.IGNORECASE)
    return in_condition is not None or name.lower() in map(str.lower, table.columns)


def check_in_every_file(table: SourceTable, columns: Iterable[str]) -> None:
    """Refuse a file without a column that others have: DuckDB lets its rows lack a value."""
    for file in files_of(paths_of(table.source)):
        own = {name.lower() for name in _types(table, rows_of([file], {}))}
        for name in columns:
            if name.lower() not in own:
                raise InputError(
                    f"'{file}' has no column '{name}', which others of these files have; add it, or leave "
                    "the file out.",
                    field=name,
                )


def select_rows(table: SourceTable, drop_missing: bool) -> None:
    """Make the view `data`, where dropping empties all targets of a row that lacks one."""
    import duckdb

    if table.where:
        table.connection.execute(FIND_NAN)
    rows = f"SELECT * FROM ({_comparable(table)}) WHERE ({table.where or True}\n)"  # the line ends a comment
    try:
        if len(table.connection.extract_statements(f"{rows} LIMIT 0")) > 1:
            raise duckdb.ProgrammingError("it is more than one condition")
        table.connection.execute(f"{rows} LIMIT 0")
    except (duckdb.ProgrammingError, duckdb.DataError) as error:
        raise bad_where(table, error) from None
    values = [f"CAST({sql_name(name)} AS DOUBLE)" for name in table.targets]
    if drop_missing:
        table.connection.execute(FIND_NAN)
        complete = " AND ".join(f"NOT isnan({value})" for value in values)
        values = [f"CASE WHEN {complete} THEN {value} END" for value in values]
    columns = ", ".join(f"{value} AS y{number}" for number, value in enumerate(values))
    client = sql_text(table.client) if table.whole else _client_column(table)
    table.connection.execute(f"CREATE TEMP VIEW data AS SELECT {client} AS client, {columns} FROM ({rows})")


def _comparable(table: SourceTable) -> str:
    """All rows for a condition, to which NaN is a missing number: to DuckDB it is larger than all others."""
    kinds = _types(table, "source") if table.where else {}
    numbers = [sql_name(name) for name, kind in kinds.items() if kind in ("FLOAT", "DOUBLE")]
    missing = ", ".join(f"CASE WHEN NOT isnan({name}) THEN {name} END AS {name}" for name in numbers)
    return f"SELECT * REPLACE ({missing}) FROM source" if numbers else "FROM source"


def _client_column(table: SourceTable) -> str:
    """The column of clients; names that were kept as bytes become text, and times of a zone those of UTC."""
    column = sql_name(table.client)
    as_text = {
        "BLOB": f"coalesce(try(decode({column})), {column}::VARCHAR)",  # the latter shows what is no text
        "TIMESTAMP WITH TIME ZONE": f"{column} AT TIME ZONE 'UTC'",
    }
    return as_text.get(_types(table, "source")[table.client], column)
