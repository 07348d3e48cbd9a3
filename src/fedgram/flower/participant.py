"""A client's side of a federation: introduce itself, train a round, measure what is shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from fedgram.flower.letter import Letter
from fedgram.flower.plan import Plan
from fedgram.flower.private import Arrays, PrivateFiles, question
from fedgram.flower.site import Site
from fedgram.nets.evaluation import Biases
from fedgram.nets.local import Clients, Returned, initial
from fedgram.nets.measuring import Shared, local_objective, own_biases
from fedgram.nets.model import example, fingerprint, name_of
from fedgram.nets.returns import Layers
from fedgram.nets.sites import Exchange, Sites
from fedgram.psd import Array
from fedgram.train import devices

EXCHANGED = ("mean", "covariance", "within")
ANSWERED = ("head", "bias", "own_bias", "centered_bias", "local_objective", "clipped", "loss", "diverged")


class Participant:
    """A site that takes part in a federation; rows, backbone and feature layer never leave it."""

    def __init__(self, site: Site, plan: Plan) -> None:
        self.site, self.plan = site, plan
        self.device = devices.named(site.device)
        test = {} if site.test is None else {site.name: site.test}
        self.sites = Sites.of({site.name: site.train}, test, self.device)

    def introduce(self) -> Letter:
        """Moments of its targets, the head and bias that it would begin with, and what it is."""
        site, plan = self.site, self.plan
        moments = site.moments
        stack = initial(self.sites, site.backbone, [plan.run], plan.settings, self.device)
        model, inputs = example(site.backbone, site.train, plan.settings.features)
        arrays = {
            "mean": moments.mean[0],
            "covariance": moments.covariance[0],
            "head": _array(stack.parameters["head.weight"][0]),
            "bias": _array(stack.parameters["head.bias"][0]),
        }
        words = {
            "client": site.name,
            "rows": len(site.train),
            "test_rows": 0 if site.test is None else len(site.test),
            "targets": list(moments.targets),
            "backbone": name_of(site.backbone),
            "parameters": model.size,
            "network": fingerprint(model, inputs),
            "digest": site.digest,
        }
        return Letter(arrays, words)

    def train(self, asked: Letter) -> Letter:
        """Train one round from the shared head and bias, or say again what it answered before."""
        number, files = int(asked.words["round"]), self._files(asked)
        posed = question(number, asked.arrays)
        kept = files.answered(number, posed)
        if kept is None:
            kept = self._trained(number, asked.arrays, files.read(number - 1))
            files.write(number, posed, kept)
        return Letter({name: kept[f"answer.{name}"][0] for name in ANSWERED}, {"client": self.site.name})

    def evaluate(self, asked: Letter) -> Letter:
        """Objective and errors with the averaged head, for the round that it trained last."""
        kept = self._files(asked).read(int(asked.words["round"]))
        if kept is None:
            return Letter.refusing("it has not trained this round")
        clients = self._clients(asked.arrays, kept)
        head, bias, average, centered = (
            _tensor(asked.arrays[name], self.device)[None]
            for name in ("head", "bias", "own_bias", "centered_bias")
        )
        deployed = Layers(*(_tensor(kept[f"returned.{each.name}"], self.device) for each in fields(Layers)))
        own = _tensor(kept["answer.own_bias"], self.device)
        shared = Shared(
            head, bias, deployed, Biases(average, own, centered), _tensor(kept["taken_out"], self.device)
        )
        objective, train, test = shared.measured(clients, 0, clients.outputs()[0][0])
        arrays = {"objective": objective[0], "train_mse": train[0], "test_mse": test[0]}
        return Letter({name: _array(value) for name, value in arrays.items()}, {"client": self.site.name})

    def _files(self, asked: Letter) -> PrivateFiles:
        folder = Path(self.site.folder) / self.site.name / self.plan.run.name
        return PrivateFiles(folder, str(asked.words["federation"]))

    def _clients(self, arrays: Mapping[str, Array], kept: Arrays | None) -> Clients:
        """Its network after a round that was kept, or as it is drawn; arrays hold the exchange."""
        exchange = Exchange(*(arrays[name] for name in EXCHANGED))
        site, plan = self.site, self.plan
        clients = Clients(self.sites, exchange, site.backbone, [plan.run], plan.settings, self.device)
        for name, value in {**clients.stack.parameters, **clients.stack.buffers}.items():
            if kept is not None:
                value.copy_(torch.from_numpy(kept[f"private.{name}"]))
        return clients

    def _trained(self, number: int, arrays: Mapping[str, Array], before: Arrays | None) -> Arrays:
        """All that a round leaves: the answer, the network, and what the client predicts with."""
        clients = self._clients(arrays, before)
        head, bias = (_tensor(arrays[name], self.device)[None] for name in ("head", "bias"))
        returned = clients.round(number, head, bias)
        stack = clients.stack
        private = {f"private.{name}": value for name, value in {**stack.parameters, **stack.buffers}.items()}
        layers = {f"returned.{each.name}": getattr(returned.layers, each.name) for each in fields(Layers)}
        kept = private | layers | {"taken_out": returned.taken_out} | _answer(clients, returned)
        return {name: value.cpu().numpy() for name, value in kept.items()}


def _answer(clients: Clients, returned: Returned) -> dict[str, Tensor]:
    """What is sent of a round, by the names in ANSWERED; all with a leading axis of one model."""
    own, centered = own_biases(returned)
    sent = (
        returned.layers.head, returned.layers.bias, own, centered, local_objective(clients, 0, returned),
        returned.clipped, returned.training_loss, returned.diverged,
    )  # fmt: skip
    return {f"answer.{name}": value.double() for name, value in zip(ANSWERED, sent, strict=True)}


def _tensor(values: Array, device: torch.device) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64, device=device)


def _array(values: Tensor) -> Array:
    return values.double().cpu().numpy()
