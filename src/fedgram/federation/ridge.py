"""Fit ridge maps of many models at once.

The batched PyTorch version of `fedgram.theory.ridge`, which has the equations. Tests compare the two. A
Cholesky factor for each strength takes the place of eigenvalues, which a GPU computes one matrix at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgram.theory.ridge import (
    DIRECTIONS,
    FEWEST_ROWS,
    INADMISSIBLE,
    NOISE_FREE,
    STANDARD_ERRORS,
    STRENGTHS,
)


@dataclass(frozen=True, eq=False)
class RidgeMaps:
    """Maps of K models.

    weight B (K, D, C); share (K,): how far a head should move from the trained to the solved one; is_exact
    (K,): the rows are free of noise.
    """

    weight: Tensor
    share: Tensor
    is_exact: Tensor


def fit_ridges(inputs: Tensor, targets: Tensor, start: Tensor) -> RidgeMaps:
    """Choose each model's strength with the least leave-one-out error.

    Shapes: centered inputs (K, N, D), centered targets (K, N, C), trained maps (K, D, C).
    """
    rows = inputs.shape[1]
    gram, residual = inputs.mT @ inputs, targets - inputs @ start
    mean = gram.diagonal(dim1=1, dim2=2).mean(dim=1)
    mean = torch.where(mean > 0, mean, 1.0)
    least = kept = _row_errors(residual, residual.new_full(residual.shape[:2], 1 / rows))
    change, directions = torch.zeros_like(start), torch.zeros_like(mean)
    for strength in STRENGTHS:
        found, leverage = _solve(inputs, gram, residual, strength * mean)
        errors = _row_errors(residual - inputs @ found, leverage + 1 / rows)
        is_better = errors.sum(dim=1) < least.sum(dim=1)
        least = torch.where(is_better[:, None], errors, least)
        change = torch.where(is_better[:, None, None], found, change)
        if strength == DIRECTIONS:
            directions = leverage.sum(dim=1)
    gain = kept - least
    is_clear = gain.sum(dim=1) > STANDARD_ERRORS * (rows * gain.var(dim=1, correction=0)).sqrt()
    enough = rows >= FEWEST_ROWS
    total, error = targets.square().sum(dim=(1, 2)), least.sum(dim=1)
    noise, signal = error / (rows - directions).clamp(min=1.0), (total - error) / directions.clamp(min=1.0)
    return RidgeMaps(
        weight=start + torch.where(is_clear[:, None, None] & enough, change, 0.0),
        share=torch.where((signal > noise) & enough, 1 - noise / signal, 0.0),
        is_exact=error <= NOISE_FREE * total,
    )


def _solve(inputs: Tensor, gram: Tensor, residual: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """Return (XᵀX + κ I)⁻¹ Xᵀ R (K, D, C) and leverages x_iᵀ (XᵀX + κ I)⁻¹ x_i (K, N)."""
    factor = torch.linalg.cholesky(gram + strength[:, None, None] * torch.eye(gram.shape[1]).to(gram))
    change = torch.cholesky_solve(inputs.mT @ residual, factor)
    # A second pass recovers digits that squaring the inputs lost.
    rest = inputs.mT @ (residual - inputs @ change) - strength[:, None, None] * change
    leverage = torch.linalg.solve_triangular(factor, inputs.mT, upper=False).square().sum(dim=1)
    return change + torch.cholesky_solve(rest, factor), leverage


def _row_errors(residual: Tensor, leverage: Tensor) -> Tensor:
    """Squared leave-one-out error of each row (K, N); inf if a row of the model is interpolated."""
    left_out = 1 - leverage
    errors = (residual / left_out[..., None]).square().sum(dim=2)
    return torch.where(left_out.amin(dim=1, keepdim=True) < INADMISSIBLE, float("inf"), errors)
