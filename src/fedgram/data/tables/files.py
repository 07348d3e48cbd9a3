"""Files that hold a table: which ones a path stands for, how DuckDB reads them, and how they name columns."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgram._util.errors import InputError

if TYPE_CHECKING:
    import duckdb

# Text that stands for a missing value in a CSV file.
MISSING_TEXT = ["", "NA", "N/A", "n/a", "nan", "NaN", "NAN", "null", "NULL", "Null", "None"]


def paths_of(source: Any) -> list[str]:
    """The paths in a source; none when it is a table in memory."""
    if isinstance(source, (str, os.PathLike)):
        return [os.fspath(source)]
    return [os.fspath(path) for path in source] if isinstance(source, (list, tuple)) else []


def files_of(paths: Sequence[str]) -> list[str]:
    """The files that the paths stand for, each once."""
    files = expanded(paths)
    for file in files:
        _check_readable(file)
    return files


def expanded(paths: Sequence[str]) -> list[str]:
    """The same without a look into them."""
    return each_once(file for path in paths for file in _expanded(path))


def each_once(paths: Iterable[str]) -> list[str]:
    """Paths without those that lead to the same place as one before."""
    first: dict[str, str] = {}
    for path in paths:
        first.setdefault(os.path.realpath(path), path)
    return list(first.values())


def _expanded(path: str) -> list[str]:
    """A file, the tables in a folder, or the files that match a pattern."""
    if os.path.isdir(path):
        found = [file for file in files_in(path) if is_table(file)]
        problem = f"The folder '{path}' holds no CSV, TSV or Parquet file; pass one that does."
    elif os.path.exists(path) or not glob.has_magic(path):
        found = [path] if os.path.exists(path) else []
        problem = f"There is no file or folder '{path}'; check the path."
    else:
        found = [file for match in glob.glob(path, recursive=True) for file in _tables_at(match)]
        problem = f"No file matches '{path}'; check the pattern."
    if not found:
        raise InputError(problem, field="source")
    return sorted(found)


def _tables_at(match: str) -> list[str]:
    """What a pattern matches: a file, or a folder of parts that is called like one."""
    if os.path.isfile(match):
        return [match]
    return [file for file in files_in(match) if is_table(file)] if is_table(match) else []


def files_in(folder: str) -> list[str]:
    """The files in a folder, searched in depth, without what is hidden or about others, as '.x' and '_x'."""
    found: list[str] = []
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        back = os.path.realpath(place) in seen  # by a link
        seen.add(os.path.realpath(place))
        folders[:] = [] if back else [each for each in folders if each[0] not in "._" or "=" in each]
        found += [os.path.join(place, name) for name in names if name[0] not in "._" and not back]
    return sorted(found)


def is_table(file: str) -> bool:
    """Whether a file holds a table by its name."""
    return _suffix(file) in READERS


def _check_readable(file: str) -> None:
    if not is_table(file):
        raise InputError(
            f"'{file}' is not a CSV, TSV or Parquet file by its name; convert it, or pass a data frame.",
            field="source",
        )
    if file.lower().endswith(".gz") and READERS[_suffix(file)] is _parquet:
        raise InputError(
            f"'{file}' is a Parquet file inside gzip, which only CSV and TSV files may be; unpack it first.",
            field="source",
        )
    if os.path.getsize(file) == 0:
        raise InputError(f"The file '{file}' is empty; write it again or leave it out.", field="source")


def _suffix(path: str) -> str:
    return os.path.splitext(path.lower().removesuffix(".gz"))[1]


def holds_text(source: Any) -> bool:
    """Whether some file of a source is text, in which NA and the like stand for a missing value."""
    return any(READERS[_suffix(file)] is not _parquet for file in expanded(paths_of(source)))


def rows_of(files: Iterable[str], types: Mapping[str, str], folders: bool = True) -> str:
    """SQL for the rows of all files, with these types of CSV columns and the columns that folders give."""
    return " UNION ALL BY NAME ".join(
        f"FROM {reader(_read_from(same, folders), _options(same, types))}"
        for reader, same in by_reader(files).items()
    )


def counts_of_lines(files: Iterable[str]) -> list[str]:
    """SQL that reads all lines of text files, and fails at one with more values than the header names.

    With `rows_of` DuckDB passes over values at the end of a line that stand for missing ones.
    """
    no_text = ", header = true, all_varchar = true, nullstr = chr(1)"
    return [
        f"SELECT count(*) FROM {reader(_read_from(same, False), no_text)}"
        for reader, same in by_reader(files).items()
        if reader is not _parquet
    ]


def by_reader(files: Iterable[str]) -> dict[Callable[[str, str], str], list[str]]:
    """Files that are read together."""
    together: dict[Callable[[str, str], str], list[str]] = {}
    for file in files:
        together.setdefault(READERS[_suffix(file)], []).append(file)
    return together


def _read_from(files: Iterable[str], folders: bool) -> str:
    """What every reader of DuckDB is told."""
    listed = ", ".join(sql_text(glob.escape(file)) for file in files)
    return f"[{listed}], union_by_name = true" + ("" if folders else ", hive_partitioning = false")


def folder_keys(files: Sequence[str]) -> list[str]:
    """The columns that folders give to files that are read together: 'site' if all are in a 'site=a'."""
    parts = ([folder.partition("=") for folder in Path(file).parts[:-1]] for file in files)
    first, *others = ([key for key, equals, _ in each if equals] for each in parts)
    return first if all(set(keys) == set(first) for keys in others) else []


def _options(files: Sequence[str], types: Mapping[str, str]) -> str:
    """How to read CSV files; the types of columns that folders give are said apart."""
    folders = folder_keys(files)
    kinds = {name: f"{sql_text(name)}: {sql_text(kind)}" for name, kind in types.items()}
    typed = {
        "types": [kind for name, kind in kinds.items() if name not in folders],
        "hive_types": [kind for name, kind in kinds.items() if name in folders],
    }
    said = (f", {option} = {{{', '.join(listed)}}}" for option, listed in typed.items() if listed)
    return f", header = true, nullstr = {MISSING_TEXT}{''.join(said)}"


def own_columns(connection: duckdb.DuckDBPyConnection, file: str) -> list[str]:
    """The names that a file itself gives to its columns: DuckDB makes y, y_1 and Y_2 of y, y and Y."""
    reader = READERS[_suffix(file)]
    if reader is _parquet:
        rows = f"parquet_schema({sql_text(glob.escape(file))})"
        return _outermost(connection.execute(f"SELECT name, num_children FROM {rows}").fetchall()[1:])
    rows = reader(_read_from([file], False), ", header = false, all_varchar = true")
    first = connection.execute(f"FROM {rows} LIMIT 1")
    return [(column or "").strip() for row in first.fetchall() for column in row]


def _outermost(schema: Sequence[tuple[str, int | None]]) -> list[str]:
    """Names in a schema in depth-first order that are not inside of others."""
    names, inside = [], 0
    for name, children in schema:
        if inside:
            inside -= 1
        else:
            names.append(name)
        inside += children or 0
    return names


def _csv(files: str, options: str) -> str:
    """CSV files with all their lines, and with double quotes around what has commas or line breaks.

    Left alone, DuckDB skips lines that do not fit the others, and takes apostrophes for quotes where the
    first rows have two of them, or none for quotes where the first rows have none.
    """
    return f"read_csv({files}, skip = 0, comment = '', quote = '\"'{options})"


def _tsv(files: str, options: str) -> str:
    return _csv(files, options + r", delim = '\t'")


def _parquet(files: str, _: str) -> str:
    """Parquet files know their header and types."""
    return f"read_parquet({files})"


READERS = {".csv": _csv, ".txt": _csv, ".tsv": _tsv, ".parquet": _parquet, ".pq": _parquet}


def sql_text(value: str) -> str:
    """A value in SQL."""
    return "'" + value.replace("'", "''") + "'"


def sql_name(name: str) -> str:
    """A column's name in SQL."""
    return '"' + name.replace('"', '""') + '"'
