"""Gram recursion of federated averaging and its limit, the barycenter (Theorem 1).

With G = A Aᵀ and G_m = B_m B_mᵀ, one round is A⁺ = Σ p_m B_m O_m, where O_m is the orthogonal polar factor of
B_mᵀ A, eq. (B1). This is the map of eq. (9) without an inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from fedgram._util.arrays import Array, common_batch
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize
from fedgram.theory.geometry import newton_batched, newton_lapack, psd
from fedgram.theory.geometry.newton import CONVERGED, Number
from fedgram.theory.geometry.weights import average, normalize_weights

# Up to this size the compiled solver is faster than LAPACK, for any number of clients (measured).
COMPILED_SIZE = 8
# Least number of problems and largest size at which the batched solver is faster than LAPACK, or than the
# compiled solver (measured). ENTRIES bounds the largest array of a batch.
BATCHED, BATCHED_COMPILED, ENTRIES = (16, 6), (64, 4), 2**22

Solver = Callable[[Array, Array], tuple[Array, float, int]]


@dataclass(frozen=True, eq=False)
class Barycenter(DisplayMethods):
    """Limit G_⋆ of the Gram recursion, and its accuracy.

    Parameters
    ----------
    gram
        G_⋆, (..., C, C).
    factor
        Head A with A Aᵀ = gram, (..., C, C).
    residual
        Relative change of the Gram in one more round, (...).
    iterations
        Rounds that Newton's method evaluated, (...).

    Examples
    --------
    >>> from fedgram import barycenter
    >>> found = barycenter([[[1.0]], [[9.0]]])
    >>> bool(found.converged), found.message
    (True, '')
    >>> found.to_frame().value.round(12).tolist()
    [4.0]
    """

    gram: Array
    factor: Array
    residual: Number
    iterations: Array | int

    def __repr__(self) -> str:
        targets = pluralize(self.gram.shape[-1], "target")
        return f"Barycenter({targets}, relative residual {np.max(self.residual):.1e})"

    @property
    def converged(self) -> bool | Array:
        """Whether one more round changes the Gram by rounding only, (...)."""
        return self.residual <= CONVERGED

    @property
    def message(self) -> str:
        """Warning about barycenters that did not converge; empty if all did."""
        missed = np.count_nonzero(np.logical_not(self.converged))
        if not missed:
            return ""
        return (
            f"{missed} of {np.size(self.residual)} barycenters did not converge: one more round would change "
            f"a Gram by {np.max(self.residual):.1e} of its size."
        )


def next_head(head: Array, grams: Array, client_weights: Array) -> Array:
    """One round of exact selection and averaging: head (..., C, P), grams (..., M, C, C) -> (..., C, P)."""
    return average(client_weights, psd.closest_factor(head[..., None, :, :], grams))


def trajectory(head: Array, grams: Array, client_weights: Array, rounds: int) -> Array:
    """Grams of the shared head in rounds 0..T, eq. (9): (T + 1, ..., C, C).

    head (..., C, P) is the broadcast of round 0, or any factor of its Gram.
    """
    head = np.asarray(head, dtype=np.float64)
    batch = np.broadcast_shapes(head.shape[:-2], grams.shape[:-3], client_weights.shape[:-1])
    heads = [np.broadcast_to(head, (*batch, *head.shape[-2:]))]
    for _ in range(rounds):
        heads.append(next_head(heads[-1], grams, client_weights))
    return np.stack([psd.gram(head) for head in heads])


def barycenter(grams: Any, client_weights: Any = None) -> Barycenter:
    """Bures–Wasserstein barycenter of client Grams, eq. (10).

    Parameters
    ----------
    grams
        Client Grams, (..., M, C, C), positive semidefinite.
    client_weights
        Positive weights, (..., M), scaled to sum to one; equal by default.

    Returns
    -------
    Barycenter
        Gram and factor, (..., C, C) each, with residual and iterations, (...).

    Raises
    ------
    InputError
        If Grams are not symmetric, finite and semidefinite, or weights are not positive.

    Examples
    --------
    >>> from fedgram import barycenter
    >>> barycenter([[[1.0, 0.0], [0.0, 4.0]], [[9.0, 0.0], [0.0, 4.0]]]).gram.round(12).tolist()
    [[4.0, 0.0], [0.0, 4.0]]
    """
    grams = psd.check_symmetric(grams, "grams")
    if grams.ndim < 3 or grams.shape[-3] == 0:
        raise InputError(f"grams must have shape (..., clients, C, C), not {grams.shape}.", field="grams")
    clients = grams.shape[-3]
    if client_weights is None:
        client_weights = np.full(clients, 1 / clients)
    else:
        client_weights = normalize_weights(client_weights, clients)
    factor, residual, rounds = solve(grams, client_weights)
    return Barycenter(psd.gram(factor), factor, residual, rounds)


def solve(grams: Array, client_weights: Array) -> tuple[Array, Number, Array | int]:
    """Find factors of barycenters (..., C, C), residuals (...) and numbers of rounds (...)."""
    single = single_solver(grams.shape[-1])
    if grams.ndim == 3 and client_weights.ndim == 1:
        return single(grams, client_weights)
    batch = common_batch(grams=grams.shape[:-3], client_weights=client_weights.shape[:-1])
    clients, size = grams.shape[-3:-1]
    grams = np.broadcast_to(grams, (*batch, clients, size, size)).reshape(-1, clients, size, size)
    client_weights = np.broadcast_to(client_weights, (*batch, clients)).reshape(-1, clients)
    least, largest = BATCHED if single is newton_lapack.solve else BATCHED_COMPILED
    is_batched = len(grams) >= least and size <= largest
    factors, residuals, rounds = (solve_batched if is_batched else solve_each)(grams, client_weights)
    return factors.reshape(*batch, size, size), residuals.reshape(batch), rounds.reshape(batch)


@cache
def single_solver(size: int) -> Solver:
    """Choose the solver of one problem: compiled if it is small and Numba is installed."""
    if size > COMPILED_SIZE:
        return newton_lapack.solve
    try:
        from fedgram.theory.geometry.newton_numba import solve as compiled  # lazy: Numba takes a second
    except ImportError:
        return newton_lapack.solve
    return compiled


def solve_each(grams: Array, client_weights: Array) -> tuple[Array, Array, Array]:
    """Solve problem by problem: grams (K, M, C, C), client_weights (K, M)."""
    single = single_solver(grams.shape[-1])
    solutions = [single(*problem) for problem in zip(grams, client_weights, strict=True)]
    factors, residuals, rounds = ([solution[i] for solution in solutions] for i in range(3))
    return np.array(factors), np.array(residuals), np.array(rounds, dtype=int)


def solve_batched(grams: Array, client_weights: Array) -> tuple[Array, Array, Array]:
    """Solve in batches of bounded size: grams (K, M, C, C), client_weights (K, M)."""
    _, clients, size, _ = grams.shape
    cuts = range(0, len(grams), max(BATCHED[0], ENTRIES // (size**4 * clients)))[1:]
    stacks = zip(np.split(grams, cuts), np.split(client_weights, cuts), strict=True)
    factors, residuals, rounds = zip(*(newton_batched.solve(*stack) for stack in stacks), strict=True)
    return np.concatenate(factors), np.concatenate(residuals), np.concatenate(rounds)
