"""The training loop: all runs of a federation as one stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgram.data.problem import Problem
from fedgram.errors import InputError
from fedgram.nets.evaluation import Biases, errors, objective
from fedgram.nets.fit import Advanced
from fedgram.nets.local import LAST, Clients, Returned
from fedgram.nets.model import Backbone
from fedgram.nets.record import Round, Run
from fedgram.nets.returns import Layers, applied
from fedgram.nets.settings import Settings
from fedgram.nets.sites import Exchange, Sites
from fedgram.nets.stack import Tensors
from fedgram.psd import Array


class Federation:
    """Runs of one problem, backbone and protocol, trained side by side.

    head (R, C, P) and bias (R, C) are shared; `clients` holds what is private, and `deployed` the last
    layers that clients predict with.
    """

    def __init__(
        self,
        problem: Problem,
        backbone: Backbone,
        runs: Sequence[Run],
        settings: Settings,
        device: torch.device,
    ) -> None:
        self.runs, self.settings = tuple(runs), settings
        kinds = {run.procedure.centralized for run in runs}
        if not kinds:
            raise InputError("There is no run to train: name a procedure and a seed.", field="procedure")
        if len(kinds) > 1:
            raise InputError("Centralized runs go in a stack of their own.", field="procedure")
        sites = (Sites.centralized if kinds.pop() else Sites.federated)(problem, device)
        self.clients = Clients(sites, Exchange.of(problem), backbone, runs, settings, device)
        self.finished = 0
        layers = self.clients.layers().of(self.clients.at(0))
        self.head, self.bias, self.deployed = layers.head, layers.bias, self.clients.layers()
        self.diverged = torch.zeros(len(runs), 2, dtype=torch.int64)  # client and round; round 0: not at all

    def rounds(self, advanced: Advanced = lambda epochs: None) -> Iterator[dict[Run, Round]]:
        """Train the rounds that are left; what each run recorded, round by round."""
        for number in range(self.finished + 1, self.settings.rounds + 1):
            returned = self.clients.round(number, self.head, self.bias, advanced)
            self.stop_diverged(number, returned)
            self.head, self.bias = self.averaged(returned.layers.head), self.averaged(returned.layers.bias)
            self.deployed, self.finished = self.average_models(returned.layers), number
            yield self.measured(number, returned)

    def averaged(self, values: Tensor) -> Tensor:
        """Σ p_m of every run: (K, ...) -> (R, ...)."""
        each = values.unflatten(0, (len(self.clients.sites), len(self.runs)))
        return torch.tensordot(self.clients.sites.weights.to(values.dtype), each, dims=1)

    def average_models(self, layers: Layers) -> Layers:
        """Give all clients the mean of their backbones, in runs with full-model averaging.

        layers are as returned; those runs' feature layers become the averaged ones.
        """
        if not self.full_model:
            return layers
        full = torch.tensor([run.procedure.full_model for run in self.runs], device=self.head.device)
        stack, count = self.clients.stack, len(self.clients.sites)
        for name, value in stack.parameters.items():
            if not name.startswith("head."):
                own = value.unflatten(0, (count, len(self.runs)))
                own[:, full] = self.averaged(value)[full]
        models, averaged = full.repeat(count), self.clients.layers()
        return replace(
            layers,
            layer_weight=torch.where(models[:, None, None], averaged.layer_weight, layers.layer_weight),
            layer_bias=torch.where(models[:, None], averaged.layer_bias, layers.layer_bias),
        )

    def stop_diverged(self, number: int, returned: Returned) -> None:
        """Name the runs of which a model is no longer finite; nothing more is recorded of them."""
        broken = returned.diverged.unflatten(0, (len(self.clients.sites), len(self.runs)))
        for m, r in broken.nonzero().tolist():
            if not self.diverged[r, 1]:
                self.diverged[r] = torch.tensor([m, number])

    @property
    def stopped(self) -> dict[Run, str]:
        """Why runs were given up, in words."""
        names = self.clients.sites.names
        return {
            run: f"client '{names[m]}' diverged in round {number}"
            for run, (m, number) in zip(self.runs, self.diverged.tolist(), strict=True)
            if number
        }

    def measured(self, number: int, returned: Returned) -> dict[Run, Round]:
        """What this round leaves of every run that is still going."""
        known, clients = self.biases(returned), range(len(self.clients.sites))
        local, shared, train, test = (
            torch.stack(each).transpose(0, 1).cpu().numpy()
            for each in zip(*(self._measured(m, returned, known) for m in clients), strict=True)
        )

        def by_run(values: Tensor) -> Array:
            each = values.unflatten(0, (len(self.clients.sites), len(self.runs)))
            return each.transpose(0, 1).cpu().numpy()

        head, bias = self.head.cpu().numpy(), self.bias.cpu().numpy()
        heads, biases = by_run(returned.layers.head), by_run(returned.layers.bias)
        clipped, loss = by_run(returned.clipped), by_run(returned.training_loss)
        return {
            run: Round(number, head[r], bias[r], heads[r], biases[r], local[r], shared[r], train[r], test[r],
                       clipped[r], loss[r])
            for r, run in enumerate(self.runs)
            if run not in self.stopped
        }  # fmt: skip

    def biases(self, returned: Returned) -> Biases:
        """The biases of all models under each rule, whichever they were trained with."""
        heads, count = returned.layers.head, len(self.clients.sites)
        own = returned.layers.bias - applied(heads, returned.taken_out)
        centered = own + applied(heads, returned.center)
        shared, offset = (self.averaged(each).repeat(count, 1) for each in (own, centered))
        return Biases(shared, own, offset)

    def _measured(
        self, client: int, returned: Returned, biases: Biases
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Local and shared objective (R,), and train and test MSE (R, 3), of one client."""
        clients, at, penalty = self.clients, self.clients.at(client), self.settings.penalty
        rows, targets = clients.sites.train[client]
        wanted = clients.targets(client, targets)
        own = returned.layers.of(at)
        local = objective(own, own.features(returned.outputs[client]), wanted, penalty)
        # Averaging whole models has changed the backbones as well.
        outputs = clients.stack.outputs(at, rows) if self.full_model else returned.outputs[client]
        shared = replace(self.deployed.of(at), head=self.head, bias=self.bias)
        features = shared.features(outputs)
        center = features.mean(dim=1, keepdim=True)
        known = biases.of(at).under_rules(
            self.head, center[:, 0] + returned.taken_out[at], clients.distance[at], penalty
        )
        train = errors(self.head, features - center, known, wanted)
        test, test_targets = clients.sites.test[client]
        tested = torch.full_like(train, float("nan"))
        if len(test):
            others = shared.features(clients.stack.outputs(at, test)) - center
            tested = errors(self.head, others, known, clients.targets(client, test_targets))
        return local, objective(shared, features, wanted, penalty), train, tested

    @property
    def full_model(self) -> bool:
        """Whether any run averages whole models."""
        return any(run.procedure.full_model for run in self.runs)

    def models(self) -> Tensors:
        """Parameters and buffers (K, ...) by name of the models that clients predict with."""
        last = self.clients.received(self.deployed, self.head, self.bias, first=not self.finished)
        stack = self.clients.stack
        return {**stack.parameters, **stack.buffers, **dict(zip(LAST, vars(last).values(), strict=True))}

    def state(self) -> Tensors:
        """Everything that the next rounds depend on, as it stands in memory."""
        stack = self.clients.stack
        private = {f"private.{name}": value for name, value in {**stack.parameters, **stack.buffers}.items()}
        shared = {"head": self.head, "bias": self.bias, "diverged": self.diverged}
        return {"finished": torch.tensor(self.finished), **shared, **private}

    def load(self, state: Tensors) -> None:
        """Go on from a state."""
        stack = self.clients.stack
        for name, value in {**stack.parameters, **stack.buffers}.items():
            value.copy_(state[f"private.{name}"])
        self.head, self.bias = state["head"].to(self.head), state["bias"].to(self.bias)
        self.finished, self.diverged = int(state["finished"]), state["diverged"].clone()
