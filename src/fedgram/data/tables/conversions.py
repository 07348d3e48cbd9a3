"""Convert the values {0} of a column in SQL; what cannot be converted becomes NULL."""

from __future__ import annotations

import re

NUMBER = "TRY_CAST({0} AS DOUBLE)"
# DuckDB takes the day of 15-03-21 as the year, so the year needs four digits.
TIME = (
    r"CASE WHEN regexp_matches({0}::VARCHAR, '^\s*\d{{4}}\D') "
    "THEN TRY_CAST(trim({0}::VARCHAR) AS TIMESTAMPTZ) AT TIME ZONE 'UTC' END"
)
TEXT = "coalesce(trim({0}::VARCHAR), '')"
# As text, a number in single precision is the one that was written: 0.1, not 0.10000000149011612.
_SHORT_NUMBER = "{0}::VARCHAR::DOUBLE"

NUMERIC_TYPE = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*|BOOLEAN")
TIME_TYPES = ("DATE", "TIMESTAMP")
_INTEGER_TYPE = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL\(\d+,0\)")

_WITHOUT_ZEROS = r"regexp_replace({0}::VARCHAR, '^(\s*[+-]?\d+)\.0+(\s*)$', '\1\2')"
_WHOLE = f"CASE WHEN {NUMBER} = round({NUMBER}) THEN TRY_CAST({NUMBER} AS HUGEINT)::VARCHAR END"
_WITH_MIDNIGHT = f"strftime({TIME}, '%Y-%m-%d %H:%M:%S.%f')"

# Names of clients in text files as in Parquet files, by the type that DuckDB detects. pandas writes whole
# numbers as 7.0 if some are missing, large ones as 1.6777216e+07, and midnights without the time.
_TEXT_NAMES = {
    "DOUBLE": f"CASE WHEN regexp_matches({{0}}, '[eE]') THEN coalesce({_WHOLE}, {NUMBER}::VARCHAR, {{0}}) "
    f"ELSE {_WITHOUT_ZEROS} END",
    "TIMESTAMP": rf"coalesce(regexp_replace({_WITH_MIDNIGHT}, '( 00:00:00)?\.000000$', ''), {{0}})",
}
_NAMES = {
    "BLOB": "coalesce(try(decode({0})), {0}::VARCHAR)",  # VARCHAR escapes what is not UTF-8
    "DECIMAL": _WITHOUT_ZEROS,
    "FLOAT": _SHORT_NUMBER,
    "TIMESTAMP WITH TIME ZONE": "{0} AT TIME ZONE 'UTC'",
}


def convert_client(kind: str, detected: str) -> str:
    """Return the conversion of the client column to names: bytes decoded, times in UTC, '7.0' as '7'.

    `kind` is the column's type; `detected` is that of the values of text files, which are read as text.
    """
    if kind == "VARCHAR":
        return _TEXT_NAMES.get(detected.removesuffix(" WITH TIME ZONE"), "{0}")
    return _NAMES.get(kind.partition("(")[0], "{0}")


def convert_level(kind: str) -> str:
    """Return the conversion of a category: integers as text, as float64 would round codes of 17 digits."""
    if _INTEGER_TYPE.fullmatch(kind):
        return TEXT
    return _SHORT_NUMBER if kind == "FLOAT" else "{0}"
