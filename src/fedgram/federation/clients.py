"""One round at the clients: receive the shared head, train, and say what to return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedgram._util.errors import InputError
from fedgram.federation.client_data import ClientData, PooledMoments
from fedgram.federation.returns import Layers, ReturnedLayers, feature_offset, return_layers
from fedgram.nets.batches import Batches
from fedgram.nets.cuda import storage
from fedgram.nets.fit import Fit, OnEpoch
from fedgram.nets.model import Backbone, Model, draw, to_device_dtype, to_model_input
from fedgram.nets.objective import Terms
from fedgram.nets.stack import ModelStack, Tensors
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig

LAST = ("head.weight", "head.bias", "feature.weight", "feature.bias")


@dataclass(frozen=True, eq=False)
class Returned:
    """What K models give back: their layers after the procedure's return, in double precision.

    center (K, P), the mean of their features, and taken_out (K, P), what a procedure with the offset took
    out of them; outputs u (R, N, D) of every client's training rows; clipped (K,); training_loss (K,);
    diverged (K,), models that were no longer finite and are 0 now.
    """

    layers: Layers
    center: Tensor
    taken_out: Tensor
    outputs: list[Tensor]
    clipped: Tensor
    training_loss: Tensor
    diverged: Tensor


class Clients:
    """M clients x R runs as one stack of K = M R models, client by client.

    Their state between rounds is `stack`, in which the last layers are those that training goes on with;
    `drawn` says that they are still as they were drawn.
    """

    def __init__(
        self,
        sites: ClientData,
        exchange: PooledMoments,
        backbone: Backbone,
        runs: Sequence[Run],
        settings: TrainConfig,
        device: torch.device,
    ) -> None:
        self.sites, self.runs, self.settings = sites, tuple(runs), settings
        self.stack, self.drawn = initial(sites, backbone, runs, settings, device), True
        refuse_lone_rows(self.stack.model, sites, settings.batch)
        procedures = [run.procedure for run in runs]
        self.shift = self._each([sites.shift(each) for each in procedures])
        self.deficit = self._each([sites.deficit(each, exchange) for each in procedures])
        self.distance = self._each([sites.distance(each, exchange) for each in procedures])
        proximal = torch.tensor([each.proximal for each in procedures] * len(sites), dtype=torch.float64)
        dtype = self.stack.dtype
        self.terms = Terms(
            broadcast=torch.zeros_like(self.stack.parameters["head.weight"]).contiguous(),
            proximal=proximal.to(self.shift.device, dtype),
            deficit=self.deficit.to(dtype) if self.deficit.any() else None,
        )
        # Less their means, which may be large, before they are rounded.
        centered = [(rows[1] - mean).to(dtype) for rows, mean in zip(sites.train, sites.mean, strict=True)]
        shift = (self.shift - sites.mean.repeat_interleave(len(runs), dim=0)).to(dtype)
        inputs, targets = to_device_dtype(sites.inputs, dtype), torch.cat(centered)
        counts = {name: len(each) for name, each in zip(sites.names, centered, strict=True)}
        batches = Batches(inputs, targets, counts, [run.seed for run in runs], shift, settings.batch)
        self.fit = Fit(self.stack, batches, self.terms, settings)

    def round(
        self, number: int, head: Tensor, bias: Tensor, on_epoch: OnEpoch = lambda epochs: None
    ) -> Returned:
        """Receive heads (R, C, P) and biases (R, C), train round number 1, 2, ..., and return."""
        self.store(self.received(self.layers(), head, bias))
        self.drawn = False
        self.terms.broadcast.copy_(self.stack.parameters["head.weight"])
        loss = self.fit.round(number, on_epoch)
        outputs, diverged = self.outputs()
        given = self.given(outputs)
        center = torch.cat([each.center for each in given])
        self.store(Layers.joined([each.kept for each in given]))
        return Returned(
            layers=Layers.joined([each.returned for each in given]),
            center=center,
            taken_out=torch.where(self.marked("bias", "offset"), center, 0.0),
            outputs=outputs,
            clipped=torch.tensor([each.left_out for each in given]),
            training_loss=loss.double(),
            diverged=diverged,
        )

    def received(self, layers: Layers, head: Tensor, bias: Tensor) -> Layers:
        """Returned layers with the shared head (R, C, P), and bias (R, C) by each procedure's rule.

        Models that are as they were drawn have returned nothing yet: all start with the same head and bias.
        """
        heads, biases = head.repeat(len(self.sites), 1, 1), bias.repeat(len(self.sites), 1)
        if self.drawn:
            return replace(layers, head=heads, bias=biases)
        private, offset = self.marked("bias", "private"), self.marked("bias", "offset")
        moved = feature_offset(heads, self.distance, self.settings.penalty)
        return replace(
            layers,
            head=heads,
            bias=torch.where(private, layers.bias, biases),
            layer_bias=layers.layer_bias + torch.where(offset, moved, 0.0),
        )

    def outputs(self) -> tuple[list[Tensor], Tensor]:
        """Backbone outputs u (R, N, D) of every client's training rows, and models that diverged (K,).

        Those, and what they give, are set to 0, so that no later step fails.
        """
        given = [self.stack.outputs(self.at(m), rows[0]) for m, rows in enumerate(self.sites.train)]
        finite = torch.cat([each.double().square().sum(dim=(1, 2)).isfinite() for each in given])
        diverged = self.stack.diverged() | ~finite
        if diverged.any():
            self.stack.silence(diverged)
            for m, each in enumerate(given):
                each[diverged[self.at(m)]] = 0.0
        return given, diverged

    def given(self, outputs: list[Tensor]) -> list[ReturnedLayers]:
        """What each model gives back; outputs (R, N, D) are the backbones' of each client's training rows."""
        layers, given = self.layers(), []
        for m, output in enumerate(outputs):
            targets = self.targets(m, self.sites.train[m][1])
            for r, run in enumerate(self.runs):
                k = slice(m * len(self.runs) + r, m * len(self.runs) + r + 1)
                rows = output[r : r + 1], targets[r : r + 1]
                broadcast = self.terms.broadcast[k].double()
                given.append(
                    return_layers(
                        run.procedure, layers.of(k), rows, broadcast, self.deficit[k], self.settings.penalty
                    )
                )
        return given

    def load(self, state: Tensors) -> None:
        """Go on with these parameters and buffers, by name, of models that were trained before."""
        for name, value in {**self.stack.parameters, **self.stack.buffers}.items():
            value.copy_(state[name])
        self.drawn = False

    def at(self, client: int) -> slice:
        """Where the models of a client are in the stack."""
        return slice(client * len(self.runs), (client + 1) * len(self.runs))

    def targets(self, client: int, targets: Tensor) -> Tensor:
        """What each run sees of a client's targets: (N, C) -> (R, N, C)."""
        return targets - self.shift[self.at(client), None]

    def layers(self) -> Layers:
        """The last layers of all models, in double precision."""
        return Layers(*(self.stack.parameters[name].double() for name in LAST))

    def store(self, layers: Layers) -> None:
        """Put these last layers into the stack."""
        for name, value in zip(LAST, vars(layers).values(), strict=True):
            self.stack.parameters[name].copy_(value)

    def _each(self, values: list[Tensor]) -> Tensor:
        """Values (M, ...) of every run, for every model: (K, ...)."""
        return torch.stack(values, dim=1).flatten(0, 1)

    def marked(self, field: str, value: object) -> Tensor:
        """Models (K, 1) whose procedure has this value in a field."""
        marks = [getattr(run.procedure, field) == value for run in self.runs] * len(self.sites)
        return torch.tensor(marks, device=self.stack.device)[:, None]


def refuse_lone_rows(model: Model, sites: ClientData, batch: int) -> None:
    """Refuse minibatches of one row where there is BatchNorm, which can take no statistics of them."""
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if not any(isinstance(module, norms) for module in model.modules()):
        return
    for name, (_, targets) in zip(sites.names, sites.train, strict=True):
        if len(targets) % batch == 1:
            raise InputError(
                f"Client '{name}' has {len(targets):,} rows, which leaves one for its last minibatch, too "
                f"few for BatchNorm: choose a batch other than {batch}.",
                client=name,
                field="batch",
            )


def initial(
    sites: ClientData, backbone: Backbone, runs: Sequence[Run], settings: TrainConfig, device: torch.device
) -> ModelStack:
    """The models of all clients and runs before the first round."""
    check_starts(backbone, [run.procedure for run in runs])
    inputs = to_model_input(sites.train[0][0][:2].cpu(), torch.float32)
    targets = sites.mean.shape[1]
    if settings.features < targets:
        raise InputError(
            f"The feature layer has {settings.features} features, fewer than the {targets} targets; "
            f"it needs at least {targets}.",
            field="features",
        )

    def model(client: str, run: Run) -> Model:
        own = client if run.procedure.independent else None
        return draw(backbone, inputs, settings.features, targets, run.seed, own)

    return ModelStack.from_models(
        [model(client, run) for client in sites.names for run in runs], device, storage(settings.precision)
    )


def check_starts(backbone: Backbone, procedures: Iterable[Procedure]) -> None:
    """Refuse clients that draw backbones of their own where all would start from the same module."""
    for procedure in procedures:
        if procedure.independent and isinstance(backbone, nn.Module):
            raise InputError(
                f"With '{procedure.name}' every client draws a backbone of its own, but a module is taken as "
                "it is: give a function that draws a new module, or a name.",
                field="backbone",
            )
