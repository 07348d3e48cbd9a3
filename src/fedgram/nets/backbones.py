"""Backbones of the paper, and those for natural sites: inputs (B, ...) -> vectors (B, D).

They exclude the last linear layer, which `nets.model.Model` adds, and have no model axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import cast

import torch
from torch import Tensor, nn

from fedgram.nets.stacked_layers import BatchNorm2d, Conv2d, GroupNorm

Norm = Callable[[int], nn.Module]


class MLPBlock(nn.Module):
    """h ↦ PReLU(h + Linear(PReLU(Linear(h))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.inner_slope = nn.PReLU()
        self.outer = nn.Linear(width, width)
        self.outer_slope = nn.PReLU()

    def forward(self, h: Tensor) -> Tensor:
        """h (B, width) -> (B, width)."""
        return self.outer_slope(h + self.outer(self.inner_slope(self.inner(h))))


class ResMLP(nn.Sequential):
    """Linear layer to `width`, then residual blocks."""

    def __init__(self, inputs: int, width: int = 1024, blocks: int = 3) -> None:
        super().__init__(nn.Linear(inputs, width), *(MLPBlock(width) for _ in range(blocks)))


class PreActivatedBlock(nn.Module):
    """h ↦ h + Linear(PReLU(Linear(PReLU(h))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner_slope = nn.PReLU()
        self.inner = nn.Linear(width, width)
        self.outer_slope = nn.PReLU()
        self.outer = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        """h (B, width) -> (B, width)."""
        return h + self.outer(self.outer_slope(self.inner(self.inner_slope(h))))


class PreActivatedResMLP(nn.Sequential):
    """Linear layer with a PReLU, then pre-activated residual blocks; Kaiming-normal weights."""

    def __init__(self, inputs: int, width: int = 1024, blocks: int = 3) -> None:
        residual = (PreActivatedBlock(width) for _ in range(blocks))
        super().__init__(nn.Linear(inputs, width), nn.PReLU(), *residual)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, a=0.25)  # the slope with which PReLU starts
                nn.init.zeros_(module.bias)


STEPS = (-1.5, -0.75, 0.0, 0.75, 1.5)
"""Where the soft steps of a standardized input are; 87 % of normal inputs lie between the outer two."""

STEEPNESS = 2.0
"""Slope of a soft step: neighboring steps overlap. Eight clamped ramps do as well (docs/benchmarks.md)."""


class WideAndDeep(nn.Module):
    """x ↦ (ResMLP(x, s(x)), x), where s_t(x) = tanh(2 (x - t)) for every t in STEPS.

    Soft steps let a small network bend along each input. The last layers also see the inputs, so linear
    regression is a special case.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.deep = ResMLP(inputs * (1 + len(STEPS)), width, blocks=2)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, inputs) -> (B, width + inputs)."""
        steps = [torch.tanh(STEEPNESS * (x - position)) for position in STEPS]
        return torch.cat([self.deep(torch.cat([x, *steps], dim=-1)), x], dim=-1)


class ConvBlock(nn.Module):
    """Two normalized 3x3 convolutions and a shortcut, projected if the shape changes."""

    def __init__(self, channels: int, out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = Conv2d(channels, out, 3, stride, padding=1)
        self.first_norm = norm(out)
        self.second = Conv2d(out, out, 3, padding=1)
        self.second_norm = norm(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(Conv2d(channels, out, 1, stride), norm(out))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, channels, H, W) -> (B, out, H / stride, W / stride)."""
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, four stages and global pooling; stages 2 to 4 double the width and halve the size."""

    def __init__(self, stem: nn.Sequential, width: int, blocks: Sequence[int], norm: Norm) -> None:
        super().__init__()
        self.stem = stem
        stages, channels = [], width
        for stage, count in enumerate(blocks):
            out = width * 2**stage
            for block in range(count):
                stages.append(ConvBlock(channels, out, 2 if stage and not block else 1, norm))
                channels = out
        self.stages = nn.Sequential(*stages)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, channels, H, W) -> (B, 8 width)."""
        # Channels last, so that gradients are, too.
        return self.stages(self._apply_stem(x)).movedim(1, -1).mean(dim=(1, 2))

    def _apply_stem(self, x: Tensor) -> Tensor:
        """x (B, channels, H, W) -> (B, width, ...); the activation after pooling gives the same numbers."""
        convolution, norm, activation, *pooling = self.stem
        x = convolution(x)
        x = norm.pool(x, pooling[0]) if isinstance(norm, BatchNorm2d) and pooling else norm(x)
        return cast(Tensor, activation(x))


def build_resnet(channels: int, blocks: Sequence[int], width: int = 64) -> ResNet:
    """Build the ResNet of He et al.: 7x7 stride-2 stem, max-pooling, BatchNorm."""
    stem = nn.Sequential(
        Conv2d(channels, width, 7, 2, padding=3),
        BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    )
    return ResNet(stem, width, blocks, BatchNorm2d)


def build_residual_cnn(channels: int, width: int = 64) -> ResNet:
    """Build a ResNet-18 with 8-group GroupNorm and a 3x3 stride-1 stem without pooling."""

    def norm(width: int) -> nn.Module:
        return GroupNorm(8, width)

    stem = nn.Sequential(Conv2d(channels, width, 3, padding=1), norm(width), nn.ReLU())
    return ResNet(stem, width, (2, 2, 2, 2), norm)


BACKBONES: dict[str, Callable[[Sequence[int]], nn.Module]] = {
    "resmlp": lambda shape: ResMLP(prod(shape)),
    "resmlp-preactivated": lambda shape: PreActivatedResMLP(prod(shape)),
    "resnet18": lambda shape: build_resnet(shape[0], (2, 2, 2, 2)),
    "resnet34": lambda shape: build_resnet(shape[0], (3, 4, 6, 3)),
    "residual-cnn": lambda shape: build_residual_cnn(shape[0]),
    "resmlp-small": lambda shape: ResMLP(prod(shape), width=64, blocks=2),
    "wide-deep-64": lambda shape: WideAndDeep(prod(shape), width=64),
    "wide-deep-128": lambda shape: WideAndDeep(prod(shape), width=128),
    "wide-deep-256": lambda shape: WideAndDeep(prod(shape), width=256),
    "resnet-small": lambda shape: build_resnet(shape[0], (1, 1, 1, 1), width=8),
    "residual-cnn-small": lambda shape: build_residual_cnn(shape[0], width=8),
}
"""Map a name to a constructor for inputs of shape (columns,) or (channels, H, W)."""
