"""The client: describe its data, train a round, evaluate the shared head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor

from fedgram._util.arrays import Array
from fedgram._util.version import __version__
from fedgram.federation.client_data import ClientData, PooledMoments
from fedgram.federation.clients import Clients, Returned, draw_stack
from fedgram.federation.evaluation import Biases, SharedState, local_objective, own_biases
from fedgram.federation.returns import Layers
from fedgram.flower.client_state import Arrays, ClientStore, folder_name, hash_request
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import Payload
from fedgram.flower.site import Site
from fedgram.nets.cuda import storage_dtype
from fedgram.nets.model import draw_example, fingerprint
from fedgram.runs.store import safe_name
from fedgram.training import devices

POOLED = ("mean", "covariance", "within")
"""Arrays of `PooledMoments` in a request."""
REPLIED = ("head", "bias", "own_bias", "centered_bias", "local_objective", "clipped", "loss", "diverged")
"""Arrays of a training reply."""


class Client:
    """One client of a federation; its rows, backbone and feature layer never leave it."""

    def __init__(self, site: Site, config: FederationConfig) -> None:
        self.site, self.config = site, config
        self.device = devices.resolve_device(site.device)
        test = {} if site.test is None else {site.name: site.test}
        dtype = storage_dtype(config.settings.precision)
        self.data = ClientData.from_splits({site.name: site.train}, test, self.device, dtype)

    def describe(self) -> Payload:
        """Return target moments, initial head and bias, and a description of rows and network."""
        site, config = self.site, self.config
        stack = draw_stack(self.data, site.backbone, [config.run], config.settings, self.device)
        model, inputs = draw_example(site.backbone, site.train, config.settings.features)
        metadata = {
            "version": __version__,
            "client": site.name,
            "rows": len(site.train),
            "test_rows": 0 if site.test is None else len(site.test),
            "targets": list(site.moments.targets),
            "parameters": model.size,
            "network": fingerprint(model, inputs),
        }
        head, bias = (_to_array(stack.parameters[name][0]) for name in ("head.weight", "head.bias"))
        return Payload({"head": head, "bias": bias, **self._moments()}, metadata)

    def train(self, request: Payload) -> Payload:
        """Train one round from the shared head and bias, or repeat the stored reply to the same request.

        The reply has the current target moments, and the round that training resumed from ("after").
        """
        number, store = int(request.metadata["round"]), self._store(request)
        request_hash, before = hash_request(number, request.arrays), store.find_round_before(number)
        arrays = store.read_round(number, request_hash)
        if arrays is None:
            with devices.use_device(self.device):
                arrays = self._train_round(number, request.arrays, store.read_round(before))
            store.write_round(number, request_hash, arrays)
        reply = {name: arrays[f"answer.{name}"][0] for name in REPLIED}
        return Payload(reply | self._moments(), {"after": before})

    def evaluate(self, request: Payload) -> Payload:
        """Return objective and errors with the averaged head, and store the network with that head."""
        store = self._store(request)
        arrays = store.read_round(int(request.metadata["round"]))
        if arrays is None:
            return Payload.from_error(f"site '{self.site.name}' has not trained this round.")
        with devices.use_device(self.device):
            clients = self._build_clients(request.arrays, arrays)
            shared = self._build_shared(request.arrays, arrays)
            layers = clients.receive(shared.deployed, shared.head, shared.bias)
            if self.config.run.procedure.centered:  # predict targets with their mean
                layers = replace(layers, bias=layers.bias + self._to_tensor(self.site.moments.mean))
            store.write_model(_build_model(clients, layers))
            objective, train, test = shared.evaluate(clients, 0, clients.training_outputs()[0][0])
        measured = {"objective": objective, "train_mse": train, "test_mse": test}
        return Payload({name: _to_array(value[0]) for name, value in measured.items()})

    def _moments(self) -> Arrays:
        moments = self.site.moments
        return {"own_mean": moments.mean[0], "own_covariance": moments.covariance[0]}

    def _store(self, request: Payload) -> ClientStore:
        name, federation_id = safe_name(self.config.name), safe_name(str(request.metadata["federation"]))
        own = Path(self.site.folder, folder_name(self.site.name))
        return ClientStore(own / name / self.config.run.name / federation_id)

    def _build_clients(self, arrays: Mapping[str, Array], stored: Arrays | None) -> Clients:
        """Build the network after a stored round, or the initial one if there is none."""
        pooled = PooledMoments(*(arrays[name] for name in POOLED))
        site, config = self.site, self.config
        clients = Clients(self.data, pooled, site.backbone, [config.run], config.settings, self.device)
        if stored is not None:
            clients.load(
                {name: torch.from_numpy(stored[f"private.{name}"]) for name in clients.stack.tensors}
            )
        return clients

    def _build_shared(self, arrays: Mapping[str, Array], stored: Arrays) -> SharedState:
        head, bias, average, centered = (
            self._to_tensor(arrays[name])[None] for name in ("head", "bias", "own_bias", "centered_bias")
        )
        deployed = Layers(*(self._to_tensor(stored[f"returned.{each.name}"]) for each in fields(Layers)))
        biases = Biases(average, self._to_tensor(stored["answer.own_bias"]), centered)
        return SharedState(head, bias, deployed, biases, self._to_tensor(stored["taken_out"]))

    def _train_round(self, number: int, arrays: Mapping[str, Array], before: Arrays | None) -> Arrays:
        """Train one round; return the arrays of the reply, of the network and of its returned layers."""
        clients = self._build_clients(arrays, before)
        head, bias = (self._to_tensor(arrays[name])[None] for name in ("head", "bias"))
        returned = clients.round(number, head, bias)
        stored = {f"private.{name}": value for name, value in clients.stack.tensors.items()}
        stored |= {f"returned.{each.name}": getattr(returned.layers, each.name) for each in fields(Layers)}
        stored |= {"taken_out": returned.removed_mean} | _reply(clients, returned)
        return {name: value.cpu().numpy() for name, value in stored.items()}

    def _to_tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float64, device=self.device)


def _build_model(clients: Clients, layers: Layers) -> Arrays:
    """Return the network's parameters and buffers, with these last layers."""
    state = clients.stack.tensors
    for name, value in layers.to_parameters().items():
        state[name] = value.to(state[name].dtype)
    return {name: value[0].cpu().numpy() for name, value in state.items()}


def _reply(clients: Clients, returned: Returned) -> dict[str, Tensor]:
    """Return the REPLIED arrays, each with a leading axis of one model."""
    own, centered = own_biases(returned)
    values = (
        returned.layers.head, returned.layers.bias, own, centered, local_objective(clients, 0, returned),
        returned.clipped, returned.training_loss, returned.diverged,
    )  # fmt: skip
    return {f"answer.{name}": value.double() for name, value in zip(REPLIED, values, strict=True)}


def _to_array(values: Tensor) -> Array:
    return values.double().cpu().numpy()
