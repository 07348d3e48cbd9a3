"""The Gram recursion of federated averaging under the selection rule, and its limit (Theorem 1).

Written on factors: with G = A Aᵀ and G_m = B_m B_mᵀ, one round is A⁺ = Σ p_m B_m O_m, where O_m is the
orthogonal polar factor of B_mᵀ A. It is the map of eq. (9) without any inverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram import psd
from fedgram.averaging import average, normalised
from fedgram.errors import InputError
from fedgram.psd import Array, transpose

CONVERGED = 1e-12


@dataclass(frozen=True, eq=False)
class Barycenter:
    """The limit G_⋆ of the Gram recursion, with how well it is reached.

    gram (..., C, C); factor (..., C, C) with factor factorᵀ = gram; residual (...), the relative change
    that one more round would make; iterations (...); converged (...).
    """

    gram: Array
    factor: Array
    residual: Array
    iterations: np.typing.NDArray[np.int_]

    @property
    def converged(self) -> np.typing.NDArray[np.bool_]:
        """Whether one more round would change the Gram by rounding only."""
        return self.residual <= CONVERGED


def next_head(head: Array, grams: Array, client_weights: Array) -> Array:
    """One round of exact selection and averaging: head (..., C, P), grams (..., M, C, C) -> (..., C, P)."""
    return average(client_weights, psd.closest_factor(head[..., None, :, :], grams))


def trajectory(head: Array, grams: Array, client_weights: Array, rounds: int) -> Array:
    """Gram matrices of the shared head over rounds 0..T, eq. (9): (T + 1, ..., C, C).

    head (..., C, P) is the broadcast of round 0; for a given Gram pass any factor of it.
    """
    heads = [np.asarray(head, dtype=np.float64)]
    for _ in range(rounds):
        heads.append(next_head(heads[-1], grams, client_weights))
    return np.stack([psd.symmetric(w @ transpose(w)) for w in heads])


def barycenter(grams: Any, client_weights: Any = None) -> Barycenter:
    """Bures–Wasserstein barycenter of client Grams (..., M, C, C), eq. (10).

    client_weights (..., M) are positive and need not sum to one; equal when left out.
    """
    grams = psd.checked(grams, "grams")
    if grams.ndim < 3:
        raise InputError(f"grams must have shape (..., clients, C, C), not {grams.shape}.", field="grams")
    clients = grams.shape[-3]
    weights = normalised(np.ones(clients) if client_weights is None else client_weights, clients)
    head = average(weights, psd.sqrt(grams))
    for iteration in range(1, 1001):
        moved = next_head(head, grams, weights)
        change = psd.frobenius(moved - head) / psd.frobenius(moved)
        head = moved
        if (change <= 1e-15).all():
            break
    gram = psd.symmetric(head @ transpose(head))
    return Barycenter(gram, head, change, np.full(change.shape, iteration))
