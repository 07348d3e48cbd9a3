"""Client weights, and averages over clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgram._util.arrays import Array, as_float_array
from fedgram._util.errors import InputError
from fedgram._util.text import quote_list


def order_weights(weights: Mapping[str, Any], clients: Sequence[str]) -> list[Any]:
    """List weights (M) by client name in the order of the clients."""
    weights = {str(name): weight for name, weight in weights.items()}
    unknown = next((name for name in weights if name not in clients), None)
    missing = next((name for name in clients if name not in weights), None)
    if unknown is not None or missing is not None:
        problem = (
            f"Unknown client '{unknown}'" if unknown is not None else f"Client '{missing}' has no weight"
        )
        message = f"{problem}. The clients are {quote_list(clients)}."
        raise InputError(message, client=unknown or missing, field="weight")
    return [weights[name] for name in clients]


def normalize_weights(client_weights: Any, clients: int) -> Array:
    """Scale positive client weights (..., M) to sum to one; a single weight may be a number."""
    weights = np.atleast_1d(as_float_array(client_weights, "client_weights", field="weight"))
    if weights.shape[-1] != clients:
        message = f"There are {clients} clients but {weights.shape[-1]} client weights."
        raise InputError(message, field="weight")
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        raise InputError("Every client weight must be a finite positive number.", field="weight")
    # Scale by a power of two first, which is exact: a sum of the largest numbers would overflow.
    weights = np.ldexp(weights, -np.frexp(weights.max(axis=-1, keepdims=True))[1])
    scaled = weights / weights.sum(axis=-1, keepdims=True)
    if not (scaled > 0).all():
        raise InputError(
            "The smallest client weight is more than 300 orders of magnitude below the largest. Drop the "
            "client, or increase its weight.",
            field="weight",
        )
    return scaled


def average(client_weights: Array, values: Array) -> Array:
    """Σ_m p_m X_m: client_weights (..., M), values (..., M, C, P) -> (..., C, P)."""
    return np.einsum("...m,...mij->...ij", client_weights, values)
