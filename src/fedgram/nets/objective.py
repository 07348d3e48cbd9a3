"""The local objective of many models on their minibatches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgram.nets.stack import ModelStack, Tensors
from fedgram.theory.penalty import Penalty


@dataclass(frozen=True, eq=False)
class Terms:
    """What procedures add to the objective of each model.

    broadcast W_t (K, C, P); proximal ρ (K,); deficit γ (Σ_cen - Σ_m) (K, C, C), None if it is 0 for all.
    """

    broadcast: Tensor
    proximal: Tensor
    deficit: Tensor | None

    def of(self, models: slice) -> Terms:
        """The terms of some of the models."""
        deficit = None if self.deficit is None else self.deficit[models]
        return Terms(self.broadcast[models], self.proximal[models], deficit)


def losses(
    stack: ModelStack,
    parameters: Tensors,
    buffers: Tensors,
    batch: tuple[Tensor, Tensor],
    terms: Terms,
    penalty: Penalty,
) -> Tensor:
    """Eq. (1) on minibatches, plus ρ/2 ‖W - W_t‖² and γ C_m(W), of each model (K,).

    batch: inputs (K, B, ...) and targets (K, B, C).
    """
    inputs, targets = batch
    features, predictions = stack.apply(parameters, buffers, inputs)
    head = parameters["head.weight"]
    fit = half_square(predictions - targets) / targets.shape[1]
    value = (
        fit + penalty.features * half_square(features) / targets.shape[1] + penalty.head * half_square(head)
    )
    value = value + terms.proximal * half_square(head - terms.broadcast)
    return value if terms.deficit is None else value + correction(head, terms.deficit, penalty)


def half_square(values: Tensor) -> Tensor:
    """½‖·‖² of each model: (K, ., .) -> (K,)."""
    return 0.5 * values.square().sum(dim=(1, 2))


def correction(head: Tensor, deficit: Tensor, penalty: Penalty) -> Tensor:
    """γ C_m(W) = λ_H/2 tr(γ (Σ_cen - Σ_m) A⁻¹), eq. (13): head (K, C, P), deficit (K, C, C) -> (K,).

    Its gradient, -γ λ_H A⁻¹ (Σ_cen - Σ_m) A⁻¹ W, is put in rather than found through the inverse.
    """
    fixed = head.detach()
    # Products of elements, not a matrix product: those may be rounded to 10 bits.
    gram = (fixed[:, :, None] * fixed[:, None]).sum(dim=-1)
    inverse = inverse_of_positive(gram + penalty.features * identity(gram))
    sandwiched = product(product(inverse, deficit), inverse)
    value = 0.5 * penalty.features * (deficit * inverse).sum(dim=(1, 2))
    slope = -penalty.features * (sandwiched[..., None] * fixed[:, None]).sum(dim=2)
    return value + (slope * (head - fixed)).sum(dim=(1, 2))


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right for small matrices (K, C, C), in full precision."""
    return (left[..., None] * right[:, None]).sum(dim=2)


def inverse_of_positive(matrix: Tensor) -> Tensor:
    """Inverse of positive definite matrices (K, C, C) by Gauss–Jordan, which needs no pivots for them.

    A few elementwise operations for small C that a graph can capture, unlike a call to a solver.
    """
    size, unit = matrix.shape[-1], identity(matrix)
    joined = torch.cat([matrix, unit.expand_as(matrix)], dim=-1)
    for i in range(size):
        row = joined[:, i : i + 1] / joined[:, i : i + 1, i : i + 1]
        joined = joined - (joined[:, :, i : i + 1] - unit[:, i : i + 1]) * row
    return joined[..., size:]


def identity(like: Tensor) -> Tensor:
    """I (C, C) of the type and on the device of matrices (..., C, C)."""
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
