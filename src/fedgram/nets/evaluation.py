"""Objectives and errors of trained models on whole data sets, from their backbones' outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from fedgram.nets.returns import Layers, feature_offset
from fedgram.penalty import Penalty


def objective(layers: Layers, features: Tensor, targets: Tensor, penalty: Penalty) -> Tensor:
    """Eq. (1) without any added term: features (K, N, P), targets (K, N, C) -> (K,)."""
    residuals = features @ layers.head.mT + layers.bias[:, None] - targets
    squares = residuals.square().sum(dim=-1) + penalty.features * features.square().sum(dim=-1)
    return 0.5 * squares.mean(dim=1) + 0.5 * penalty.head * layers.head.square().sum(dim=(1, 2))


def errors(
    shared: Layers, own_bias: Tensor, center: Tensor, distance: Tensor, features: Tensor, targets: Tensor,
    penalty: Penalty,
) -> Tensor:  # fmt: skip
    """MSE (K, 3) with the shared head under the shared bias, the private bias and the feature offset.

    own_bias (K, C) is what each client returned; center (K, P) the mean of its training features and
    distance d_m (K, C) that of its target mean from the pooled one; features (K, N, P), targets (K, N, C).
    """
    plain = features @ shared.head.mT - targets
    moved = feature_offset(shared.head, distance, penalty) - center
    offset = (shared.head @ moved[..., None])[..., 0]
    biases = torch.stack([shared.bias, own_bias, shared.bias + offset], dim=1)
    return (plain[:, None] + biases[:, :, None]).square().mean(dim=(2, 3))
