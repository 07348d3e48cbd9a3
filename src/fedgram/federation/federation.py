"""Training loop of a federation: all runs as one stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.problem import Problem
from fedgram.federation.alone import predict_alone
from fedgram.federation.client_data import ClientData, PooledMoments
from fedgram.federation.clients import Clients, Returned
from fedgram.federation.evaluation import (
    Biases,
    OutputRows,
    SharedState,
    local_objective,
    own_biases,
)
from fedgram.federation.returns import Layers
from fedgram.federation.site_models import (
    ChosenModels,
    SiteModels,
    absorb,
    add_companions,
    check_validation,
    find_companion,
    fit_heads,
    predict_part,
    predict_sites,
)
from fedgram.nets.cuda import storage_dtype
from fedgram.nets.fit import OnEpoch
from fedgram.nets.model import Backbone
from fedgram.nets.stack import Tensors
from fedgram.runs.advice import Alone
from fedgram.runs.procedure import BIAS_RULES
from fedgram.runs.record import Round, Run
from fedgram.runs.train_config import TrainConfig


class Federation:
    """R runs of one problem, backbone and protocol, trained together.

    head (R, C, P) and bias (R, C) are shared. `clients` holds the private state, and `deployed` the last
    layers that clients predict with. With `keeps_trained`, `predict_trained` needs no further training.
    """

    def __init__(
        self,
        problem: Problem,
        backbone: Backbone,
        runs: Sequence[Run],
        config: TrainConfig,
        device: torch.device,
        *,
        keeps_trained: bool = False,
    ) -> None:
        self.recorded, self.config = tuple(runs), config
        self.runs = add_companions(runs)
        kinds = {run.procedure.centralized for run in runs}
        if not kinds:
            raise InputError("There is no run to train. Name a procedure and a seed.", field="procedure")
        if len(kinds) > 1:
            raise InputError(
                "A stack has federated or centralized runs, not both. Train them separately.",
                field="procedure",
            )
        dtype = storage_dtype(config.precision)
        data = ClientData.from_problem(problem, device, dtype, centralized=kinds.pop())
        check_validation(runs, data.has_validation)
        pooled = PooledMoments.from_problem(problem)
        self.clients = Clients(data, pooled, backbone, self.runs, config, device)
        self.finished = 0
        self.deployed = self.clients.layers()
        first = self.deployed.select(self.clients.at(slice(0, 1)))
        self.head, self.bias = first.head, first.bias
        self.diverged = torch.zeros(len(self.runs), 2, dtype=torch.int64)  # client and round; round 0: none
        self.chosen = ChosenModels(self.clients, keeps_trained=keeps_trained) if data.has_validation else None

    def rounds(
        self, on_epoch: OnEpoch = lambda epochs: None, *, measured: bool = True
    ) -> Iterator[dict[Run, Round]]:
        """Train the remaining rounds; yield the records of all runs after each, none if not measured."""
        for number in range(self.finished + 1, self.config.rounds + 1):
            is_measured = measured and self.config.is_measured(number)
            returned = self.clients.round(number, self.head, self.bias, on_epoch, measured=is_measured)
            self._mark_diverged(number, returned.diverged)
            self.head, self.bias = self.average(returned.layers.head), self.average(returned.layers.bias)
            self.deployed, self.finished = self._average_backbones(returned.layers), number
            if self.chosen:
                self._mark_diverged(number, self.chosen.update(number, self._current_models()))
            records = self._record(number, returned, is_measured) if measured else {}
            self._continue_from_moment_heads(number)
            yield records

    def average(self, values: Tensor) -> Tensor:
        """Compute Σ p_m of each run: (K, ...) -> (R, ...)."""
        weights = self.clients.data.client_weights.to(values.dtype)
        return torch.tensordot(weights, self._by_client(values), dims=1)

    @property
    def stopped(self) -> dict[Run, str]:
        """Reason of each run that was stopped."""
        names = self.clients.data.names
        cause = ", perhaps because fp16 overflowed" if self.clients.config.precision == "fp16" else ""
        return {
            run: f"client '{names[m]}' diverged in round {number}{cause}"
            for run, (m, number) in zip(self.runs, self.diverged.tolist(), strict=True)
            if number
        }

    def site_models(self, run: Run) -> SiteModels:
        """Return the models that a run's clients predict with.

        With validation rows these are the models of the best round, with solved heads and shares.
        """
        r = self.runs.index(run)
        if self.chosen:
            return self.chosen.finish(r)
        return SiteModels(self.clients.of_run(self._current_models(), r))

    def predict(self, run: Run, models: SiteModels, part: str) -> list[Array]:
        """Predict the rows of every client with a run's models: arrays (N_m, C); part: 'test' for example."""
        return predict_sites(self.clients, models, part, self.runs.index(run))

    def predict_alone(self, run: Run) -> dict[Alone, list[Array]]:
        """Predict the test rows of every client of a blended run without the others, by method."""
        companion = find_companion(self.clients, self.runs.index(run))
        assert self.chosen is not None  # blended runs have validation rows
        return predict_alone(self.clients, self.chosen.finish(companion).tensors, companion)

    def predict_trained(self, run: Run) -> list[Array]:
        """Predict all test rows with heads as trained, in the round that is best with them."""
        assert self.chosen is not None
        assert self.chosen.trained is not None
        r = self.runs.index(run)
        return predict_part(self.clients, self.clients.of_run(self.chosen.trained.tensors, r), "test", r)

    def _current_models(self) -> Tensors:
        layers = self.clients.receive(self.deployed, self.head, self.bias)
        return {**self.clients.stack.tensors, **layers.to_parameters()}

    def _continue_from_moment_heads(self, number: int) -> None:
        """Continue training from the moment heads of runs that solve them every k rounds.

        Heads are those of training rows, so that validation rows can still choose a round. The bias is a new
        tensor: the record of the round has the average.
        """
        for r, run in enumerate(self.runs):
            every = run.procedure.moment_head
            if every > 1 and number % every == 0 and run not in self.stopped:
                models = self.clients.of_run(self._current_models(), r)
                head = fit_heads(self.clients, models, r, deviations=False).shared_unseen
                moved = absorb(Layers.from_parameters(models), head)
                stack = self.clients.of_run(self.clients.stack.tensors, r)  # views
                stack["feature.weight"].copy_(moved.layer_weight)
                self.bias = self.bias.index_copy(0, torch.tensor([r]).to(self.bias.device), moved.bias[:1])

    def state(self) -> Tensors:
        """Return all tensors that the next rounds depend on, without copies."""
        private = {f"private.{name}": value for name, value in self.clients.stack.tensors.items()}
        shared = {"head": self.head, "bias": self.bias, "diverged": self.diverged}
        chosen = self.chosen.state() if self.chosen else {}
        is_local = self.clients.is_local
        moments = self.clients.fit.optimizer.state(is_local) if is_local.any() else {}
        return {"finished": torch.tensor(self.finished), **shared, **private, **chosen, **moments}

    def load(self, state: Tensors) -> None:
        """Continue from a state."""
        private = (name for name in state if name.startswith("private."))
        self.clients.load({name.removeprefix("private."): state[name] for name in private})
        self.head, self.bias = state["head"].to(self.head), state["bias"].to(self.bias)
        self.finished, self.diverged = int(state["finished"]), state["diverged"].clone()
        if self.chosen:
            self.chosen.load(state)
        if self.clients.is_local.any():
            self.clients.fit.optimizer.load(state, self.clients.is_local)

    def _by_client(self, values: Tensor) -> Tensor:
        """Split the model axis: (K, ...) -> (M, R, ...)."""
        return values.unflatten(0, (len(self.clients.data), len(self.runs)))

    @property
    def _full_model_runs(self) -> list[int]:
        return [r for r, run in enumerate(self.runs) if run.procedure.full_model]

    def _average_backbones(self, layers: Layers) -> Layers:
        """Average backbones and feature layers over clients in full-model runs; return deployed layers."""
        if not self._full_model_runs:
            return layers
        weights, stack = self.clients.data.client_weights.to(self.clients.stack.dtype), self.clients.stack
        for r in self._full_model_runs:
            for name, value in self.clients.of_run(stack.parameters, r).items():
                if not name.startswith("head."):
                    value.copy_(torch.tensordot(weights, value, dims=1))  # a view of the stack
        models, averaged = self.clients.is_full_model, self.clients.layers()
        return replace(
            layers,
            layer_weight=torch.where(models[:, None, None], averaged.layer_weight, layers.layer_weight),
            layer_bias=torch.where(models[:, None], averaged.layer_bias, layers.layer_bias),
        )

    def _mark_diverged(self, number: int, diverged: Tensor) -> None:
        """Mark runs with a diverged model (K,); they record nothing from now on."""
        for m, r in self._by_client(diverged).nonzero().tolist():
            if not self.diverged[r, 1]:
                self.diverged[r] = torch.tensor([m, number])

    def _record(self, number: int, returned: Returned, is_measured: bool) -> dict[Run, Round]:
        """Record this round of each run that was not stopped."""
        measured = self._measure(returned) if is_measured else self._without_measurements()
        head, bias = self.head.cpu().numpy(), self.bias.cpu().numpy()
        layers = returned.layers
        heads, biases, local, shared, train, test, clipped, loss = (
            self._by_client(values).transpose(0, 1).cpu().numpy()
            for values in (layers.head, layers.bias, *measured, returned.clipped, returned.training_loss)
        )
        return {
            run: Round(number, head[r], bias[r], heads[r], biases[r], local[r], shared[r], train[r], test[r],
                       clipped[r], loss[r])
            for r, run in enumerate(self.recorded)
            if run not in self.stopped
        }  # fmt: skip

    def _measure(self, returned: Returned) -> tuple[Tensor, ...]:
        """Return objectives of own and of shared models (K,), and train and test errors (K, 3)."""
        state, clients, full = self._shared_state(returned), self.clients, self._full_model_runs
        by_group = []
        for group, outputs in zip(clients.groups, returned.outputs, strict=True):
            rows = OutputRows.from_outputs(outputs)
            own = local_objective(clients, group, returned.layers, rows)
            if full:  # averaging changed their backbones
                models = clients.indices(slice(0, group.stop - group.start), full)
                rows.replace(models, clients.outputs("train", group, full))
            by_group.append((own, *state.evaluate(clients, group, rows)))
        return tuple(map(torch.cat, zip(*by_group, strict=True)))

    def _without_measurements(self) -> tuple[Tensor, ...]:
        """Return NaN in place of all that `_measure` returns."""
        objectives = torch.full((len(self.clients.stack),), torch.nan, dtype=torch.float64)
        errors = objectives[:, None].expand(-1, len(BIAS_RULES))
        return objectives, objectives, errors, errors

    def _shared_state(self, returned: Returned) -> SharedState:
        own, centered = own_biases(returned)
        clients, count = self.clients, len(self.clients.data)
        is_local = clients.is_local[:, None]
        shared, moved = (
            torch.where(is_local, each, self.average(each).repeat(count, 1)) for each in (own, centered)
        )
        deployed = replace(
            self.deployed,
            head=torch.where(is_local[..., None], self.deployed.head, self.head.repeat(count, 1, 1)),
            bias=torch.where(is_local, self.deployed.bias, self.bias.repeat(count, 1)),
        )
        return SharedState(deployed, Biases(shared, own, moved), returned.removed_mean)
