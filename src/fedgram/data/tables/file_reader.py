"""Write the DuckDB SQL that reads table files, sniffing each text file once.

DuckDB sniffs all files again whenever it binds a query: 60 ms for a file of 20,000 rows, ten times per table.
SQL with the delimiter, line ends and column types that were found the first time is bound at once.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fedgram.data.tables.files import MISSING_TEXT, folder_keys, is_tab_separated, is_text, sql_text

if TYPE_CHECKING:
    import duckdb

# By default DuckDB skips lines that do not fit the others, and guesses the quote from the first rows.
_STRICT = "skip = 0, comment = '', quote = '\"'"
_WITH_MISSING = f"header = true, nullstr = {MISSING_TEXT}"
# No value is missing, so that a line with more values than the header is an error even if they are empty.
_AS_TEXT = "header = true, nullstr = chr(1)"
_FOUND = "Delimiter, Escape, NewLineDelimiter, DateFormat, TimestampFormat, Columns"
_UNNAMED = re.compile(r"column\d+(_\d+)?")  # DuckDB's name of a column without one
_EMPTY = "(empty)"  # what `sniff_csv` returns for no character


@dataclass(frozen=True)
class Dialect:
    """Format of a text file: options of `read_csv` in SQL, and the names of its columns."""

    options: str
    names: tuple[str, ...]


class FileReader:
    """Write SQL for the rows of files; remember the dialect and column types of each text file."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._sniffed: dict[str, tuple[Dialect, dict[str, str]]] = {}

    def select(self, files: Sequence[str], types: Mapping[str, str], *, folders: bool = True) -> str:
        """Return SQL for the rows of all files, with these CSV column types and columns of folder names."""
        texts, others = split_by_kind(files)
        parts = self._select_text_files(texts, _WITH_MISSING, types, folders) if texts else []
        if others:
            named = "" if folders else ", hive_partitioning = false"
            parts.append(f"FROM read_parquet({_list_files(others)}, union_by_name = true{named})")
        return " UNION ALL BY NAME ".join(parts)

    def select_strictly(self, files: Sequence[str]) -> list[str]:
        """Return SQL for the rows of the text files among these with every value as text.

        It fails at a line with more values than the header. `select` accepts such a line if the extra values
        read as missing.
        """
        texts, _ = split_by_kind(files)
        all_text = dict.fromkeys((name for file in texts for name in self._sniff(file)[0].names), "VARCHAR")
        return self._select_text_files(texts, _AS_TEXT, all_text, folders=False) if texts else []

    def read_header(self, file: str) -> list[str]:
        """Read a file's own column names: DuckDB renames y, y and Y to y, y_1 and Y_2."""
        if not is_text(file):
            schema = f"SELECT name, num_children FROM parquet_schema({sql_text(glob.escape(file))})"
            return _top_level(self._connection.execute(schema).fetchall()[1:])
        options = f"{_STRICT}, header = false, all_varchar = true, hive_partitioning = false"
        rows = f"read_csv({_list_files([file])}, {options}{_delimiter(file)})"
        first = self._connection.execute(f"FROM {rows} LIMIT 1")
        return [(column or "").strip() for row in first.fetchall() for column in row]

    def _select_text_files(
        self, files: Sequence[str], options: str, types: Mapping[str, str], folders: bool
    ) -> list[str]:
        """Return SQL for neighboring files of one dialect each, in the order of the files."""
        keys = folder_keys(files) if folders else []
        hive = f"hive_partitioning = {bool(keys)}".lower()
        if named := [f"{sql_text(key)}: {sql_text(types[key])}" for key in keys if key in types]:
            hive += f", hive_types = {{{', '.join(named)}}}"
        all_types = self._merge_types(files) | _lower_keys(types)
        parts = []
        for dialect, same in groupby(files, key=lambda file: self._sniff(file)[0]):
            typed = ((name, all_types[name.lower()]) for name in dialect.names)
            columns = ", ".join(f"{sql_text(name)}: {sql_text(kind)}" for name, kind in typed)
            form = f"auto_detect = false, {dialect.options}, columns = {{{columns}}}"
            parts.append(f"FROM read_csv({_list_files(same)}, {_STRICT}, {options}, {form}, {hive})")
        return parts

    def _sniff(self, file: str) -> tuple[Dialect, dict[str, str]]:
        """Return the dialect of a text file, and the types of its columns by lower-case name."""
        if file not in self._sniffed:
            *found, columns = self._sniff_with(file, _WITH_MISSING, _delimiter(file))
            names = ("delim", "escape", "new_line", "dateformat", "timestampformat")
            given = [
                f"{name} = {sql_text('' if value == _EMPTY else value)}"
                for name, value in zip(names, found, strict=True)
                if value is not None
            ]
            types = {column["name"]: column["type"] for column in columns}
            if any(map(_UNNAMED.fullmatch, types)):  # or named NA: `nullstr` applies to the header, too
                named = self._sniff_with(file, _AS_TEXT, f", {given[0]}")[-1]
                types = dict(zip((column["name"] for column in named), types.values(), strict=True))
            self._sniffed[file] = Dialect(", ".join(given), tuple(types)), _lower_keys(types)
        return self._sniffed[file]

    def _sniff_with(self, file: str, options: str, delimiter: str) -> Sequence[Any]:
        """Return the values of `_FOUND` for a text file."""
        given = f"{sql_text(glob.escape(file))}, {_STRICT}, {options}{delimiter}"
        query = f"SELECT {_FOUND} FROM sniff_csv({given})"
        found: Sequence[Any] = self._connection.execute(query).fetchall()[0]
        return found

    def _merge_types(self, files: Sequence[str]) -> dict[str, str]:
        """Return one type per column that holds the values of all files, chosen as DuckDB does for UNION."""
        kinds: dict[str, dict[str, None]] = {}
        for file in files:
            for name, kind in self._sniff(file)[1].items():
                kinds.setdefault(name, {})[kind] = None
        merged = {}
        for name, found in kinds.items():
            union = " UNION ALL ".join(f"SELECT NULL::{kind}" for kind in found)
            is_same = len(found) == 1
            merged[name] = next(iter(found)) if is_same else self._describe(union)
        return merged

    def _describe(self, query: str) -> str:
        """Return the type of a query's one column."""
        return str(self._connection.execute(f"DESCRIBE {query}").fetchall()[0][1])


def split_by_kind(files: Iterable[str]) -> tuple[list[str], list[str]]:
    """Separate text files from Parquet files."""
    files = list(files)
    return [file for file in files if is_text(file)], [file for file in files if not is_text(file)]


def _lower_keys(types: Mapping[str, str]) -> dict[str, str]:
    """Return types by lower-case name: DuckDB ignores the case of column names."""
    return {name.lower(): kind for name, kind in types.items()}


def _list_files(files: Iterable[str]) -> str:
    return f"[{', '.join(sql_text(glob.escape(file)) for file in files)}]"


def _delimiter(file: str) -> str:
    return r", delim = '\t'" if is_tab_separated(file) else ""


def _top_level(schema: Sequence[tuple[str, int | None]]) -> list[str]:
    """Return the names of a depth-first schema that are not nested in others."""
    names, nested = [], 0
    for name, children in schema:
        if nested:
            nested -= 1
        else:
            names.append(name)
        nested += children or 0
    return names
