"""Server update Φ of finitely many profiled steps (Theorem 2), and its fixed point.

A profiled step minimizes the local loss over features and bias at the current head, then takes one full-batch
gradient step on the head. Maps act on heads, not Grams: E steps on a factor keep a digit more than products
of E multipliers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.weights import average, normalize_weights
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import phi
from fedgram.ufm.displacement import slope, slope_derivative


def profiled_step(head: Array, covariance: Array, rate: Array, penalty: Penalty) -> Array:
    """W - η ∇F(W; T) with ∇F = 2 Λ_T(W Wᵀ) W, the gradient of eq. (6).

    head (..., C, P), covariance (..., C, C), rate (..., 1, 1) -> (..., C, P).
    """
    return head - 2.0 * rate * (slope(head @ head.mT, covariance, penalty) @ head)


def lift(head: Array, direction: Array) -> Array:
    """Tangent V = ½ X G⁻¹ W of the head, with V Wᵀ + W Vᵀ = X.

    head (..., C, P) of full row rank, symmetric direction (..., C, C) -> (..., C, P).
    """
    return 0.5 * direction @ np.linalg.solve(psd.gram(head), head)


def symmetric_basis(size: int) -> Array:
    """Orthonormal basis of Sym(C) in the Frobenius inner product, (C (C + 1)/2, C, C)."""
    rows, columns = np.triu_indices(size)
    basis = np.zeros((len(rows), size, size))
    entry = np.where(rows == columns, 1.0, np.sqrt(0.5))
    index = np.arange(len(rows))
    basis[index, rows, columns] = basis[index, columns, rows] = entry
    return basis


@dataclass(frozen=True, eq=False)
class ProfiledUpdate:
    """The server update Φ_{η,E}: E profiled steps of rate η at every client, then averaging.

    covariance Σ_m (..., M, C, C), each above λ_H λ_W; client_weights p_m (..., M), scaled to sum to one;
    rate η (...); steps E. Leading axes broadcast, so instances and rates can form a grid.
    """

    covariance: Array
    client_weights: Array
    penalty: Penalty
    rate: Array
    steps: int

    def __post_init__(self) -> None:
        covariance = psd.check_psd(self.covariance, "covariance")
        weights = normalize_weights(self.client_weights, covariance.shape[-3])
        rate = np.asarray(self.rate, dtype=np.float64)
        if not (np.isfinite(rate).all() and (rate > 0).all()):
            raise InputError("Every learning rate must be a finite positive number.", field="rate")
        if self.steps < 1:
            raise InputError(f"steps must be at least 1, not {self.steps}.", field="steps")
        _check_active(covariance, self.penalty)
        batch = np.broadcast_shapes(covariance.shape[:-3], weights.shape[:-1], rate.shape)
        fill = {
            "covariance": np.broadcast_to(covariance, batch + covariance.shape[-3:]),
            "client_weights": np.broadcast_to(weights, batch + weights.shape[-1:]),
            "rate": np.broadcast_to(rate, batch),
        }
        for name, value in fill.items():
            object.__setattr__(self, name, value)

    @cached_property
    def within(self) -> Array:
        """Σ_within = Σ_m p_m Σ_m, (..., C, C)."""
        return average(self.client_weights, self.covariance)

    def client_heads(self, head: Array) -> Array:
        """Returned heads GD_η^E[F_m](W): head (..., C, P) -> (..., M, C, P)."""
        rate = self.rate[..., None, None, None]
        heads = head[..., None, :, :]
        for _ in range(self.steps):
            heads = profiled_step(heads, self.covariance, rate, self.penalty)
        return heads

    def next_head(self, head: Array) -> Array:
        """Φ(W) = Σ_m p_m GD_η^E[F_m](W): head (..., C, P) -> (..., C, P)."""
        return average(self.client_weights, self.client_heads(head))

    def push_forward(self, head: Array, tangents: Array) -> tuple[Array, Array]:
        """Φ(W) and DΦ(W)[V]: head (..., C, P), D tangents (..., D, C, P) -> the same shapes.

        The derivative of each head step is D(Λ W)[V] = DΛ[V Wᵀ + W Vᵀ] W + Λ V.
        """
        # Axes are (..., client, tangent, C, P); the tangent axis of the head has length 1.
        covariance, rate = self.covariance[..., None, :, :], 2.0 * self.rate[..., None, None, None, None]
        heads, moves = head[..., None, None, :, :], tangents[..., None, :, :, :]
        for _ in range(self.steps):
            grams, half = heads @ heads.mT, moves @ heads.mT
            local = slope(grams, covariance, self.penalty)
            bend = slope_derivative(grams, covariance, half + half.mT, self.penalty)
            moves = moves - rate * (bend @ heads + local @ moves)
            heads = heads - rate * (local @ heads)
        pushed = np.einsum("...m,...mdij->...dij", self.client_weights, moves)
        return average(self.client_weights, heads[..., 0, :, :]), pushed

    def linearize(self, head: Array) -> tuple[Array, Array]:
        """Φ^G and its Jacobian DΦ^G at G = W Wᵀ, exact up to rounding.

        head (..., C, P) of full row rank -> (..., C, C) and (..., D, D), the latter in the orthonormal
        basis of Sym(C), D = C (C + 1)/2.
        """
        basis = symmetric_basis(head.shape[-2])
        moved, tangents = self.push_forward(head, lift(head[..., None, :, :], basis))
        half = tangents @ moved.mT[..., None, :, :]
        jacobian = np.einsum("aij,...bij->...ab", basis, half + half.mT)
        return psd.gram(moved), jacobian

    def take(self, index: Array) -> ProfiledUpdate:
        """Select updates at flat positions (B,) of the leading axes."""
        return replace(
            self,
            covariance=self.covariance.reshape(-1, *self.covariance.shape[-3:])[index],
            client_weights=self.client_weights.reshape(-1, self.client_weights.shape[-1])[index],
            rate=self.rate.reshape(-1)[index],
        )


def spectral_radius(jacobian: Array) -> Array:
    """Largest modulus of the eigenvalues: (..., D, D) -> (...)."""
    return np.abs(np.linalg.eigvals(jacobian)).max(axis=-1)


@dataclass(frozen=True, eq=False)
class ReturnErrors:
    """Distance of returned heads from the selection rule, for the worst client of each problem.

    gram (...): ‖U_m U_mᵀ - G_m‖ / ‖G_m‖; selection (...): ‖U_m - Π_m(W)‖ / ‖Π_m(W)‖, both Frobenius.
    """

    gram: Array
    selection: Array


def return_errors(update: ProfiledUpdate, head: Array) -> ReturnErrors:
    """Compare returned heads for a broadcast (..., C, P) with optimal Grams and closest heads."""
    returned = update.client_heads(head)
    optima = phi(update.covariance, update.penalty)
    closest = psd.closest_factor(head[..., None, :, :], optima)
    return ReturnErrors(
        gram=psd.relative_error(psd.gram(returned), optima).max(axis=-1),
        selection=psd.relative_error(returned, closest).max(axis=-1),
    )


def _check_active(covariance: Array, penalty: Penalty) -> None:
    smallest = float(np.linalg.eigvalsh(covariance)[..., 0].min(initial=np.inf))
    if smallest <= penalty.threshold:
        message = (
            f"Finite steps need fully active clients, but a target variance of {smallest:.6g} does not "
            f"exceed lambda_h * lambda_w = {penalty.threshold:.6g}. Use smaller penalties."
        )
        raise InputError(message, field="covariance")


# Absolute change of the server Gram in a round below which a fixed point counts as found.
RESIDUAL = 1e-13
# Linear solves after which Newton's method stops.
MAX_SOLVES = 50


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """Fixed point of a round, and its accuracy.

    gram G_{η,E} (..., C, C); head (..., C, P), a factor of it; residual (...), the absolute Frobenius change
    of the server Gram in a round; rounds (...), or linear solves of Newton's method.
    """

    gram: Array
    head: Array
    residual: Array
    rounds: Array

    @property
    def converged(self) -> Array:
        """Whether a round changes the server Gram by less than 1e-13, (...)."""
        return self.residual < RESIDUAL


def iterate(update: ProfiledUpdate, head: Array, max_rounds: int = 100_000) -> FixedPoint:
    """Run rounds from head (..., C, P) until each server Gram changes by less than 1e-13.

    A problem leaves the batch when it converges, so `rounds` counts each by itself.
    """
    batch = update.rate.shape
    heads = np.broadcast_to(head, batch + head.shape[-2:]).reshape(-1, *head.shape[-2:]).copy()
    residual = np.full(len(heads), np.inf)
    rounds = np.zeros(len(heads), dtype=int)
    left = np.arange(len(heads))
    running = update.take(left)
    while left.size and rounds.max() < max_rounds:
        moved = running.next_head(heads[left])
        residual[left] = psd.frobenius(psd.gram(moved) - psd.gram(heads[left]))
        heads[left] = moved
        rounds[left] += 1
        done = residual[left] < RESIDUAL
        if done.any():
            left = left[~done]
            running = update.take(left)
    heads = heads.reshape(batch + head.shape[-2:])
    return FixedPoint(psd.gram(heads), heads, residual.reshape(batch), rounds.reshape(batch))


def newton(update: ProfiledUpdate) -> FixedPoint:
    """Solve Φ^G(G) = G from G_within until no residual falls; heads are (..., C, C).

    It does not stop at a residual of 1e-13: at ηE = 1e-4 the Gram may still be 1e-9 away. A problem whose
    residual rises keeps its best head.
    """
    head = best = psd.sqrt(phi(update.within, update.penalty))
    residual = np.full(update.rate.shape, np.inf)
    solves = np.zeros(update.rate.shape, dtype=int)
    for _ in range(MAX_SOLVES):
        moved, jacobian = update.linearize(head)
        change = moved - psd.gram(head)
        fell = psd.frobenius(change) < residual
        if not fell.any():
            break
        residual = np.where(fell, psd.frobenius(change), residual)
        best = np.where(fell[..., None, None], head, best)
        # A step on the head keeps the Gram (W + V)(W + V)ᵀ positive, however long it is.
        head = np.where(fell[..., None, None], head + lift(head, _newton_step(change, jacobian)), best)
        solves += fell
    return FixedPoint(psd.gram(best), best, residual, solves)


def _newton_step(change: Array, jacobian: Array) -> Array:
    """The X with (Id - DΦ^G) X = Φ^G(G) - G: change (..., C, C), jacobian (..., D, D) -> (..., C, C)."""
    basis = symmetric_basis(change.shape[-1])
    target = np.einsum("aij,...ij->...a", basis, change)
    solved = np.linalg.solve(np.eye(len(basis)) - jacobian, target[..., None])[..., 0]
    return np.einsum("aij,...a->...ij", basis, solved)
