"""The Gram fixed point G_{η,E} of finite profiled steps: by running rounds, and by Newton's method.

Running rounds is what a federation does. Their number grows as 1/(ηE), to a million at ηE = 1e-4, where
Newton's method finds the same point in a few linear solves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.geometry import psd
from fedgram.theory.predict import phi
from fedgram.ufm.finite import ProfiledUpdate, lift, symmetric_basis

RESIDUAL = 1e-13


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """A Gram that a round leaves in place, and how nearly.

    gram G_{η,E} (..., C, C); head (..., C, P), a factor of it; residual (...), the absolute Frobenius
    change of the server Gram in a round; rounds (...) run, or linear solves for Newton's method.
    """

    gram: Array
    head: Array
    residual: Array
    rounds: Array

    @property
    def converged(self) -> Array:
        """Whether the server Gram changed by less than 1e-13, (...)."""
        return self.residual < RESIDUAL


def iterate(update: ProfiledUpdate, head: Array, max_rounds: int = 100_000) -> FixedPoint:
    """Run rounds from head (..., C, P) until each server Gram changes by less than 1e-13.

    A problem leaves the batch in the round in which it converges, so its count is its own.
    """
    batch = update.rate.shape
    heads = np.broadcast_to(head, batch + head.shape[-2:]).reshape(-1, *head.shape[-2:]).copy()
    residual = np.full(len(heads), np.inf)
    rounds = np.zeros(len(heads), dtype=int)
    left = np.arange(len(heads))
    running = update.at(left)
    while left.size and rounds.max() < max_rounds:
        moved = running.next_head(heads[left])
        residual[left] = psd.frobenius(psd.gram(moved) - psd.gram(heads[left]))
        heads[left] = moved
        rounds[left] += 1
        done = residual[left] < RESIDUAL
        if done.any():
            left = left[~done]
            running = update.at(left)
    heads = heads.reshape(batch + head.shape[-2:])
    return FixedPoint(psd.gram(heads), heads, residual.reshape(batch), rounds.reshape(batch))


def newton(update: ProfiledUpdate, max_solves: int = 50) -> FixedPoint:
    """Solve Φ^G(G) = G from G_within until no residual falls any more; heads are (..., C, C).

    A residual below 1e-13 is no reason to stop: at ηE = 1e-4 the Gram may still be 1e-9 away. A problem
    whose residual rises keeps its best head, and `converged` tells whether that is good enough.
    """
    head = best = psd.sqrt(phi(update.within, update.penalty))
    residual = np.full(update.rate.shape, np.inf)
    solves = np.zeros(update.rate.shape, dtype=int)
    for _ in range(max_solves):
        moved, jacobian = update.linearised(head)
        change = moved - psd.gram(head)
        fell = psd.frobenius(change) < residual
        if not fell.any():
            break
        residual = np.where(fell, psd.frobenius(change), residual)
        best = np.where(fell[..., None, None], head, best)
        # Stepping on the head keeps the Gram positive, (W + V)(W + V)ᵀ, however long the step.
        head = np.where(fell[..., None, None], head + lift(head, _newton_step(change, jacobian)), best)
        solves += fell
    return FixedPoint(psd.gram(best), best, residual, solves)


def _newton_step(change: Array, jacobian: Array) -> Array:
    """The X with (Id - DΦ^G) X = Φ^G(G) - G: change (..., C, C), jacobian (..., D, D) -> (..., C, C)."""
    basis = symmetric_basis(change.shape[-1])
    target = np.einsum("aij,...ij->...a", basis, change)
    solved = np.linalg.solve(np.eye(len(basis)) - jacobian, target[..., None])[..., 0]
    return np.einsum("aij,...a->...ij", basis, solved)
