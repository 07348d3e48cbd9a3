"""Shrunk last layers of one client in NumPy, which `federation.returns.shrink_layers` must agree with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram import closest_head, phi, solve, unshrink
from fedgram.theory.derivatives import regularized_gram
from fedgram.theory.select import SolvedReturn
from tests.helpers.numpy_ridge import fit_ridge


@dataclass(frozen=True, eq=False)
class TrainedLayers:
    """Head W (C, P), bias (C,), and the feature layer u ↦ layer_weight u + layer_bias, (P, D) and (P,)."""

    head: np.ndarray
    bias: np.ndarray
    layer_weight: np.ndarray
    layer_bias: np.ndarray


def solve_shrunk(inputs, targets, broadcast, penalty, aligned, deficit=None, weak=None):
    """Solve for the last layers as far as the rows are free of noise, and keep trained ones otherwise.

    B is a ridge map between least squares and the trained map, chosen by leave-one-out. The head moves from
    the aligned one to φ(Cov(B u) + deficit) by the share of B that is signal. Features are the best response
    Wᵀ A⁻¹ (B (u - ū) + m) to the broadcast; the constants m and b stay as trained. Rows without noise have
    the solution of `solve`.
    """
    center = inputs.mean(axis=0)
    trained = unshrink(aligned.head, aligned.layer_weight, penalty)
    ridge = fit_ridge(inputs - center, targets - targets.mean(axis=0), trained.T)
    if ridge.is_exact:
        return solve(inputs, targets, broadcast, penalty, deficit, trained, weak)
    values = (inputs - center) @ ridge.weight
    explained = values.T @ values / len(values)
    desired = explained + (0 if deficit is None else deficit)
    solved = closest_head(broadcast, phi(desired, penalty))
    feature = aligned.layer_weight @ center + aligned.layer_bias
    constant = unshrink(aligned.head, feature[:, None], penalty)[:, 0]
    respond = broadcast.T @ np.linalg.inv(regularized_gram(broadcast, penalty))
    return SolvedReturn(
        head=(1 - ridge.share) * aligned.head + ridge.share * solved,
        bias=aligned.bias,
        layer_weight=respond @ ridge.weight.T,
        layer_bias=respond @ (constant - ridge.weight.T @ center),
        explained=explained,
        clipped=int((np.linalg.eigvalsh(desired) <= penalty.threshold).sum()),
    )
