"""Objectives and errors of trained models on whole data sets, from their backbones' outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgram.nets.returns import Layers, applied, feature_offset
from fedgram.theory.penalty import Penalty


def objective(layers: Layers, features: Tensor, targets: Tensor, penalty: Penalty) -> Tensor:
    """Eq. (1) without any added term: features (K, N, P), targets (K, N, C) -> (K,)."""
    residuals = features @ layers.head.mT + layers.bias[:, None] - targets
    squares = residuals.square().sum(dim=-1) + penalty.features * features.square().sum(dim=-1)
    return 0.5 * squares.mean(dim=1) + 0.5 * penalty.head * layers.head.square().sum(dim=(1, 2))


@dataclass(frozen=True, eq=False)
class Biases:
    """The biases that K models may predict with, (K, C) each.

    shared: the average of those that were returned; private: each client's own; centered: the average of
    those it returns with features that have mean 0, which the feature offset goes with.
    """

    shared: Tensor
    private: Tensor
    centered: Tensor

    def of(self, models: slice) -> Biases:
        """Those of some of the models."""
        return Biases(self.shared[models], self.private[models], self.centered[models])

    def under_rules(self, head: Tensor, center: Tensor, distance: Tensor, penalty: Penalty) -> Tensor:
        """What predictions add to W (h - center) under each of the BIAS_RULES, (K, 3, C).

        head W (K, C, P), center (K, P) the mean of a client's training features h, distance d_m (K, C) of
        its target mean from the pooled one.
        """
        mean, offset = applied(head, center), applied(head, feature_offset(head, distance, penalty))
        return torch.stack([self.shared + mean, self.private + mean, self.centered + offset], dim=1)


def errors(head: Tensor, centered: Tensor, biases: Tensor, targets: Tensor) -> Tensor:
    """MSE (K, 3) of head W (K, C, P) on features less their center (K, N, P), with biases (K, 3, C)."""
    residuals = centered @ head.mT - targets
    return (residuals[:, None] + biases[:, :, None]).square().mean(dim=(2, 3))
