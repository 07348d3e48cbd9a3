"""Newton's method for the barycenter, on factors.

With B_m = p_m times any factor of G_m, the barycenter is A Aᵀ for the head A that minimizes
f(A) = ½‖A‖² - Σ ‖B_mᵀA‖_*. Let B_mᵀA = U_m diag(s_m) V_mᵀ and F_m = B_m U_m. The gradient of f is A - A⁺,
where A⁺ = Σ F_m V_mᵀ is one round of the recursion. Its Hessian is I - Σ D_m with
D_m[E] = F_m ((Z - Zᵀ) / (s_i + s_j)) V_mᵀ, Z = F_mᵀ E V_m. There is no inverse, so singular and
ill-conditioned Grams cost no digits.

Rotating A from the right changes nothing, so the Hessian vanishes along A times any skew matrix. The D of a
client with B = A projects on these directions. Hence the head itself, as client 0 with a minus sign, makes
the Hessian 1 there.

`newton_lapack` and `newton_numba` solve one problem, `newton_batched` many small ones.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, Protocol

import numpy as np

from fedgram._util.arrays import EPS, Array

# A residual below FLOOR is rounding. One below CONVERGED is, too, if two steps did not lower it.
FLOOR = 16 * EPS
CONVERGED = 1e-12
# Rounds. Random problems with condition numbers up to 1e12 and 2 to 10 targets needed at most 11.
LIMIT = 100

Number = float | Array  # a float for one problem, (K,) for K


class Point(NamedTuple):
    """A head A (C, C, ...), its gap A⁺ - A (C, C, ...), and the residual ‖A⁺A⁺ᵀ - AAᵀ‖ / ‖AAᵀ‖ (...).

    Not ‖A⁺ - A‖ / ‖A‖: rounding rotates an ill-conditioned head far more than it changes its Gram.
    """

    head: Array
    gap: Array
    residual: Number


class NewtonProblem(Protocol):
    """One problem, with heads (C, C), or K of them, with heads (C, C, K)."""

    def play(self, head: Array) -> Point:
        """Evaluate one round from head."""

    def step(self) -> Array:
        """Newton step from the last head, or its gap where the Hessian is not positive."""


def minimize(
    problem: NewtonProblem, head: Array, floor: float = FLOOR, limit: int = LIMIT
) -> tuple[Point, int]:
    """Find the point of least residual from head; return it and the number of rounds.

    A step is quartered until it lowers f or the residual. The residual may rise far from the minimum, and f
    shows no progress below residuals of √eps.
    """
    best = base = problem.play(head)
    step, lower = base.gap, base.residual >= 0
    older: Number = np.inf
    old: Number = np.inf
    rounds = 1
    while rounds < limit and not all_true(is_settled(best.residual, older, floor)):
        older, old = old, best.residual
        step = problem.step() if all_true(lower) else np.where(lower, problem.step(), step / 4)
        point = problem.play(base.head + step)
        rounds += 1
        best = choose(point.residual < best.residual, point, best)
        lower = point.residual < base.residual
        if not all_true(lower):
            lower |= objective(point) < objective(base)
        base = choose(lower, point, base)
    return best, rounds


def objective(point: Point) -> Array:
    """f(A) (...), with Σ ‖B_mᵀA‖_* = Σ tr(Aᵀ B_m O_m) = tr(AᵀA⁺)."""
    return -np.einsum("ij...,ij...->...", point.head, 0.5 * point.head + point.gap)


def is_settled(residual: Number, older: Number, floor: float) -> bool | Array:
    """Whether a residual is as small as it gets; `older` is that of two steps before."""
    return (residual <= floor) | (residual <= CONVERGED) & (residual == older)


def all_true(mask: bool | Array) -> bool:
    """Whether a mask, one entry per problem, is true for all."""
    return bool(mask.all() if isinstance(mask, np.ndarray) else mask)


def choose(mask: bool | Array, one: Point, other: Point) -> Point:
    """Take `one` where the mask is true, and `other` elsewhere."""
    if not isinstance(mask, np.ndarray):
        return one if mask else other
    return Point(*(np.where(mask, x, y) for x, y in zip(one, other, strict=True)))


@cache
def pairs(size: int) -> tuple[Array, Array]:
    """Indices of all pairs i < j below size, (P,) each."""
    return np.triu_indices(size, 1)
