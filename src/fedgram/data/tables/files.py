"""Find table files by name, and quote names for SQL."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError

TEXT_SUFFIXES = {".csv", ".txt", ".tsv"}
PARQUET_SUFFIXES = {".parquet", ".pq"}

# Text that means a missing value in a CSV file.
MISSING_TEXT = ["", ".", "NA", "N/A", "n/a", "nan", "NaN", "NAN", "null", "NULL", "Null", "None"]


def source_paths(source: Any) -> list[str]:
    """Return the paths in a source; a table in memory, or a list with other items, has none."""
    items = source if isinstance(source, (list, tuple)) else [source]
    are_paths = all(isinstance(item, (str, os.PathLike)) for item in items)
    return [os.fspath(item) for item in items] if are_paths else []


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
    """Whether a file is a table, by its name."""
    return _suffix(file) in TEXT_SUFFIXES | PARQUET_SUFFIXES


def is_text(file: str) -> bool:
    """Whether a table is text, by its name; NA and the like then mean a missing value."""
    return _suffix(file) in TEXT_SUFFIXES


def is_tab_separated(file: str) -> bool:
    """Whether tabs separate the values of a table, by its name."""
    return _suffix(file) == ".tsv"


def check_file(file: str) -> None:
    """Reject a file that is no table by its name, or empty."""
    if not is_table(file):
        raise InputError(
            f"'{file}' does not have the suffix of a CSV, TSV or Parquet file. Convert it, or pass a data "
            "frame.",
            field="source",
        )
    if file.lower().endswith(".gz") and not is_text(file):
        raise InputError(
            f"'{file}' is a gzipped Parquet file, but only CSV and TSV may be gzipped. Unpack it first.",
            field="source",
        )
    if os.path.getsize(file) == 0:
        raise InputError(f"The file '{file}' is empty. Export it again, or leave it out.", field="source")


def _suffix(path: str) -> str:
    return os.path.splitext(path.lower().removesuffix(".gz"))[1]


def folder_keys(files: Sequence[str]) -> list[str]:
    """Return columns from folder names: 'site' if every file is in a folder such as 'site=a'."""
    parts = ([folder.partition("=") for folder in Path(file).parts[:-1]] for file in files)
    first, *others = ([key for key, equals, _ in each if equals] for each in parts)
    return first if all(set(keys) == set(first) for keys in others) else []


def sql_text(value: str) -> str:
    """Quote a value for SQL."""
    return "'" + value.replace("'", "''") + "'"


def sql_name(name: str) -> str:
    """Quote a column name for SQL."""
    return '"' + name.replace('"', '""') + '"'
