"""Read a table as it is written, to copy its columns."""

from __future__ import annotations

import re

from fedgram.data.tables.diagnostics import translate_errors
from fedgram.data.tables.file_reader import split_by_kind
from fedgram.data.tables.source import SourceTable, connect_duckdb

PANDAS_INDEX = re.compile(r"__index_level_\d+__")
"""Name that pandas gives an index without a name in a Parquet file."""


def read_as_text(path: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Read the names of all columns and the text of all rows, in the table's order; missing values are ''.

    Columns of folder names and unnamed pandas indexes are not read.
    """
    with connect_duckdb() as connection:
        table = SourceTable(connection, path, "", (), None, is_single=True)
        with translate_errors(table):
            table.open_files()
            texts, parquet = split_by_kind(table.files)
            parts = table.reader.select_strictly(table.files)
            parts += [table.reader.select(parquet, {}, folders=False)] if parquet else []
            rows = " UNION ALL BY NAME ".join(f"SELECT COLUMNS(*)::VARCHAR FROM ({part})" for part in parts)
            found = connection.execute(f"SELECT coalesce(COLUMNS(*), '') FROM ({rows})")
            names, values = [column[0] for column in found.description], found.fetchall()
            first = (texts + parquet)[0]  # whose columns come first
            own = table.reader.read_header(first)  # DuckDB renames columns without a name
    names = own if len(own) == len(names) else names
    kept = [number for number, name in enumerate(names) if not PANDAS_INDEX.fullmatch(name)]
    return [names[number] for number in kept], [tuple(row[number] for number in kept) for row in values]
