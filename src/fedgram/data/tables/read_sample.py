"""Read what `fedgram explain` needs of a table: moments, outliers and rows to resample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.outliers import Outliers
from fedgram.data.tables.read_moments import Sums, check_arguments, sum_rows, to_moments
from fedgram.data.tables.reader import (
    column_types,
    leave_out_small_clients,
    number_clients,
    open_table,
    select_rows,
    stack_targets,
)
from fedgram.data.tables.robust import (
    find_outliers,
    find_ranges,
    keep_rows,
    replace_data,
    select_winsorized,
    select_without_outliers,
)
from fedgram.data.tables.source import SourceTable
from fedgram.data.tables.times import check_times, convert_time
from fedgram.theory.moments import Moments

# Rows to resample, of all clients together. More do not narrow the intervals' error noticeably.
MAX_ROWS = 1_000_000


@dataclass(frozen=True, eq=False)
class TableSample:
    """Moments of a table, and what its rows say about them.

    Parameters
    ----------
    moments
        Of all rows, winsorized if `is_robust`.
    rows
        Targets (n, C) of each client, in order of time if it is known; a random sample of many rows.
    outliers
        Clients and targets with values far from the others.
    without_outliers
        Moments without the rows of outliers; None if there are none, or if too few rows remain.
    is_robust
        Whether moments and rows are winsorized.
    """

    moments: Moments
    rows: dict[str, Array]
    outliers: list[Outliers]
    without_outliers: Moments | None
    is_robust: bool


def read_sample(
    source: Any,
    *,
    client: str | None = None,
    site: str | None = None,
    targets: str | Sequence[str],
    where: str | None = None,
    drop_missing: bool = False,
    min_rows: int = 0,
    robust: bool = False,
    time: Sequence[str] = (),
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> TableSample:
    """Read moments, outliers and rows of a table; arguments as in `read_moments`.

    `time` names the columns that order the rows of a client, such as year and month.
    """
    names = check_arguments(client, site, targets)
    with open_table(source, client, site or "", names, where, time) as table:
        select_rows(table, drop_missing)
        leave_out_small_clients(table, min_rows, on_warning)
        keep_rows(table)
        order = _order_by_time(table)
        sums = sum_rows(table, drop_missing)
        find_ranges(table)
        outliers = find_outliers(table)
        rest = _sum_without_outliers(table) if outliers else None
        if robust:
            replace_data(table, select_winsorized(table))
            sums = sum_rows(table, drop_missing)
        rows = _read_rows(table, sums, order)
    moments = to_moments(sums, table, None, on_warning)
    return TableSample(moments, rows, outliers, rest, robust)


def _sum_without_outliers(table: SourceTable) -> Moments | None:
    """Compute moments without the rows of outliers, or None if too few rows remain at a client."""
    replace_data(table, select_without_outliers(table))
    try:
        return to_moments(sum_rows(table, drop_missing=True), table, None, lambda sentence: None)
    except InputError:
        return None
    finally:
        replace_data(table, "FROM kept")


def _order_by_time(table: SourceTable) -> str:
    """Return the SQL that sorts rows by the columns of times; empty without any."""
    types = column_types(table, "data")
    keys = []
    for number, name in enumerate(table.others):
        key = f"x{number}"
        check_times(table, key, name)
        keys.append(convert_time(table, key, name, types[key]).format(key))
    return f"ORDER BY {', '.join(keys)}" if keys else ""


def _read_rows(table: SourceTable, sums: Sums, order: str) -> dict[str, Array]:
    """Read the complete rows (n, C) of every client in order of time; without time, a sample of many rows."""
    sample = ""
    if not order and sums.count.sum() > MAX_ROWS:
        sample = f"USING SAMPLE reservoir({MAX_ROWS} ROWS) REPEATABLE (0)"
    number_clients(table)
    names, numbers = table.read_by_client("number", "client_numbers")
    complete = " AND ".join(f"y{number} IS NOT NULL" for number in range(len(table.targets)))
    rows = f"FROM data JOIN client_numbers USING (client) WHERE {complete}"
    targets = table.per_target("y{0}")
    found = table.connection.execute(f"SELECT number, {targets} FROM ({rows}) {sample} {order}").fetchnumpy()
    values = stack_targets(found, len(table.targets))
    return {
        name: values[found["number"] == number]
        for name, (number,) in zip(names, numbers, strict=True)
        if name is not None
    }
