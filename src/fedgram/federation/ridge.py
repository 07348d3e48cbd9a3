"""Fit ridge maps of many models at once.

The batched PyTorch version of `fedgram.theory.ridge`, which has the equations. Tests compare the two. All S
strengths of all K models are solved together. On a CPU, one eigendecomposition of each model's Gram matrix
serves all strengths. A GPU computes eigenvalues one matrix at a time, so there each strength has a Cholesky
factor, in one batch of S K matrices.
"""

from __future__ import annotations

from collections.abc import Callable
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
    strengths = torch.where(mean > 0, mean, 1.0)[:, None] * mean.new_tensor(STRENGTHS)
    kept = _row_errors(residual, residual.new_full(residual.shape[:2], 1 / rows))
    changes, leverages = _solve(inputs, gram, residual, strengths)
    fitted = (inputs @ changes.flatten(2)).unflatten(2, changes.shape[2:])
    trials = [kept] + [
        _row_errors(residual - fitted[:, :, s], leverages[..., s] + 1 / rows) for s in range(len(STRENGTHS))
    ]
    errors = torch.stack(trials, dim=1)
    best = errors.sum(dim=2).argmin(dim=1)  # 0: the trained map
    models = torch.arange(len(best), device=best.device)
    least = errors[models, best]
    change = torch.where(best[:, None, None] > 0, changes[models, :, best - 1], 0.0)
    directions = leverages[..., STRENGTHS.index(DIRECTIONS)].sum(dim=1)
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


def _solve(inputs: Tensor, gram: Tensor, residual: Tensor, strengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return (XᵀX + κ I)⁻¹ Xᵀ R (K, D, S, C) and leverages x_iᵀ (XᵀX + κ I)⁻¹ x_i (K, N, S).

    strengths κ (K, S).
    """
    factorize = _factorize_by_cholesky if inputs.is_cuda else _factorize_by_eigenvalues
    solve, leverages = factorize(inputs, gram, strengths)
    size = (strengths.shape[1], residual.shape[2])
    change = solve((inputs.mT @ residual)[:, :, None].expand(-1, -1, *size))
    # A second pass recovers digits that squaring the inputs lost.
    left = residual.repeat(1, 1, size[0]) - inputs @ change.flatten(2)
    rest = (inputs.mT @ left).unflatten(2, size) - strengths[:, None, :, None] * change
    return change + solve(rest), leverages


Solve = Callable[[Tensor], Tensor]
"""Multiply (K, D, S, C) by (XᵀX + κ I)⁻¹ for each strength."""


def _factorize_by_eigenvalues(inputs: Tensor, gram: Tensor, strengths: Tensor) -> tuple[Solve, Tensor]:
    values, basis = torch.linalg.eigh(gram)
    gains = 1 / (values.clamp(min=0.0)[:, :, None] + strengths[:, None])

    def solve(right: Tensor) -> Tensor:
        rotated = (basis.mT @ right.flatten(2)).unflatten(2, right.shape[2:])
        return (basis @ (gains[..., None] * rotated).flatten(2)).unflatten(2, right.shape[2:])

    return solve, (inputs @ basis).square_() @ gains


def _factorize_by_cholesky(inputs: Tensor, gram: Tensor, strengths: Tensor) -> tuple[Solve, Tensor]:
    identity = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    factors = torch.linalg.cholesky(gram + strengths.mT[..., None, None] * identity)  # (S, K, D, D)
    # L⁻¹ turns all that follows into batched products, which take half as long as solving with L (H200).
    inverse = torch.linalg.solve_triangular(factors, identity.expand_as(factors), upper=False)

    def solve(right: Tensor) -> Tensor:
        return (inverse.mT @ (inverse @ right.movedim(2, 0))).movedim(0, 2)

    return solve, (inverse @ inputs.mT).square_().sum(dim=2).permute(1, 2, 0)


def _row_errors(residual: Tensor, leverage: Tensor) -> Tensor:
    """Squared leave-one-out error of each row (K, N); inf if a row of the model is interpolated."""
    left_out = 1 - leverage
    errors = (residual / left_out[..., None]).square().sum(dim=2)
    return torch.where(left_out.amin(dim=1, keepdim=True) < INADMISSIBLE, float("inf"), errors)
