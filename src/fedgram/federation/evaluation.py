"""Objectives and errors of trained models on whole data sets, from their backbones' outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgram.federation.clients import Clients, Returned
from fedgram.federation.returns import Layers, applied, feature_offset
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


def own_biases(returned: Returned) -> tuple[Tensor, Tensor]:
    """What K models add to W h, (K, C), and what to W (h - center), (K, C): averaged, the shared biases."""
    heads = returned.layers.head
    own = returned.layers.bias - applied(heads, returned.taken_out)
    return own, own + applied(heads, returned.center)


def local_objective(clients: Clients, client: int, returned: Returned) -> Tensor:
    """Eq. (1) of one client's own models before averaging, (R,)."""
    own = returned.layers.of(clients.at(client))
    targets = clients.targets(client, clients.sites.train[client][1])
    return objective(own, own.features(returned.outputs[client]), targets, clients.settings.penalty)


@dataclass(frozen=True, eq=False)
class Shared:
    """What clients predict with after averaging: head (R, C, P), bias (R, C), and their own layers.

    deployed (K): feature layers; biases (K), all that predictions may add; taken_out (K, P), what a
    procedure with the offset took out of the features.
    """

    head: Tensor
    bias: Tensor
    deployed: Layers
    biases: Biases
    taken_out: Tensor

    def measured(self, clients: Clients, client: int, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Objective (R,), train and test MSE (R, 3) of a client; outputs u (R, N, D) of its training rows."""
        at, penalty = clients.at(client), clients.settings.penalty
        wanted = clients.targets(client, clients.sites.train[client][1])
        layers = replace(self.deployed.of(at), head=self.head, bias=self.bias)
        features = layers.features(outputs)
        center = features.mean(dim=1, keepdim=True)
        known = self.biases.of(at).under_rules(
            self.head, center[:, 0] + self.taken_out[at], clients.distance[at], penalty
        )
        train = errors(self.head, features - center, known, wanted)
        test, test_targets = clients.sites.test[client]
        tested = torch.full_like(train, float("nan"))
        if len(test):
            others = layers.features(clients.stack.outputs(at, test)) - center
            tested = errors(self.head, others, known, clients.targets(client, test_targets))
        return objective(layers, features, wanted, penalty), train, tested
