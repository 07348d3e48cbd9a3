"""Newton's method for many small barycenters: single precision, refined in double.

The refinement changes the clients' rotations O_m. With C_m = B_m O_m and A = Σ C_m, every C_mᵀA is symmetric
at the barycenter. To first order, rotating O_m by exp(K_m) moves A by δA = Σ C_m K_m and lowers the skew part
of C_mᵀA by S_m[K_m] less that of C_mᵀδA, where S_m multiplies V_mᵀ K V_m by s_i + s_j. Hence
K_m = S_m⁻¹[skew C_mᵀ(A + δA)], and H δA = Σ C_m S_m⁻¹[skew C_mᵀA] with the Hessian H of `newton`. S_m⁻¹ and
H⁻¹ from single precision gain several digits per step.

`newton_lapack` solves ill-conditioned and singular problems, for which single precision is too coarse. Heads
are (C, C, K) for K problems, clients (C, C, M, K).
"""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.geometry import newton_lapack
from fedgram.theory.geometry.batched_linalg import cholesky, inner, inverse, orthogonalize, products, svd
from fedgram.theory.geometry.newton import FLOOR, Point, minimize, pairs

SINGLE_EPS = float(np.finfo(np.float32).eps)
# Residual that single precision must reach, and the number of rounds it has for it.
ROUGH, ROUGH_LIMIT = 1e-5, 8
REFINEMENTS = 8
# Smallest s_i + s_j, relative to the largest s, that single precision resolves.
BENIGN = 1e-3


def solve(grams: Array, client_weights: Array) -> tuple[Array, Array, Array]:
    """Heads (K, C, C), residuals (K,) and rounds (K,): grams (K, M, C, C), client_weights (K, M)."""
    roots, benign = cholesky(np.ascontiguousarray(grams.transpose(2, 3, 1, 0)))
    roots *= client_weights.T
    unit = np.sqrt(np.einsum("ijmk,ijmk->k", roots, roots))
    roots /= unit
    with np.errstate(all="ignore"):  # `found` rejects problems that overflow
        rough = BatchedProblem(roots.astype(np.float32))
        rough_rounds = rough.minimize()
        point, refinements = refine(roots, rough)
    found = benign.all(axis=0) & rough.is_resolved() & (point.residual <= 10 * FLOOR)
    heads, residuals = (unit * point.head).transpose(2, 0, 1), np.asarray(point.residual)
    rounds = np.full(len(grams), rough_rounds + refinements)
    for k in np.flatnonzero(~found):
        heads[k], residuals[k], rounds[k] = newton_lapack.solve(grams[k], client_weights[k])
    return heads, residuals, rounds


class BatchedProblem:
    """A `newton.NewtonProblem` in single precision: roots B_m (C, C, M, K) of norm 1, heads as client 0."""

    def __init__(self, roots: Array) -> None:
        self.roots = np.concatenate((roots[:, :, :1], roots), axis=2)
        self.identity = np.eye(len(roots), dtype=np.float32)[:, :, None]
        self.right = np.broadcast_to(self.identity[..., None], self.roots.shape)
        self.sign = np.ones((self.roots.shape[2], 1), dtype=np.float32)
        self.sign[0] = -1
        self.cosine = 0.1
        self.inverse: Array | None = None

    def minimize(self) -> int:
        """Converge as far as single precision allows; return the number of rounds."""
        first = self.play(np.broadcast_to(self.identity, self.roots[:, :, 0].shape))
        _, rounds = minimize(self, first.head + first.gap, ROUGH, ROUGH_LIMIT)
        return 1 + rounds

    def is_resolved(self) -> Array:
        """Whether all s_i + s_j of all clients are large enough for single precision (K,)."""
        singular = np.sort(self.singular[:, 1:], axis=0)
        return (singular[:2].sum(axis=0) > BENIGN * singular[-1]).all(axis=0)

    def play(self, head: Array) -> Point:
        """Evaluate one round from heads (C, C, K)."""
        self.roots[:, :, 0] = head
        turned = np.einsum("jimk,jlk->ilmk", self.roots, head)
        self.left, self.singular, self.right = svd(turned, self.right, self.cosine)
        self.moved = products(self.roots, self.left)
        following = np.einsum("ijmk,ljmk->ilk", self.moved[:, :, 1:], self.right[:, :, 1:])
        self.gap = following - head
        residual = gram_change(head, self.gap)
        self.cosine = max(ROUGH**0.5, 1e-3 * float(residual.max()))
        return Point(head, self.gap, residual)

    def step(self) -> Array:
        """Newton steps (C, C, K) from the last heads, or their gaps where a step does not descend."""
        self.inverse = inverse(self.hessian())
        step = apply_matrix(self.inverse, self.gap)
        return np.where(inner(step, self.gap) > 0, step, self.gap)

    def hessian(self) -> Array:
        """The Hessians as matrices (C², C², K)."""
        (i, j), moved, right = pairs(len(self.gap)), self.moved, self.right
        turns = moved[:, None, i] * right[None, :, j] - moved[:, None, j] * right[None, :, i]
        turns = turns.reshape(self.gap[..., 0].size, *turns.shape[2:])
        weights = self.sign * inverse_sums(self.singular)
        hessian = -np.einsum("apmk,bpmk->abk", weights * turns, turns)
        np.einsum("aak->ak", hessian)[:] += 1
        return hessian


def apply_matrix(matrix: Array, head: Array) -> Array:
    """Apply matrices (C², C², K) to heads (C, C, K)."""
    return np.einsum("abk,bk->ak", matrix, head.reshape(len(matrix), -1)).reshape(head.shape)


def gram_change(head: Array, gap: Array) -> Array:
    """‖A⁺A⁺ᵀ - AAᵀ‖ / ‖AAᵀ‖ (K,): heads A and gaps A⁺ - A (C, C, K)."""
    half = np.einsum("ijk,ljk->ilk", head + 0.5 * gap, gap)
    change, gram = half + half.swapaxes(0, 1), np.einsum("ijk,ljk->ilk", head, head)
    return np.sqrt(inner(change, change) / inner(gram, gram))


def refine(roots: Array, rough: BatchedProblem) -> tuple[Point, int]:
    """Refine rough heads in the precision of roots (C, C, M, K); return the point and number of rounds."""
    rates = inverse_rates(rough.right[:, :, 1:], rough.singular[:, 1:])
    inverse_hessian = inverse(rough.hessian()) if rough.inverse is None else rough.inverse
    rotations = np.einsum("ijmk,ljmk->ilmk", rough.left[:, :, 1:], rough.right[:, :, 1:])
    rotations = orthogonalize(rotations.astype(roots.dtype))
    before, rounds = np.full(roots.shape[-1], np.inf), 0
    while True:
        turned = products(roots, rotations)
        head = turned.sum(axis=2)
        twist = skew_part(turned, head)
        gap = np.einsum("ijmk,jlmk->ilk", turned, turn(rates, twist, len(head)))
        residual = gram_change(head, gap)
        rounds += 1
        if rounds == REFINEMENTS or not ((residual > FLOOR) & (residual < before / 2)).any():
            return Point(head, gap, residual), rounds
        before = residual
        further = turn(rates, twist + skew_part(turned, apply_matrix(inverse_hessian, gap)), len(head))
        rotations += products(rotations, further + 0.5 * products(further, further))


def skew_part(turned: Array, head: Array) -> Array:
    """X - Xᵀ above the diagonal (P, M, K) of X = C_mᵀA: turned C_m (C, C, M, K), head A (C, C, K)."""
    overlap = np.einsum("jimk,jlk->ilmk", turned, head)
    i, j = pairs(len(head))
    return overlap[i, j] - overlap[j, i]


def turn(rates: Array, twist: Array, size: int) -> Array:
    """K_m = S_m⁻¹[twist_m] (C, C, M, K): rates (P, P, M, K), twist (P, M, K)."""
    i, j = pairs(size)
    entries = np.einsum("pqmk,qmk->pmk", rates, twist)
    matrix = np.zeros((size, size, *entries.shape[1:]))
    matrix[i, j], matrix[j, i] = entries, -entries
    return matrix


def inverse_rates(right: Array, singular: Array) -> Array:
    """S_m⁻¹ on the entries above the diagonal (P, P, M, K): V_m (C, C, M, K), s_m (C, M, K)."""
    i, j = pairs(len(right))
    minors = right[i][:, i] * right[j][:, j] - right[i][:, j] * right[j][:, i]
    weights = inverse_sums(singular)
    return np.einsum("apmk,bpmk->abmk", minors * weights, minors).astype(float)


def inverse_sums(singular: Array) -> Array:
    """1 / (s_i + s_j) for i < j (P, M, K), bounded at the precision of s (C, M, K)."""
    i, j = pairs(len(singular))
    return np.asarray(1 / (singular[i] + singular[j] + SINGLE_EPS * singular.max(axis=0)))
