"""Data frames among arrays: their columns have names, by which they are put in one order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.text import as_names, quote_list


def align_columns(
    values: Mapping[str, Any], names: str | Sequence[str], what: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values of clients with the columns of data frames in the order of `names`, and these names.

    Without names those of the first data frame count; arrays are left as they are.
    """
    labels = {client: found for client, each in values.items() if (found := _labels(each))}
    ordered = as_names(names) or next(iter(labels.values()), ())
    for client, found in labels.items():
        if sorted(found) != sorted(ordered):
            raise InputError(
                f"The {what} of client '{client}' are in the columns {quote_list(found)}, where "
                f"{quote_list(ordered)} are needed; name them so, or give an array.",
                client=client,
                field=what,
            )
    return {c: each[list(ordered)] if c in labels else each for c, each in values.items()}, ordered


def _labels(values: Any) -> tuple[str, ...]:
    """The columns of a data frame, if they have names."""
    columns = tuple(getattr(values, "columns", ()))
    return columns if all(isinstance(column, str) for column in columns) else ()
