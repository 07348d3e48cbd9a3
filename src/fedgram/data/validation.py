"""Convert and check clients' names, arrays and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError


def is_missing_value(value: Any) -> bool:
    """Whether a value is None, NaN, NaT or pandas.NA."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA is neither true nor false
        return True


def client_name(client: Any) -> str | None:
    """Return a client's name as text, or None if it is missing."""
    if is_missing_value(client):
        return None
    if isinstance(client, datetime) and client.tzinfo:
        client = client.astimezone(UTC).replace(tzinfo=None)  # one instant is one client in every time zone
    # pandas turns whole numbers into floats when some are missing
    name = str(int(client) if isinstance(client, float) and client.is_integer() else client)
    if isinstance(client, datetime):
        name = name.removesuffix(" 00:00:00")  # as pandas writes midnights to text files
    return name if name.strip() else None


def to_written_numbers(values: Any) -> Any:
    """Convert an array or a series in single precision to double: 0.1, not 0.10000000149011612.

    Text files have the shortest text of a number, so that names made from it are the same in all files.
    """
    return values.astype(str).astype(np.float64) if values.dtype == np.float32 else values


def to_numeric_array(values: Any, client: str, what: str) -> Array:
    """Convert one client's values to an array of their own numeric type."""
    if np.ma.is_masked(values):
        message = f"The {what} of client '{client}' have masked values. Drop the rows, or fill the values."
        raise InputError(message, client=client, field=what)
    is_frame = hasattr(values, "columns") and hasattr(values, "dtypes")  # a series has one dtype
    kinds = {getattr(each, "kind", "O") for each in (values.dtypes if is_frame else ())}
    try:
        array = np.asarray(values, np.float64 if len(kinds) > 1 and kinds <= set("biuf") else None)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        message = f"The {what} of client '{client}' are not an array of numbers. Convert them first."
        raise InputError(message, client=client, field=what)
    return array


def to_native_array(array: Array) -> Array:
    """Convert to what PyTorch accepts: contiguous, native byte order, at most 64 bits."""
    dtype = array.dtype.newbyteorder("=")
    return np.ascontiguousarray(array, np.float64 if dtype.kind == "f" and dtype.itemsize > 8 else dtype)


def check_pairs(inputs: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
    """Reject a client with inputs but no targets, or the reverse."""
    for client in (*inputs, *targets):
        if client not in inputs or client not in targets:
            has, lacks = ("inputs", "targets") if client in inputs else ("targets", "inputs")
            message = f"Client '{client}' has {has} but no {lacks}. Pass both for each client."
            raise InputError(message, client=client, field=lacks)


def check_unique_columns(columns: Sequence[str]) -> None:
    """Reject a column that is named twice."""
    for name in columns:
        if columns.count(name) > 1:
            message = f"The column '{name}' appears more than once among client, inputs and targets."
            raise InputError(f"{message} Name it once.", field=name)


def check_columns(frame: Any, client: str, numbers: Sequence[str]) -> None:
    """Reject a table that lacks a column, or has text in a numeric one."""
    for column in (client, *numbers):
        if column not in frame:
            raise InputError(f"The table has no column '{column}'. Check its name.", field=column)
        if frame[column].ndim > 1:
            raise InputError(f"The table has several columns '{column}'. Rename all but one.", field=column)
    for column in numbers:
        if getattr(frame[column].dtype, "kind", "O") not in "biuf":
            message = f"The column '{column}' is not numeric: {frame[column].dtype}. Convert it, or drop it."
            raise InputError(message, field=column)


def check_shape(values: Array, first: Array, client: str, what: str) -> None:
    """Reject rows whose shape differs from the first client's."""
    if values.shape[1:] != first.shape[1:]:
        message = (
            f"A row of client '{client}' has {what} of shape {values.shape[1:]}, but one of the first client "
            f"has shape {first.shape[1:]}. All clients need the same shape."
        )
        raise InputError(message, client=client, field=what)


def check_image_dtype(values: Array, dtype: str, reference: str, client: str) -> None:
    """Reject uint8 images next to float images: only uint8 is divided by 255."""
    if values.ndim > 3 and (values.dtype == np.uint8) != (dtype == "uint8"):
        message = f"The images of client '{client}' are {values.dtype}, but {reference} {dtype}."
        raise InputError(f"{message} Convert them to one type.", client=client, field="inputs")


def check_finite(values: Array, client: str, what: str) -> None:
    """Reject a value that is not finite, or an input that is infinite in the networks' single precision."""
    if values.dtype.kind != "f":
        return
    largest = np.finfo(np.float32 if what == "inputs" else np.float64).max
    is_valid = (values >= -largest) & (values <= largest)
    if is_valid.all():
        return
    row, *place = np.argwhere(~is_valid)[0]
    column = f", column {place[0] + 1}" if len(place) == 1 else ""
    problem = "too large to compute with" if np.isfinite(values[row, *place]) else "not finite"
    message = f"Client '{client}' has a value in its {what} that is {problem}, in row {row + 1}{column}."
    raise InputError(f"{message} Drop the row, or correct the value.", client=client, field=what)
