"""Client moments of tables larger than memory: CSV, TSV and Parquet files or data frames, through DuckDB.

Covariances come from sums of *shifted* targets, so that a large offset costs no digits. One shift per
target, taken from the first rows, serves every client whose mean lies near it, and saves the pass that
would find the means first. When some client lies far away, a second pass shifts each by its own mean.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import as_names, dropped_rows_message, quote_list
from fedgram.data.tables.diagnostics import explained, nameless
from fedgram.data.tables.reader import FIND_NAN, check_in_every_file, open_source, select_rows
from fedgram.data.tables.source import SourceTable
from fedgram.theory.moments import Moments
from fedgram.theory.validation import constant_target

# A shift d away from the mean costs a factor 1 + d²/σ² in accuracy: at 10 σ two digits of sixteen.
NEAR = 10.0

# DuckDB takes the type of a column of Python objects from so many of them, and rounds the others to it.
WHOLE_COLUMNS = {"pandas_analyze_sample": 2**40}

_CLIENTS = "data WHERE client IS NOT NULL GROUP BY client"


def read_moments(
    source: Any,
    *,
    client: str | int | None = None,
    site: str | None = None,
    targets: str | int | Sequence[str | int],
    where: str | None = None,
    drop_missing: bool = False,
    client_weights: Any = None,
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> Moments:
    """Moments of the columns `targets`, with one client for each value of the column `client`.

    At a site that has its own rows only, `site` is its name, in the place of a column.
    `source` is a CSV, TSV (both also .gz) or Parquet file, a folder of these (searched in depth), a glob, a
    list of paths, or a table in memory (pandas, pyarrow). A file counts once, however often it is named; in
    text double quotes stand around what has commas or line breaks.
    Columns of a data frame may be called by a number. `where` is an SQL condition on the columns, to which
    clients in CSV files are text. True and false are 1 and 0. Clients come in order of name, numbers first
    and by their size; client_weights (M,) are in that order, or a dict by name. With drop_missing rows that
    lack a target or their client are left out, and `warned` is told how many.
    """
    import duckdb  # here, because it takes longer to import than all the rest

    client = None if client is None else str(client)  # DuckDB makes text of all labels of columns
    column_or_name = _client_or_site(client, site)
    names = _checked_names(client, targets)
    with (
        tempfile.TemporaryDirectory() as spill,
        duckdb.connect(config={"temp_directory": spill, **WHOLE_COLUMNS}) as connection,
    ):
        table = SourceTable(connection, source, column_or_name, names, where, whole=client is None)
        with explained(table):
            open_source(table)
            select_rows(table, drop_missing)
            sums = _summed(table, drop_missing)
    _check_clients(table, sums.clients)
    if sums.missing:
        on_warning(dropped_rows_message(sums.missing))
    return Moments(sums.count, sums.mean, sums.covariance, sums.clients, names, client_weights)


def _client_or_site(client: str | None, site: str | None) -> str:
    if client is not None and site is not None:
        raise InputError(
            f"The rows belong to the clients in '{client}' or to the site '{site}'; name one of both.",
            field="site",
        )
    named = site if client is None else client
    if not named:
        raise InputError(
            "Name the column that holds each row's client, or the site that all rows belong to.",
            field="client",
        )
    return named


def _checked_names(client: str | None, targets: str | int | Sequence[str | int]) -> tuple[str, ...]:
    names = as_names(targets)
    if not names:
        raise InputError("There are no targets; name at least one column.", field="targets")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"The target '{name}' is named more than once; name it once.", field=name)
    if client in names:
        raise InputError(f"The column '{client}' is both the client and a target; choose one.", field=client)
    return names


@dataclass(frozen=True)
class _Sums:
    """Moments of M clients as summed in one pass: count (M,), mean (M, C), covariance (M, C, C).

    `complete` when no row lacks a target or its client, `missing` how many do; `near` when all shifts were
    near enough to the means. No shift is near enough to a constant.
    """

    clients: tuple[str, ...]
    complete: bool
    missing: int
    near: bool
    count: Array
    mean: Array
    covariance: Array


def _summed(table: SourceTable, drop_missing: bool) -> _Sums:
    """Sum with shifts near the means, in one pass over the table or two."""
    sample = table.each("coalesce(avg(y{0}) FILTER (isfinite(y{0})), 0)")
    shifts = table.connection.execute(f"SELECT {sample} FROM (FROM data LIMIT 10000)").fetchall()[0]
    sums = _one_pass(table, [f"'{shift!r}'::DOUBLE" for shift in shifts])
    missing = sums.missing
    if not (sums.complete or drop_missing):
        _check_complete(table)
    _check_finite(table, sums)
    if sums.near:
        return sums
    means = table.each("shift{0} + first{0} / count AS mean{0}")
    table.connection.execute(f"CREATE TEMP TABLE means AS SELECT client, {means} FROM sums")
    sums = _one_pass(table, table.each("mean{0}").split(", "), "JOIN means USING (client)")
    if not sums.near:
        _check_varies(table)
    return replace(sums, missing=missing)  # rows without a client have no mean to be joined with


def _one_pass(table: SourceTable, shifts: list[str], join: str = "") -> _Sums:
    """Sum all rows into the table `sums`; `fsum` keeps the rounding error from growing with their number."""
    shifted = [f"(y{number} - {shift})" for number, shift in enumerate(shifts)]
    first = ", ".join(f"fsum({value}) AS first{number}" for number, value in enumerate(shifted))
    second = ", ".join(f"fsum({x} * {y})" for x, y in combinations_with_replacement(shifted, 2))
    rows = f"count(*) AS rows, count({' + '.join(shifted)}) AS count"
    by_client = f"SELECT client, {rows}, {first}, {second} FROM data {join} GROUP BY client"
    constants = ", ".join(f"{shift} AS shift{number}" for number, shift in enumerate(shifts))
    table.connection.execute(
        f"CREATE OR REPLACE TEMP TABLE sums AS SELECT total.*, {constants} FROM ({by_client}) AS total {join}"
    )
    return _unpacked(*table.read("* EXCLUDE (client)", "sums"), len(shifts))


def _unpacked(clients: list[str | None], values: Array, targets: int) -> _Sums:
    """Moments from the columns of the table `sums`, for the clients that have a name."""
    rows, *sums = np.split(values, [1, 2, 2 + targets, -targets], axis=1)
    complete = None not in clients and (rows == sums[0]).all() and not np.isnan(values).any()
    named = [name is not None for name in clients]
    missing = int(rows.sum() - sums[0][named].sum())
    count, first, upper, shift = (part[named] for part in sums)
    second = np.empty((len(count), targets, targets))
    row, column = np.triu_indices(targets)
    second[:, row, column] = second[:, column, row] = upper
    with np.errstate(all="ignore"):  # what is not finite is told apart afterwards
        offset = first / count
        covariance = second / count[:, :, None] - offset[:, :, None] * offset[:, None, :]
        near = offset**2 < NEAR**2 * np.diagonal(covariance, axis1=1, axis2=2)
    names = tuple(name for name in clients if name is not None)
    return _Sums(names, bool(complete), missing, bool(near.all()), count[:, 0], shift + offset, covariance)


def _check_clients(table: SourceTable, clients: tuple[str, ...]) -> None:
    if not clients and table.where:
        problem = f'The condition "{table.where}" leaves no rows of {table}; widen it.'
        raise InputError(problem, field="where")
    if not clients:
        raise InputError(f"There are no rows with a client in {table}; add some.", field="source")


def _check_complete(table: SourceTable) -> None:
    """Count the rows that lack a target or their client, and name where most of them are."""
    table.connection.execute(FIND_NAN)
    lacks = [f"coalesce(isnan(y{number}), true)" for number in range(len(table.targets))]
    counts = ", ".join(f"count_if({lack})" for lack in [" OR ".join(lacks), *lacks])
    clients, values = table.read(f"count(*), {counts}", "data GROUP BY client")
    unnamed = np.array([name is None for name in clients])
    missing = np.where(unnamed, values[:, 0], values[:, 1])
    columns = [table.targets[number] for number in np.flatnonzero(values[:, 2:].sum(axis=0))]
    columns += [table.client] if unnamed.any() else []
    check_in_every_file(table, columns)
    end = nameless(table.source) if unnamed.any() else "."
    if columns:
        raise _missing_values(columns, clients, missing, values[:, 0].sum(), end)


def _missing_values(
    columns: list[str], clients: list[str | None], missing: Array, rows: float, end: str
) -> InputError:
    worst = [m for m in np.argsort(-missing, kind="stable") if missing[m]]
    names = [f"client '{clients[m]}'" if clients[m] else "no client" for m in worst]
    places = ", ".join(f"{name}: {missing[m]:,.0f}" for name, m in zip(names[:3], worst, strict=False))
    places += ", ..." if len(worst) > 3 else ""
    have = "has" if missing.sum() == 1 else "have"
    return InputError(
        f"{missing.sum():,.0f} of {rows:,.0f} rows {have} a missing value in {quote_list(columns)} "
        f"({places}); "
        f"leave them out (--drop-missing; in Python drop_missing=True), or fill them first{end}",
        client=clients[worst[0]],
        field=columns[0],
    )


def _check_finite(table: SourceTable, sums: _Sums) -> None:
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


def _check_varies(table: SourceTable) -> None:
    """Name a client with a constant target; one with too few rows is left to `Moments`."""
    enough = f"{_CLIENTS} HAVING count(y0) > {len(table.targets)}"
    clients, varies = table.read(table.each("min(y{0}) < max(y{0})"), enough)
    for m, number in np.argwhere(varies == 0):
        raise constant_target(clients[m], table.targets[number])
