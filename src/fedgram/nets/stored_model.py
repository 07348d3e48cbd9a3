"""Predict with models whose parameters and buffers are kept as arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.nets.model import Model
from fedgram.nets.stack import ROWS_AT_ONCE

Arrays = Mapping[str, Array]
"""Parameters and buffers by name, also those that state_dict omits."""


def select_model(arrays: Arrays, m: int) -> dict[str, Array]:
    """Return one model of stacked arrays (M, ...)."""
    return {name: value[m] for name, value in arrays.items()}


def fits(model: Model, arrays: Arrays) -> bool:
    """Whether arrays have the names and shapes of a model's parameters and buffers."""
    shapes = {name: tuple(value.shape) for name, value in _tensors(model).items()}
    return shapes == {name: np.shape(value) for name, value in arrays.items()}


def predict_stored(model: Model, arrays: Arrays, inputs: Tensor) -> Array:
    """Load arrays that fit into a model, and predict model inputs (N, ...): (N, C) in double precision."""
    with torch.no_grad():
        for name, value in _tensors(model).items():
            value.copy_(torch.tensor(arrays[name]))
        model.eval()
        parts = [model(some)[1] for some in torch.split(inputs, ROWS_AT_ONCE)]
    return torch.cat(parts).double().numpy()


def check_predictions(predicted: Array, client: str | None = None) -> None:
    """Reject predictions (N, C) that overflowed."""
    is_finite = np.isfinite(predicted).all(axis=1)
    if not is_finite.all():
        place = f" of client '{client}'" if client is not None else ""
        raise InputError(
            f"The prediction for row {int(np.argmin(is_finite)) + 1}{place} is not finite: its inputs are "
            "too large for the network, or training diverged. Check the units, and the data for outliers.",
            client=client,
            field="inputs",
        )


def _tensors(model: Model) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())
