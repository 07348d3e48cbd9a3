"""Parquet tables that carry the settings that made them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import atomic_write
from fedgram._util.imports import import_optional

KEY = b"fedgram"
"""Key of our JSON document in a file's metadata."""


class Table(dict[str, Array]):
    """Columns of equal length by name."""

    @classmethod
    def broadcast(cls, shape: tuple[int, ...], **values: Array | float | str) -> Table:
        """Make a table with one row per entry of an array of this shape; values are broadcast to it."""
        return cls(
            (name, np.broadcast_to(np.asarray(value), shape).ravel()) for name, value in values.items()
        )

    @classmethod
    def concatenate(cls, tables: Sequence[Table]) -> Table:
        """Concatenate the rows of tables with the same columns."""
        return cls((name, np.concatenate([table[name] for table in tables])) for name in tables[0])

    def select(self, **wanted: object) -> Table:
        """Select the rows whose columns have these values."""
        chosen = np.logical_and.reduce([self[name] == value for name, value in wanted.items()])
        return Table((name, column[chosen]) for name, column in self.items())

    def samples_by(self, key: str, column: str) -> tuple[Array, Array]:
        """Distinct values (K,) of a column, ascending, and the entries (K, n) of another in their rows."""
        values = np.unique(self[key])
        return values, np.array([self[column][self[key] == value] for value in values])


def digest(table: Mapping[str, Array]) -> str:
    """SHA-256 over names, shapes and values of all columns."""
    content = hashlib.sha256()
    for name, column in table.items():
        column = np.asarray(column)
        values = "\0".join(map(str, column)).encode() if column.dtype.kind in "OU" else column.tobytes()
        content.update(f"{name} {column.shape} ".encode() + values)
    return content.hexdigest()


def write_table(path: Path, table: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Write columns of equal length atomically, with the settings that made them as metadata."""
    pyarrow = import_pyarrow()
    columns = pyarrow.table(dict(table))
    # Measured on 257 runs: 1.46 MB in all, against 2.06 MB with dictionaries, statistics and Arrow's schema.
    options = {"compression": "zstd", "compression_level": 19, "use_dictionary": False}
    options |= {"write_statistics": False, "store_schema": False, "write_page_checksum": True}
    with (
        atomic_write(path) as temporary,
        pyarrow.parquet.ParquetWriter(temporary, columns.schema, **options) as writer,
    ):
        writer.add_key_value_metadata({KEY: json.dumps(settings, sort_keys=True)})
        writer.write_table(columns)


def read_arrow(path: Path) -> tuple[Any, dict[str, Any]]:
    """Read a file as a `pyarrow.Table` and its settings.

    Raises
    ------
    InputError
        If pyarrow is missing, or the file is damaged.
    """
    pyarrow = import_pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            table, metadata = file.read(), file.metadata.metadata or {}
        settings = json.loads(metadata.get(KEY, b"{}"))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        message = f"The result file '{path}' is damaged. Delete it and run its experiment again."
        raise InputError(message, field=str(path)) from error
    return table, settings


def read_table(path: Path, settings: Mapping[str, Any] | None = None) -> Table | None:
    """Read the columns of a table; None if there is no file, or other settings made it."""
    if not path.exists():
        return None
    table, made_by = read_arrow(path)
    if settings is not None and made_by != json.loads(json.dumps(settings)):
        return None
    return Table((name, table[name].to_numpy()) for name in table.column_names)


def import_pyarrow() -> Any:
    """Import pyarrow, or explain how to install it."""
    message = "Result files need pyarrow. Install it with pip install 'fedgram[paper]'."
    return import_optional("pyarrow.parquet", message, "out")
