"""Tables on disk: Parquet files that know what made them, and notice when they are damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import atomic_write
from fedgram.data.tables.files import sql_text

Table = dict[str, Array]


def digest(table: Mapping[str, Array]) -> str:
    """SHA-256 over names, types and values of all columns."""
    content = hashlib.sha256()
    for name, column in table.items():
        column = np.asarray(column)
        values = "\0".join(map(str, column)).encode() if column.dtype.kind in "OU" else column.tobytes()
        content.update(f"{name} {column.shape} ".encode() + values)
    return content.hexdigest()


def write_table(path: Path, table: Mapping[str, Array], settings: Mapping[str, Any]) -> None:
    """Write columns of equal length, with the settings that made them; whole or not at all."""
    import duckdb

    columns = {name: np.ascontiguousarray(column) for name, column in table.items()}  # noqa: F841, read by SQL
    made_by = json.dumps({"settings": settings, "digest": digest(table)}, sort_keys=True)
    options = f"FORMAT parquet, KV_METADATA {{fedgram: {sql_text(made_by)}}}"
    with atomic_write(path) as draft, duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT * FROM columns) TO {sql_text(str(draft))} ({options})")


def read_table(path: Path, settings: Mapping[str, Any] | None = None) -> Table | None:
    """The columns of a table, or None where there is none made by these settings.

    A file that cannot be read, or whose content is not what was written, is an InputError that names it.
    """
    import duckdb

    if not path.exists():
        return None
    try:
        with duckdb.connect() as connection:
            file = sql_text(str(path))
            stored = connection.execute(f"SELECT value FROM parquet_kv_metadata({file})").fetchone()
            table = connection.execute(f"SELECT * FROM read_parquet({file})").fetchnumpy()
        made_by = json.loads(bytes(stored[0])) if stored else {}
    except (duckdb.Error, ValueError) as error:
        raise InputError(
            f"The result file '{path}' is damaged and will be redone.", field=str(path)
        ) from error
    plain = {name: np.ma.getdata(column) for name, column in table.items()}
    if made_by.get("digest") != digest(plain):
        raise InputError(f"The result file '{path}' is damaged and will be redone.", field=str(path))
    if settings is not None and made_by["settings"] != json.loads(json.dumps(settings)):
        return None
    return plain
