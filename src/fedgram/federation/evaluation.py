"""Objectives and errors of trained models on all rows of their clients.

Features come from the backbones' outputs u, which are computed once. R runs, K = M R models; g clients with
equally many rows are a group that is computed at once. Predictions use the products W L (C, D) of head and
feature layer, and norms of features the scatter of u, so that no feature of P numbers is computed for a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgram.federation.clients import Clients, Returned
from fedgram.federation.returns import Layers, feature_offset, multiply
from fedgram.theory.penalty import Penalty


@dataclass(frozen=True, eq=False)
class OutputRows:
    """Backbone outputs u of training rows under K models, in double precision.

    mean ū (K, D), centered u - ū (K, N, D), scatter Σ (u - ū)(u - ū)ᵀ (K, D, D).
    """

    mean: Tensor
    centered: Tensor
    scatter: Tensor

    @classmethod
    def from_outputs(cls, outputs: Tensor) -> OutputRows:
        """Center outputs u (K, N, D)."""
        centered = outputs.to(torch.float64, copy=True)
        mean = centered.mean(dim=1)
        centered -= mean[:, None]
        return cls(mean, centered, centered.mT @ centered)

    def replace(self, models: list[int], outputs: Tensor) -> None:
        """Replace the rows of some of the models by other outputs u (k, N, D)."""
        new = OutputRows.from_outputs(outputs)
        for own, value in zip(vars(self).values(), vars(new).values(), strict=True):
            own[models] = value


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

    def evaluate(self, clients: Clients, group: slice, rows: OutputRows) -> tuple[Tensor, Tensor, Tensor]:
        """Compute objective (g R,), train and test MSE (g R, 3) of a group of clients.

        rows are its training rows. The test MSE is NaN without test rows.
        """
        at, penalty = clients.at(group), clients.config.penalty
        targets, layers = clients.targets("train", group), self.deployed.select(at)
        biases = self.biases.select(at).under_rules(
            layers.head, layers.center(rows.mean) + self.removed_mean[at], clients.distance[at], penalty
        )
        slope = layers.slope
        train = mean_squared_errors(rows.centered @ slope.mT, biases, targets)
        tested = clients.outputs("test", group, range(len(clients.runs)))
        # The mean over no rows is NaN.
        centered = (tested.double() - rows.mean[:, None]) @ slope.mT
        test = mean_squared_errors(centered, biases, clients.targets("test", group))
        return objective(layers, rows, targets, penalty), train, test


def local_objective(clients: Clients, group: slice, layers: Layers, rows: OutputRows) -> Tensor:
    """Compute eq. (1) of a group's own models before averaging, (g R,); layers of all models."""
    targets = clients.targets("train", group)
    return objective(layers.select(clients.at(group)), rows, targets, clients.config.penalty)


def own_biases(returned: Returned) -> tuple[Tensor, Tensor]:
    """Return the biases (K, C) that models add to W h and to W (h - center); the server averages both."""
    heads = returned.layers.head
    own = returned.layers.bias - multiply(heads, returned.removed_mean)
    return own, own + multiply(heads, returned.center)


def objective(layers: Layers, rows: OutputRows, targets: Tensor, penalty: Penalty) -> Tensor:
    """Compute eq. (1) without added terms of K models on targets (K, N, C): (K,).

    With features h = L (u - ū) + c, the mean of ‖h‖² is tr(L S Lᵀ) / N + ‖c‖² for the scatter S.
    """
    weight, center = layers.layer_weight, layers.center(rows.mean)
    constant = multiply(layers.head, center) + layers.bias
    residuals = rows.centered @ layers.slope.mT + constant[:, None] - targets
    spread = ((weight @ rows.scatter) * weight).sum(dim=(1, 2)) / targets.shape[1]
    squares = residuals.square().sum(dim=2).mean(dim=1)
    squares = squares + penalty.features * (spread + center.square().sum(dim=1))
    return 0.5 * squares + 0.5 * penalty.head * layers.head.square().sum(dim=(1, 2))


def mean_squared_errors(centered: Tensor, biases: Tensor, targets: Tensor) -> Tensor:
    """Compute the MSE (K, 3) of predictions W (h - center) (K, N, C) with biases (K, 3, C).

    One pass over the rows gives all biases: the MSE is the variance of the residuals plus their squared mean.
    """
    residuals = centered - targets
    mean = residuals.mean(dim=1, keepdim=True)
    variance = (residuals - mean).square().mean(dim=(1, 2))
    return variance[:, None] + (mean + biases).square().mean(dim=2)
