"""Newton's method for one barycenter with LAPACK."""

from __future__ import annotations

from functools import cache
from math import sqrt
from typing import Any

import numpy as np

from fedgram._util.arrays import EPS, Array
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.newton import Point, minimize, pairs

# Largest size at which a dense Hessian is faster than conjugate gradients (measured).
DENSE_SIZE = 6
CONJUGATE_STEPS = 100
# Beyond SVD_SIZE, eigenvectors of XᵀX take half the time of singular vectors of X. They lose a factor of the
# condition of X, so they need the least eigenvalue to be at least BENIGN times the largest.
SVD_SIZE, BENIGN = 4, 1e-3
# Added to the Hessian; damps directions along which the barycenter is not unique.
DAMPING = 1e-9


def solve(grams: Array, client_weights: Array) -> tuple[Array, float, int]:
    """Head (C, C) of the barycenter, residual and number of rounds: grams (M, C, C), weights (M,)."""
    factors, basis = psd.spectral_factor(grams, "grams")
    roots = client_weights[:, None, None] * factors
    unit = sqrt(np.vdot(roots, roots)) or 1.0
    roots /= unit
    start = np.add.reduce(roots @ basis.mT)  # Σ p_m G_m^(1/2), one round from the identity
    point, rounds = minimize(SingleProblem(roots), start)
    return unit * point.head, float(point.residual), rounds


class SingleProblem:
    """A `newton.NewtonProblem` with roots B_m (M, C, C) of norm 1 after the head, which is client 0."""

    def __init__(self, roots: Array) -> None:
        self.roots = np.concatenate((roots[:1], roots))
        self.sign = signs(len(roots))
        self.benign = len(roots[0]) > SVD_SIZE
        if self.benign:
            self.squares = self.roots @ self.roots.mT

    def play(self, head: Array) -> Point:
        """Evaluate one round from head (C, C)."""
        gram = head @ head.T
        self.decompose(head, gram)
        self.gap = np.add.reduce(self.moved[1:] @ self.right[1:]) - head
        half = (head + 0.5 * self.gap) @ self.gap.T
        change = half + half.T
        return Point(head, self.gap, sqrt(np.vdot(change, change) / (np.vdot(gram, gram) or 1.0)))

    def decompose(self, head: Array, gram: Array) -> None:
        """Compute F_m (1 + M, C, C), s_m (1 + M, C) and V_mᵀ (1 + M, C, C) of B_mᵀA = U_m diag(s_m) V_mᵀ."""
        self.roots[0] = head
        if self.benign:
            self.squares[0] = gram
            image = self.squares @ head
            values, vectors = np.linalg.eigh(head.T @ image)
            self.benign = bool((values[:, 0] > BENIGN * values[:, -1]).all())
        if self.benign:
            self.singular = np.sqrt(values)
            self.moved, self.right = image @ (vectors / self.singular[:, None, :]), vectors.mT
        else:
            left, self.singular, self.right = np.linalg.svd(self.roots.mT @ head)
            self.moved = self.roots @ left

    def step(self) -> Array:
        """Newton step (C, C) from the last head, or its gap where the Hessian is not positive."""
        return self.dense_step() if len(self.gap) <= DENSE_SIZE else self.conjugate_step()

    def dense_step(self) -> Array:
        """Newton step from the Hessian as a C² x C² matrix."""
        size, (i, j) = self.gap.size, pairs(len(self.gap))
        left_i, left_j = (self.moved.mT.take(index, axis=1)[..., None] for index in (i, j))
        right_i, right_j = (self.right.take(index, axis=1)[:, :, None] for index in (i, j))
        turns = (left_i * right_j - left_j * right_i).reshape(-1, size)
        weights = self.sign / (self.singular.take(i, axis=1) + self.singular.take(j, axis=1) + EPS)
        hessian = damped_identity(size) - (weights.reshape(-1, 1) * turns).T @ turns
        _, step, failed = lapack_dposv()(hessian, self.gap.reshape(size))
        return self.gap if failed else step.reshape(self.gap.shape)

    def conjugate_step(self) -> Array:
        """Newton step by conjugate gradients, as far as the Hessian is positive."""
        wide = self.moved.transpose(1, 0, 2).reshape(len(self.gap), -1)  # F_0 ... F_M side by side
        sums = self.singular[:, :, None] + self.singular[:, None, :] + EPS
        weights = self.sign[..., None] / sums
        step, rest, direction = np.zeros_like(self.gap), self.gap, self.gap
        square = np.vdot(rest, rest)
        relative = sqrt(square / np.vdot(self.roots[0], self.roots[0]))
        # More accuracy would exceed that of the Newton step itself, or of the gap.
        goal = square * max(0.03 * relative, EPS / relative) ** 2
        for _ in range(CONJUGATE_STEPS):
            curved = self.hessian(direction, wide, weights)
            curvature = np.vdot(direction, curved)
            if curvature <= 0:
                break
            length = square / curvature
            step, rest = step + length * direction, rest - length * curved
            before, square = square, np.vdot(rest, rest)
            if square <= goal:
                break
            direction = rest + (square / before) * direction
        return step if step.any() else self.gap

    def hessian(self, direction: Array, wide: Array, weights: Array) -> Array:
        """Apply the Hessian to a direction (C, C)."""
        turned = (wide.T @ direction).reshape(self.moved.shape) @ self.right.mT
        turned = (weights * (turned - turned.mT)) @ self.right
        return direction - wide @ turned.reshape(wide.T.shape)


@cache
def signs(clients: int) -> Array:
    """-1 for the head and 1 for the clients (1 + clients, 1)."""
    return np.append(-1.0, np.ones(clients))[:, None]


@cache
def lapack_dposv() -> Any:
    """LAPACK solver for positive definite matrices; imported on first use, because SciPy loads slowly."""
    from scipy.linalg.lapack import dposv

    return dposv


@cache
def damped_identity(size: int) -> Array:
    """(1 + DAMPING) I (size, size)."""
    return (1 + DAMPING) * np.eye(size)
