"""Client moments of tables larger than memory: CSV, TSV and Parquet files or data frames, through DuckDB.

Covariances come from sums of *shifted* targets, so that a large offset costs no digits. One shift per
target, taken from the first rows, serves every client whose mean lies near it, and saves the pass that
would find the means first. When some client lies far away, a second pass shifts each by its own mean.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.errors import InputError
from fedgram.moments import Moments
from fedgram.psd import Array

if TYPE_CHECKING:
    import duckdb

# Text that stands for a missing value in a CSV file.
MISSING_TEXT = ["", "NA", "N/A", "n/a", "nan", "NaN", "NAN", "null", "NULL", "Null", "None"]

# DuckDB takes the bounds in a Parquet file to mean that no value is NaN, but they leave NaN out.
SETTINGS = {"disabled_optimizers": "statistics_propagation"}

# A shift d away from the mean costs a factor 1 + d²/σ² in accuracy: at 10 σ two digits of sixteen.
NEAR = 10.0

_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*")
_BAD_TEXT = re.compile(
    r'on Line: (\d+).*converting column "(.*?)"\. Could not convert string "(.*?)" to.*?file ?= ?(.*?)\n',
    re.DOTALL,
)
_CLIENTS = "data WHERE client IS NOT NULL GROUP BY client"


def read_moments(
    source: Any,
    *,
    client: str,
    targets: Sequence[str],
    where: str | None = None,
    drop_missing: bool = False,
    client_weights: Any = None,
) -> Moments:
    """Moments of the columns `targets`, with one client for each value of the column `client`.

    `source` is a CSV, TSV (both also .gz) or Parquet file, a folder of these (searched in depth), a glob, a
    list of paths, or a table in memory (pandas, pyarrow). `where` is an SQL condition on the columns, to
    which clients in CSV files are text. Clients come in order of name, numbers first and by their size.
    """
    import duckdb  # here, because it takes longer to import than all the rest

    names = _checked_names(client, targets)
    with (
        tempfile.TemporaryDirectory() as spill,
        duckdb.connect(config={**SETTINGS, "temp_directory": spill}) as connection,
    ):
        table = _Table(connection, source, client, names, where)
        with _explained(table):
            _open(table)
            _select(table, drop_missing)
            sums = _summed(table, drop_missing)
    _check_clients(table, sums.clients)
    return Moments(sums.count, sums.mean, sums.covariance, sums.clients, names, client_weights)


@dataclass(frozen=True)
class _Table:
    """What to read. Once open, the view `source` has all columns and rows, and the view `data` has the rows
    asked for, with columns client, y0, y1, ..., one y for each target.
    """

    connection: duckdb.DuckDBPyConnection
    source: Any
    client: str
    targets: tuple[str, ...]
    where: str | None

    def each(self, *templates: str) -> str:
        """Columns: the first template with {0} the number of each target, then the second, and so on."""
        return ", ".join(text.format(number) for text in templates for number in range(len(self.targets)))

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


@dataclass(frozen=True)
class _Sums:
    """Moments of M clients as summed in one pass: count (M,), mean (M, C), covariance (M, C, C).

    `complete` when no row lacks a target or its client; `near` when all shifts were near enough to the
    means. No shift is near enough to a constant.
    """

    clients: tuple[str, ...]
    complete: bool
    near: bool
    count: Array
    mean: Array
    covariance: Array


def _summed(table: _Table, drop_missing: bool) -> _Sums:
    """Sum with shifts near the means, in one pass over the table or two."""
    sample = table.each("coalesce(avg(y{0}) FILTER (isfinite(y{0})), 0) AS shift{0}")
    table.connection.execute(f"CREATE TEMP TABLE shift AS SELECT {sample} FROM (FROM data LIMIT 10000)")
    sums = _one_pass(table, "CROSS JOIN shift")
    if not (sums.complete or drop_missing):
        _check_complete(table)
    _check_finite(table, sums)
    if sums.near:
        return sums
    means = table.each("shift{0} + first{0} / count AS shift{0}")
    table.connection.execute(f"CREATE OR REPLACE TEMP TABLE shift AS SELECT client, {means} FROM sums")
    sums = _one_pass(table, "JOIN shift USING (client)")
    if not sums.near:
        _check_varies(table)
    return sums


def _one_pass(table: _Table, join_shift: str) -> _Sums:
    """Sum all rows into the table `sums`; `fsum` keeps the rounding error from growing with their number."""
    pairs = combinations_with_replacement(range(len(table.targets)), 2)
    second = ", ".join(f"fsum((y{i} - shift{i}) * (y{j} - shift{j}))" for i, j in pairs)
    first = table.each("fsum(y{0} - shift{0}) AS first{0}")
    present = " + ".join(f"y{number}" for number in range(len(table.targets)))
    columns = f"client, count(*) AS rows, count({present}) AS count, {first}, {second}"
    table.connection.execute(
        "CREATE OR REPLACE TEMP TABLE sums AS "
        f"SELECT * FROM (SELECT {columns} FROM data {join_shift} GROUP BY client) {join_shift}"
    )
    return _unpacked(*table.read("* EXCLUDE (client)", "sums"), len(table.targets))


def _unpacked(clients: list[str | None], values: Array, targets: int) -> _Sums:
    """Moments from the columns of the table `sums`, for the clients that have a name."""
    rows, *sums = np.split(values, [1, 2, 2 + targets, -targets], axis=1)
    complete = None not in clients and (rows == sums[0]).all() and not np.isnan(values).any()
    named = [name is not None for name in clients]
    count, first, upper, shift = (part[named] for part in sums)
    second = np.empty((len(count), targets, targets))
    row, column = np.triu_indices(targets)
    second[:, row, column] = second[:, column, row] = upper
    with np.errstate(all="ignore"):  # what is not finite is told apart afterwards
        offset = first / count
        covariance = second / count[:, :, None] - offset[:, :, None] * offset[:, None, :]
        near = offset**2 < NEAR**2 * np.diagonal(covariance, axis1=1, axis2=2)
    names = tuple(name for name in clients if name is not None)
    return _Sums(names, bool(complete), bool(near.all()), count[:, 0], shift + offset, covariance)


def _open(table: _Table) -> None:
    """Make the view `source`, and check that the columns asked for are there and the targets are numbers."""
    columns = _load(table, {})
    for name in (table.client, *table.targets):
        if name not in columns:
            raise _no_column(table, name, list(columns))
    # Left alone, the first rows of a CSV file set the types, and 1.5 after many whole numbers is an error.
    columns = _load(table, {table.client: "VARCHAR", **dict.fromkeys(table.targets, "DOUBLE")})
    for name in table.targets:
        if not _NUMBER.fullmatch(columns[name]):
            raise _not_numbers(table, name, columns[name])


def _load(table: _Table, types: dict[str, str]) -> dict[str, str]:
    """Make the view `source` with these types of CSV columns; return the type of every column."""
    if paths := _paths(table.source):
        readers: dict[Callable[[str, str], str], list[str]] = {}
        for file in _files(paths):
            readers.setdefault(READERS[_suffix(file)], []).append(_text(glob.escape(file)))
        struct = "{" + ", ".join(f"{_text(name)}: {_text(kind)}" for name, kind in types.items()) + "}"
        tables = [f"FROM {reader(', '.join(files), struct)}" for reader, files in readers.items()]
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


def _csv(files: str, types: str, options: str = "header = true") -> str:
    return f"read_csv([{files}], types = {types}, nullstr = {MISSING_TEXT}, union_by_name = true, {options})"


def _tsv(files: str, types: str) -> str:
    return _csv(files, types, r"header = true, delim = '\t'")


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


def _select(table: _Table, drop_missing: bool) -> None:
    """Make the view `data`, where dropping empties all targets of a row that lacks one."""
    import duckdb

    rows = f"SELECT * FROM source WHERE ({table.where or True}\n)"  # the new line ends a comment
    try:
        table.connection.execute(f"{rows} LIMIT 0")
    except (duckdb.ProgrammingError, duckdb.DataError) as error:
        raise _bad_where(table, error) from None
    values = [f"CAST({_column(name)} AS DOUBLE)" for name in table.targets]
    if drop_missing:
        complete = " AND ".join(f"NOT isnan({value})" for value in values)
        values = [f"CASE WHEN {complete} THEN {value} END" for value in values]
    columns = ", ".join(f"{value} AS y{number}" for number, value in enumerate(values))
    table.connection.execute(
        f"CREATE TEMP VIEW data AS SELECT {_column(table.client)} AS client, {columns} FROM ({rows})"
    )


def _column(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@contextmanager
def _explained(table: _Table) -> Iterator[None]:
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
    said = re.split(r"\n\n|\nLINE |\nPossible |\n\* ", str(error))[0]
    return re.sub(r"^[A-Z][\w ]*Error: ", "", re.sub(r"[.!]?\n|[.!]$", ", ", said)).strip(" ,")[:200]


def _checked_names(client: str, targets: Sequence[str]) -> tuple[str, ...]:
    names = (targets,) if isinstance(targets, str) else tuple(targets)
    if not names:
        raise InputError("There are no targets; name at least one column.", field="targets")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"The target '{name}' is named more than once; name it once.", field=name)
    if client in names:
        raise InputError(f"The column '{client}' is both the client and a target; choose one.", field=client)
    return names


def _bad_where(table: _Table, error: Exception) -> InputError:
    problem = f'The condition --where "{table.where}" cannot be used ({_reason(error)}); correct it.'
    return InputError(problem, field="where")


def _check_clients(table: _Table, clients: tuple[str, ...]) -> None:
    if not clients and table.where:
        problem = f'The condition --where "{table.where}" leaves no rows of {table}; widen it.'
        raise InputError(problem, field="where")
    if not clients:
        raise InputError(f"There are no rows with a client in {table}; add some.", field="source")
    if len(clients) == 1:
        raise InputError(
            f"All rows have the client '{clients[0]}' in '{table.client}', but a federation needs at least "
            "two; name another column, or add the rows of other clients.",
            client=clients[0],
            field=table.client,
        )


def _check_complete(table: _Table) -> None:
    """Count the rows that lack a target or their client, and name where most of them are."""
    lacks = [f"coalesce(isnan(y{number}), true)" for number in range(len(table.targets))]
    counts = ", ".join(f"count_if({lack})" for lack in [" OR ".join(lacks), *lacks])
    clients, values = table.read(f"count(*), {counts}", "data GROUP BY client")
    nameless = np.array([name is None for name in clients])
    missing = np.where(nameless, values[:, 0], values[:, 1])
    columns = [table.targets[number] for number in np.flatnonzero(values[:, 2:].sum(axis=0))]
    columns += [table.client] if nameless.any() else []
    if columns:
        raise _missing_values(columns, clients, missing, values[:, 0].sum())


def _missing_values(columns: list[str], clients: list[str | None], missing: Array, rows: float) -> InputError:
    worst = [m for m in np.argsort(-missing, kind="stable") if missing[m]]
    names = [f"client '{clients[m]}'" if clients[m] else "no client" for m in worst]
    places = ", ".join(f"{name}: {missing[m]:,.0f}" for name, m in zip(names[:3], worst, strict=False))
    return InputError(
        f"{missing.sum():,.0f} of {rows:,.0f} rows have a missing value in {_listed(columns)} "
        f"({places}{', ...' if len(worst) > 3 else ''}); pass --drop-missing to leave them out, or fill them "
        "first.",
        client=clients[worst[0]],
        field=columns[0],
    )


def _check_finite(table: _Table, sums: _Sums) -> None:
    """Name the client and target of a value that is infinite, or whose square is."""
    if np.isfinite(sums.covariance[sums.count > 0]).all():
        return
    clients, largest = table.read(table.each("coalesce(max(abs(y{0})), 0)"), _CLIENTS)
    m, number = np.unravel_index(np.argmax(largest), largest.shape)
    client, target, size = clients[m], table.targets[number], largest[m, number]
    what = "infinite" if np.isinf(size) else f"of size {size:g}, too large to square"
    raise InputError(
        f"Client '{client}' has a value in '{target}' that is {what}; correct it, or leave its row out.",
        client=client,
        field=target,
    )


def _check_varies(table: _Table) -> None:
    """Name a client with a constant target; one with too few rows is left to `Moments`."""
    enough = f"{_CLIENTS} HAVING count(y0) > {len(table.targets)}"
    clients, varies = table.read(table.each("min(y{0}) < max(y{0})"), enough)
    for m, number in np.argwhere(varies == 0):
        target = table.targets[number]
        raise InputError(
            f"The target '{target}' is constant at client '{clients[m]}', so it cannot be predicted; "
            "leave out the target or the client.",
            client=clients[m],
            field=target,
        )


def _no_column(table: _Table, name: str, columns: list[str]) -> InputError:
    spelled = {column.lower(): column for column in columns}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    hint = f" (did you mean '{spelled[near[0]]}'?)" if near else ""
    if len(columns) == 1 and re.search(r"[,;|\t]", columns[0]):
        hint = " (some lines have more values than others, so that each was read as one)"
    return InputError(
        f"There is no column '{name}' in {table}{hint}; its columns are {_listed(columns)}.", field=name
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:20]) + (", ..." if len(names) > 20 else "")


def _not_numbers(table: _Table, name: str, kind: str) -> InputError:
    """Show the first value that is not a number even when read as text."""
    values = f"SELECT {_column(name)}::VARCHAR AS value, row_number() OVER () AS row FROM source"
    order = "TRY_CAST(value AS DOUBLE) IS NOT NULL, row"
    first = f"SELECT value, row FROM ({values}) WHERE value IS NOT NULL ORDER BY {order} LIMIT 1"
    found = table.connection.execute(first).fetchone()
    example = f", for example '{found[0]}' in row {found[1]:,}" if found else ""
    held = "text" if kind == "VARCHAR" else kind.split("(")[0]
    return InputError(
        f"The target '{name}' holds {held}{example}, not numbers; convert it, or name another column.",
        field=name,
    )
