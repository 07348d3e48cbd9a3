"""Why a table cannot be read, in a sentence."""

from __future__ import annotations

import csv
import difflib
import gzip
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.text import pluralize, quote_list
from fedgram.data.tables.files import expanded, holds_text, paths_of, rows_of, sql_name
from fedgram.data.tables.source import SourceTable

_BAD_TEXT = re.compile(
    r'on Line: (\d+).*converting column "(.*?)"\. Could not convert string "(.*?)" to.*?file ?= ?(.*?)\n',
    re.DOTALL,
)


@contextmanager
def explained(table: SourceTable) -> Iterator[None]:
    """Say in a sentence what DuckDB could not do."""
    import duckdb

    try:
        yield
    except (duckdb.InterruptException, RuntimeError) as error:
        if "interrupt" not in str(error).lower():
            raise
        raise KeyboardInterrupt from None  # which DuckDB takes for a failure of its own
    except duckdb.OutOfMemoryException:
        raise InputError(
            f"There is not enough memory to read {table}; close other programs, and check that "
            f"'{table.client}' names the client of a row, not the row.",
            field="source",
        ) from None
    except (duckdb.Error, OSError) as error:
        bad = _BAD_TEXT.search(str(error))
        if bad is not None and bad[2] in table.targets:
            raise _bad_text(*bad.groups()) from None
        if table.where and isinstance(error, duckdb.ConversionException):
            raise bad_where(table, error) from None
        uneven = re.search("sniffing|Number of Columns", str(error))
        reason = _uneven(table) if uneven else _reason(error)
        raise InputError(
            f"Cannot read {_unreadable(table) or table} ({reason}); check that it is whole and readable, and "
            "UTF-8 if it is text.",
            field="source",
        ) from None


def _bad_text(line: str, column: str, text: str, file: str) -> InputError:
    comma = re.fullmatch(r"[+-]?\d+,\d+", text)
    advice = "correct it, write NA if it is missing, or name another column if this one holds text"
    return InputError(
        f"Line {int(line):,} of '{file}' has {_quoted(text)} in '{column}', which is not a number; "
        f"{'write decimals with a point' if comma else advice}.",
        field=column,
    )


def _quoted(text: str) -> str:
    """A value in quotes, the first of it on one line: a column of notes may hold pages."""
    line = " ".join(text.split())
    return f"'{line[:40]}...'" if len(line) > 40 else f"'{line}'"


def _unreadable(table: SourceTable) -> str | None:
    """The first of the files that cannot be read alone."""
    import duckdb

    for file in expanded(paths_of(table.source)):
        try:
            table.connection.execute(f"SELECT count(COLUMNS(*)) FROM ({rows_of([file], {})})")
        except (duckdb.Error, OSError):
            return f"'{file}'"
    return None


def _reason(error: Exception) -> str:
    """What DuckDB says before it quotes the query or gives advice, without the kind of error."""
    said = re.split(r"\n\n|\nLINE |\nPossible |\nThe search |\n\* ", str(error))[0]
    line = re.sub(r"^[A-Z][\w ]*Error: ", "", re.sub(r"[.!]?\n|[.!]$", ", ", said))
    return "".join(filter(str.isprintable, line)).strip(" ,:")[:200]


def no_column(table: SourceTable, name: str, columns: list[str]) -> InputError:
    """A name that no column has, with the nearest one that there is."""
    spelled = {column.lower(): column for column in columns}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    hint = f" (did you mean '{spelled[near[0]]}'?)" if near else ""
    if len(columns) == 1 and re.search(r"[,;|\t]", columns[0]):
        hint = f" ({_uneven(table)})"
    return InputError(
        f"There is no column '{name}' in {table}{hint}; its columns are {quote_list(columns)}.", field=name
    )


def _uneven(table: SourceTable) -> str:
    """Why DuckDB took every line for one value: some have more or fewer than the first."""
    for file in expanded(paths_of(table.source)):
        with suppress(csv.Error):  # of values that are longer than it reads
            if found := _uneven_line(file):
                return found
    return "some lines have more values than others"


def _uneven_line(file: str) -> str | None:
    with (gzip.open if file.lower().endswith(".gz") else open)(file, "rt", errors="replace") as text:
        delimiter = max(",;|\t", key=text.readline().count)
        text.seek(0)
        lines = csv.reader(text, delimiter=delimiter)
        width = len(next(lines))
        for values in lines:
            if len(values) not in (0, width):
                where = f"line {lines.line_num:,} of '{file}'"
                return f"{where} has {pluralize(len(values), 'value')} where the first has {width}"
    return None


def not_numbers(table: SourceTable, name: str, kind: str) -> InputError:
    """Show the first value that is not a number even when read as text."""
    values = f"SELECT {sql_name(name)}::VARCHAR AS value, row_number() OVER () AS row FROM source"
    order = "TRY_CAST(value AS DOUBLE) IS NOT NULL, row"
    first = f"SELECT value, row FROM ({values}) WHERE value IS NOT NULL ORDER BY {order} LIMIT 1"
    found = table.connection.execute(first).fetchone()
    example = f", for example {_quoted(found[0])} in row {found[1]:,}" if found else ""
    held = "text" if kind == "VARCHAR" else kind.split("(")[0]
    return InputError(
        f"The column '{name}' holds {held}{example}, not numbers; convert it, or name another one.",
        field=name,
    )


def nameless(source: Any) -> str:
    """How a sentence about rows without a client ends: in text a client's name may read as missing."""
    if not holds_text(source):
        return "."
    return (
        "; NA, N/A, nan, null and None count as missing in a CSV or TSV file, so give a client of such a "
        "name another."
    )


def bad_where(table: SourceTable, error: Exception) -> InputError:
    """A condition that DuckDB does not take."""
    problem = f'The condition "{table.where}" cannot be used ({_reason(error)}); correct it.'
    return InputError(problem, field="where")
