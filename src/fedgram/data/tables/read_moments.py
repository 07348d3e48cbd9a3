"""Compute client moments of tables larger than memory, through DuckDB.

Covariances come from sums of shifted targets, so a large offset costs no digits. One shift per target, taken
from the first rows, suits every client whose mean is near it, and saves a pass that would find the means
first. If some client is far away, a second pass shifts each client by its own mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from fedgram._util.arrays import Array, outer
from fedgram._util.errors import InputError
from fedgram._util.text import as_names, dropped_rows_message, quote_list, same_but_for_case
from fedgram.data.tables.diagnostics import missing_client_hint
from fedgram.data.tables.reader import (
    FIND_NAN,
    check_in_every_file,
    leave_out_small_clients,
    open_table,
    select_rows,
)
from fedgram.data.tables.robust import find_ranges, keep_rows, replace_data, select_winsorized
from fedgram.data.tables.source import SourceTable
from fedgram.data.tables.sum_batches import MANY_TARGETS, sum_in_batches
from fedgram.theory.moments import Moments
from fedgram.theory.validation import check_squares, constant_target_error

# A shift at distance d from the mean costs a factor 1 + d²/σ² in accuracy: at 10 σ two of sixteen digits.
MAX_SHIFT = 10.0

_CLIENTS = "data WHERE client IS NOT NULL GROUP BY client"


def read_moments(
    source: Any,
    *,
    client: str | int | None = None,
    site: str | None = None,
    targets: str | int | Sequence[str | int],
    where: str | None = None,
    drop_missing: bool = False,
    min_rows: int = 0,
    robust: bool = False,
    client_weights: Any = None,
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> Moments:
    """Compute the moments of target columns for every client in a table.

    Parameters
    ----------
    source : path, list of paths, pandas.DataFrame or pyarrow.Table
        A path is a CSV, TSV (both also .gz) or Parquet file, a folder of these, or a glob. Duplicate files
        count once. CSV files quote values with double quotes.
    client : str or int
        Column with the client of each row.
    site : str
        Name of the one client of all rows, instead of `client`.
    targets : str, int or list
        The C target columns. True counts as 1, false as 0.
    where : str
        SQL condition on the columns; only matching rows count. Clients in CSV files are text.
    drop_missing : bool
        Drop rows without a client or a target instead of raising an error.
    min_rows : int
        Leave out clients with fewer complete rows. A client needs one row more than targets.
    robust : bool
        Winsorize: clip each target at each client to its median ± 5 robust deviations (1.4826 MAD). Normal
        targets hardly change; the variance of heavy-tailed targets becomes smaller.
    client_weights : array (M,) or dict
        Weights in client order or by name. Default: proportional to the rows.
    on_warning : callable
        Receives sentences with the number of dropped rows and the clients that are left out.

    Returns
    -------
    Moments
        Of M clients in order of name, numbers first. Mean (M, C), covariance (M, C, C).

    Raises
    ------
    InputError
        If the table cannot be read, or if a value is missing, not numeric or not finite.

    Examples
    --------
    >>> import pandas as pd
    >>> from fedgram import read_moments
    >>> frame = pd.DataFrame({"site": ["a", "a", "b", "b"], "dose": [1.0, 3.0, 4.0, 8.0]})
    >>> moments = read_moments(frame, client="site", targets="dose")
    >>> moments.clients
    ('a', 'b')
    >>> moments.mean.ravel(), moments.covariance.ravel()
    (array([2., 6.]), array([1., 4.]))
    """
    client = None if client is None else str(client)  # DuckDB turns all column labels into text
    names = check_arguments(client, site, targets)
    with open_table(source, client, site or "", names, where) as table:
        select_rows(table, drop_missing)
        leave_out_small_clients(table, min_rows, on_warning)
        if robust:
            keep_rows(table)
        sums = sum_rows(table, drop_missing)
        if robust:
            find_ranges(table)
            replace_data(table, select_winsorized(table))
            sums = sum_rows(table, drop_missing)
    return to_moments(sums, table, client_weights, on_warning)


def to_moments(
    sums: Sums, table: SourceTable, client_weights: Any, on_warning: Callable[[str], None]
) -> Moments:
    """Convert sums to moments; reject a table without rows, and report dropped rows."""
    if not sums.clients and table.where:
        raise InputError(f'No rows of {table} match the condition "{table.where}". Widen it.', field="where")
    if not sums.clients:
        what = "rows" if table.is_single else "rows with a client"
        raise InputError(f"No {what} in {table}. Add some.", field="source")
    if sums.missing:
        on_warning(dropped_rows_message(sums.missing))
    if warning := same_but_for_case(sums.clients, "client"):
        on_warning(warning)
    try:
        return Moments(sums.count, sums.mean, sums.covariance, sums.clients, table.targets, client_weights)
    except InputError as error:
        if error.field != "count" or table.is_single:
            raise
        least = len(table.targets) + 1
        hint = f"{error.message.removesuffix('.')} (--min-rows {least}, min_rows={least})."
        raise InputError(hint, client=error.client, field=error.field) from None


def check_arguments(
    client: str | None, site: str | None, targets: str | int | Sequence[str | int]
) -> tuple[str, ...]:
    """Check the columns of clients and targets; return the target names."""
    if client is not None and site is not None:
        raise InputError("Pass either client= or site=, not both.", field="site")
    if not (site if client is None else client):
        raise InputError("Pass client=, the column of each row's client, or site=, its name.", field="client")
    names = as_names(targets)
    if not names:
        raise InputError("There are no targets. Name at least one column.", field="targets")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"The target '{name}' appears more than once. Name it once.", field=name)
    if client in names:
        raise InputError(f"The column '{client}' is both client and target. Choose one.", field=client)
    return names


@dataclass(frozen=True)
class Sums:
    """Moments of M clients from one pass: count (M,), mean (M, C), covariance (M, C, C).

    missing: rows without a client or a target. is_accurate: every shift was near its client's mean, which is
    never true of a constant.
    """

    clients: tuple[str, ...]
    is_complete: bool
    missing: int
    is_accurate: bool
    count: Array
    mean: Array
    covariance: Array


def sum_rows(table: SourceTable, drop_missing: bool) -> Sums:
    """Sum the rows in `data` with shifts near the means, in one pass over the table or two."""
    if len(table.targets) >= MANY_TARGETS:
        sums = _unpack(*sum_in_batches(table), len(table.targets))
        _check_values(table, sums, drop_missing)
        _check_varies(table, sums)
        return sums
    sample = table.per_target("coalesce(avg(y{0}) FILTER (isfinite(y{0})), 0)")
    shifts = table.connection.execute(f"SELECT {sample} FROM (FROM data LIMIT 10000)").fetchall()[0]
    sums = _sum_once(table, [f"'{shift!r}'::DOUBLE" for shift in shifts])
    missing = sums.missing
    _check_values(table, sums, drop_missing)
    if sums.is_accurate:
        _check_varies(table, sums)
        return sums
    means = table.per_target("shift{0} + first{0} / count AS mean{0}")
    table.connection.execute(f"CREATE OR REPLACE TEMP TABLE means AS SELECT client, {means} FROM sums")
    sums = _sum_once(table, table.per_target("mean{0}").split(", "), "JOIN means USING (client)")
    _check_varies(table, sums)
    return replace(sums, missing=missing)  # the join drops rows without a client


def _sum_once(table: SourceTable, shifts: list[str], join: str = "") -> Sums:
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
    return _unpack(*table.read_by_client("* EXCLUDE (client)", "sums"), len(shifts))


def _unpack(clients: list[str | None], values: Array, targets: int) -> Sums:
    """Compute moments from the columns of the table `sums`, for the clients that have a name."""
    rows, *sums = np.split(values, [1, 2, 2 + targets, -targets], axis=1)
    is_complete = None not in clients and (rows == sums[0]).all() and not np.isnan(values).any()
    has_name = [name is not None for name in clients]
    missing = int(rows.sum() - sums[0][has_name].sum())
    count, first, upper, shift = (part[has_name] for part in sums)
    second = np.empty((len(count), targets, targets))
    row, column = np.triu_indices(targets)
    second[:, row, column] = second[:, column, row] = upper
    with np.errstate(all="ignore"):  # _check_finite explains what is not finite
        offset = first / count
        covariance = second / count[:, :, None] - outer(offset, offset)
        is_near = offset**2 < MAX_SHIFT**2 * np.diagonal(covariance, axis1=1, axis2=2)
    names = tuple(name for name in clients if name is not None)
    return Sums(
        names, bool(is_complete), missing, bool(is_near.all()), count[:, 0], shift + offset, covariance
    )


def _check_values(table: SourceTable, sums: Sums, drop_missing: bool) -> None:
    """Refuse missing values, unless they are dropped, and infinite ones."""
    if not (sums.is_complete or drop_missing):
        _check_complete(table)
    _check_finite(table, sums)


def _check_complete(table: SourceTable) -> None:
    """Count the rows that lack a target or their client, and name the clients with most of them."""
    table.connection.execute(FIND_NAN)
    lacks = [f"coalesce(isnan(y{number}), true)" for number in range(len(table.targets))]
    counts = ", ".join(f"count_if({lack})" for lack in [" OR ".join(lacks), *lacks])
    clients, values = table.read_by_client(f"count(*), {counts}", "data GROUP BY client")
    is_unnamed = np.array([name is None for name in clients])
    missing = np.where(is_unnamed, values[:, 0], values[:, 1])
    columns = [table.targets[number] for number in np.flatnonzero(values[:, 2:].sum(axis=0))]
    columns += [table.client] if is_unnamed.any() else []
    check_in_every_file(table, columns)
    if not columns:
        return
    by_client = Counter[str | None]()
    for name, count in zip(clients, missing, strict=True):  # missing names are NULL or blank
        by_client[name] += int(count)
    worst = [(name, count) for name, count in by_client.most_common() if count]
    shown = [f"client '{name}': {count:,}" if name else f"no client: {count:,}" for name, count in worst]
    places = ", ".join(shown[:3]) + (", ..." if len(worst) > 3 else "")
    have = "has" if missing.sum() == 1 else "have"
    hint = missing_client_hint(table) if is_unnamed.any() else ""
    raise InputError(
        f"{missing.sum():,.0f} of {values[:, 0].sum():,.0f} rows {have} a missing value in "
        f"{quote_list(columns)} ({places}). Drop them (--drop-missing, drop_missing=True), or fill "
        f"them.{hint}",
        client=worst[0][0],
        field=columns[0],
    )


def _check_finite(table: SourceTable, sums: Sums) -> None:
    """Name the client and target of a value whose square is infinite."""
    if np.isfinite(sums.covariance[sums.count > 0]).all():
        return
    clients, largest = table.read_by_client(table.per_target("coalesce(max(abs(y{0})), 0)"), _CLIENTS)
    m, number = np.unravel_index(np.argmax(largest), largest.shape)
    client, target, size = clients[m], table.targets[number], largest[m, number]
    what = "an infinite value" if np.isinf(size) else f"a value of size {size:g}, too large to square,"
    raise InputError(
        f"Client '{client}' has {what} in '{target}'. Correct it, or drop its row.",
        client=client,
        field=target,
    )


def _check_varies(table: SourceTable, sums: Sums) -> None:
    """Reject targets that are constant at a client, or tiny; `Moments` reports clients with too few rows."""
    if not sums.is_accurate:
        enough = f"{_CLIENTS} HAVING count(y0) > {len(table.targets)}"
        clients, varies = table.read_by_client(table.per_target("min(y{0}) < max(y{0})"), enough)
        for target, constant in zip(table.targets, (varies == 0).T, strict=True):
            if constant.any():
                raise constant_target_error(np.array(clients)[constant].tolist(), target)
    has_enough = sums.count > len(table.targets)
    check_squares(sums.covariance[has_enough], table.targets)
