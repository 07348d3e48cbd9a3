"""AdamW without weight decay, with clipping and learning rate per model."""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from fedgram.nets.stack import BACKBONE_PREFIX, Tensors, split_slice
from fedgram.runs.train_config import TrainConfig

FIRST_DECAY, SECOND_DECAY, EPS = 0.9, 0.999, 1e-8  # β₁, β₂ and ε of PyTorch's AdamW
CLIP_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm

# Numbers of a tensor that a CPU updates at once. They fit into a core's cache: for 280 models with weights of
# 256 x 256 an update takes a third of the time (2 cores with 1.25 MiB of L2 each).
AT_ONCE = 2**18


class AdamW:
    """Optimizer of K models; parameters and both moments are tensors (K, ...) by name.

    `copies` of some parameters in half precision follow them. With `skips`, a model whose learning rate is 0
    has no rows left: its moments do not change either.
    """

    def __init__(
        self, parameters: Tensors, clip: float, copies: Tensors | None = None, *, skips: bool = False
    ) -> None:
        self.parameters, self.clip, self.skips = parameters, clip, skips
        self.copies = copies or {}
        self.first = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.second = {name: torch.zeros_like(value) for name, value in parameters.items()}

    def reset(self, models: Tensor) -> None:
        """Zero both moments of the models of a mask (K,), as at the start of a round."""
        for value in (*self.first.values(), *self.second.values()):
            value[models] = 0.0

    def state(self, models: Tensor) -> Tensors:
        """Return both moments of the models of a mask (K,), by name."""
        return {
            f"{prefix}.{name}": value[models]
            for prefix, moments in (("first", self.first), ("second", self.second))
            for name, value in moments.items()
        }

    def load(self, state: Tensors, models: Tensor) -> None:
        """Continue from a state of the models of a mask (K,)."""
        for prefix, moments in (("first", self.first), ("second", self.second)):
            for name, value in moments.items():
                value[models] = state[f"{prefix}.{name}"].to(value)

    def finish_capture(self) -> None:
        """Run after the last step is recorded as a CUDA graph."""

    def step(
        self, models: slice, gradients: Tensors, rates: Tensor, unscale: Tensor | None = None
    ) -> Tensor | None:
        """Update some models: gradients (K, ...) by name, rates (K, 2) from `schedule`.

        In half precision gradients of backbones are to be multiplied by `unscale` (K,). Models whose
        gradients are not finite then stay as they are; the others (K,) are returned.
        """
        finite, skips = None, self.skips
        if unscale is not None:
            gradients = {name: _unscale(name, gradient, unscale) for name, gradient in gradients.items()}
            is_finite = [each.reshape(len(each), -1).isfinite().all(dim=1) for each in gradients.values()]
            finite = torch.stack(is_finite).all(dim=0)
            gradients = {name: each.nan_to_num(0.0, 0.0, 0.0) for name, each in gradients.items()}
            rates, skips = rates * finite[:, None], True
        scale = clip_scale(gradients, self.clip)
        for name, gradient in gradients.items():
            state = (self.parameters[name][models], self.first[name][models], self.second[name][models])
            for part in _split_for_cache(gradient):
                parameter, first, second = (each[part] for each in state)
                _update(parameter, first, second, gradient[part], scale[part], rates[part], skips)
        for name, copy in self.copies.items():
            copy[models] = self.parameters[name][models].to(copy.dtype)
        return finite


def _unscale(name: str, gradient: Tensor, unscale: Tensor) -> Tensor:
    """Return a gradient (K, ...) in full precision, and multiplied by unscale (K,) if it is a backbone's."""
    gradient = gradient.to(unscale.dtype)
    is_scaled = name.startswith(BACKBONE_PREFIX)
    return gradient * unscale.view(-1, *[1] * (gradient.ndim - 1)) if is_scaled else gradient


def clip_scale(gradients: Tensors, clip: float) -> Tensor:
    """Compute the factor, at most 1, that limits each model's global gradient norm to `clip`: (K,)."""
    squares = sum(
        torch.cat([_sum_squares(gradient[part]) for part in _split_for_cache(gradient)])
        for gradient in gradients.values()
    )
    return (clip / (torch.as_tensor(squares).sqrt() + CLIP_EPS)).clamp(max=1.0)


def _sum_squares(gradient: Tensor) -> Tensor:
    """Sum the squares of each model's gradient (K, ...), in any memory layout: (K,)."""
    return gradient[:, None].square().sum(dim=list(range(1, gradient.ndim + 1)))


def _split_for_cache(gradient: Tensor) -> list[slice]:
    """Split the models of a gradient (K, ...) into ranges that a CPU updates at once."""
    size = len(gradient) if gradient.is_cuda else max(1, AT_ONCE // gradient[0].numel())
    return split_slice(slice(0, len(gradient)), size)


def _update(
    parameter: Tensor,
    first: Tensor,
    second: Tensor,
    gradient: Tensor,
    scale: Tensor,
    rates: Tensor,
    skips: bool,
) -> None:
    """Take one AdamW step in place: tensors (K, ...), scale (K,), rates (K, 2)."""
    column = (-1, *[1] * (gradient.ndim - 1))
    gradient = gradient * scale.view(column)
    size, correction = rates[:, 0].view(column), rates[:, 1].view(column)
    if skips:
        active = (size > 0).to(gradient.dtype)
        first.lerp_(gradient, (1 - FIRST_DECAY) * active)
        second.lerp_(gradient.square(), (1 - SECOND_DECAY) * active)
    else:
        first.lerp_(gradient, 1 - FIRST_DECAY)
        second.mul_(SECOND_DECAY).addcmul_(gradient, gradient, value=1 - SECOND_DECAY)
    # In place, which saves a fifth of the update on a CPU.
    denominator = second.sqrt().mul_(correction).add_(EPS)
    parameter.sub_((size * first).div_(denominator))


def schedule(config: TrainConfig, steps: list[int], number: int = 1, *, continues: bool = False) -> Tensor:
    """Tabulate rate / (1 - β₁ᵗ) and 1 / √(1 - β₂ᵗ) for each step of a round: (E max(steps), M, 2), float64.

    steps (M,) counts each client's minibatches in an epoch. Entries after a client's last one are 0. The
    half-cosine covers a round, or all rounds with decay 'run'; then round `number` has its own part. t counts
    the steps since the moments were zero: in this round, or in all if the optimizer continues.
    """
    cycles = config.rounds if config.decay == "run" else 1
    past = number - 1 if config.decay == "run" else 0
    longest = max(steps)
    table = torch.zeros(config.epochs, longest, len(steps), 2, dtype=torch.float64)
    low, high = config.final_learning_rate, config.learning_rate
    for client, own in enumerate(steps):
        t = torch.arange(config.epochs * own, dtype=torch.float64).view(config.epochs, own)
        progress = (past + t / (config.epochs * own)) / cycles
        rate = low + 0.5 * (high - low) * (1 + torch.cos(pi * progress))
        t = t + 1 + ((number - 1) * config.epochs * own if continues else 0)
        table[:, :own, client, 0] = rate / (1 - FIRST_DECAY**t)
        table[:, :own, client, 1] = (1 - SECOND_DECAY**t).rsqrt()
    return table.flatten(0, 1)
