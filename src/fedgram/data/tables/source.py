"""A table that DuckDB reads, and its clients by name."""

from __future__ import annotations

import glob
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.data.tables.file_reader import FileReader
from fedgram.data.tables.files import check_file, expand_paths, is_text, source_paths, sql_text
from fedgram.data.validation import client_name
from fedgram.theory.validation import check_names

if TYPE_CHECKING:
    import duckdb

# DuckDB infers the type of a column of Python objects from so many values, and rounds the rest to it.
WHOLE_COLUMNS = {"pandas_analyze_sample": 2**40}


@contextmanager
def connect_duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB connection in memory that spills to a temporary folder."""
    import duckdb  # here, because importing it takes longer than everything else

    with (
        tempfile.TemporaryDirectory() as spill,
        duckdb.connect(config={"temp_directory": spill, **WHOLE_COLUMNS}) as connection,
    ):
        connection.execute("SET TimeZone = 'UTC'")  # the zone of times that name none
        yield connection


@dataclass(frozen=True)
class SourceTable:
    """A source with the columns and rows to read.

    `client` is a column, or with `is_single` the name of the one client of all rows. `open_source` creates
    the view `source` of all columns and rows. `select_rows` creates the view `data` of the selected rows,
    with columns client, y0, y1, ... (one per target) and x0, x1, ... (one per column of `others`). The latter
    may have any type, and are text in text files.
    """

    connection: duckdb.DuckDBPyConnection
    source: Any
    client: str
    targets: tuple[str, ...]
    where: str | None
    is_single: bool = False
    others: tuple[str, ...] = ()

    @cached_property
    def files(self) -> list[str]:
        """The source's files; a table in memory has none."""
        return expand_paths(source_paths(self.source))

    @property
    def has_text_files(self) -> bool:
        """Whether some of the files are text."""
        return any(map(is_text, self.files))

    def open_files(self) -> None:
        """Check the files, and let DuckDB read nothing else: a condition could otherwise read any file."""
        for file in self.files:
            check_file(file)
        paths = [name for file in self.files for name in (file, glob.escape(file))]
        self.connection.execute(f"SET allowed_paths = [{', '.join(map(sql_text, paths))}]")
        self.connection.execute("SET enable_external_access = false")

    @cached_property
    def reader(self) -> FileReader:
        """Reader of the source's files; it detects the format of each file once."""
        return FileReader(self.connection)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns to read."""
        return (*(() if self.is_single else (self.client,)), *self.targets, *self.others)

    def per_target(self, template: str) -> str:
        """Repeat an SQL expression for every target; {0} is the target's number."""
        return ", ".join(template.format(number) for number in range(len(self.targets)))

    def read_by_client(self, columns: str, rows: str) -> tuple[list[str | None], Array]:
        """Read values (M, columns) of M clients in order of name, and the names; None is a missing name.

        Names have no blanks around them; two that differ by blanks only are refused.
        """
        found = self.connection.execute(f"SELECT client, {columns} FROM {rows}")
        width, rows_found = len(found.description) - 1, found.fetchall()
        given = tuple(sorted(name for row in rows_found if (name := client_name(row[0])) is not None))
        check_names(given, len(given), "client", f" in the column '{self.client}' of {self}")
        by_name = sorted(
            ((_strip_name(row[0]), row[1:]) for row in rows_found), key=lambda row: _sort_key(row[0])
        )
        values = np.array([values for _, values in by_name], dtype=np.float64)
        return [name for name, _ in by_name], values.reshape(-1, width)

    def __str__(self) -> str:
        paths = source_paths(self.source)
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return f"'{paths[0]}'{others}" if paths else "the table"


def _strip_name(client: Any) -> str | None:
    name = client_name(client)
    return None if name is None else name.strip()


def _sort_key(name: str | None) -> tuple[float, str]:
    try:
        number = float(name or "inf")
    except ValueError:
        number = math.inf
    return number if number < math.inf else math.inf, name or ""  # the name 'nan' has no order as a number
