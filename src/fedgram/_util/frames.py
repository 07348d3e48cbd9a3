"""Align the columns of data frames by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.text import as_names, quote_list


def align_columns(
    values: Mapping[str, Any], names: str | Sequence[str], what: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return clients' values with the columns of data frames ordered as `names`, and these names.

    Without names, use those of the first data frame. Arrays stay as they are.
    """
    labels = {client: found for client, each in values.items() if (found := column_names(each))}
    ordered = as_names(names) or next(iter(labels.values()), ())
    for client, found in labels.items():
        if sorted(found) != sorted(ordered):
            raise InputError(
                f"The {what} of client '{client}' have columns {quote_list(found)} instead of "
                f"{quote_list(ordered)}. Rename the columns, or pass an array.",
                client=client,
                field=what,
            )
    return {c: _select(each, list(ordered)) if c in labels else each for c, each in values.items()}, ordered


def column_names(values: Any) -> tuple[str, ...]:
    """Return the names of a table's columns; none for arrays and if columns are numbered.

    Raises
    ------
    InputError
        If names are neither text nor numbers, or occur twice.
    """
    # In pyarrow `columns` are arrays, not names.
    names = tuple(getattr(values, "column_names", getattr(values, "columns", ())))
    if all(isinstance(name, Integral) for name in names):
        return ()
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise InputError(
            f"The column name {wrong[0]!r} is not text. Rename the columns, or pass an array.", field="inputs"
        )
    repeated = next((name for name, times in Counter(names).items() if times > 1), None)
    if repeated is not None:
        raise InputError(f"The column '{repeated}' occurs twice. Rename or drop one.", field="inputs")
    return names


def _select(table: Any, names: list[str]) -> Any:
    return table.select(names) if hasattr(table, "column_names") else table[names]
