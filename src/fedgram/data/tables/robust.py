"""Robust ranges of targets in a table: median and MAD per client, outliers, winsorized rows.

`data.outliers` defines robust deviations. If more than half of the values are equal, the MAD is zero, and
1.2533 times the mean absolute deviation replaces it. Clients with fewer than LEAST_ROWS rows have no
ranges.
"""

from __future__ import annotations

from fedgram.data.outliers import OUTLIER, Outliers
from fedgram.data.tables.source import SourceTable

# Robust deviations from the median to which winsorized values are clipped; normal targets do not reach it.
CLIPPED = 5.0
# Ranges also clip and drop rows, so they need more rows than a warning does.
LEAST_ROWS = 20


def keep_rows(table: SourceTable) -> None:
    """Read the rows of the view `data` into the table `kept`: parsing them once saves most of the time."""
    table.connection.execute("CREATE TEMP TABLE kept AS FROM data")
    replace_data(table, "FROM kept")


def replace_data(table: SourceTable, rows: str) -> None:
    """Let the view `data` select these rows."""
    table.connection.execute(f"CREATE OR REPLACE TEMP VIEW data AS {rows}")


def find_ranges(table: SourceTable) -> None:
    """Create the table `ranges` with center0, spread0, ... of each client from the rows in `kept`."""
    medians = table.per_target("median(y{0}) AS center{0}")
    table.connection.execute(
        f"CREATE TEMP TABLE centers AS SELECT client, {medians} FROM kept WHERE client IS NOT NULL "
        "GROUP BY client"
    )
    away = "abs(y{0} - center{0})"
    spreads = table.per_target(
        f"any_value(center{{0}}) AS center{{0}}, "
        f"CASE WHEN count(y{{0}}) < {LEAST_ROWS} THEN 'infinity'::DOUBLE "
        f"ELSE coalesce(nullif(1.4826 * median({away}), 0), 1.2533 * avg({away})) END AS spread{{0}}"
    )
    table.connection.execute(
        f"CREATE TEMP TABLE ranges AS SELECT client, {spreads} FROM kept JOIN centers USING (client) "
        "GROUP BY client"
    )


def find_outliers(table: SourceTable) -> list[Outliers]:
    """List the clients and targets with outliers; needs `ranges`."""
    columns = table.per_target(
        f"count_if({_is_outlier('{0}')}), coalesce(arg_max(y{{0}}, abs(y{{0}} - center{{0}})), 0)"
    )
    clients, values = table.read_by_client(columns, "kept JOIN ranges USING (client) GROUP BY client")
    return [
        Outliers(str(client), target, int(count), float(farthest))
        for client, row in zip(clients, values.reshape(-1, len(table.targets), 2), strict=True)
        for target, (count, farthest) in zip(table.targets, row, strict=True)
        if count
    ]


def select_without_outliers(table: SourceTable) -> str:
    """Return SQL for the rows in `kept` that have no outlier; needs `ranges`."""
    inside = " AND ".join(f"NOT ({_is_outlier(str(number))})" for number in range(len(table.targets)))
    return f"SELECT kept.* FROM kept JOIN ranges USING (client) WHERE {inside}"


def select_winsorized(table: SourceTable) -> str:
    """Return SQL for the rows in `kept` with targets clipped to their ranges; needs `ranges`."""
    reach = f"{CLIPPED} * spread{{0}}"
    # greatest and least ignore NULL, but a missing target stays missing
    clipped = table.per_target(
        f"CASE WHEN y{{0}} IS NOT NULL THEN "
        f"greatest(least(y{{0}}, center{{0}} + {reach}), center{{0}} - {reach}) END AS y{{0}}"
    )
    return f"SELECT kept.* REPLACE ({clipped}) FROM kept LEFT JOIN ranges USING (client)"


def _is_outlier(number: str) -> str:
    return f"abs(y{number} - center{number}) > {OUTLIER} * spread{number}"
