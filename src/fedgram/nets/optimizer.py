"""AdamW without weight decay, with clipping and learning rate per model."""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from fedgram.nets.stack import Tensors
from fedgram.runs.train_config import TrainConfig

FIRST_DECAY, SECOND_DECAY, EPS = 0.9, 0.999, 1e-8  # β₁, β₂ and ε of PyTorch's AdamW
CLIP_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


class AdamW:
    """Optimizer of K models; parameters and both moments are tensors (K, ...) by name."""

    def __init__(self, parameters: Tensors, clip: float) -> None:
        self.parameters, self.clip = parameters, clip
        self.first = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.second = {name: torch.zeros_like(value) for name, value in parameters.items()}

    def reset(self) -> None:
        """Zero both moments, as at the start of a round."""
        for value in (*self.first.values(), *self.second.values()):
            value.zero_()

    def finish_capture(self) -> None:
        """Run after the last step is recorded as a CUDA graph."""

    def step(self, models: slice, gradients: Tensors, rates: Tensor) -> None:
        """Update some models: gradients (K, ...) by name, rates (K, 2) from `schedule`."""
        scale = clip_scale(gradients, self.clip)
        for name, gradient in gradients.items():
            state = (self.parameters[name][models], self.first[name][models], self.second[name][models])
            _update(*state, gradient, scale, rates)


def clip_scale(gradients: Tensors, clip: float) -> Tensor:
    """Compute the factor, at most 1, that limits each model's global gradient norm to `clip`: (K,)."""
    squares = sum(gradient.reshape(len(gradient), -1).square().sum(dim=1) for gradient in gradients.values())
    return (clip / (torch.as_tensor(squares).sqrt() + CLIP_EPS)).clamp(max=1.0)


def _update(
    parameter: Tensor, first: Tensor, second: Tensor, gradient: Tensor, scale: Tensor, rates: Tensor
) -> None:
    """Take one AdamW step in place: tensors (K, ...), scale (K,), rates (K, 2)."""
    column = (-1, *[1] * (gradient.ndim - 1))
    gradient = gradient * scale.view(column)
    first.lerp_(gradient, 1 - FIRST_DECAY)
    second.mul_(SECOND_DECAY).addcmul_(gradient, gradient, value=1 - SECOND_DECAY)
    size, correction = rates[:, 0].view(column), rates[:, 1].view(column)
    parameter.sub_(size * first / (second.sqrt() * correction + EPS))


def schedule(config: TrainConfig, steps: list[int]) -> Tensor:
    """Tabulate rate / (1 - β₁ᵗ) and 1 / √(1 - β₂ᵗ) for each step of a round: (E max(steps), M, 2), float64.

    steps (M,) counts each client's minibatches in an epoch. Entries after a client's last one are 0.
    """
    longest = max(steps)
    table = torch.zeros(config.epochs, longest, len(steps), 2, dtype=torch.float64)
    low, high = config.final_learning_rate, config.learning_rate
    for client, own in enumerate(steps):
        t = torch.arange(config.epochs * own, dtype=torch.float64).view(config.epochs, own)
        rate = low + 0.5 * (high - low) * (1 + torch.cos(pi * t / (config.epochs * own)))
        table[:, :own, client, 0] = rate / (1 - FIRST_DECAY ** (t + 1))
        table[:, :own, client, 1] = (1 - SECOND_DECAY ** (t + 1)).rsqrt()
    return table.flatten(0, 1)
