"""One round at the clients: receive the shared head, train, return layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

import torch
from torch import Tensor, nn

from fedgram._util.errors import InputError
from fedgram.federation.client_data import ClientData, PooledMoments
from fedgram.federation.returns import (
    NUMBERS_AT_ONCE,
    Layers,
    ReturnedLayers,
    Rows,
    feature_offset,
    return_layers,
)
from fedgram.nets.batches import Batches
from fedgram.nets.cuda import storage_dtype
from fedgram.nets.fit import Fit, OnEpoch
from fedgram.nets.model import Backbone, Model, draw, to_device_dtype, to_model_input
from fedgram.nets.objective import Terms
from fedgram.nets.stack import ModelStack, Tensors, split_slice
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig


@dataclass(frozen=True, eq=False)
class Returned:
    """Results of K models after local training, in double precision.

    layers: after the procedure's return rule; center (K, P): mean features; removed_mean (K, P): the mean
    that a procedure with the offset removed from them; outputs u (g R, N, D) of each group's training rows;
    clipped (K,); training_loss (K,); diverged (K,): models that were not finite and are now 0.
    """

    layers: Layers
    center: Tensor
    removed_mean: Tensor
    outputs: list[Tensor]
    clipped: Tensor
    training_loss: Tensor
    diverged: Tensor


class Clients:
    """M clients x R runs as one stack of K = M R models, in client-major order.

    `stack` holds their state between rounds, with the last layers that training continues from.
    `is_initial` is True before the first round. `groups` are ranges of clients that are evaluated together.
    """

    def __init__(
        self,
        data: ClientData,
        pooled: PooledMoments,
        backbone: Backbone,
        runs: Sequence[Run],
        config: TrainConfig,
        device: torch.device,
    ) -> None:
        self.data, self.runs, self.config = data, tuple(runs), config
        self.stack, self.is_initial = draw_stack(data, backbone, runs, config, device), True
        _check_batch_norm(self.stack.model, data, config.batch)
        procedures = [run.procedure for run in runs]
        self.groups = tuple(self._group_clients())

        def mark(rule: Callable[[Procedure], bool]) -> Tensor:
            return torch.tensor([rule(each) for each in procedures] * len(data), device=device)

        self.is_local = mark(lambda each: each.local)
        self.is_full_model = mark(lambda each: each.full_model)
        self.has_offset = mark(lambda each: each.bias == "offset")[:, None]
        self.keeps_bias = mark(lambda each: each.bias == "private" or each.local)[:, None]
        self.shift = _per_model([data.shift(each) for each in procedures])
        self.deficit = _per_model([data.deficit(each, pooled) for each in procedures])
        self.distance = _per_model([data.distance(each, pooled) for each in procedures])
        proximal = torch.tensor([each.proximal for each in procedures] * len(data), dtype=torch.float64)
        dtype = self.stack.dtype
        self.terms = Terms(
            broadcast=torch.zeros_like(self.stack.parameters["head.weight"]).contiguous(),
            proximal=proximal.to(self.shift.device, dtype),
            deficit=self.deficit.to(dtype) if self.deficit.any() else None,
        )
        # Subtract the means, which may be large, before rounding to the networks' dtype.
        centered = [(rows[1] - mean).to(dtype) for rows, mean in zip(data.train, data.mean, strict=True)]
        shift = (self.shift - data.mean.repeat_interleave(len(runs), dim=0)).to(dtype)
        inputs, targets = to_device_dtype(data.inputs, dtype), torch.cat(centered)
        counts = {name: len(each) for name, each in zip(data.names, centered, strict=True)}
        batches = Batches(inputs, targets, counts, [run.seed for run in runs], shift, config.batch)
        # A site that trains alone never restarts.
        self.fit = Fit(self.stack, batches, self.terms, config, continues=self.is_local)

    def round(
        self,
        number: int,
        head: Tensor,
        bias: Tensor,
        on_epoch: OnEpoch = lambda epochs: None,
        *,
        measured: bool = True,
    ) -> Returned:
        """Receive heads (R, C, P) and biases (R, C), train round number 1, 2, ..., and return layers.

        Backbone outputs are computed if they are measured, or if a return rule needs them.
        """
        self._store_layers(self.receive(self.layers(), head, bias))
        self.is_initial = False
        self.terms.broadcast.copy_(self.stack.parameters["head.weight"])
        loss = self.fit.round(number, on_epoch)
        runs = range(len(self.runs)) if measured else self._runs_with_outputs
        outputs, diverged = self.training_outputs(runs, ~loss.isfinite())
        result = self._return_layers(runs, outputs)
        self._store_layers(result.resume_from)
        return Returned(
            layers=result.returned,
            center=result.center,
            removed_mean=torch.where(self.has_offset, result.center, 0.0),
            outputs=outputs if measured else [],
            clipped=result.clipped,
            training_loss=loss.double(),
            diverged=diverged,
        )

    def receive(self, layers: Layers, head: Tensor, bias: Tensor) -> Layers:
        """Put the shared head (R, C, P) into layers, and bias (R, C) by each procedure's rule.

        Before the first round no client has a bias of its own, so all take the shared one. Local models keep
        their own layers.
        """
        heads, biases = head.repeat(len(self.data), 1, 1), bias.repeat(len(self.data), 1)
        if self.is_initial:
            return replace(layers, head=heads, bias=biases)
        offset = feature_offset(heads, self.distance, self.config.penalty)
        return replace(
            layers,
            head=torch.where(self.is_local[:, None, None], layers.head, heads),
            bias=torch.where(self.keeps_bias, layers.bias, biases),
            layer_bias=layers.layer_bias + torch.where(self.has_offset, offset, 0.0),
        )

    def training_outputs(
        self, runs: Sequence[int] | None = None, failed: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Return backbone outputs u (g R, N, D) of each group's training rows, and diverged models (K,).

        Diverged models, those that `failed` (K,) included, and their outputs are set to 0, so that later
        steps stay finite. The default is all runs.
        """
        runs = range(len(self.runs)) if runs is None else runs
        diverged, outputs = self.stack.find_diverged(), []
        if failed is not None:
            diverged |= failed
        if runs:
            outputs = [self.outputs("train", group, runs) for group in self.groups]
            norms = [torch.linalg.vector_norm(u, dim=(1, 2), dtype=torch.float64) for u in outputs]
            by_client = diverged.unflatten(0, (len(self.data), len(self.runs)))  # a view
            by_client[:, list(runs)] |= ~torch.cat(norms).isfinite().unflatten(0, (-1, len(runs)))
        if diverged.any():
            self.stack.set_to_zero(diverged)
            for group, u in zip(self.groups, outputs, strict=False):
                u[self._select(diverged, group, runs)] = 0.0
        return outputs, diverged

    def outputs(self, part: str, group: slice, runs: Sequence[int]) -> Tensor:
        """Compute backbone outputs u (g R, N, D) of a group's rows under its models of some runs.

        part is 'train' or 'test'.
        """
        inputs = torch.stack([inputs for inputs, _ in getattr(self.data, part)[group]])
        models = {name: self._select(each, group, runs) for name, each in self.stack.tensors.items()}
        return self.stack.outputs(models, inputs.repeat_interleave(len(runs), dim=0))

    def _group_clients(self) -> Iterator[slice]:
        """Group neighbors with equally many rows, at most NUMBERS_AT_ONCE outputs together.

        A call for one client takes the host about 5 ms, however few its models are (measured next to an
        H200). Convolutions run one client after the other, since their inputs are large.
        """
        width, is_large = self.stack.parameters["feature.weight"].shape[-1], self.stack.models_at_once == 1
        start = 0
        counts = (
            (len(train[1]), len(test[1])) for train, test in zip(self.data.train, self.data.test, strict=True)
        )
        for rows, same in groupby(counts):
            stop = start + len(list(same))
            size = 1 if is_large else max(1, NUMBERS_AT_ONCE // (max(rows) * width * len(self.runs)))
            yield from split_slice(slice(start, stop), size)
            start = stop

    def _select(self, values: Tensor, clients: slice, runs: Sequence[int]) -> Tensor:
        """Return values (K, ...) of some clients and runs, without a copy if these are all runs."""
        by_client = values.unflatten(0, (len(self.data), len(self.runs)))[clients]
        chosen = by_client if len(runs) == len(self.runs) else by_client[:, list(runs)]
        return chosen.flatten(0, 1)

    def load(self, state: Tensors) -> None:
        """Load parameters and buffers of trained models by name."""
        for name, value in self.stack.tensors.items():
            value.copy_(state[name])
        self.is_initial = False

    def at(self, clients: slice) -> slice:
        """Return the range of some clients' models in the stack."""
        return slice(clients.start * len(self.runs), clients.stop * len(self.runs))

    def indices(self, clients: slice, runs: Sequence[int]) -> list[int]:
        """Return the positions of some clients' models of some runs in the stack."""
        return [m * len(self.runs) + r for m in range(clients.start, clients.stop) for r in runs]

    def of_run(self, tensors: Tensors, run: int) -> Tensors:
        """Return the models (M, ...) of a run from tensors (K, ...) by name, without copies."""
        return {name: value[run :: len(self.runs)] for name, value in tensors.items()}

    def targets(self, part: str, group: slice) -> Tensor:
        """Return a group's targets, shifted for each of its models: (g R, N, C)."""
        targets = torch.stack([targets for _, targets in getattr(self.data, part)[group]])
        return targets.repeat_interleave(len(self.runs), dim=0) - self.shift[self.at(group), None]

    def layers(self) -> Layers:
        """Return the last layers of all models."""
        return Layers.from_parameters(self.stack.parameters)

    def _store_layers(self, layers: Layers) -> None:
        for name, value in layers.to_parameters().items():
            self.stack.parameters[name].copy_(value)

    def _return_layers(self, runs: Sequence[int], outputs: list[Tensor]) -> ReturnedLayers:
        """Apply the return rule of each model; outputs u (g R, N, D) of the runs that have some."""
        layers = self.layers()
        rows: dict[int, Rows] = {}
        mean = torch.zeros_like(layers.layer_weight[:, 0])
        for group, u in zip(self.groups, outputs, strict=False):
            models = self.indices(group, runs)
            mean[models] = u.mean(dim=1, dtype=mean.dtype)
            targets = self.targets("train", group)
            rows |= {k: (own, targets[k - self.at(group).start]) for k, own in zip(models, u, strict=True)}
        procedures = [run.procedure for run in self.runs] * len(self.data)
        broadcast = self.terms.broadcast.double()
        return return_layers(procedures, layers, rows, mean, broadcast, self.deficit, self.config.penalty)

    @property
    def _runs_with_outputs(self) -> list[int]:
        """Runs whose return rule needs backbone outputs."""
        return [
            r
            for r, run in enumerate(self.runs)
            if run.procedure.returned == "solved" or run.procedure.bias == "offset"
        ]


def draw_stack(
    data: ClientData, backbone: Backbone, runs: Sequence[Run], config: TrainConfig, device: torch.device
) -> ModelStack:
    """Draw the initial models of all clients and runs."""
    check_independent_starts(backbone, [run.procedure for run in runs])
    inputs = to_model_input(data.train[0][0][:2].cpu(), torch.float32)
    targets = data.mean.shape[1]
    if config.features < targets:
        raise InputError(
            f"features={config.features} is too small for {targets} targets. Use at least {targets}.",
            field="features",
        )

    @cache  # most runs share their initial models
    def draw_model(seed: int, client: str | None) -> Model:
        return draw(backbone, inputs, config.features, targets, seed, client)

    models = [
        draw_model(run.seed, client if run.procedure.independent else None)
        for client in data.names
        for run in runs
    ]
    return ModelStack.from_models(models, device, storage_dtype(config.precision))


def check_independent_starts(backbone: Backbone, procedures: Iterable[Procedure]) -> None:
    """Reject a module as backbone of independent clients, which would all start from its weights."""
    for procedure in procedures:
        if procedure.independent and isinstance(backbone, nn.Module):
            raise InputError(
                f"With '{procedure.name}' every client draws its own backbone, but a module has fixed "
                "weights. Pass a function that returns a new module, or a name.",
                field="backbone",
            )


def _check_batch_norm(model: Model, data: ClientData, batch: int) -> None:
    """Reject minibatches of one row if the model has BatchNorm."""
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if not any(isinstance(module, norms) for module in model.modules()):
        return
    for name, (_, targets) in zip(data.names, data.train, strict=True):
        if len(targets) % batch == 1:
            raise InputError(
                f"Client '{name}' has {len(targets):,} rows, so its last minibatch has one, too few for "
                f"BatchNorm. Choose a batch other than {batch}.",
                client=name,
                field="batch",
            )


def _per_model(values: list[Tensor]) -> Tensor:
    """Reorder values (M, ...) of R runs to one per model: (K, ...)."""
    return torch.stack(values, dim=1).flatten(0, 1)
