"""Newton's method for the barycenter, on factors.

With B_m = p_m times any factor of G_m, the barycenter is A Aᵀ for the head A that minimises
f(A) = ½‖A‖² - Σ ‖B_mᵀA‖_*. Let B_mᵀA = U_m diag(s_m) V_mᵀ and F_m = B_m U_m. The gradient of f is A - A⁺,
where A⁺ = Σ F_m V_mᵀ is one round of the recursion, and its Hessian is I - Σ D_m with
D_m[E] = F_m ((Z - Zᵀ) / (s_i + s_j)) V_mᵀ, Z = F_mᵀ E V_m. There is no inverse in it, so that singular
and ill-conditioned Grams cost no digits, down to the least eigenvalues that can be told from rounding.

Rotating A from the right changes nothing, so that the Hessian vanishes along A times any skew matrix. The
D of a client with B = A projects on just these directions: the head itself, taken as client 0 with a minus
sign, makes the Hessian 1 there.

`newton_single.py` does this for one problem, `newton_stack.py` for many small ones at once.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, Protocol

import numpy as np

from fedgram._util.arrays import EPS, Array

# A residual this small is rounding. One below CONVERGED is, too, once two steps have not lowered it.
FLOOR = 16 * EPS
CONVERGED = 1e-12
LIMIT = 100

Number = float | Array  # one for each problem: a float, or (K,)


class Point(NamedTuple):
    """A head A (C, C, ...), its gap A⁺ - A (C, C, ...), and the residual ‖A⁺A⁺ᵀ - AAᵀ‖ / ‖AAᵀ‖ (...).

    Not ‖A⁺ - A‖ / ‖A‖: rounding turns an ill-conditioned head by far more than it changes its Gram.
    """

    head: Array
    gap: Array
    residual: Number


class NewtonProblem(Protocol):
    """One problem, with heads (C, C), or K of them, with heads (C, C, K)."""

    def play(self, head: Array) -> Point:
        """One round from head."""

    def step(self) -> Array:
        """Newton's step from the head played last, or its gap where the Hessian is not positive."""


def minimize(
    problem: NewtonProblem, head: Array, floor: float = FLOOR, limit: int = LIMIT
) -> tuple[Point, int]:
    """The point of least residual that Newton's method finds from head, and the rounds that it played.

    A step that lowers neither f nor the residual is quartered until it does. Both count, for f no longer
    shows progress from residuals of √eps on, and the residual may rise on the way there.
    """
    best = base = problem.play(head)
    step, lower = base.gap, base.residual >= 0
    older: Number = np.inf
    old: Number = np.inf
    rounds = 1
    while rounds < limit and not every(settled(best.residual, older, floor)):
        older, old = old, best.residual
        step = problem.step() if every(lower) else np.where(lower, problem.step(), step / 4)
        point = problem.play(base.head + step)
        rounds += 1
        best = choose(point.residual < best.residual, point, best)
        lower = point.residual < base.residual
        if not every(lower):
            lower |= objective(point) < objective(base)
        base = choose(lower, point, base)
    return best, rounds


def objective(point: Point) -> Array:
    """f(A) (...); there Σ ‖B_mᵀA‖_* = Σ tr(Aᵀ B_m O_m) = tr(AᵀA⁺)."""
    return -np.einsum("ij...,ij...->...", point.head, 0.5 * point.head + point.gap)


def settled(residual: Number, older: Number, floor: float) -> bool | Array:
    """Whether a residual, older two steps ago, is as small as it gets."""
    return (residual <= floor) | (residual <= CONVERGED) & (residual == older)


def every(mask: bool | Array) -> bool:
    """Whether mask, one for each problem, holds for all."""
    return bool(mask.all() if isinstance(mask, np.ndarray) else mask)


def choose(mask: bool | Array, one: Point, other: Point) -> Point:
    """One for the problems for which mask holds, other for the rest."""
    if not isinstance(mask, np.ndarray):
        return one if mask else other
    return Point(*(np.where(mask, x, y) for x, y in zip(one, other, strict=True)))


@cache
def pairs(size: int) -> tuple[Array, Array]:
    """All i < j below size, (P,) each."""
    return np.triu_indices(size, 1)
