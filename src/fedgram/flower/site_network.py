"""The networks of one site: the run's, and the one trained alone if the run is blended.

K models: 1, or 2 for a blended run. Model 0 is the run's.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import fields, replace

import torch
from torch import Tensor

from fedgram._util.arrays import Array
from fedgram.federation.clients import Clients, Returned
from fedgram.federation.evaluation import Biases, OutputRows, SharedState, local_objective, own_biases
from fedgram.federation.returns import Layers
from fedgram.federation.site_models import squared_errors
from fedgram.flower.messages import BACKBONE
from fedgram.nets.stack import BACKBONE_PREFIX, Tensors

Arrays = dict[str, Array]
PRIVATE, RETURNED, REPLY = "private.", "returned.", "answer."
"""Prefixes of stored arrays: the network, its returned layers, and the reply to the server."""
OWN_BIASES = ("own_bias", "centered_bias")
"""Arrays of the reply that the site itself needs to evaluate."""


class SiteNetwork:
    """Networks of a site between two messages."""

    def __init__(self, clients: Clients, stored: Mapping[str, Array] | None) -> None:
        """Continue from a stored round, or from the initial networks if there is none."""
        self.clients, self.stack, self.stored = clients, clients.stack, stored or {}
        self.is_local = clients.is_local
        if stored is not None:
            clients.load({name: self._read(PRIVATE + name) for name in self.stack.tensors})
            if self.is_local.any():
                moments = clients.fit.optimizer.state(self.is_local)
                clients.fit.optimizer.load({name: self._read(name) for name in moments}, self.is_local)

    def load_shared(self, arrays: Mapping[str, Array]) -> None:
        """Take the shared backbone and feature layer, if the server sends them."""
        if not arrays.keys() >= BACKBONE.keys():
            return
        parameters, start = self.stack.parameters, 0
        for name in self._backbone_names:
            value = parameters[name][0]
            part = arrays["backbone"][start : start + value.numel()]
            value.copy_(torch.as_tensor(part).view(value.shape))
            start += value.numel()
        parameters["feature.weight"][0].copy_(torch.as_tensor(arrays["layer_weight"]))
        parameters["feature.bias"][0].copy_(torch.as_tensor(arrays["layer_bias"]))

    def train(self, number: int, arrays: Mapping[str, Array]) -> Returned:
        """Train a round from the shared head and bias; models trained alone keep their own."""
        self.load_shared(arrays)
        layers = self.clients.layers()
        return self.clients.round(number, *self._receive(layers.head, layers.bias, arrays))

    def collect(self, returned: Returned, replied: Container[str]) -> Arrays:
        """Return all arrays to store after training: those replied, the networks, the returned layers."""
        own, centered = own_biases(returned)
        loss = returned.training_loss
        rows, group = OutputRows.from_outputs(returned.outputs[0]), self.clients.groups[0]
        objective = local_objective(self.clients, group, returned.layers, rows)
        reply = {
            "head": returned.layers.head, "bias": returned.layers.bias, "own_bias": own,
            "centered_bias": centered, "layer_weight": returned.layers.layer_weight,
            "layer_bias": returned.layers.layer_bias, "backbone": self._flatten_backbones(),
            "local_objective": objective, "clipped": returned.clipped,
            "loss": torch.where(loss.isfinite(), loss, torch.nan), "diverged": returned.diverged,
        }  # fmt: skip
        stored = {PRIVATE + name: value for name, value in self.stack.tensors.items()}
        stored |= {RETURNED + each.name: getattr(returned.layers, each.name) for each in fields(Layers)}
        kept = {name: value for name, value in reply.items() if name in replied or name in OWN_BIASES}
        stored |= {REPLY + name: value.double() for name, value in kept.items()}
        stored["taken_out"] = returned.removed_mean
        if self.is_local.any():
            stored |= self.clients.fit.optimizer.state(self.is_local)
        return {name: value.cpu().numpy() for name, value in stored.items()}

    def local_error(self) -> float:
        """Return the squared error on validation rows of the network that is trained alone."""
        run = int(self.is_local.nonzero()[0])
        return float(squared_errors(self.clients, self.clients.of_run(self.stack.tensors, run), run)[0])

    def deploy(self, arrays: Mapping[str, Array]) -> tuple[SharedState, Tensors]:
        """Combine the returned layers with the averages of all clients; also return current models."""
        self.load_shared(arrays)
        returned = Layers(*(self._double(RETURNED + each.name) for each in fields(Layers)))
        deployed = returned.where(~self.clients.is_full_model, self.clients.layers())
        head, bias = self._receive(deployed.head, deployed.bias, arrays)
        own, centered = (self._double(REPLY + name) for name in OWN_BIASES)
        averages = (
            self._choose(own, arrays, "own_bias"),
            own,
            self._choose(centered, arrays, "centered_bias"),
        )
        state = SharedState(
            replace(deployed, head=head, bias=bias), Biases(*averages), self._double("taken_out")
        )
        layers = self.clients.receive(deployed, head, bias)
        return state, {**self.stack.tensors, **layers.to_parameters()}

    def _receive(self, head: Tensor, bias: Tensor, arrays: Mapping[str, Array]) -> tuple[Tensor, Tensor]:
        return self._choose(head, arrays, "head"), self._choose(bias, arrays, "bias")

    def _choose(self, own: Tensor, arrays: Mapping[str, Array], name: str) -> Tensor:
        """Return own values (K, ...) of models trained alone, and the server's for the others."""
        if name not in arrays:
            return own
        is_own = self.is_local.view(-1, *[1] * (own.ndim - 1))
        return torch.where(is_own, own, torch.as_tensor(arrays[name]).to(own))

    @property
    def _backbone_names(self) -> list[str]:
        return [name for name in self.stack.parameters if name.startswith(BACKBONE_PREFIX)]

    def _flatten_backbones(self) -> Tensor:
        """Return the trained parameters of all backbones, (K, S)."""
        empty = self.stack.parameters["head.bias"][:, :0]
        values = (self.stack.parameters[name].flatten(1) for name in self._backbone_names)
        return torch.cat([empty, *values], dim=1)

    def _read(self, name: str) -> Tensor:
        return torch.from_numpy(self.stored[name])

    def _double(self, name: str) -> Tensor:
        return self._read(name).to(self.stack.device, torch.float64)
