"""Objectives and errors of trained models on all rows of a client.

Features come from the backbones' outputs u, which are computed once. R runs, K = M R models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgram.federation.clients import Clients, Returned
from fedgram.federation.returns import Layers, feature_offset, multiply
from fedgram.theory.penalty import Penalty


@dataclass(frozen=True, eq=False)
class Biases:
    """Biases of K models for predictions, (K, C) each.

    shared: the average of all returned biases; private: each client's own; centered: the average for features
    of mean 0, to which the feature offset belongs.
    """

    shared: Tensor
    private: Tensor
    centered: Tensor

    def select(self, models: slice) -> Biases:
        """Return the biases of some models."""
        return Biases(self.shared[models], self.private[models], self.centered[models])

    def under_rules(self, head: Tensor, center: Tensor, distance: Tensor, penalty: Penalty) -> Tensor:
        """Return the values that predictions add to W (h - center) under each of BIAS_RULES, (K, 3, C).

        head W (K, C, P), center (K, P) the mean of a client's training features, distance d_m (K, C) of its
        target mean from the pooled one.
        """
        mean, offset = multiply(head, center), multiply(head, feature_offset(head, distance, penalty))
        return torch.stack([self.shared + mean, self.private + mean, self.centered + offset], dim=1)


@dataclass(frozen=True, eq=False)
class SharedState:
    """State for predictions after averaging.

    deployed (K): layers with the averaged heads and biases, or with those of local models; biases (K);
    removed_mean (K, P): the mean that a procedure with the offset removed from the features.
    """

    deployed: Layers
    biases: Biases
    removed_mean: Tensor

    def evaluate(self, clients: Clients, client: int, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute objective (R,), train and test MSE (R, 3) of a client.

        outputs u (R, N, D) belong to its training rows. The test MSE is NaN without test rows.
        """
        at, penalty = clients.at(client), clients.config.penalty
        targets = clients.targets(client, clients.data.train[client][1])
        layers = self.deployed.select(at)
        features = layers.features(outputs)
        center = features.mean(dim=1, keepdim=True)
        biases = self.biases.select(at).under_rules(
            layers.head, center[:, 0] + self.removed_mean[at], clients.distance[at], penalty
        )
        train = mean_squared_errors(layers.head, features - center, biases, targets)
        test_inputs, test_targets = clients.data.test[client]
        test = torch.full_like(train, float("nan"))
        if len(test_inputs):
            centered = layers.features(clients.stack.backbone_outputs(at, test_inputs)) - center
            test = mean_squared_errors(layers.head, centered, biases, clients.targets(client, test_targets))
        return objective(layers, features, targets, penalty), train, test


def local_objective(clients: Clients, client: int, returned: Returned) -> Tensor:
    """Compute eq. (1) of a client's own models before averaging, (R,)."""
    own = returned.layers.select(clients.at(client))
    targets = clients.targets(client, clients.data.train[client][1])
    return objective(own, own.features(returned.outputs[client]), targets, clients.config.penalty)


def own_biases(returned: Returned) -> tuple[Tensor, Tensor]:
    """Return the biases (K, C) that models add to W h and to W (h - center); the server averages both."""
    heads = returned.layers.head
    own = returned.layers.bias - multiply(heads, returned.removed_mean)
    return own, own + multiply(heads, returned.center)


def objective(layers: Layers, features: Tensor, targets: Tensor, penalty: Penalty) -> Tensor:
    """Compute eq. (1) without added terms: features (K, N, P), targets (K, N, C) -> (K,)."""
    residuals = features @ layers.head.mT + layers.bias[:, None] - targets
    squares = residuals.square().sum(dim=-1) + penalty.features * features.square().sum(dim=-1)
    return 0.5 * squares.mean(dim=1) + 0.5 * penalty.head * layers.head.square().sum(dim=(1, 2))


def mean_squared_errors(head: Tensor, centered: Tensor, biases: Tensor, targets: Tensor) -> Tensor:
    """Compute the MSE (K, 3) of heads (K, C, P) on centered features (K, N, P) with biases (K, 3, C)."""
    residuals = centered @ head.mT - targets
    return (residuals[:, None] + biases[:, :, None]).square().mean(dim=(2, 3))
