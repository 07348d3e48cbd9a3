"""What a round leaves at a client: its own objective, and objective and errors with what is shared."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgram.nets.evaluation import Biases, errors, objective
from fedgram.nets.local import Clients, Returned
from fedgram.nets.returns import Layers, applied


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
