"""Rounds of proximal training with a weight ρ > 0, and where they end, eqs. (B8) and (B9).

A client minimizes F(W; Σ_m) + ρ/2 ‖W - W_t‖². For a given Gram the head closest to W_t is best, so only the
Gram remains to be found, in a convex problem: a proximal step in the Bures–Wasserstein metric,

    min_G  λ_H/2 tr(Σ_m (G + λ_H I)⁻¹) + λ_W/2 tr G + ρ/2 d²(G, G_t).

For ρ → 0 this is the selection rule, eq. (8).
"""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array, as_float
from fedgram._util.errors import AccuracyError, InputError
from fedgram.theory.derivatives import fit_gradient, fit_hessian, regularized_gram
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.psd import closest_factor
from fedgram.theory.geometry.weights import average
from fedgram.theory.penalty import Penalty

STEPS, HALVINGS = 100, 30  # of Newton's method, and of one of its steps
CHANGE = 1e-9  # relative change in a step after which the error is below rounding
ROTATION, NOISE = 1e-9, 1e-14  # curvature along rotations relative to the largest, and its rounding
ROUNDING = 1e-14  # relative increase of a loss that is no increase


def proximal_heads(broadcast: Array, covariance: Array, penalty: Penalty, weight: float) -> Array:
    """Minimize F(W; Σ_m) + ρ/2 ‖W - W_t‖² at every client, eq. (B8).

    broadcast W_t (..., C, C), covariance (..., M, C, C) -> heads (..., M, C, C). Newton's method with the
    Hessian's absolute eigenvalues; every step ends at the head of its Gram that is closest to W_t.
    """
    target = np.broadcast_to(broadcast[..., None, :, :], covariance.shape)
    optimal = penalty.scale * psd.sqrt(covariance)  # G + λ_H I at ρ = 0
    ridge = (penalty.head + weight) * np.eye(covariance.shape[-1] ** 2)

    def loss(heads: Array) -> Array:
        gram = regularized_gram(heads, penalty)
        short = optimal - gram
        fit = psd.trace(short @ np.linalg.solve(gram, short))
        return 0.5 * (penalty.head * fit + weight * psd.frobenius(heads - target) ** 2)

    share = weight / (penalty.head + weight)
    heads = (1 - share) * closest_factor(target, optimal) + share * target
    value = loss(heads)
    for _ in range(STEPS):
        slope = fit_gradient(heads, covariance, penalty) + penalty.head * heads + weight * (heads - target)
        curvature, basis = np.linalg.eigh(fit_hessian(heads, covariance, penalty) + ridge)
        along = basis.mT @ slope.reshape(*slope.shape[:-2], -1, 1)
        step = (basis @ (along / np.abs(curvature)[..., None])).reshape(heads.shape)
        length = np.ones_like(value)
        for _ in range(HALVINGS):
            moved = heads - length[..., None, None] * step
            moved = closest_factor(target, psd.gram(moved))
            reached = loss(moved)
            worse = reached > value * (1 + ROUNDING)
            if not worse.any():
                break
            length = np.where(worse, length / 2, length)
        # A search without success is at rounding: its gradients are as small as others' (6,000 random cases).
        change = psd.frobenius(moved - heads) / psd.frobenius(moved)
        heads, value = moved, reached
        if (change < CHANGE).all():
            return heads
    raise AccuracyError(f"Newton's method did not find the proximal heads at weight {weight:g}.")


def proximal_trajectory(
    head: Array, covariance: Array, client_weights: Array, penalty: Penalty, weight: float, rounds: int
) -> Array:
    """Grams of the shared head in rounds 0..T, eq. (B8): head (..., C, C) -> (T + 1, ..., C, C)."""
    heads = [np.broadcast_to(head, (*covariance.shape[:-3], *head.shape[-2:]))]
    for _ in range(rounds):
        local = proximal_heads(heads[-1], covariance, penalty, weight)
        heads.append(average(client_weights, local))
    return np.stack([psd.gram(head) for head in heads])


def check_proximal(weight: float) -> float:
    """Reject a proximal weight that is not a positive number."""
    if not 0 < (checked := as_float(weight)) < np.inf:
        raise InputError(f"The proximal weight must be positive, not {weight}.", field="proximal")
    return checked


def find_proximal_limit(
    start: Array, covariance: Array, client_weights: Array, penalty: Penalty, weight: float
) -> Array:
    """Find the head W that a round returns unchanged, eq. (B9): start (C, C) -> W (C, C).

    It minimizes the average of the clients' Moreau envelopes. With the Hessian H_m of F at a client's head
    W̃_m, an envelope has the gradient ∇F(W̃_m) and the Hessian ρ H_m (H_m + ρ I)⁻¹. Newton's method with
    absolute eigenvalues; where it does not come closer, a plain round does. Rotations of the head, which
    change nothing, are left out.
    """
    unit = np.eye(start.size)
    is_small = weight < penalty.head  # the two branches are equal, but for rounding

    def gradient_at(head: Array) -> tuple[Array, Array]:
        heads = proximal_heads(head, covariance, penalty, weight)
        if is_small:
            return heads, weight * (head - average(client_weights, heads))
        return heads, average(client_weights, fit_gradient(heads, covariance, penalty) + penalty.head * heads)

    def hessian_at(heads: Array) -> Array:
        curved = fit_hessian(heads, covariance, penalty) + penalty.head * unit
        if is_small:
            return weight * (unit - weight * average(client_weights, np.linalg.inv(curved + weight * unit)))
        return average(client_weights, curved @ np.linalg.inv(curved / weight + unit))

    head = start
    heads, slope = gradient_at(head)
    for _ in range(STEPS):
        rate, basis = np.linalg.eigh(psd.symmetric(hessian_at(heads)))
        rate = np.abs(rate)
        kept = rate > (ROTATION + NOISE * penalty.head / weight) * rate.max()
        along = basis[:, kept].T @ slope.reshape(-1) / rate[kept]
        moved = head - (basis[:, kept] @ along).reshape(head.shape)
        if psd.frobenius(moved - head) <= CHANGE * psd.frobenius(start):
            return moved
        heads, found = gradient_at(moved)
        if psd.frobenius(found) > psd.frobenius(slope):
            moved = head - slope / weight
            heads, found = gradient_at(moved)
        head, slope = moved, found
    raise AccuracyError(
        f"The limit at the proximal weight {weight:g} was not found. It may be zero along a direction in "
        "which few clients are active."
    )
