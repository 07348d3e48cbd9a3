"""Find table files, and write the DuckDB SQL that reads them."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgram._util.errors import InputError

if TYPE_CHECKING:
    import duckdb

# Text that means a missing value in a CSV file.
MISSING_TEXT = ["", "NA", "N/A", "n/a", "nan", "NaN", "NAN", "null", "NULL", "Null", "None"]


def source_paths(source: Any) -> list[str]:
    """Return the paths in a source; a table in memory has none."""
    if isinstance(source, (str, os.PathLike)):
        return [os.fspath(source)]
    return [os.fspath(path) for path in source] if isinstance(source, (list, tuple)) else []


def find_tables(paths: Sequence[str]) -> list[str]:
    """Expand paths to table files, each once, and check their names and sizes."""
    files = expand_paths(paths)
    for file in files:
        _check_file(file)
    return files


def expand_paths(paths: Sequence[str]) -> list[str]:
    """Expand folders and globs to files, each once."""
    return drop_duplicate_paths(file for path in paths for file in _expand(path))


def drop_duplicate_paths(paths: Iterable[str]) -> list[str]:
    """Drop paths that lead to the same file as an earlier one."""
    first: dict[str, str] = {}
    for path in paths:
        first.setdefault(os.path.realpath(path), path)
    return list(first.values())


def _expand(path: str) -> list[str]:
    if os.path.isdir(path):
        found = _tables_in(path)
        problem = f"The folder '{path}' has no CSV, TSV or Parquet file. Choose another folder."
    elif os.path.exists(path) or not glob.has_magic(path):
        found = [path] if os.path.exists(path) else []
        problem = f"No such file or folder: '{path}'. Check the path."
    else:
        # A glob may match a folder of parts that is named like a file, such as 'rows.parquet/'.
        matches = glob.glob(path, recursive=True)
        folders = [folder for folder in matches if os.path.isdir(folder) and is_table(folder)]
        found = [file for file in matches if os.path.isfile(file)]
        found += [file for folder in folders for file in _tables_in(folder)]
        problem = f"No file matches '{path}'. Check the pattern."
    if not found:
        raise InputError(problem, field="source")
    return sorted(found)


def _tables_in(folder: str) -> list[str]:
    return [file for file in list_files(folder) if is_table(file)]


def list_files(folder: str) -> list[str]:
    """List all files below a folder, except hidden ones ('.x') and metadata ('_x')."""
    found: list[str] = []
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        is_loop = os.path.realpath(place) in seen
        seen.add(os.path.realpath(place))
        folders[:] = [] if is_loop else [each for each in folders if each[0] not in "._" or "=" in each]
        found += [os.path.join(place, name) for name in names if name[0] not in "._" and not is_loop]
    return sorted(found)


def is_table(file: str) -> bool:
    """Tell by its name whether a file is a table."""
    return _suffix(file) in READERS


def is_text(file: str) -> bool:
    """Tell by its name whether a table is text, where NA and the like mean a missing value."""
    return READERS[_suffix(file)] is not _parquet


def _check_file(file: str) -> None:
    if not is_table(file):
        raise InputError(
            f"'{file}' is not named like a CSV, TSV or Parquet file. Convert it, or pass a data frame.",
            field="source",
        )
    if file.lower().endswith(".gz") and not is_text(file):
        raise InputError(
            f"'{file}' is a gzipped Parquet file, but only CSV and TSV may be gzipped. Unpack it first.",
            field="source",
        )
    if os.path.getsize(file) == 0:
        raise InputError(f"The file '{file}' is empty. Write it again, or drop it.", field="source")


def _suffix(path: str) -> str:
    return os.path.splitext(path.lower().removesuffix(".gz"))[1]


def select_from_files(files: Iterable[str], types: Mapping[str, str], folders: bool = True) -> str:
    """Return SQL for the rows of all files, with these CSV column types and the columns from folder names."""
    return " UNION ALL BY NAME ".join(
        f"FROM {reader(_file_list(same, folders), _csv_options(same, types))}"
        for reader, same in group_by_reader(files).items()
    )


def select_text(files: Iterable[str]) -> list[str]:
    """Return SQL for the rows of text files with every value as text, one query per reader.

    It fails at a line with more values than the header. `select_from_files` accepts such a line if the extra
    values read as missing.
    """
    options = ", header = true, all_varchar = true, nullstr = chr(1)"
    return [
        f"FROM {reader(_file_list(same, False), options)}"
        for reader, same in group_by_reader(files).items()
        if reader is not _parquet
    ]


def group_by_reader(files: Iterable[str]) -> dict[Callable[[str, str], str], list[str]]:
    """Group files that one DuckDB call reads."""
    groups: dict[Callable[[str, str], str], list[str]] = {}
    for file in files:
        groups.setdefault(READERS[_suffix(file)], []).append(file)
    return groups


def _file_list(files: Iterable[str], folders: bool) -> str:
    quoted = ", ".join(sql_text(glob.escape(file)) for file in files)
    return f"[{quoted}], union_by_name = true" + ("" if folders else ", hive_partitioning = false")


def folder_keys(files: Sequence[str]) -> list[str]:
    """Return columns from folder names: 'site' if every file is in a folder such as 'site=a'."""
    parts = ([folder.partition("=") for folder in Path(file).parts[:-1]] for file in files)
    first, *others = ([key for key, equals, _ in each if equals] for each in parts)
    return first if all(set(keys) == set(first) for keys in others) else []


def _csv_options(files: Sequence[str], types: Mapping[str, str]) -> str:
    folders = folder_keys(files)
    entries = {name: f"{sql_text(name)}: {sql_text(kind)}" for name, kind in types.items()}
    typed = {
        "types": [entry for name, entry in entries.items() if name not in folders],
        "hive_types": [entry for name, entry in entries.items() if name in folders],
    }
    options = (f", {option} = {{{', '.join(listed)}}}" for option, listed in typed.items() if listed)
    return f", header = true, nullstr = {MISSING_TEXT}{''.join(options)}"


def read_header(connection: duckdb.DuckDBPyConnection, file: str) -> list[str]:
    """Read a file's own column names: DuckDB renames y, y and Y to y, y_1 and Y_2."""
    reader = READERS[_suffix(file)]
    if reader is _parquet:
        rows = f"parquet_schema({sql_text(glob.escape(file))})"
        return _top_level(connection.execute(f"SELECT name, num_children FROM {rows}").fetchall()[1:])
    rows = reader(_file_list([file], False), ", header = false, all_varchar = true")
    first = connection.execute(f"FROM {rows} LIMIT 1")
    return [(column or "").strip() for row in first.fetchall() for column in row]


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


def _csv(files: str, options: str) -> str:
    # By default DuckDB skips lines that do not fit the others, and guesses the quote from the first rows.
    return f"read_csv({files}, skip = 0, comment = '', quote = '\"'{options})"


def _tsv(files: str, options: str) -> str:
    return _csv(files, options + r", delim = '\t'")


def _parquet(files: str, _: str) -> str:
    return f"read_parquet({files})"


READERS = {".csv": _csv, ".txt": _csv, ".tsv": _tsv, ".parquet": _parquet, ".pq": _parquet}


def sql_text(value: str) -> str:
    """Quote a value for SQL."""
    return "'" + value.replace("'", "''") + "'"


def sql_name(name: str) -> str:
    """Quote a column name for SQL."""
    return '"' + name.replace('"', '""') + '"'
