"""Newton's method for one small barycenter, compiled by Numba (extra `fast`).

On small problems NumPy spends most time on call overhead. The first call compiles for about ten seconds;
later processes load the code from the disk cache within a second.

The method is that of `newton_lapack`, with conjugate gradients for every size. Singular vectors come from
one-sided Jacobi rotations, as accurate as LAPACK's. Started from those of the previous round, they soon take
a sweep or two.
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


def compile_cached(function: Function) -> Function:
    """Compile a function on its first call; without a disk cache if no folder is writable."""
    try:
        dispatcher = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:
        dispatcher = numba.njit(error_model="numpy")(function)
    return cast(Function, dispatcher)


def solve(grams: Array, client_weights: Array) -> tuple[Array, float, int]:
    """As `newton_lapack.solve`, which it calls if it does not converge to rounding."""
    # Copies: Numba would compile again for arrays that are read-only or not contiguous.
    grams, client_weights = np.array(grams, order="C"), np.array(client_weights)
    factors, benign = cholesky(grams, psd.BENIGN)
    if not benign:
        factors, _ = psd.spectral_factor(grams, "grams")
    # Constants of other modules are arguments: only changes of this file invalidate the disk cache.
    head, residual, rounds = minimize(factors, client_weights, FLOOR, CONVERGED, LIMIT)
    return (head, residual, rounds) if residual <= 10 * FLOOR else newton_lapack.solve(grams, client_weights)


@compile_cached
def cholesky(grams: Array, benign: float) -> tuple[Array, bool]:
    """Lower factors of grams (M, C, C), and whether all pivots exceed benign times the largest."""
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
    """The last round, and buffers (2, C, C) for intermediate matrices.

    roots (1 + M, C, C), the head followed by the B_m of norm 1; moved and right (1 + M, C, C), with the
    columns of F_m and V_m as rows; singular (1 + M, C), the s_m; gap (C, C).
    """

    roots: Array
    moved: Array
    right: Array
    singular: Array
    gap: Array
    buffers: Array


@compile_cached
def minimize(
    factors: Array, weights: Array, floor: float, converged: float, limit: int
) -> tuple[Array, float, int]:
    """`newton.minimize` for factors (M, C, C) of the Grams, starting one round from the identity."""
    state, unit = prepare_state(factors, weights)
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


@compile_cached
def prepare_state(factors: Array, weights: Array) -> tuple[State, float]:
    """Build the state with the identity as head; return it and the norm of the roots."""
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
    # Zeros, not uninitialized memory: `mix` and `multiply` multiply what they replace by 0.
    gap, buffers, singular = np.zeros((size, size)), np.zeros((2, size, size)), np.zeros((1 + clients, size))
    return State(roots, np.zeros_like(roots), right, singular, gap, buffers), unit


@compile_cached
def play(state: State) -> tuple[float, float]:
    """Evaluate one round from the head: the residual of `newton.Point`, and f."""
    head, gap, middle = state.roots[0], state.gap, state.buffers[0]
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


@compile_cached
def decompose(state: State, m: int) -> None:
    """Compute F_m, s_m and V_m for the head."""
    root, right, singular = state.roots[m], state.right[m], state.singular[m]
    image, rows = state.buffers[0], state.buffers[1]
    multiply(image, 0.0, state.roots[0].T, root)
    multiply(rows, 0.0, right, image)
    # Shorter rows are rounding from the null space of a singular client, where F_m vanishes.
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


@compile_cached
def sweep(rows: Array, right: Array, least: float) -> bool:
    """Orthogonalize each pair of rows (C, C), and rotate right (C, C) along; return whether any moved."""
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


@compile_cached
def rotate(first: Array, second: Array, tangent: float) -> None:
    """Rotate two rows (C,) by an angle, in a form whose rounding shrinks with the angle."""
    cosine = 1 / sqrt(1 + tangent * tangent)
    sine = cosine * tangent
    half = sine / (1 + cosine)
    for k in range(len(first)):
        x, y = first[k], second[k]
        first[k] = x - sine * (y + half * x)
        second[k] = y + sine * (x - half * y)


@compile_cached
def newton_step(state: State, step: Array) -> None:
    """Newton step (C, C) by conjugate gradients, as `SingleProblem.conjugate_step`."""
    head = state.roots[0]
    rest, direction, curved = state.gap.copy(), state.gap.copy(), state.gap.copy()
    square = inner(rest, rest)
    relative = sqrt(square / inner(head, head))
    goal = square * max(0.03 * relative, EPS / relative) ** 2
    mix(step, 0.0, 1.0, rest)  # the step where the Hessian is not positive
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


@compile_cached
def hessian(state: State, direction: Array, curved: Array) -> None:
    """Apply the Hessian to a direction (C, C), into curved (C, C)."""
    half, turned = state.buffers[0], state.buffers[1]
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


@compile_cached
def multiply(total: Array, keep: float, first: Array, second: Array) -> None:
    """keep total + first @ second, into total, (C, C) each."""
    mix(total, keep, 0.0, total)
    for i in range(len(total)):
        for k in range(len(total)):
            factor = first[i, k]
            for j in range(len(total)):
                total[i, j] += factor * second[k, j]


@compile_cached
def mix(total: Array, keep: float, factor: float, matrix: Array) -> None:
    """keep total + factor matrix, into total, (C, C) each."""
    for i in range(len(total)):
        for j in range(len(total)):
            total[i, j] = keep * total[i, j] + factor * matrix[i, j]


@compile_cached
def inner(first: Array, second: Array) -> float:
    """Inner product of matrices (C, C)."""
    total = 0.0
    for i in range(len(first)):
        total += dot(first[i], second[i])
    return total


@compile_cached
def dot(first: Array, second: Array) -> float:
    """Inner product of rows (C,)."""
    total = 0.0
    for k in range(len(first)):
        total += first[k] * second[k]
    return total
