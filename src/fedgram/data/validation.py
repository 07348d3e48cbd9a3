"""What people give as a client's rows: taken as arrays by name, or refused with what is wrong and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.theory.validation import check_names


def named(values: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
    """What is given for each client, by name; a list's clients are numbered."""
    if not isinstance(values, Mapping):
        return {f"client {m + 1}": value for m, value in enumerate(values)}
    check_names(tuple(map(str, values)), len(values), "client")  # 1 and '1' are one name
    return {str(name): value for name, value in values.items()}


def numbers_of(values: Any, client: str, what: str) -> Array:
    """One client's values as an array of the type that they have."""
    if np.ma.is_masked(values):
        raise InputError(
            f"The {what} of client '{client}' have masked values; leave their rows out or fill them first.",
            client=client,
            field=what,
        )
    try:
        array = np.asarray(values, np.float64 if _numeric_columns(values) else None)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise InputError(
            f"The {what} of client '{client}' are not an array of numbers; convert them first.",
            client=client,
            field=what,
        )
    return array


def plain(array: Array) -> Array:
    """An array as torch takes it: in one piece, in the machine's order of bytes, of at most 64 bits."""
    kind = array.dtype.newbyteorder("=")
    return np.ascontiguousarray(array, np.float64 if kind.kind == "f" and kind.itemsize > 8 else kind)


def _numeric_columns(values: Any) -> bool:
    """Whether values are a data frame of numbers only, which may be of several types."""
    kinds = [getattr(each, "kind", "O") for each in getattr(values, "dtypes", ())]
    return len(set(kinds)) > 1 and set(kinds) <= set("biuf")


def check_pairs(inputs: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
    """Refuse a client that has one without the other."""
    for client in (*inputs, *targets):
        if client not in inputs or client not in targets:
            has, lacks = ("inputs", "targets") if client in inputs else ("targets", "inputs")
            raise InputError(
                f"Client '{client}' has {has} but no {lacks}; give both for each client.",
                client=client,
                field=lacks,
            )


def check_named_once(columns: Sequence[str]) -> None:
    """Refuse a column that stands for two things."""
    for name in columns:
        if columns.count(name) > 1:
            raise InputError(
                f"The column '{name}' is named more than once among client, inputs and targets; name it "
                "once.",
                field=name,
            )


def check_columns(frame: Any, client: str, numbers: Sequence[str]) -> None:
    """Refuse a table without one of these columns, or with one that holds no numbers where it should."""
    for column in (client, *numbers):
        if column not in frame:
            raise InputError(f"The table has no column '{column}'; check its name.", field=column)
    for column in numbers:
        if getattr(frame[column].dtype, "kind", "O") not in "biuf":
            raise InputError(
                f"The column '{column}' holds {frame[column].dtype}, not numbers; convert it, or leave it "
                "out.",
                field=column,
            )


def check_shape(values: Array, first: Array, client: str, what: str) -> None:
    """Refuse rows of another shape than the first client's."""
    if values.shape[1:] != first.shape[1:]:
        raise InputError(
            f"A row of client '{client}' has {what} of shape {values.shape[1:]}, but one of the first client "
            f"has shape {first.shape[1:]}; all clients need the same.",
            client=client,
            field=what,
        )


def check_kind(values: Array, kind: str, whose: str, client: str) -> None:
    """Refuse images in bytes beside images in other numbers: only bytes are divided by 255."""
    if values.ndim > 3 and (values.dtype == np.uint8) != (kind == "uint8"):
        raise InputError(
            f"The inputs of client '{client}' are {values.dtype}, but {whose} {kind}; give images of one "
            "type.",
            client=client,
            field="inputs",
        )


def check_finite(values: Array, client: str, what: str) -> None:
    """Refuse a value that is not finite, and say where it is."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    row, *place = np.argwhere(~np.isfinite(values))[0]
    column = f", column {place[0] + 1}" if len(place) == 1 else ""
    raise InputError(
        f"Client '{client}' has a value in its {what} that is not finite, in row {row + 1}{column}; "
        "drop or fill it first.",
        client=client,
        field=what,
    )


def client_name(client: Any) -> str | None:
    """A client as text, None where it is missing."""
    if client is None or client != client:
        return None
    if isinstance(client, datetime) and client.tzinfo:
        client = client.astimezone(UTC).replace(tzinfo=None)  # one moment is one client, whatever the zone
    # pandas turns whole numbers into floats when some are missing
    name = str(int(client) if isinstance(client, float) and client.is_integer() else client)
    return name if name.strip() else None
