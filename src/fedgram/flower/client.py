"""A client's side of a federation: introduce itself, train a round, measure what is shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor

import fedgram
from fedgram._util.arrays import Array
from fedgram.federation.client_data import ClientData, PooledMoments
from fedgram.federation.clients import LAST, Clients, Returned, initial
from fedgram.federation.evaluation import Biases, Shared, local_objective, own_biases
from fedgram.federation.returns import Layers
from fedgram.flower.client_state import Arrays, ClientStore, folder_name, question
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import Payload
from fedgram.flower.site import Site
from fedgram.nets.cuda import storage
from fedgram.nets.model import example, fingerprint
from fedgram.runs.store import safe
from fedgram.training import devices

EXCHANGED = ("mean", "covariance", "within")
ANSWERED = ("head", "bias", "own_bias", "centered_bias", "local_objective", "clipped", "loss", "diverged")


class Client:
    """A site that takes part in a federation; rows, backbone and feature layer never leave it."""

    def __init__(self, site: Site, plan: FederationConfig) -> None:
        self.site, self.plan = site, plan
        self.device = devices.named(site.device)
        test = {} if site.test is None else {site.name: site.test}
        dtype = storage(plan.settings.precision)
        self.sites = ClientData.from_splits({site.name: site.train}, test, self.device, dtype)

    def introduce(self) -> Payload:
        """Moments of its targets, the head and bias that it would begin with, and what it is."""
        site, plan = self.site, self.plan
        stack = initial(self.sites, site.backbone, [plan.run], plan.settings, self.device)
        model, inputs = example(site.backbone, site.train, plan.settings.features)
        words = {
            "version": fedgram.__version__,
            "client": site.name,
            "rows": len(site.train),
            "test_rows": 0 if site.test is None else len(site.test),
            "targets": list(site.moments.targets),
            "parameters": model.size,
            "network": fingerprint(model, inputs),
        }
        begun = (_array(stack.parameters[name][0]) for name in ("head.weight", "head.bias"))
        return Payload(self._moments() | dict(zip(("head", "bias"), begun, strict=True)), words)

    def train(self, asked: Payload) -> Payload:
        """Train one round from the shared head and bias, or say again what it answered before.

        With the answer come the moments of its rows as they are now, and the round after which it went on.
        """
        number, files = int(asked.words["round"]), self._files(asked)
        posed, before = question(number, asked.arrays), files.before(number)
        kept = files.answered(number, posed)
        if kept is None:
            with devices.current(self.device):
                kept = self._trained(number, asked.arrays, files.read(before))
            files.write(number, posed, kept)
        answer = {name: kept[f"answer.{name}"][0] for name in ANSWERED}
        return Payload(answer | self._moments(), {"client": self.site.name, "after": before})

    def evaluate(self, asked: Payload) -> Payload:
        """Objective and errors with the averaged head; the network with that head is kept to predict with."""
        files = self._files(asked)
        kept = files.read(int(asked.words["round"]))
        if kept is None:
            return Payload.refusing("it has not trained this round")
        with devices.current(self.device):
            clients, shared = self._clients(asked.arrays, kept), self._shared(asked.arrays, kept)
            last = clients.received(shared.deployed, shared.head, shared.bias)
            files.keep_model(_model(clients, self._shifted(last)))
            objective, train, test = shared.measured(clients, 0, clients.outputs()[0][0])
        arrays = {"objective": objective[0], "train_mse": train[0], "test_mse": test[0]}
        return Payload({name: _array(value) for name, value in arrays.items()}, {"client": self.site.name})

    def _moments(self) -> Arrays:
        moments = self.site.moments
        return {"own_mean": moments.mean[0], "own_covariance": moments.covariance[0]}

    def _files(self, asked: Payload) -> ClientStore:
        words = safe(self.plan.name), self.plan.run.name, safe(str(asked.words["federation"]))
        return ClientStore(Path(self.site.folder, folder_name(self.site.name), *words))

    def _clients(self, arrays: Mapping[str, Array], kept: Arrays | None) -> Clients:
        """Its network after a round that was kept, or as it is drawn; arrays hold the exchange."""
        exchange = PooledMoments(*(arrays[name] for name in EXCHANGED))
        site, plan = self.site, self.plan
        clients = Clients(self.sites, exchange, site.backbone, [plan.run], plan.settings, self.device)
        if kept is not None:
            clients.load({name: torch.from_numpy(kept[f"private.{name}"]) for name in _state(clients)})
        return clients

    def _shared(self, arrays: Mapping[str, Array], kept: Arrays) -> Shared:
        """What it predicts with after averaging."""
        head, bias, average, centered = (
            self._tensor(arrays[name])[None] for name in ("head", "bias", "own_bias", "centered_bias")
        )
        deployed = Layers(*(self._tensor(kept[f"returned.{each.name}"]) for each in fields(Layers)))
        biases = Biases(average, self._tensor(kept["answer.own_bias"]), centered)
        return Shared(head, bias, deployed, biases, self._tensor(kept["taken_out"]))

    def _trained(self, number: int, arrays: Mapping[str, Array], before: Arrays | None) -> Arrays:
        """All that a round leaves: the answer, the network, and what the client predicts with."""
        clients = self._clients(arrays, before)
        head, bias = (self._tensor(arrays[name])[None] for name in ("head", "bias"))
        returned = clients.round(number, head, bias)
        private = {f"private.{name}": value for name, value in _state(clients).items()}
        layers = {f"returned.{each.name}": getattr(returned.layers, each.name) for each in fields(Layers)}
        kept = private | layers | {"taken_out": returned.taken_out} | _answer(clients, returned)
        return {name: value.cpu().numpy() for name, value in kept.items()}

    def _shifted(self, layers: Layers) -> Layers:
        """Layers that predict targets as they are, where the procedure takes their mean out."""
        if not self.plan.run.procedure.centered:
            return layers
        return replace(layers, bias=layers.bias + self._tensor(self.site.moments.mean))

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float64, device=self.device)


def _state(clients: Clients) -> dict[str, Tensor]:
    return {**clients.stack.parameters, **clients.stack.buffers}


def _model(clients: Clients, last: Layers) -> Arrays:
    """Parameters and buffers of the one network by name, with these last layers."""
    state = _state(clients)
    state |= {
        name: value.to(state[name].dtype) for name, value in zip(LAST, vars(last).values(), strict=True)
    }
    return {name: value[0].cpu().numpy() for name, value in state.items()}


def _answer(clients: Clients, returned: Returned) -> dict[str, Tensor]:
    """What is sent of a round, by the names in ANSWERED; all with a leading axis of one model."""
    own, centered = own_biases(returned)
    sent = (
        returned.layers.head, returned.layers.bias, own, centered, local_objective(clients, 0, returned),
        returned.clipped, returned.training_loss, returned.diverged,
    )  # fmt: skip
    return {f"answer.{name}": value.double() for name, value in zip(ANSWERED, sent, strict=True)}


def _array(values: Tensor) -> Array:
    return values.double().cpu().numpy()
