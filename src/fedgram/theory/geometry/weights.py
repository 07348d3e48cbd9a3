"""Averages over clients: the server's one operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgram._util.arrays import Array, as_float_array
from fedgram._util.errors import InputError
from fedgram._util.text import quote_list


def order_weights(weights: Mapping[str, Any], clients: Sequence[str]) -> list[Any]:
    """Weights by client name as a list (M) in the order of the clients; every one has a weight."""
    weights = {str(name): weight for name, weight in weights.items()}
    unknown = next((name for name in weights if name not in clients), None)
    missing = next((name for name in clients if name not in weights), None)
    if unknown is not None or missing is not None:
        what = (
            f"There is no client '{unknown}'" if unknown is not None else f"Client '{missing}' has no weight"
        )
        raise InputError(
            f"{what}; the clients are {quote_list(clients)}.", client=unknown or missing, field="weight"
        )
    return [weights[name] for name in clients]


def normalize_weights(client_weights: Any, clients: int) -> Array:
    """Positive client weights (..., M) scaled to sum to one; one client's may be a number."""
    weights = np.atleast_1d(as_float_array(client_weights, "client_weights", field="weight"))
    if weights.shape[-1] != clients:
        raise InputError(
            f"There are {clients} clients but {weights.shape[-1]} client weights.", field="weight"
        )
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        raise InputError("Every client weight must be a finite positive number.", field="weight")
    # First by a power of two, which costs no bit: the sum of the largest numbers would overflow.
    weights = np.ldexp(weights, -np.frexp(weights.max(axis=-1, keepdims=True))[1])
    scaled = weights / weights.sum(axis=-1, keepdims=True)
    if not (scaled > 0).all():
        raise InputError(
            "The smallest client weight is nothing beside the largest, by more than 300 orders of magnitude; "
            "leave the client out, or give it a larger weight.",
            field="weight",
        )
    return scaled


def average(client_weights: Array, values: Array) -> Array:
    """Σ_m p_m X_m: client_weights (..., M), values (..., M, C, P) -> (..., C, P)."""
    return np.einsum("...m,...mij->...ij", client_weights, values)
