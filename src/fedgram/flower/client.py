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
from fedgram.federation.clients import Clients, Returned, check_independent_starts
from fedgram.federation.evaluation import Biases, SharedState, local_objective, own_biases
from fedgram.federation.returns import Layers
from fedgram.flower.client_state import Arrays, ClientStore, folder_name, hash_request
from fedgram.flower.config import FederationConfig
from fedgram.flower.identity import SiteKey
from fedgram.flower.messages import REPLIES, Payload
from fedgram.flower.site import Site
from fedgram.nets.cuda import storage_dtype
from fedgram.nets.model import draw_example, fingerprint
from fedgram.runs.store import safe_name
from fedgram.training import devices

POOLED = ("mean", "covariance", "within")
"""Arrays of `PooledMoments` in a request."""
REPLIED = tuple(REPLIES["train"].arrays)
"""Arrays of a training reply."""


class Client:
    """One client of a federation; its rows, backbone and feature layer never leave it."""

    def __init__(self, site: Site, config: FederationConfig) -> None:
        self.site, self.config = site, config
        self.device = devices.resolve_device(site.device)
        test = {} if site.test is None else {site.name: site.test}
        dtype = storage_dtype(config.settings.precision)
        self.data = ClientData.from_splits({site.name: site.train}, test, self.device, dtype)

    def reply(self, kind: str, request: Payload) -> Payload:
        """Answer a message of a kind in REPLIES, and sign the answer."""
        answer = ANSWERS[kind](self, request)
        if answer.error:
            return answer
        site, key = self.site, SiteKey.load(Path(self.site.folder, f"{folder_name(self.site.name)}.key"))
        identity = {
            "client": site.name,
            "key": key.public,
            "nonce": request.metadata["nonce"],
            "rows": len(site.train),
            "fingerprint": key.fingerprint(site.train, site.test),
        }
        return key.sign(replace(answer, metadata={**answer.metadata, **identity}))

    def describe(self, request: Payload) -> Payload:
        """Return target moments and a description of rows and network."""
        site, config = self.site, self.config
        check_independent_starts(site.backbone, [config.run.procedure])
        model, inputs = draw_example(site.backbone, site.train, config.settings.features)
        moments = site.moments
        metadata = {
            "version": __version__,
            "test_rows": 0 if site.test is None else len(site.test),
            "targets": list(moments.targets),
            "parameters": model.size,
            "network": fingerprint(model, inputs),
        }
        return Payload({"own_mean": moments.mean[0], "own_covariance": moments.covariance[0]}, metadata)

    def train(self, request: Payload) -> Payload:
        """Train one round from the shared head and bias, or repeat the stored reply to the same request.

        The reply has the round that training resumed from ("after").
        """
        number, store = int(request.metadata["round"]), self._store(request)
        request_hash, before = hash_request(number, request.arrays), store.find_round_before(number)
        arrays = store.read_round(number, request_hash)
        if arrays is None:
            with devices.use_device(self.device):
                arrays = self._train_round(number, request.arrays, store.read_round(before))
            store.write_round(number, request_hash, arrays)
        reply = {name: arrays[f"answer.{name}"][0] for name in REPLIED}
        return Payload(reply, {"round": number, "after": before})

    def evaluate(self, request: Payload) -> Payload:
        """Return objective and errors with the averaged head, and store the network with that head."""
        number, store = int(request.metadata["round"]), self._store(request)
        arrays = store.read_round(number)
        if arrays is None:
            return Payload.from_error(f"site '{self.site.name}' has not trained this round.")
        with devices.use_device(self.device):
            clients = self._build_clients(request.arrays, arrays)
            returned = Layers(*(self._to_tensor(arrays[f"returned.{each.name}"]) for each in fields(Layers)))
            head, bias = (self._to_tensor(request.arrays[name])[None] for name in ("head", "bias"))
            shared = self._build_shared(request.arrays, arrays, replace(returned, head=head, bias=bias))
            layers = clients.receive(returned, head, bias)
            if self.config.run.procedure.centered:  # predict targets with their mean
                layers = replace(layers, bias=layers.bias + self._to_tensor(self.site.moments.mean))
            store.write_model(_build_model(clients, layers))
            objective, train, test = shared.evaluate(clients, 0, clients.training_outputs()[0][0])
        measured = {"objective": objective, "train_mse": train, "test_mse": test}
        return Payload({name: _to_array(value[0]) for name, value in measured.items()}, {"round": number})

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

    def _build_shared(self, arrays: Mapping[str, Array], stored: Arrays, deployed: Layers) -> SharedState:
        average, centered = (self._to_tensor(arrays[name])[None] for name in ("own_bias", "centered_bias"))
        biases = Biases(average, self._to_tensor(stored["answer.own_bias"]), centered)
        return SharedState(deployed, biases, self._to_tensor(stored["taken_out"]))

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


ANSWERS = {"query": Client.describe, "train": Client.train, "evaluate": Client.evaluate}
"""What a client does with each type of message."""


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
