"""Align the columns of data frames by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.text import as_names, quote_list


def align_columns(
    values: Mapping[str, Any], names: str | Sequence[str], what: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return clients' values with the columns of data frames ordered as `names`, and these names.

    Without names, use those of the first data frame. Arrays stay as they are.
    """
    labels = {client: found for client, each in values.items() if (found := _column_names(each))}
    ordered = as_names(names) or next(iter(labels.values()), ())
    for client, found in labels.items():
        if sorted(found) != sorted(ordered):
            raise InputError(
                f"The {what} of client '{client}' have columns {quote_list(found)} instead of "
                f"{quote_list(ordered)}. Rename the columns, or pass an array.",
                client=client,
                field=what,
            )
    return {c: each[list(ordered)] if c in labels else each for c, each in values.items()}, ordered


def _column_names(values: Any) -> tuple[str, ...]:
    columns = tuple(getattr(values, "columns", ()))
    return columns if all(isinstance(column, str) for column in columns) else ()
