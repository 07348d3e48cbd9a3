"""The training loop: all runs of a federation as one stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.problem import Problem
from fedgram.federation.client_data import ClientData, PooledMoments
from fedgram.federation.clients import LAST, Clients, Returned
from fedgram.federation.evaluation import Biases, Shared, local_objective, own_biases
from fedgram.federation.returns import Layers
from fedgram.nets.cuda import storage
from fedgram.nets.fit import OnEpoch
from fedgram.nets.model import Backbone
from fedgram.nets.stack import Tensors
from fedgram.runs.record import Round, Run
from fedgram.runs.train_config import TrainConfig


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
        settings: TrainConfig,
        device: torch.device,
    ) -> None:
        self.runs, self.settings = tuple(runs), settings
        kinds = {run.procedure.centralized for run in runs}
        if not kinds:
            raise InputError("There is no run to train: name a procedure and a seed.", field="procedure")
        if len(kinds) > 1:
            raise InputError("Centralized runs go in a stack of their own.", field="procedure")
        sites = (ClientData.centralized if kinds.pop() else ClientData.federated)(
            problem, device, storage(settings.precision)
        )
        self.clients = Clients(sites, PooledMoments.from_problem(problem), backbone, runs, settings, device)
        self.finished = 0
        layers = self.clients.layers().of(self.clients.at(0))
        self.head, self.bias, self.deployed = layers.head, layers.bias, self.clients.layers()
        self.diverged = torch.zeros(len(runs), 2, dtype=torch.int64)  # client and round; round 0: not at all

    def rounds(self, on_epoch: OnEpoch = lambda epochs: None) -> Iterator[dict[Run, Round]]:
        """Train the rounds that are left; what each run recorded, round by round."""
        for number in range(self.finished + 1, self.settings.rounds + 1):
            returned = self.clients.round(number, self.head, self.bias, on_epoch)
            self.stop_diverged(number, returned)
            self.head, self.bias = self.averaged(returned.layers.head), self.averaged(returned.layers.bias)
            self.deployed, self.finished = self.average_models(returned.layers), number
            yield self.measured(number, returned)

    def averaged(self, values: Tensor) -> Tensor:
        """Σ p_m of every run: (K, ...) -> (R, ...)."""
        each = values.unflatten(0, (len(self.clients.sites), len(self.runs)))
        return torch.tensordot(self.clients.sites.client_weights.to(values.dtype), each, dims=1)

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
        after, clients = self.shared(returned), self.clients
        by_client = [
            (local_objective(clients, m, returned), *after.measured(clients, m, self._outputs(m, returned)))
            for m in range(len(clients.sites))
        ]
        local, shared, train, test = (
            torch.stack(each, dim=1).cpu().numpy() for each in zip(*by_client, strict=True)
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

    def shared(self, returned: Returned) -> Shared:
        """What clients predict with after this round, with the biases of all rules, whichever was trained."""
        own, centered = own_biases(returned)
        count = len(self.clients.sites)
        averages = [self.averaged(each).repeat(count, 1) for each in (own, centered)]
        biases = Biases(averages[0], own, averages[1])
        return Shared(self.head, self.bias, self.deployed, biases, returned.taken_out)

    def _outputs(self, client: int, returned: Returned) -> Tensor:
        """The backbones' outputs for a client's rows; averaging whole models has changed the backbones."""
        if not self.full_model:
            return returned.outputs[client]
        return self.clients.stack.outputs(self.clients.at(client), self.clients.sites.train[client][0])

    @property
    def full_model(self) -> bool:
        """Whether any run averages whole models."""
        return any(run.procedure.full_model for run in self.runs)

    def models(self) -> Tensors:
        """Parameters and buffers (K, ...) by name of the models that clients predict with."""
        last = self.clients.received(self.deployed, self.head, self.bias)
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
        private = (name for name in state if name.startswith("private."))
        self.clients.load({name.removeprefix("private."): state[name] for name in private})
        self.head, self.bias = state["head"].to(self.head), state["bias"].to(self.bias)
        self.finished, self.diverged = int(state["finished"]), state["diverged"].clone()
