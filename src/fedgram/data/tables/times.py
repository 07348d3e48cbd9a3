"""Read columns of times, as numbers or as dates."""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize
from fedgram.data.tables.conversions import NUMBER, NUMERIC_TYPE, TIME, TIME_TYPES
from fedgram.data.tables.files import sql_name
from fedgram.data.tables.source import SourceTable
from fedgram.data.validation import client_name


def convert_time(table: SourceTable, key: str, name: str, kind: str) -> str:
    """Return the conversion of the time column: all numbers, or all dates and times."""
    if kind != "BOOLEAN" and NUMERIC_TYPE.fullmatch(kind):
        return NUMBER
    if kind.startswith(TIME_TYPES):
        return TIME
    value = f"{key}::VARCHAR"
    counts = f"count({value}), count({NUMBER.format(value)}), count({TIME.format(value)})"
    values, numbers, times = table.connection.execute(f"SELECT {counts} FROM data").fetchall()[0]
    conversion = NUMBER if numbers > times else TIME
    if max(numbers, times) < values:
        bad = f"{value} IS NOT NULL AND {conversion.format(value)} IS NULL"
        query = f"SELECT client, {value}, count(*) OVER () FROM data WHERE {bad} LIMIT 1"
        client, text, count = table.connection.execute(query).fetchall()[0]
        site = client_name(client) or ""
        raise InputError(
            f"Column '{name}' has {pluralize(count, 'invalid time')}, first '{text[:40]}' at site '{site}'. "
            "Write numbers, or dates such as 2016-03-01 or 2016-03-01 14:00.",
            client=site,
            field=name,
        )
    return conversion


def to_times(values: Array) -> Array:
    """Return fetched times (N,) with NaN or NaT for missing ones, which DuckDB masks."""
    return np.ma.filled(values, np.nan if values.dtype.kind == "f" else np.datetime64("NaT"))


def check_times(table: SourceTable, key: str, name: str) -> None:
    """Reject rows of the view `data` without a time."""
    query = f"SELECT client, count(*) OVER () FROM data WHERE {key} IS NULL LIMIT 1"
    for client, count in table.connection.execute(query).fetchall():
        site = client_name(client) or ""
        raise InputError(
            f"Column '{name}' has no time in {pluralize(count, 'row')}, the first at site '{site}'. Fill the "
            f"times, or leave these rows out (--where '{sql_name(name)} IS NOT NULL').",
            client=site,
            field=name,
        )
