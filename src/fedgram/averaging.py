"""Averages over clients: the server's one operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram.errors import InputError
from fedgram.psd import Array


def normalised(client_weights: Any, clients: int) -> Array:
    """Positive client weights (..., M) scaled to sum to one."""
    weights = np.asarray(client_weights, dtype=np.float64)
    given = weights.shape[-1] if weights.ndim else 1
    if given != clients:
        raise InputError(f"There are {clients} clients but {given} client weights.", field="weight")
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        raise InputError("Every client weight must be a finite positive number.", field="weight")
    return weights / weights.sum(axis=-1, keepdims=True)


def average(client_weights: Array, values: Array) -> Array:
    """Σ_m p_m X_m: client_weights (..., M), values (..., M, C, P) -> (..., C, P)."""
    return np.einsum("...m,...mij->...ij", client_weights, values)
