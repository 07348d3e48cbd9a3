"""Local objective of K models on their minibatches.

L = 1/(2B) Σ ‖W h + b - y‖² + λ_H/(2B) Σ ‖h‖² + λ_W/2 ‖W‖² + ρ/2 ‖W - W_t‖² + γ C_m(W)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgram.nets.stack import Tensors
from fedgram.theory.penalty import Penalty


@dataclass(frozen=True, eq=False)
class Terms:
    """Terms that procedures add to the objective of each model.

    broadcast W_t (K, C, P); proximal ρ (K,); deficit γ (Σ_cen - Σ_m) (K, C, C), None if all are 0.
    """

    broadcast: Tensor
    proximal: Tensor
    deficit: Tensor | None

    def select(self, models: slice) -> Terms:
        """Return the terms of some models."""
        deficit = None if self.deficit is None else self.deficit[models]
        return Terms(self.broadcast[models], self.proximal[models], deficit)


def compute_losses(
    parameters: Tensors,
    outputs: Tensor,
    targets: Tensor,
    terms: Terms,
    penalty: Penalty,
    row_weights: Tensor | None = None,
) -> Tensor:
    """Compute the objective of each model (K,) on backbone outputs (K, B, D) and targets (K, B, C).

    row_weights (K, B) replace 1/B where models have different numbers of rows; they are 0 for padding.
    """
    head = parameters["head.weight"]
    features = _map_linear(parameters["feature.weight"], parameters["feature.bias"], outputs)
    predictions = _map_linear(head, parameters["head.bias"], features)
    if row_weights is None:
        fit = half_square(predictions - targets) / targets.shape[1]
        size = half_square(features) / targets.shape[1]
    else:
        scale = row_weights.sqrt()[..., None]
        fit, size = half_square(scale * (predictions - targets)), half_square(scale * features)
    value = fit + penalty.features * size + penalty.head * half_square(head)
    value = value + terms.proximal * half_square(head - terms.broadcast)
    return value if terms.deficit is None else value + correction_term(head, terms.deficit, penalty)


def _map_linear(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """Map x (K, B, P) with weight (K, C, P) and bias (K, C) to (K, B, C)."""
    return torch.baddbmm(bias[:, None], x, weight.mT)


def half_square(values: Tensor) -> Tensor:
    """Compute ½‖·‖² of each model: (K, ., .) -> (K,)."""
    return 0.5 * values.square().sum(dim=(1, 2))


def correction_term(head: Tensor, deficit: Tensor, penalty: Penalty) -> Tensor:
    """Compute γ C_m(W) = λ_H/2 tr(γ (Σ_cen - Σ_m) A⁻¹), eq. (13), with A = W Wᵀ + λ_H I.

    Shapes: head (K, C, P), deficit (K, C, C) -> (K,). The gradient -γ λ_H A⁻¹ (Σ_cen - Σ_m) A⁻¹ W is
    inserted directly, so that autograd does not differentiate through the inverse.
    """
    fixed = head.detach()
    # Elementwise products: matrix products may round to TF32.
    gram = (fixed[:, :, None] * fixed[:, None]).sum(dim=-1)
    inverse = invert_positive_definite(gram + penalty.features * _identity_like(gram))
    sandwiched = _multiply_small(_multiply_small(inverse, deficit), inverse)
    value = 0.5 * penalty.features * (deficit * inverse).sum(dim=(1, 2))
    slope = -penalty.features * (sandwiched[..., None] * fixed[:, None]).sum(dim=2)
    return value + (slope * (head - fixed)).sum(dim=(1, 2))


def invert_positive_definite(matrix: Tensor) -> Tensor:
    """Invert positive definite matrices (K, C, C) by Gauss–Jordan elimination, which needs no pivots here.

    A CUDA graph can capture these elementwise operations, but not a call to a solver.
    """
    size, unit = matrix.shape[-1], _identity_like(matrix)
    joined = torch.cat([matrix, unit.expand_as(matrix)], dim=-1)
    for i in range(size):
        row = joined[:, i : i + 1] / joined[:, i : i + 1, i : i + 1]
        joined = joined - (joined[:, :, i : i + 1] - unit[:, i : i + 1]) * row
    return joined[..., size:]


def _multiply_small(left: Tensor, right: Tensor) -> Tensor:
    """Multiply small matrices (K, C, C) in full precision."""
    return (left[..., None] * right[:, None]).sum(dim=2)


def _identity_like(matrices: Tensor) -> Tensor:
    return torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
