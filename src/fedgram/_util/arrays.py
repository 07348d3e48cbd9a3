"""Convert values to float64 arrays and check them."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram._util.errors import InputError

Array = npt.NDArray[Any]
EPS = float(np.finfo(np.float64).eps)
ONE_TARGET = "Pass one target y as y[:, None], or a series as y.to_frame()"  # remedy for targets (N,)
SMALLEST_SQUARE = float(np.finfo(np.float64).tiny)
"""Smaller squares, of numbers below 1.5e-154, lose digits or become 0."""


def as_float_array(values: Any, name: str, **place: str) -> Array:
    """Return `values` as float64; `place` is the client or field that an InputError names."""
    place = {"field": name, **place}
    if np.ma.is_masked(values):
        raise InputError(f"{name} has masked values. Drop their rows or fill them first.", **place)
    try:
        array = np.asarray(values)
        if array.dtype.kind in "cmM":  # NumPy would drop imaginary parts, and count days of dates
            raise TypeError
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        message = f"{name} must be an array of real numbers, with rows of one length."
        raise InputError(message, **place) from None


def as_finite_array(values: Any, name: str) -> Array:
    """Return `values` as float64 without NaN and infinity."""
    array = as_float_array(values, name)
    if not np.isfinite(array).all():
        raise InputError(f"{name} has a value that is not finite.", field=name)
    return array


def as_float(value: Any) -> float:
    """Return a number of Python or NumPy as float, and NaN, which passes no range check, for others."""
    return float(value) if isinstance(value, Real) else float("nan")


def is_whole_number(value: Any, least: int = 0) -> bool:
    """Whether a value is a whole number of at least `least`, of any type of number."""
    return as_float(value) >= least and as_float(value).is_integer()


def outer(column: Array, row: Array) -> Array:
    """Return column rowᵀ: (..., C), (..., K) -> (..., C, K)."""
    return column[..., :, None] * row[..., None, :]


def common_batch(**batches: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast the leading axes of named arrays."""
    try:
        return np.broadcast_shapes(*batches.values())
    except ValueError:
        shapes = ", ".join(f"{name} {batch}" for name, batch in batches.items())
        raise InputError(
            f"The leading axes do not fit together: {shapes}. Pass the same axes for all, or none.",
            field=next(iter(batches)),
        ) from None
