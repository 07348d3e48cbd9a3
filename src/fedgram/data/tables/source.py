"""A table to be read, and its clients by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.data.tables.files import paths_of
from fedgram.data.validation import client_name

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class SourceTable:
    """What to read. Once open, the view `source` has all columns and rows, and the view `data` has the rows
    asked for, with columns client, y0, y1, ..., one y for each target. The client is a column, or with
    `whole` the name of the one client that has all rows.
    """

    connection: duckdb.DuckDBPyConnection
    source: Any
    client: str
    targets: tuple[str, ...]
    where: str | None
    whole: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read."""
        return self.targets if self.whole else (self.client, *self.targets)

    def each(self, template: str) -> str:
        """Columns after a template, in which {0} is the number of the target."""
        return ", ".join(template.format(number) for number in range(len(self.targets)))

    def read(self, columns: str, rows: str) -> tuple[list[str | None], Array]:
        """Names of the M clients, None where missing, and their values (M, columns), in order of name."""
        found = self.connection.execute(f"SELECT client, {columns} FROM {rows}")
        width = len(found.description) - 1
        named = sorted(
            ((client_name(row[0]), row[1:]) for row in found.fetchall()), key=lambda row: _rank(row[0])
        )
        values = np.array([values for _, values in named], dtype=np.float64)
        return [name for name, _ in named], values.reshape(-1, width)

    def __str__(self) -> str:
        paths = paths_of(self.source)
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return f"'{paths[0]}'{others}" if paths else "the table"


def _rank(name: str | None) -> tuple[float, str]:
    try:
        number = float(name or "inf")
    except ValueError:
        number = np.inf
    return number if number < np.inf else np.inf, name or ""  # a name may be nan, which has no order
