"""Read one column of a site as numbers or as categories."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize, suggest
from fedgram.data.validation import client_name, is_missing_value, to_written_numbers

ColumnKind = Literal["number", "category"]
Columns = Mapping[str, Any]
"""One site's values (N,) by column name: arrays, lists or columns of a data frame."""

# Networks compute in single precision, where a larger value is infinite.
LARGEST = float(np.finfo(np.float32).max)

COMMAS_REMEDY = "Write decimals with a point, and thousands without a comma."
_NUMBER_WITH_COMMAS = re.compile(r"[+-]?\d+(,\d+)*(\.\d+)?")
# Only numbers without leading zeros: '07.0' may be a code.
_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)\.0+")
_BOOLEANS = {"": np.nan, "false": 0.0, "true": 1.0}


def parse_column(columns: Columns, name: str, site: str) -> Array:
    """Return a column (N,) as float64 with NaN for missing values, or as text with "" for missing values.

    Numbers stay numbers. Text and booleans become text without blanks around it. True, "True" and "TRUE" are
    all "true", and "1.0" is "1", because which of them a column has depends on the tool that wrote it.
    """
    if name not in columns:
        where = f" at site '{site}'" if site else ""
        hint = suggest(name, map(str, columns))
        raise column_error(f"No column '{name}'{where}{hint} Add it, or drop it everywhere.", name, site)
    array = as_column(columns[name])
    if array.ndim != 1:
        raise _bad_column(name, site, f"must have one value per row, not shape {array.shape}.")
    match array.dtype.kind:
        case "b":
            return np.where(array, "true", "false")
        case "i" | "u" | "f":
            return _check_range(array.astype(np.float64), name, site)
        case "U":
            return _name_texts(np.strings.strip(array))
        case "O" | "T":
            return _parse_objects(array.astype(object), name, site)
        case _:
            raise _unsupported(str(array.dtype), name, site)


def as_column(values: Any) -> Array:
    """Convert values (N,) to an array of their own types, with None for masked ones."""
    if isinstance(values, (list, tuple)) and not _are_numbers(values):
        return np.asarray(values, dtype=object)  # else one text makes NaN the text 'nan', and 1.0 '1.0'
    array = np.asarray(values)
    if np.ma.isMaskedArray(values):
        array = array.astype(object)
        array[np.ma.getmaskarray(values)] = None
    return array


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether the types of all values are those of numbers; booleans are none."""
    kinds = set(map(type, values))
    return all(issubclass(kind, (Real, Decimal)) and not issubclass(kind, bool) for kind in kinds)


def _parse_objects(array: Array, name: str, site: str) -> Array:
    """Parse Python objects by their types; None, NaN, pandas.NA and blank text are missing."""
    is_present = np.array([not _is_missing(value) for value in array], dtype=bool)
    present = array[is_present].tolist()
    if _are_numbers(present):
        numbers = np.full(len(array), np.nan)
        numbers[is_present] = [_to_float(value) for value in present]
        return _check_range(numbers, name, site)
    for kind in set(map(type, present)):
        if not issubclass(kind, (str, Real, Decimal, np.bool)):
            raise _unsupported(kind.__name__, name, site)
    texts = np.full(len(array), "", object)
    texts[is_present] = [level_name(value) for value in present]
    return texts.astype(np.str_)


def _is_missing(value: Any) -> bool:
    return not value.strip() if isinstance(value, str) else is_missing_value(value)


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return np.inf


def level_name(value: Any) -> str:
    """Return the text of a value's level, "" for NaN; 1.0, 1, "1.0" and "1" are one, True and "True" too."""
    return _name_text((client_name(value) or "").strip())


def _name_text(text: str) -> str:
    """Write booleans in lower case and whole numbers without decimals; other text stays as it is."""
    if (lower := text.lower()) in _BOOLEANS:
        return lower
    # Whether other values of the column are text does not matter: all sites and all rows need the same rule.
    whole = text.partition(".")[0] if _WHOLE_NUMBER.fullmatch(text) else text
    return "0" if whole == "-0" else whole


def _name_texts(texts: Array) -> Array:
    """Apply `_name_text` to text (N,), but only where it may change something: it takes 0.5 µs for each."""
    may_change = np.isin(texts.astype("U1"), list("tTfF")) | np.strings.endswith(texts, ".0")
    may_change |= np.strings.endswith(texts, "00") | (texts == "-0")
    texts[may_change] = [_name_text(text) for text in texts[may_change].tolist()]
    return texts


def _check_range(numbers: Array, name: str, site: str) -> Array:
    too_large = numbers[np.abs(numbers) > LARGEST]
    if len(too_large):
        values = f"{pluralize(len(too_large), 'value')} too large to compute with, first {too_large[0]:g}"
        raise _bad_column(name, site, f"has {values}. Correct the values, or drop their rows.")
    return numbers


def kind_of(values: Array) -> ColumnKind | None:
    """Return the kind of a parsed column, or None if it has no value."""
    if is_missing(values).all():
        return None
    return "number" if values.dtype.kind == "f" else "category"


def is_missing(values: Array) -> Array:
    """Whether values (N,) of a parsed column, or times, are missing."""
    if values.dtype.kind == "M":
        return np.isnat(values)
    return np.isnan(values) if values.dtype.kind == "f" else values == ""


def parse_numbers(columns: Columns, name: str, site: str) -> Array:
    """Return a column (N,) as float64 with NaN for missing values; booleans are 0 and 1."""
    values = parse_column(columns, name, site)
    if values.dtype.kind == "f":
        return values
    if texts := sorted(set(values.tolist()) - _BOOLEANS.keys()):
        problem = f"is not numeric: it has the value '{texts[0][:40]}'."
        raise _bad_column(name, site, f"{problem} Convert it, or choose another column.")
    return np.array([_BOOLEANS[value] for value in values.tolist()])


def parse_levels(columns: Columns, name: str, site: str) -> Array:
    """Return a column (N,) as text with "" for missing values; numbers become text, 1.0 as '1'."""
    values = parse_column(columns, name, site)
    return _name_numbers(as_column(columns[name]), values) if values.dtype.kind == "f" else values


def _name_numbers(given: Array, numbers: Array) -> Array:
    """Return numbers (N,) as text; integers as `given`, because float64 merges codes of 17 digits."""
    if given.dtype.kind in "iu":
        return given.astype(np.str_)
    numbers = to_written_numbers(given) if given.dtype.kind == "f" else numbers
    pairs = zip(given.tolist(), numbers.tolist(), strict=True)
    names = [level_name(value if isinstance(value, Integral) else number) for value, number in pairs]
    return np.array(names, dtype=np.str_)


def indicate_levels(values: Array, levels: Sequence[str]) -> Array:
    """Return a 0/1 column per level (N, levels); a value that is no level has 0 in all of them."""
    known = np.array(levels, dtype=np.str_)
    order = np.argsort(known)
    place = order[np.searchsorted(known, values, sorter=order).clip(max=len(known) - 1)]
    indicators = np.zeros((len(values), len(known)))
    indicators[np.arange(len(values)), place] = known[place] == values
    return indicators


def check_present(values: Array, name: str, site: str, remedy: str) -> None:
    """Reject missing values, with their count; `remedy` is the sentence that says what to do.

    Without a site, values are in the order of the user's table, and the message names the first row.
    """
    lacking = is_missing(values)
    if count := int(lacking.sum()):
        missing = f"{pluralize(count, 'missing value')} in {pluralize(len(values), 'row')}"
        first = "" if site else f", first in row {int(lacking.argmax()) + 1:,}"
        raise _bad_column(name, site, f"has {missing}{first}. {remedy}")


def check_commas(values: Array, name: str, site: str) -> None:
    """Reject a column of numbers with commas, such as '1,5' or '1,117.1', which would become categories."""
    texts = set(values.tolist()) - {""} if values.dtype.kind != "f" else set()
    if any("," in text for text in texts) and all(map(_NUMBER_WITH_COMMAS.fullmatch, texts)):
        example = next(text for text in values.tolist() if "," in text)
        problem = f"has numbers with commas, first '{example[:40]}'."
        raise _bad_column(name, site, f"{problem} {COMMAS_REMEDY}")


def check_lengths(columns: Mapping[str, Array], site: str) -> None:
    """Reject columns of different lengths."""
    first, *others = columns
    for name in others:
        if len(columns[name]) != len(columns[first]):
            raise column_error(
                f"Columns '{first}' and '{name}'{locate(site)} have {len(columns[first]):,} and "
                f"{len(columns[name]):,} rows. Pass one value per row in every column.",
                name,
                site,
            )


def locate(site: str) -> str:
    """Return " of site '...'" for messages; rows for prediction may have no site."""
    return f" of site '{site}'" if site else ""


def column_error(message: str, name: str, site: str) -> InputError:
    """Build an error about a column of a site."""
    return InputError(message, client=site or None, field=name)


def _bad_column(name: str, site: str, problem: str) -> InputError:
    return column_error(f"Column '{name}'{locate(site)} {problem}", name, site)


def _unsupported(kind: str, name: str, site: str) -> InputError:
    problem = f"has values of type {kind}, which are neither numbers nor text."
    return _bad_column(name, site, f"{problem} Convert them, or drop the column.")
