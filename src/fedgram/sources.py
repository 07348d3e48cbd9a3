"""A table as DuckDB views, from files or memory, or a sentence about why it cannot be read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.errors import InputError
from fedgram.psd import Array
from fedgram.table_files import expanded, files_of, own_columns, paths_of, rows_of, sql_text

if TYPE_CHECKING:
    import duckdb

# DuckDB takes the bounds of a Parquet column to mean that no value in it is NaN, but they leave NaN out.
FIND_NAN = "SET disabled_optimizers = 'statistics_propagation'"

_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*|BOOLEAN")
_RENAMED = re.compile(r"(.+)_\d+")
_BAD_TEXT = re.compile(
    r'on Line: (\d+).*converting column "(.*?)"\. Could not convert string "(.*?)" to.*?file ?= ?(.*?)\n',
    re.DOTALL,
)


@dataclass(frozen=True)
class SourceTable:
    """What to read. Once open, the view `source` has all columns and rows, and the view `data` has the rows
    asked for, with columns client, y0, y1, ..., one y for each target. The client is a column, or with
    `whole` the name of the one client that has all rows.
    """

    connection: duckdb.DuckDBPyConnection
    source: Any
    client: str
    targets: tuple[str, ...]
    where: str | None
    whole: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read."""
        return self.targets if self.whole else (self.client, *self.targets)

    def each(self, template: str) -> str:
        """Columns after a template, in which {0} is the number of the target."""
        return ", ".join(template.format(number) for number in range(len(self.targets)))

    def read(self, columns: str, rows: str) -> tuple[list[str | None], Array]:
        """Names of the M clients, None where missing, and their values (M, columns), in order of name."""
        found = self.connection.execute(f"SELECT client, {columns} FROM {rows}")
        width = len(found.description) - 1
        named = sorted(
            ((client_name(row[0]), row[1:]) for row in found.fetchall()), key=lambda row: _rank(row[0])
        )
        values = np.array([values for _, values in named], dtype=np.float64)
        return [name for name, _ in named], values.reshape(-1, width)

    def __str__(self) -> str:
        paths = paths_of(self.source)
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return f"'{paths[0]}'{others}" if paths else "the table"


def client_name(client: Any) -> str | None:
    """A client as text, None where it is missing."""
    if client is None or client != client:
        return None
    # pandas turns whole numbers into floats when some are missing
    name = str(int(client) if isinstance(client, float) and client.is_integer() else client)
    return name if name.strip() else None


def _rank(name: str | None) -> tuple[float, str]:
    try:
        number = float(name or "inf")
    except ValueError:
        number = np.inf
    return number if number < np.inf else np.inf, name or ""  # a name may be nan, which has no order


def open_source(table: SourceTable) -> None:
    """Make the view `source`, and check that the columns asked for are there and the targets are numbers."""
    columns = _load(table, {})
    _check_told_apart(table, columns)
    for name in table.columns:
        if name not in columns:
            raise _no_column(table, name, list(columns))
    # Left alone, the first rows of a CSV file set the types, and 1.5 after many whole numbers is an error.
    numbers = {name: "BOOLEAN" if columns[name] == "BOOLEAN" else "DOUBLE" for name in table.targets}
    columns = _load(table, dict.fromkeys(table.columns, "VARCHAR") | numbers)
    for name in table.targets:
        if not _NUMBER.fullmatch(columns[name]):
            raise _not_numbers(table, name, columns[name])


def _load(table: SourceTable, types: dict[str, str]) -> dict[str, str]:
    """Make the view `source` with these types of CSV columns; return the type of every column."""
    if paths := paths_of(table.source):
        rows = rows_of(files_of(paths), types)
        table.connection.execute(f"CREATE OR REPLACE TEMP VIEW source AS {rows}")
    elif hasattr(table.source, "__len__"):
        table.connection.register("source", table.source)
    else:
        raise InputError(
            f"A source is a path, a list of paths or a table in memory, not {type(table.source).__name__}; "
            "read a stream into a table first.",
            field="source",
        )
    return _types(table, "source")


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
                    f"'{name}' could be any of the columns {listed(alike)} of {place} (capitals do not "
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


def select_rows(table: SourceTable, drop_missing: bool) -> None:
    """Make the view `data`, where dropping empties all targets of a row that lacks one."""
    import duckdb

    rows = f"SELECT * FROM source WHERE ({table.where or True}\n)"  # the new line ends a comment
    try:
        if len(table.connection.extract_statements(f"{rows} LIMIT 0")) > 1:
            raise duckdb.ProgrammingError("it is more than one condition")
        table.connection.execute(f"{rows} LIMIT 0")
    except (duckdb.ProgrammingError, duckdb.DataError) as error:
        raise _bad_where(table, error) from None
    values = [f"CAST({_column(name)} AS DOUBLE)" for name in table.targets]
    if drop_missing:
        table.connection.execute(FIND_NAN)
        complete = " AND ".join(f"NOT isnan({value})" for value in values)
        values = [f"CASE WHEN {complete} THEN {value} END" for value in values]
    columns = ", ".join(f"{value} AS y{number}" for number, value in enumerate(values))
    client = sql_text(table.client) if table.whole else _client_column(table)
    table.connection.execute(f"CREATE TEMP VIEW data AS SELECT {client} AS client, {columns} FROM ({rows})")


def _client_column(table: SourceTable) -> str:
    """The column of clients; names that were kept as bytes become text."""
    column = _column(table.client)
    if _types(table, "source")[table.client] != "BLOB":
        return column
    return f"coalesce(try(decode({column})), {column}::VARCHAR)"  # the latter shows bytes that are no text


def _column(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def explained(table: SourceTable) -> Iterator[None]:
    """Say in a sentence what DuckDB could not do."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException:
        raise InputError(
            f"There is not enough memory to read {table}; close other programs, and check that "
            f"'{table.client}' names the client of a row, not the row.",
            field="source",
        ) from None
    except (duckdb.Error, OSError) as error:
        bad = _BAD_TEXT.search(str(error))
        if bad is not None and bad[2] in table.targets:
            comma = re.fullmatch(r"[+-]?\d+,\d+", bad[3])
            advice = "write decimals with a point" if comma else "correct it, or write NA if it is missing"
            raise InputError(
                f"Line {int(bad[1]):,} of '{bad[4]}' has '{bad[3]}' in '{bad[2]}', which is not a number; "
                f"{advice}.",
                field=bad[2],
            ) from None
        if table.where and isinstance(error, duckdb.ConversionException):
            raise _bad_where(table, error) from None
        raise InputError(
            f"Cannot read {_unreadable(table) or table} ({_reason(error)}); check that it is whole and "
            "readable, and UTF-8 if it is text.",
            field="source",
        ) from None


def _unreadable(table: SourceTable) -> str | None:
    """The first of the files that cannot be read alone."""
    import duckdb

    for file in expanded(paths_of(table.source)):
        try:
            table.connection.execute(f"SELECT count(COLUMNS(*)) FROM ({rows_of([file], {})})")
        except (duckdb.Error, OSError):
            return f"'{file}'"
    return None


def _reason(error: Exception) -> str:
    """What DuckDB says before it quotes the query or gives advice, without the kind of error."""
    said = re.split(r"\n\n|\nLINE |\nPossible |\nThe search |\n\* ", str(error))[0]
    line = re.sub(r"^[A-Z][\w ]*Error: ", "", re.sub(r"[.!]?\n|[.!]$", ", ", said))
    return "".join(filter(str.isprintable, line)).strip(" ,:")[:200]


def _no_column(table: SourceTable, name: str, columns: list[str]) -> InputError:
    spelled = {column.lower(): column for column in columns}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    hint = f" (did you mean '{spelled[near[0]]}'?)" if near else ""
    if len(columns) == 1 and re.search(r"[,;|\t]", columns[0]):
        hint = " (some lines have more values than others, so that each was read as one)"
    return InputError(
        f"There is no column '{name}' in {table}{hint}; its columns are {listed(columns)}.", field=name
    )


def _not_numbers(table: SourceTable, name: str, kind: str) -> InputError:
    """Show the first value that is not a number even when read as text."""
    values = f"SELECT {_column(name)}::VARCHAR AS value, row_number() OVER () AS row FROM source"
    order = "TRY_CAST(value AS DOUBLE) IS NOT NULL, row"
    first = f"SELECT value, row FROM ({values}) WHERE value IS NOT NULL ORDER BY {order} LIMIT 1"
    found = table.connection.execute(first).fetchone()
    example = f", for example '{found[0]}' in row {found[1]:,}" if found else ""
    held = "text" if kind == "VARCHAR" else kind.split("(")[0]
    return InputError(
        f"The column '{name}' holds {held}{example}, not numbers; convert it, or name another one.",
        field=name,
    )


def _bad_where(table: SourceTable, error: Exception) -> InputError:
    problem = f'The condition "{table.where}" cannot be used ({_reason(error)}); correct it.'
    return InputError(problem, field="where")


def listed(names: list[str]) -> str:
    """Names in quotes, the first twenty of them."""
    return ", ".join(f"'{name}'" for name in names[:20]) + (", ..." if len(names) > 20 else "")
