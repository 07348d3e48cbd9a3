"""K models of one architecture, computed as one.

Every parameter and buffer has a leading model axis K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgram.nets.cuda import HALF, disable_onednn, has_fused_layers, use_precision
from fedgram.nets.model import Model, to_model_input
from fedgram.nets.stacked_layers import CONVOLUTIONS, UNSTACKED, can_stack
from fedgram.runs.train_config import Precision

Tensors = dict[str, Tensor]

ONEDNN_BLOCK = 16  # channels that oneDNN computes at once with AVX-512

STACKED = 8  # convolutional models that a GPU trains at once; with 4 each takes 12 % longer (H200, fp16)
ROWS_AT_ONCE = 1024  # rows of one evaluation, which bounds its memory
BACKBONE_PREFIX = "backbone."  # names of backbones' parameters and buffers begin with it


@dataclass(eq=False)
class ModelStack:
    """K models: parameters and buffers (K, ...) by name, and a module without values that applies them.

    Frozen parameters are among the buffers. Linear layers become batched products, and so do convolutions
    in `stacked_layers` on some GPUs. Other convolutions run one model at a time: vmapped to grouped ones they
    took three times as long on an H200. So do recurrent layers, for which vmap has no rule.
    """

    model: Model
    parameters: Tensors
    buffers: Tensors

    @classmethod
    def from_models(cls, models: Sequence[Model], device: torch.device, dtype: torch.dtype) -> ModelStack:
        """Stack models of one architecture, in order."""

        def stack(tensors: Callable[[Model], Tensors]) -> Tensors:
            each = [tensors(model) for model in models]
            return {name: torch.stack([one[name].detach() for one in each]).to(device) for name in each[0]}

        cast = [model.to(dtype) for model in models]
        parameters, buffers = stack(_trainable), stack(_fixed)
        return cls(_without_values(cast[0]), parameters, buffers)

    def __len__(self) -> int:
        return len(self.parameters["head.weight"])

    @property
    def models_at_once(self) -> int:
        """How many models are evaluated together."""
        return 1 if is_unstacked(self.model) else len(self)

    def trained_at_once(self, precision: Precision) -> int:
        """How many models a training step computes together."""
        is_fused = precision in (*HALF, "tf32") and has_fused_layers(self.device)
        is_stacked = is_fused and has_convolutions(self.model) and can_stack(self.model)
        return STACKED if is_stacked else self.models_at_once

    @property
    def device(self) -> torch.device:
        """Device of the models."""
        return self.parameters["head.weight"].device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters."""
        return self.parameters["head.weight"].dtype

    @property
    def tensors(self) -> Tensors:
        """Parameters and buffers by name."""
        return {**self.parameters, **self.buffers}

    @contextmanager
    def use_precision(self, precision: Precision) -> Iterator[None]:
        """Set PyTorch's global switches for these models, and restore them on exit.

        oneDNN is fast for convolutions and in half precision only, and wrong for some convolutions.
        """
        is_faster = precision in HALF or has_convolutions(self.model)
        onednn = nullcontext() if is_faster and not breaks_onednn(self.model) else disable_onednn()
        with use_precision(precision), onednn:
            yield

    def match_layout(self, gradients: Tensors) -> None:
        """Give every parameter the memory layout of its gradient (k, ...)."""
        for name, value in self.parameters.items():
            shape, strides = value.shape[1:], gradients[name].stride()[1:]
            reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
            if reach == value[0].numel():  # each model's values are contiguous
                strides = (reach, *strides)
                place = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
                self.parameters[name] = place.copy_(value)

    def find_diverged(self) -> Tensor:
        """Return a mask (K,) of models with a parameter that is not finite."""
        # Without reshaping, which would copy parameters that have the layout of their gradients.
        sums = [each[:, None].sum(dim=list(range(1, each.ndim + 1))) for each in self.parameters.values()]
        return ~torch.stack(sums).isfinite().all(dim=0)

    def set_to_zero(self, models: Tensor) -> None:
        """Set the models of a mask (K,) to 0."""
        for value in self.tensors.values():
            value[models] = 0

    def map_backbones(self, parameters: Tensors, buffers: Tensors, inputs: Tensor) -> Tensor:
        """Map each model's inputs (K, B, ...) to backbone outputs u (K, B, D)."""
        own, fixed = (
            {
                name.removeprefix(BACKBONE_PREFIX): value
                for name, value in each.items()
                if name.startswith(BACKBONE_PREFIX)
            }
            for each in (parameters, buffers)
        )
        seen = to_model_input(inputs, self.dtype, leading=2)
        outputs: Tensor = _map_models(self.model.backbone, own, fixed, seen)
        return outputs

    @torch.no_grad()
    def outputs(self, tensors: Tensors, inputs: Tensor) -> Tensor:
        """Map inputs (K, N, ...) through backbones (K, ...), each its own, in eval mode: u (K, N, D).

        In full precision, however the models were trained.
        """
        self.model.eval()
        with self.use_precision("fp32"):
            chunks = [
                torch.cat(
                    [
                        self._map_backbones_of(tensors, models, some)
                        for some in inputs[models].split(ROWS_AT_ONCE, dim=1)
                    ],
                    dim=1,
                )
                for models in split_slice(slice(0, len(inputs)), self.models_at_once)
            ]
        self.model.train()
        return torch.cat(chunks)

    def _map_backbones_of(self, tensors: Tensors, models: slice, inputs: Tensor) -> Tensor:
        parameters, buffers = (
            {name: tensors[name][models] for name in each if name.startswith(BACKBONE_PREFIX)}
            for each in (self.parameters, self.buffers)
        )
        return self.map_backbones(parameters, buffers, inputs)


def is_unstacked(model: nn.Module) -> bool:
    """Whether models are computed one at a time where no fused layers compute several."""
    return any(isinstance(module, UNSTACKED) for module in model.modules())


def has_convolutions(model: nn.Module) -> bool:
    """Whether a model has convolutions, and so is faster alone than batched."""
    return any(isinstance(module, CONVOLUTIONS) for module in model.modules())


def breaks_onednn(model: nn.Module) -> bool:
    """Whether a model has strided 1x1 convolutions of fewer than ONEDNN_BLOCK channels.

    oneDNN writes past its memory in their backward pass: gradients are wrong, or the process is aborted
    (github.com/uxlfoundation/oneDNN/issues/6035).
    """
    convolutions = [each for each in model.modules() if isinstance(each, CONVOLUTIONS)]
    return any(
        max(each.kernel_size) == 1 < max(each.stride) and each.in_channels // each.groups < ONEDNN_BLOCK
        for each in convolutions
    )


def split_slice(models: slice, size: int) -> list[slice]:
    """Split a range of models into ranges of at most `size`."""
    return [slice(k, min(k + size, models.stop)) for k in range(models.start, models.stop, size)]


def _without_values(model: Model) -> Model:
    """Copy a model to the meta device; unlike `Module.to`, this keeps tensors that two layers share."""
    empty: dict[int, Any] = {id(each): each.detach().to("meta") for each in model.buffers()}
    for each in model.parameters():
        empty[id(each)] = nn.Parameter(each.detach().to("meta"), each.requires_grad)
    return deepcopy(model, empty)


def _trainable(model: Model) -> Tensors:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _fixed(model: Model) -> Tensors:
    """Return buffers and frozen parameters."""
    frozen = {name: value for name, value in model.named_parameters() if not value.requires_grad}
    return {**dict(model.named_buffers()), **frozen}


def _map_models(module: nn.Module, parameters: Tensors, buffers: Tensors, inputs: Tensor) -> Any:
    """Apply a module with each model's parameters, buffers and inputs, all with a leading axis K."""

    def apply_one(parameters: Tensors, buffers: Tensors, x: Tensor) -> Any:
        return functional_call(module, (parameters, buffers), (x,))

    if len(inputs) > 1:
        return vmap(apply_one, randomness="different")(parameters, buffers, inputs)
    # A single model needs no vmap. Its buffers are views, so that BatchNorm updates them in place.
    own, fixed = ({name: value[0] for name, value in each.items()} for each in (parameters, buffers))
    output = apply_one(own, fixed, inputs[0])
    return output[None] if isinstance(output, Tensor) else tuple(value[None] for value in output)
