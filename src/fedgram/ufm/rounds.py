"""Communication rounds in the unconstrained feature model: broadcast, train, average.

W_{t+1} = Σ_m p_m W̃_{m,t}, where a function `Local` maps the broadcast head W_t to the returned heads W̃_{m,t}.
The bias needs no rounds: every local optimum has b = μ_m, so the shared bias is μ_g from round 1 (Theorem 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.weights import average
from fedgram.theory.select import closest_head
from fedgram.ufm.solvers import Loss, Solution, trust_exact

Local = Callable[[Array], Array]
"""Broadcast head (..., C, P) -> returned heads (..., M, C, P)."""


@dataclass(frozen=True, eq=False)
class Rounds:
    """Shared heads W_t (T + 1, ..., C, P) of rounds 0..T, and returned heads (T, ..., M, C, P)."""

    heads: Array
    returned: Array

    @property
    def grams(self) -> Array:
        """G_t = W_t W_tᵀ, (T + 1, ..., C, C)."""
        return psd.gram(self.heads)


def run_rounds(head: Array, local: Local, client_weights: Array, rounds: int) -> Rounds:
    """Run rounds from a head (..., C, P), with client_weights (..., M)."""
    heads, returned = [head], []
    for _ in range(rounds):
        returned.append(local(heads[-1]))
        heads.append(average(client_weights, returned[-1]))
    return Rounds(np.stack(heads), np.stack(returned))


def exact(grams: Array) -> Local:
    """Return the optimal head closest to the broadcast, eq. (8): grams (..., M, C, C)."""
    return lambda broadcast: closest_head(broadcast[..., None, :, :], grams)


def proximal(clients: Sequence[Loss], grams: Array, weight: float) -> Local:
    """Minimize each loss + ρ/2 ‖W - W_t‖² numerically from Π_m(W_t), for ρ = weight.

    grams (M, C, C), the optimal Grams that define Π_m.
    """

    def train(broadcast: Array, client: Loss, gram: Array) -> Array:
        loss = replace(client, broadcast=broadcast, proximal=weight)
        return trust_exact(loss, loss.start(closest_head(broadcast, gram))).head

    pairs = list(zip(clients, grams, strict=True))
    return lambda broadcast: np.stack([train(broadcast, *pair) for pair in pairs])


def minimize_alone(clients: Sequence[Loss], solver: Callable[[Loss, Array], Solution]) -> Local:
    """Minimize each loss from the broadcast head without selection."""
    return lambda broadcast: np.stack([solver(client, client.start(broadcast)).head for client in clients])


def minimize_together(clients: Loss, solver: Callable[[Loss, Array], Solution]) -> Local:
    """As `minimize_alone`, for one loss with leading axes (..., M) and a solver that keeps them."""
    return lambda broadcast: solver(clients, clients.start(broadcast[..., None, :, :])).head
