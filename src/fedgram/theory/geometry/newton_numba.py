"""One small barycenter problem: `newton.py` compiled by Numba, which the extra `fast` installs.

On a small problem NumPy spends most of its time on calls. The very first call compiles for some ten seconds;
the code is then kept on disk, where a folder can be written, and later processes load it with Numba in less
than one.

The method is that of `newton_single.py`, with conjugate gradients for every size. Singular vectors come from
one-sided Jacobi rotations: as accurate as LAPACK's, and starting from those of the round before they soon
take a sweep or two.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, sqrt
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from fedgram._util.arrays import EPS, Array
from fedgram.theory.geometry import newton_lapack, psd
from fedgram.theory.geometry.newton import CONVERGED, FLOOR, LIMIT

SWEEPS, CONJUGATE_STEPS = 30, 100

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function, compiled when first called; without the copy on disk where no folder can be written."""
    try:
        made = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:
        made = numba.njit(error_model="numpy")(function)
    return cast(Function, made)


def solve(grams: Array, client_weights: Array) -> tuple[Array, float, int]:
    """As `newton_single.solve`, to which it turns where it does not get down to rounding."""
    # Copies: Numba would compile once more for arrays that are read-only or not contiguous.
    grams, client_weights = np.array(grams, order="C"), np.array(client_weights)
    factors, benign = cholesky(grams, psd.BENIGN)
    if not benign:
        factors, _ = psd.spectral_factor(grams, "grams")
    # Constants of other modules are arguments, for the copy on disk is renewed only when this file changes.
    head, residual, rounds = minimize(factors, client_weights, FLOOR, CONVERGED, LIMIT)
    return (head, residual, rounds) if residual <= 10 * FLOOR else newton_lapack.solve(grams, client_weights)


@compiled
def cholesky(grams: Array, benign: float) -> tuple[Array, bool]:
    """Lower factors of grams (M, C, C), and whether all pivots are above benign times the largest."""
    factors = np.zeros_like(grams)
    for m in range(len(grams)):
        factor, low, high = factors[m], np.inf, 0.0
        for i in range(len(factor)):
            for j in range(i):
                factor[i, j] = (grams[m, i, j] - dot(factor[i, :j], factor[j, :j])) / factor[j, j]
            pivot = grams[m, i, i] - dot(factor[i, :i], factor[i, :i])
            low, high = min(low, pivot), max(high, pivot)
            if low <= benign * high:
                return factors, False
            factor[i, i] = sqrt(pivot)
    return factors, True


class State(NamedTuple):
    """The round played last, and room (2, C, C) for what comes between.

    roots (1 + M, C, C) are the head and behind it the B_m, of norm 1; moved and right (1 + M, C, C) have the
    columns of F_m and V_m as rows; singular (1 + M, C) are the s_m; gap (C, C).
    """

    roots: Array
    moved: Array
    right: Array
    singular: Array
    gap: Array
    room: Array


@compiled
def minimize(
    factors: Array, weights: Array, floor: float, converged: float, limit: int
) -> tuple[Array, float, int]:
    """`newton.minimise` for factors (M, C, C) of the Grams, starting one round from the identity."""
    state, unit = prepared(factors, weights)
    head, gap = state.roots[0], state.gap
    play(state)
    mix(head, 1.0, 1.0, gap)
    base, best, step = head.copy(), head.copy(), head.copy()
    base_residual, base_value = play(state)
    least, old, older = base_residual, np.inf, np.inf
    lower, rounds = True, 1
    while rounds < limit and least > floor and not (least <= converged and least == older):
        older, old = old, least
        if lower:
            newton_step(state, step)
        else:
            mix(step, 0.25, 0.0, step)
        mix(head, 0.0, 1.0, base)
        mix(head, 1.0, 1.0, step)
        residual, value = play(state)
        rounds += 1
        if residual < least:
            least = residual
            mix(best, 0.0, 1.0, head)
        lower = residual < base_residual or value < base_value
        if lower:
            base_residual, base_value = residual, value
            mix(base, 0.0, 1.0, head)
    mix(best, unit, 0.0, best)
    return best, least, rounds


@compiled
def prepared(factors: Array, weights: Array) -> tuple[State, float]:
    """The state with the identity as head, and the norm taken out of the roots."""
    clients, size, _ = factors.shape
    roots, right = np.zeros((1 + clients, size, size)), np.zeros((1 + clients, size, size))
    square = 0.0
    for m in range(clients):
        mix(roots[1 + m], 0.0, weights[m], factors[m])
        square += inner(roots[1 + m], roots[1 + m])
    unit = sqrt(square) or 1.0
    for m in range(1 + clients):
        mix(roots[m], 1 / unit, 0.0, roots[m])
        for i in range(size):
            right[m, i, i] = roots[0, i, i] = 1.0
    # Zeros and not whatever is in memory: `mix` and `multiply` multiply what they replace by 0.
    gap, room, singular = np.zeros((size, size)), np.zeros((2, size, size)), np.zeros((1 + clients, size))
    return State(roots, np.zeros_like(roots), right, singular, gap, room), unit


@compiled
def play(state: State) -> tuple[float, float]:
    """One round from the head: the residual of `newton.Point`, and f."""
    head, gap, middle = state.roots[0], state.gap, state.room[0]
    mix(gap, 0.0, -1.0, head)
    for m in range(len(state.roots)):
        decompose(state, m)
        if m:
            multiply(gap, 1.0, state.moved[m].T, state.right[m])
    mix(middle, 0.0, 1.0, head)
    mix(middle, 1.0, 0.5, gap)
    change = square = 0.0
    for i in range(len(head)):
        for j in range(len(head)):
            change += (dot(middle[i], gap[j]) + dot(gap[i], middle[j])) ** 2
            square += dot(head[i], head[j]) ** 2
    return sqrt(change / (square or 1.0)), -0.5 * inner(head, head) - inner(head, gap)


@compiled
def decompose(state: State, m: int) -> None:
    """F_m, s_m and V_m for the head."""
    root, right, singular = state.roots[m], state.right[m], state.singular[m]
    image, rows = state.room[0], state.room[1]
    multiply(image, 0.0, state.roots[0].T, root)
    multiply(rows, 0.0, right, image)
    # Shorter rows are rounding, from the null space of a singular client: F_m vanishes there.
    least = EPS * sqrt(inner(rows, rows))
    for _ in range(SWEEPS):
        if not sweep(rows, right, least):
            break
    for i in range(len(rows)):
        singular[i] = sqrt(dot(rows[i], rows[i]))
        inverse = 1 / singular[i] if singular[i] > least else 0.0
        for k in range(len(rows)):
            rows[i, k] *= inverse
    multiply(state.moved[m], 0.0, rows, root.T)


@compiled
def sweep(rows: Array, right: Array, least: float) -> bool:
    """Make each pair of rows (C, C) orthogonal, turning right (C, C) with it; whether there was need to."""
    tolerance, turned = EPS * sqrt(len(rows)), False
    for i in range(len(rows)):
        for j in range(i):
            one, two, cross = dot(rows[i], rows[i]), dot(rows[j], rows[j]), dot(rows[i], rows[j])
            if min(one, two) > least**2 and abs(cross) > tolerance * sqrt(one * two):
                slope = (two - one) / (2 * cross)
                tangent = copysign(1.0, slope) / (abs(slope) + sqrt(1 + slope * slope))
                rotate(rows[i], rows[j], tangent)
                rotate(right[i], right[j], tangent)
                turned = True
    return turned


@compiled
def rotate(first: Array, second: Array, tangent: float) -> None:
    """Turn two rows (C,) by an angle, in the form that rounds the less, the smaller it is."""
    cosine = 1 / sqrt(1 + tangent * tangent)
    sine = cosine * tangent
    half = sine / (1 + cosine)
    for k in range(len(first)):
        x, y = first[k], second[k]
        first[k] = x - sine * (y + half * x)
        second[k] = y + sine * (x - half * y)


@compiled
def newton_step(state: State, step: Array) -> None:
    """Newton's step (C, C) by conjugate gradients, as `Single.conjugate_step`."""
    head = state.roots[0]
    rest, direction, curved = state.gap.copy(), state.gap.copy(), state.gap.copy()
    square = inner(rest, rest)
    relative = sqrt(square / inner(head, head))
    goal = square * max(0.03 * relative, EPS / relative) ** 2
    mix(step, 0.0, 1.0, rest)  # stays where the Hessian is not positive
    for taken in range(CONJUGATE_STEPS):
        hessian(state, direction, curved)
        curvature = inner(direction, curved)
        if curvature <= 0:
            break
        length = square / curvature
        mix(step, 1.0 if taken else 0.0, length, direction)
        mix(rest, 1.0, -length, curved)
        before, square = square, inner(rest, rest)
        if square <= goal:
            break
        mix(direction, square / before, 1.0, rest)


@compiled
def hessian(state: State, direction: Array, curved: Array) -> None:
    """The Hessian applied to a direction (C, C), into curved (C, C)."""
    half, turned = state.room[0], state.room[1]
    mix(curved, 0.0, 1.0, direction)
    for m in range(len(state.roots)):
        moved, right, singular = state.moved[m], state.right[m], state.singular[m]
        multiply(half, 0.0, moved, direction)
        multiply(turned, 0.0, half, right.T)
        for i in range(len(turned)):
            turned[i, i] = 0.0
            for j in range(i):
                weight = (-1.0 if m else 1.0) / (singular[i] + singular[j] + EPS)
                turned[i, j] = weight * (turned[i, j] - turned[j, i])
                turned[j, i] = -turned[i, j]
        multiply(half, 0.0, turned, right)
        multiply(curved, 1.0, moved.T, half)


@compiled
def multiply(total: Array, keep: float, first: Array, second: Array) -> None:
    """keep total + first @ second, into total, (C, C) each."""
    mix(total, keep, 0.0, total)
    for i in range(len(total)):
        for k in range(len(total)):
            factor = first[i, k]
            for j in range(len(total)):
                total[i, j] += factor * second[k, j]


@compiled
def mix(total: Array, keep: float, factor: float, matrix: Array) -> None:
    """keep total + factor matrix, into total, (C, C) each."""
    for i in range(len(total)):
        for j in range(len(total)):
            total[i, j] = keep * total[i, j] + factor * matrix[i, j]


@compiled
def inner(first: Array, second: Array) -> float:
    """Inner product of matrices (C, C)."""
    total = 0.0
    for i in range(len(first)):
        total += dot(first[i], second[i])
    return total


@compiled
def dot(first: Array, second: Array) -> float:
    """Inner product of rows (C,)."""
    total = 0.0
    for k in range(len(first)):
        total += first[k] * second[k]
    return total
