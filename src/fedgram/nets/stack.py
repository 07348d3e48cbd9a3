"""Many models of one architecture as one: a leading model axis K on every parameter and buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgram.nets.cuda import arithmetic
from fedgram.nets.model import Model, to_model_input

Tensors = dict[str, Tensor]

ROWS_AT_ONCE = 1024


@dataclass(eq=False)
class ModelStack:
    """K models: parameters and buffers (K, ...) by name, and the module that says what to do with them.

    Parameters of a module that do not require gradients are frozen: they are among the buffers.

    Linear layers become batched products, the more models the better. Convolutions are computed one model at
    a time, so that the activations of a few are held at once; vmapped, which makes them grouped, they took
    three times as long on an H200.
    """

    model: Model
    parameters: Tensors
    buffers: Tensors

    @classmethod
    def from_models(cls, models: Sequence[Model], device: torch.device, dtype: torch.dtype) -> ModelStack:
        """Models of one architecture, in order."""

        def stacked(tensors: Callable[[Model], Tensors]) -> Tensors:
            each = [tensors(model) for model in models]
            return {name: torch.stack([one[name].detach() for one in each]).to(device) for name in each[0]}

        cast = [model.to(dtype) for model in models]
        parameters, buffers = stacked(trained), stacked(kept)
        return cls(without_numbers(cast[0]), parameters, buffers)

    def __len__(self) -> int:
        return len(self.parameters["head.weight"])

    @property
    def together(self) -> int:
        """How many models are computed at once."""
        return 1 if one_at_a_time(self.model) else len(self)

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return self.parameters["head.weight"].device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters."""
        return self.parameters["head.weight"].dtype

    def lay_out_like(self, gradients: Tensors) -> None:
        """Put every parameter's numbers in the order in memory that its gradient (k, ...) has them in."""
        for name, value in self.parameters.items():
            shape, strides = value.shape[1:], gradients[name].stride()[1:]
            reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
            if reach == value[0].numel():  # each model's numbers lie together
                strides = (reach, *strides)
                place = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
                self.parameters[name] = place.copy_(value)

    def diverged(self) -> Tensor:
        """Models with a parameter that is not finite, (K,)."""
        sums = [value.reshape(len(self), -1).sum(dim=1) for value in self.parameters.values()]
        return ~torch.stack(sums).isfinite().all(dim=0)

    def silence(self, models: Tensor) -> None:
        """Set some models (K,) to 0."""
        for value in (*self.parameters.values(), *self.buffers.values()):
            value[models] = 0

    def apply(self, parameters: Tensors, buffers: Tensors, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features (K, B, P) and predictions (K, B, C) of K models, each on its own inputs (K, B, ...)."""
        seen = to_model_input(inputs, self.dtype, leading=2)
        features, predictions = over_models(self.model, parameters, buffers, seen)
        return features.to(self.dtype), predictions.to(self.dtype)  # lower precision inside ends here

    @torch.no_grad()
    def outputs(self, models: slice, inputs: Tensor) -> Tensor:
        """What the backbones of these models give for the same inputs (N, ...): u (K, N, D), in eval mode."""
        self.model.eval()
        rows = inputs.split(ROWS_AT_ONCE)
        with arithmetic("fp32", self.device):  # measured in full precision, however it was trained
            chunks = [
                torch.cat([self._backbone(part, to_model_input(some, self.dtype)) for some in rows], dim=1)
                for part in parts(models, self.together)
            ]
        self.model.train()
        return torch.cat(chunks)

    def _backbone(self, models: slice, inputs: Tensor) -> Tensor:
        parameters = {
            name[9:]: p[models] for name, p in self.parameters.items() if name.startswith("backbone.")
        }
        buffers = {name[9:]: b[models] for name, b in self.buffers.items()}
        repeated = inputs.expand(models.stop - models.start, *inputs.shape)
        given: Tensor = over_models(self.model.backbone, parameters, buffers, repeated)
        return given


def without_numbers(model: Model) -> Model:
    """The model with the shapes of its tensors only; one of two names stays one, as it does not in `to`."""
    empty: dict[int, Any] = {id(each): each.detach().to("meta") for each in model.buffers()}
    for each in model.parameters():
        empty[id(each)] = nn.Parameter(each.detach().to("meta"), each.requires_grad)
    return deepcopy(model, empty)


def trained(model: Model) -> Tensors:
    """The parameters of a model, but frozen ones."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def kept(model: Model) -> Tensors:
    """The buffers of a model, and its frozen parameters, which no step changes either."""
    frozen = {name: value for name, value in model.named_parameters() if not value.requires_grad}
    return {**dict(model.named_buffers()), **frozen}


def one_at_a_time(model: nn.Module) -> bool:
    """Whether models like this one are faster one by one than batched: those with convolutions."""
    return any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in model.modules())


def over_models(module: nn.Module, parameters: Tensors, buffers: Tensors, inputs: Tensor) -> Any:
    """module with each model's own parameters, buffers and inputs, all with a leading axis K."""

    def one(parameters: Tensors, buffers: Tensors, x: Tensor) -> Any:
        return functional_call(module, (parameters, buffers), (x,))

    if len(inputs) > 1:
        return vmap(one, randomness="different")(parameters, buffers, inputs)
    # One model needs no batched operators; views of its buffers, so that BatchNorm updates them in place.
    given = one(first(parameters), first(buffers), inputs[0])
    return given[None] if isinstance(given, Tensor) else tuple(value[None] for value in given)


def first(tensors: Tensors) -> Tensors:
    """The tensors of the first model."""
    return {name: value[0] for name, value in tensors.items()}


def parts(models: slice, size: int) -> list[slice]:
    """A range of models in pieces of at most size."""
    return [slice(k, min(k + size, models.stop)) for k in range(models.start, models.stop, size)]
