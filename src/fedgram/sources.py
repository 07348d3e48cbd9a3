"""A table as DuckDB views, from files or memory, or a sentence about why it cannot be read."""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.errors import InputError
from fedgram.psd import Array

if TYPE_CHECKING:
    import duckdb

# DuckDB takes the bounds of a Parquet column to mean that no value in it is NaN, but they leave NaN out.
FIND_NAN = "SET disabled_optimizers = 'statistics_propagation'"

# Text that stands for a missing value in a CSV file.
MISSING_TEXT = ["", "NA", "N/A", "n/a", "nan", "NaN", "NAN", "null", "NULL", "Null", "None"]

_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*")
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
        named = sorted(((_name(row[0]), row[1:]) for row in found.fetchall()), key=lambda row: _rank(row[0]))
        values = np.array([values for _, values in named], dtype=np.float64)
        return [name for name, _ in named], values.reshape(-1, width)

    def __str__(self) -> str:
        paths = _paths(self.source)
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return f"'{paths[0]}'{others}" if paths else "the table"


def _name(client: Any) -> str | None:
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
    for name in table.columns:
        if name not in columns:
            raise _no_column(table, name, list(columns))
    # Left alone, the first rows of a CSV file set the types, and 1.5 after many whole numbers is an error.
    kinds = dict.fromkeys(table.columns, "VARCHAR") | dict.fromkeys(table.targets, "DOUBLE")
    columns = _load(table, kinds)
    for name in table.targets:
        if not _NUMBER.fullmatch(columns[name]):
            raise _not_numbers(table, name, columns[name])


def _load(table: SourceTable, types: dict[str, str]) -> dict[str, str]:
    """Make the view `source` with these types of CSV columns; return the type of every column."""
    if paths := _paths(table.source):
        readers: dict[Callable[[str, str], str], list[str]] = {}
        for file in _files(paths):
            readers.setdefault(READERS[_suffix(file)], []).append(_text(glob.escape(file)))
        struct = ", ".join(f"{_text(name)}: {_text(kind)}" for name, kind in types.items())
        option = f", types = {{{struct}}}" if types else ""
        tables = [f"FROM {reader(', '.join(files), option)}" for reader, files in readers.items()]
        table.connection.execute(
            f"CREATE OR REPLACE TEMP VIEW source AS {' UNION ALL BY NAME '.join(tables)}"
        )
    elif hasattr(table.source, "__len__"):
        table.connection.register("source", table.source)
    else:
        raise InputError(
            f"A source is a path, a list of paths or a table in memory, not {type(table.source).__name__}; "
            "read a stream into a table first.",
            field="source",
        )
    return {name: kind for name, kind, *_ in table.connection.execute("DESCRIBE source").fetchall()}


def _csv(files: str, types: str) -> str:
    """CSV files with all their lines: left alone, DuckDB skips those that do not fit the others."""
    options = f"nullstr = {MISSING_TEXT}, header = true, skip = 0, comment = '', union_by_name = true"
    return f"read_csv([{files}], {options}{types})"


def _tsv(files: str, types: str) -> str:
    return _csv(files, types + r", delim = '\t'")


def _parquet(files: str, types: str) -> str:
    """Parquet files know their types."""
    return f"read_parquet([{files}], union_by_name = true)"


READERS = {".csv": _csv, ".txt": _csv, ".tsv": _tsv, ".parquet": _parquet, ".pq": _parquet}


def _paths(source: Any) -> list[str]:
    """The paths in a source; none when it is a table in memory."""
    if isinstance(source, (str, os.PathLike)):
        return [os.fspath(source)]
    return [os.fspath(path) for path in source] if isinstance(source, (list, tuple)) else []


def _files(paths: list[str]) -> list[str]:
    """The files that the paths stand for, each once."""
    files = list(dict.fromkeys(file for path in paths for file in _expanded(path)))
    for file in files:
        if _suffix(file) not in READERS:
            raise InputError(
                f"'{file}' is not a CSV, TSV or Parquet file by its name; convert it, or pass a data frame.",
                field="source",
            )
        if os.path.getsize(file) == 0:
            raise InputError(f"The file '{file}' is empty; write it again or leave it out.", field="source")
    return files


def _expanded(path: str) -> list[str]:
    """A file, the tables in a folder, or the files that match a pattern."""
    if os.path.isdir(path):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        found = [file for file in found if _suffix(file) in READERS and os.path.basename(file)[0] not in "._"]
        problem = f"The folder '{path}' holds no CSV, TSV or Parquet file; pass one that does."
    elif os.path.exists(path) or not glob.has_magic(path):
        found = [path] if os.path.exists(path) else []
        problem = f"There is no file or folder '{path}'; check the path."
    else:
        found = [file for file in glob.glob(path, recursive=True) if os.path.isfile(file)]
        problem = f"No file matches '{path}'; check the pattern."
    if not found:
        raise InputError(problem, field="source")
    return sorted(found)


def _suffix(path: str) -> str:
    return os.path.splitext(path.lower().removesuffix(".gz"))[1]


def select_rows(table: SourceTable, drop_missing: bool) -> None:
    """Make the view `data`, where dropping empties all targets of a row that lacks one."""
    import duckdb

    rows = f"SELECT * FROM source WHERE ({table.where or True}\n)"  # the new line ends a comment
    try:
        table.connection.execute(f"{rows} LIMIT 0")
    except (duckdb.ProgrammingError, duckdb.DataError) as error:
        raise _bad_where(table, error) from None
    values = [f"CAST({_column(name)} AS DOUBLE)" for name in table.targets]
    if drop_missing:
        table.connection.execute(FIND_NAN)
        complete = " AND ".join(f"NOT isnan({value})" for value in values)
        values = [f"CASE WHEN {complete} THEN {value} END" for value in values]
    columns = ", ".join(f"{value} AS y{number}" for number, value in enumerate(values))
    client = _text(table.client) if table.whole else _column(table.client)
    table.connection.execute(f"CREATE TEMP VIEW data AS SELECT {client} AS client, {columns} FROM ({rows})")


def _column(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


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
            raise InputError(
                f"Line {int(bad[1]):,} of '{bad[4]}' has '{bad[3]}' in '{bad[2]}', which is not a number; "
                "correct it, or write NA if it is missing.",
                field=bad[2],
            ) from None
        if table.where and isinstance(error, duckdb.ConversionException):
            raise _bad_where(table, error) from None
        raise InputError(
            f"Cannot read {table} ({_reason(error)}); check that it is whole and readable.", field="source"
        ) from None


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
    problem = f'The condition --where "{table.where}" cannot be used ({_reason(error)}); correct it.'
    return InputError(problem, field="where")


def listed(names: list[str]) -> str:
    """Names in quotes, the first twenty of them."""
    return ", ".join(f"'{name}'" for name in names[:20]) + (", ..." if len(names) > 20 else "")
