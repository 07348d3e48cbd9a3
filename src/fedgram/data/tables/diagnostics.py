"""Turn DuckDB errors into input errors that name the file, column and value."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from fedgram._util.errors import InputError
from fedgram._util.text import find_closest, pluralize, quote_list
from fedgram.data.columns import COMMAS_REMEDY
from fedgram.data.tables.files import (
    MISSING_TEXT,
    is_text,
    sql_name,
    sql_text,
)
from fedgram.data.tables.source import SourceTable


@contextmanager
def translate_errors(table: SourceTable) -> Iterator[None]:
    """Raise an InputError for what DuckDB cannot do."""
    import duckdb

    try:
        yield
    except (duckdb.InterruptException, RuntimeError) as error:
        if "interrupt" not in str(error).lower():
            raise
        raise KeyboardInterrupt from None  # DuckDB reports Ctrl-C as an error of its own
    except duckdb.OutOfMemoryException:
        raise InputError(
            f"Not enough memory to read {table}. Close other programs, and check that '{table.client}' names "
            "the client of a row, not the row.",
            field="source",
        ) from None
    except (duckdb.Error, OSError) as error:
        raise _explain(table, error) from None


def _explain(table: SourceTable, error: Exception) -> InputError:
    """Find the file and the value that DuckDB cannot read."""
    import duckdb

    for file in table.files:
        try:
            (rows,) = table.reader.select_strictly([file]) or [table.reader.select([file], {})]
            table.connection.execute(f"SELECT count(COLUMNS(*)) FROM ({rows})")
        except (duckdb.Error, OSError) as reason:
            return _cannot_read(file, _find_bad_line(file) or _first_line(reason))
        for name in table.targets if is_text(file) else ():
            with suppress(duckdb.Error):  # folder names may give the column
                value, row, count = _find_text(table, rows, name)
                if count:
                    texts = f"{pluralize(count, 'value')} of text, first {_shorten(value)} in row {row:,}"
                    return _not_numeric(name, f"'{file}'", texts, value)
    if table.where and isinstance(error, duckdb.ConversionException):
        return bad_where(table, error)
    return InputError(f"Cannot read {table}: {_first_line(error)}.", field="source")


def _cannot_read(file: str, reason: str) -> InputError:
    return InputError(f"Cannot read '{file}': {reason}.", field="source")


def _first_line(error: Exception) -> str:
    """Return the first line of an error's text, without the kind of error."""
    line = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return "".join(filter(str.isprintable, line.partition("Error: ")[2] or line)).strip(" .!")[:200]


def _find_bad_line(file: str) -> str | None:
    """Describe the first line of a text file that is not like the others, or that the text is not UTF-8."""
    if not is_text(file):
        return None
    open_file = gzip.open if file.lower().endswith(".gz") else open
    # csv.Error: a value longer than Python reads; OSError, EOFError, zlib.error: a damaged .gz file
    with suppress(csv.Error, OSError, EOFError, zlib.error):
        try:
            with open_file(file, "rt", encoding="utf-8") as text:
                return _compare_lines(text)
        except UnicodeDecodeError:
            with open_file(file, "rb") as content:
                is_workbook = content.read(4) == b"PK\x03\x04"  # a zip archive, as Excel writes them
            if is_workbook:
                return "it is an Excel workbook or a zip archive. Export the table as CSV"
            return "it is not UTF-8 text. Save it as UTF-8"
    return None


def _compare_lines(text: TextIO) -> str | None:
    """Describe the first line with another number of values than the header, or different line endings."""
    delimiter = max(",;|\t", key=text.readline().count)
    text.seek(0)
    lines = csv.reader(text, delimiter=delimiter)
    width = len(next(lines))
    for values in lines:
        if len(values) not in (0, width):
            found = pluralize(len(values), "value")
            return f"line {lines.line_num:,} has {found}, but the header has {width}"
    if isinstance(text.newlines, tuple):
        return "its lines end in different ways (CRLF and LF). Save it with one of them"
    return None


def _find_text(table: SourceTable, rows: str, name: str) -> tuple[str | None, int, int]:
    """Return the first value that is no number, its row and the number of such values.

    If all are numbers, return the first value and 0.
    """
    values = f"SELECT {sql_name(name)}::VARCHAR AS value, row_number() OVER () AS row FROM ({rows})"
    missing = ", ".join(map(sql_text, MISSING_TEXT))
    number = "coalesce(TRY_CAST(value AS DOUBLE), TRY_CAST(value AS BOOLEAN)::DOUBLE) IS NOT NULL"
    columns = f"arg_min(value, ({number}, row)), arg_min(row, ({number}, row)), count_if(NOT {number})"
    query = f"SELECT {columns} FROM ({values}) WHERE value NOT IN ({missing})"
    return table.connection.execute(query).fetchall()[0]


class TextColumnError(InputError):
    """A column has text where numbers are needed; `problem` is the sentence that says so."""

    def __init__(self, problem: str, name: str) -> None:
        advice = "Convert it to numbers in the same way at every site, or choose another column."
        super().__init__(f"{problem} {advice}", field=name)
        self.problem = problem


def not_numeric(table: SourceTable, name: str, kind: str) -> InputError:
    """Return the error for a column of another type, with an example."""
    value, row, _ = _find_text(table, "FROM source", name)
    example = f", for example {_shorten(value)} in row {row:,}" if value is not None else ""
    return _not_numeric(name, str(table), f"it has type {kind.split('(')[0]}{example}", value)


def _not_numeric(name: str, place: str, reason: str, value: str | None) -> InputError:
    problem = f"Column '{name}' of {place} is not numeric: {reason}."
    if re.fullmatch(r"[+-]?\d+,\d+", value or ""):
        return InputError(f"{problem} {COMMAS_REMEDY}", field=name)
    return TextColumnError(problem, name)


def _shorten(value: str | None) -> str:
    """Quote the first 40 characters of a value on one line."""
    line = " ".join((value or "").split())
    return f"'{line[:40]}...'" if len(line) > 40 else f"'{line}'"


def missing_column(table: SourceTable, name: str, columns: list[str]) -> InputError:
    """Return the error for an unknown column, with the nearest name."""
    if len(columns) == 1 and any(delimiter in columns[0] for delimiter in ",;|\t"):
        for file in table.files:
            if reason := _find_bad_line(file):  # DuckDB read each line as one value
                return _cannot_read(file, reason)
    near = find_closest(name, columns)
    hint = f" (did you mean '{near}'?)" if near else ""
    return InputError(f"No column '{name}' in {table}{hint}. Columns: {quote_list(columns)}.", field=name)


def missing_client_hint(table: SourceTable) -> str:
    """Explain that a client's name in a text file may read as a missing value."""
    if not table.has_text_files:
        return ""
    missing = "NA, N/A, nan, null, None and '.'"
    return f" {missing} mean missing in a CSV or TSV file, so rename a client of such a name."


def bad_where(table: SourceTable, error: Exception) -> InputError:
    """Return the error for a condition that DuckDB rejects."""
    return InputError(f'Invalid condition "{table.where}" (where): {_first_line(error)}.', field="where")
