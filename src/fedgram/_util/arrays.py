"""Convert values to float64 arrays and check them."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgram._util.errors import InputError

Array = npt.NDArray[Any]
EPS = float(np.finfo(np.float64).eps)


def as_float_array(values: Any, name: str, **place: str) -> Array:
    """Return `values` as float64, or say that they are none; place is the client or field to name."""
    if np.ma.is_masked(values):
        raise InputError(
            f"{name} has masked values; leave their rows out or fill them first.", **{"field": name, **place}
        )
    try:
        array = np.asarray(values)
        if array.dtype.kind in "cmM":  # of which NumPy would drop the imaginary part, or count days
            raise TypeError
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{name} must be an array of real numbers, with rows of one length.", **{"field": name, **place}
        ) from None


def as_finite_array(values: Any, name: str) -> Array:
    """Return `values` as finite float64, or say why they are not."""
    array = as_float_array(values, name)
    if not np.isfinite(array).all():
        raise InputError(f"{name} has a value that is not finite.", field=name)
    return array


def as_float(value: Any) -> float:
    """A number of Python or NumPy, and NaN for what is none: it lies within no bounds."""
    return float(value) if isinstance(value, Real) else float("nan")


def common_batch(**batches: tuple[int, ...]) -> tuple[int, ...]:
    """The leading axes that those of some arrays broadcast to."""
    try:
        return np.broadcast_shapes(*batches.values())
    except ValueError:
        listed = ", ".join(f"{name} {batch}" for name, batch in batches.items())
        raise InputError(
            f"The leading axes do not fit together: {listed}; give all the same, or none.",
            field=next(iter(batches)),
        ) from None
