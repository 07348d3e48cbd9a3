"""One barycenter problem: `newton.py` with LAPACK."""

from __future__ import annotations

from functools import cache
from math import sqrt

import numpy as np
from scipy.linalg.lapack import dposv

from fedgram import psd
from fedgram.newton import EPS, Point, minimise
from fedgram.psd import Array, transpose

# Up to this size writing the Hessian out is faster than conjugate gradients (measured) ...
DENSE_SIZE = 4
CONJUGATE_STEPS = 100
# ... and beyond it eigenvectors of XᵀX are faster than singular vectors of X. They lose a factor of the
# condition of XᵀX, whose inverse therefore has to stay above this.
BENIGN = 1e-2
# Added to the Hessian, this holds still the directions, if any, along which the barycenter is not unique.
DAMPING = 1e-9


def solve(grams: Array, client_weights: Array) -> tuple[Array, Array, int]:
    """Head A and gap A⁺ - A of the barycenter, (C, C) each, and the rounds: grams (M, C, C), weights (M,)."""
    factors, basis = psd.spectral_factor(grams, "grams")
    roots = client_weights[:, None, None] * factors
    unit = sqrt(np.vdot(roots, roots)) or 1.0
    roots /= unit
    start = (roots @ transpose(basis)).sum(axis=0)  # Σ p_m G_m^(1/2), one round from the identity
    point, rounds = minimise(Single(roots), start)
    return unit * point.head, unit * point.gap, rounds


class Single:
    """A `newton.Problem` with roots B_m (M, C, C) of norm 1, kept behind the head as client 0."""

    def __init__(self, roots: Array) -> None:
        self.roots = np.concatenate((roots[:1], roots))
        self.transposed = transpose(self.roots)
        self.sign = np.full((len(self.roots), 1, 1), 0.5)
        self.sign[0] = -0.5

    def play(self, head: Array) -> Point:
        """One round from head (C, C)."""
        self.roots[0] = head
        left, self.singular, self.right = svd(self.transposed @ head)
        self.moved = self.roots @ left
        following = (self.moved[1:] @ self.right[1:]).sum(axis=0)
        self.gap = following - head
        square = float(np.vdot(head, head))
        self.residual = sqrt(np.vdot(self.gap, self.gap) / (square or 1.0))
        # Σ ‖B_mᵀA‖_* = Σ tr(Aᵀ B_m O_m) = tr(AᵀA⁺)
        return Point(head, self.gap, self.residual, 0.5 * square - float(np.vdot(head, following)))

    def step(self) -> Array:
        """Newton's step (C, C) from the head played last, or its gap where the Hessian is not positive."""
        return self.dense_step() if len(self.gap) <= DENSE_SIZE else self.conjugate_step()

    def weights(self) -> Array:
        """± ½ / (s_i + s_j) for every client (1 + M, C, C); where both vanish, so does F_m."""
        return self.sign / (self.singular[:, :, None] + self.singular[:, None, :] + EPS)

    def dense_step(self) -> Array:
        """Newton's step from the Hessian as a C² x C² matrix."""
        size = self.gap.size
        outer = transpose(self.moved)[:, :, None, :, None] * self.right[:, None, :, None, :]
        turns = (outer - outer.swapaxes(1, 2)).reshape(-1, size)
        hessian = damped_identity(size) - (self.weights().reshape(-1, 1) * turns).T @ turns
        _, step, failed = dposv(hessian, self.gap.reshape(size))
        return self.gap if failed else step.reshape(self.gap.shape)

    def conjugate_step(self) -> Array:
        """Newton's step by conjugate gradients, as far as the Hessian is positive."""
        wide = self.moved.transpose(1, 0, 2).reshape(len(self.gap), -1)  # F_0 ... F_M side by side
        weights = 2 * self.weights()
        step, rest, direction = np.zeros_like(self.gap), self.gap, self.gap
        square = np.vdot(rest, rest)
        # More would drown in the error of Newton's step itself, or in the rounding of the gap.
        goal = square * max(0.03 * self.residual, EPS / self.residual) ** 2
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
        """The Hessian applied to a direction (C, C)."""
        turned = (wide.T @ direction).reshape(self.moved.shape) @ transpose(self.right)
        turned = (weights * (turned - transpose(turned))) @ self.right
        return direction - wide @ turned.reshape(wide.T.shape)


@cache
def damped_identity(size: int) -> Array:
    """(1 + DAMPING) I (size, size)."""
    return (1 + DAMPING) * np.eye(size)


def svd(matrix: Array) -> tuple[Array, Array, Array]:
    """X = U diag(s) Vᵀ: (M, C, C) -> U (M, C, C), s (M, C), Vᵀ (M, C, C)."""
    if matrix.shape[-1] > DENSE_SIZE:
        values, vectors = np.linalg.eigh(transpose(matrix) @ matrix)
        if (values[:, 0] > BENIGN * values[:, -1]).all():
            singular = np.sqrt(values)
            return matrix @ (vectors / singular[:, None, :]), singular, transpose(vectors)
    return np.linalg.svd(matrix)
