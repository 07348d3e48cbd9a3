"""Sum the rows of tables with many targets in NumPy, batch by batch.

DuckDB plans C (C + 1) / 2 sums for C targets: 4 s for 100 targets, and too many to store from 180 on. Here
DuckDB stores the rows, on disk if memory is too small, and NumPy multiplies batches of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedgram._util.arrays import Array
from fedgram.data.tables.reader import number_clients, stack_targets
from fedgram.data.tables.source import SourceTable

# With 30 targets both take 0.4 s, with 50 DuckDB takes 1.1 s and NumPy 0.3 s (300 rows).
MANY_TARGETS = 40
# Numbers in a batch: 64 MB.
BATCH_VALUES = 8_000_000


def sum_in_batches(table: SourceTable) -> tuple[list[str | None], Array]:
    """Sum the rows in `data` around the mean of each client, in the order of columns that `_unpack` reads.

    Returns
    -------
    list of str or None, array (M, columns)
        Names of the clients, and for each: rows, complete rows, sums (C,), upper triangle of the sums of
        products (C (C + 1) / 2,), and the shift (C,) that was subtracted first.
    """
    _store_rows(table)
    columns = f"any_value(number), count(*), {table.per_target('avg(y{0})')}"
    stored = "stored JOIN client_numbers USING (number) GROUP BY client"
    clients, found = table.read_by_client(columns, stored)
    numbers, rows, means = np.split(found, [1, 2], axis=1)
    shifts = np.where(np.isfinite(means), means, 0.0)  # clients without values, or infinite ones
    count, targets = np.zeros_like(rows), shifts.shape[1]
    first, second = np.zeros_like(shifts), np.zeros((len(rows), targets, targets))
    for number, values in _read_batches(table, int(rows.sum())):
        is_complete = ~np.isnan(values).any(axis=1)
        for m in np.flatnonzero(np.isin(numbers[:, 0], number)):
            own = values[is_complete & (number == numbers[m, 0])] - shifts[m]
            count[m] += len(own)
            with np.errstate(all="ignore"):  # the caller explains what is not finite
                first[m] += own.sum(axis=0)
                second[m] += own.T @ own
    upper = second[:, *np.triu_indices(targets)]
    return clients, np.concatenate([rows, count, first, upper, shifts], axis=1)


def _store_rows(table: SourceTable) -> None:
    """Create the tables `client_numbers`, and `stored` with the number of each row's client."""
    number_clients(table)
    table.connection.execute(
        f"CREATE OR REPLACE TEMP TABLE stored AS SELECT number, {table.per_target('y{0}')} "
        "FROM data JOIN client_numbers AS named ON data.client IS NOT DISTINCT FROM named.client"
    )


def _read_batches(table: SourceTable, rows: int) -> Iterator[tuple[Array, Array]]:
    """Yield the client's number (n,) and the targets (n, C) of some rows in `stored`; NaN is missing."""
    size = max(1, BATCH_VALUES // len(table.targets))
    for start in range(0, rows, size):
        part = f"FROM stored WHERE rowid >= {start} AND rowid < {start + size}"
        found = table.connection.execute(part).fetchnumpy()
        yield np.asarray(found["number"]), stack_targets(found, len(table.targets))
