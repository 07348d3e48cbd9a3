"""Layers of convolutional networks that compute K models at once on a GPU.

Alone, they are PyTorch's layers. With `is_stacked` they train under torch.func.vmap: a kernel computes the
images x (K, N, C, H, W) of all models. In memory channels come last throughout.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgram.nets.stacked_ops import convolve, output_length, select

TILE = 64  # numbers of channels that the fused kernels compute must be multiples
ROW = 32  # numbers of a kernel's row, if an image has few channels
MOMENTUM = 0.1  # of running statistics, PyTorch's default

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
UNSTACKED = (*CONVOLUTIONS, nn.RNNBase)  # slower, or impossible, under torch.func.vmap


class Conv2d(nn.Conv2d):
    """A convolution without bias, with the same stride and padding along both sides."""

    is_stacked = False

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(channels, out, kernel, stride, padding, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, C, H, W) -> (N, O, H', W')."""
        if not (self.is_stacked and self.training):
            return self._convolve_alone(x)
        x, weight, padding = x.to(self.weight.dtype), self.weight, int(self.padding[0])
        if self.in_channels % TILE:
            x, weight, padding = *pad_rows(x, weight, self.stride[0], padding), 0
        # Not [0]: its gradient would be in another memory order.
        return convolve(x[None], weight[None], self.stride[0], padding).squeeze(0)

    @property
    def is_fused(self) -> bool:
        """Whether the fused kernels can compute the layer: whole tiles of channels, or rows of few."""
        has_rows = self.kernel_size[1] * pad_channels(self.in_channels, self.stride[0]) <= ROW
        return self.out_channels % TILE == 0 and (self.in_channels % TILE == 0 or has_rows)

    def _convolve_alone(self, x: Tensor) -> Tensor:
        """x (N, C, H, W) -> (N, O, H', W'); GPUs are slow at 7x7 convolutions of few channels."""
        has_blocks = self.kernel_size == (7, 7) and x.shape[-2] % 2 == 0 and x.shape[-1] % 2 == 0
        return convolve_blocks(x, self.weight) if x.is_cuda and has_blocks else super().forward(x)


def pad_channels(channels: int, stride: int) -> int:
    """Return a number of channels with which kernels begin at multiples of 16 bytes, a power of two."""
    return max(8 // stride, 1 << (channels - 1).bit_length())


def pad_rows(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """Pad images (N, C, H, W) and kernels (O, C, R, S) with zeros, so that rows of kernels have ROW numbers.

    The convolution without padding is the same; the images have the columns that it reads, in channels-last
    order.
    """
    channels = pad_channels(x.shape[1], stride)
    width = ROW // channels
    result = output_length(x.shape[3], weight.shape[3], stride, padding)
    right = (result - 1) * stride + width - padding - x.shape[3]
    more = channels - x.shape[1]
    images = F.pad(x.movedim(1, -1), (0, more, padding, right, padding, padding)).movedim(-1, 1)
    kernels = F.pad(weight.movedim(1, -1), (0, more, 0, width - weight.shape[3])).movedim(-1, 1)
    return images, kernels


def convolve_blocks(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve x (B, channels, H, W) with 7x7 kernels, stride 2 and padding 3, as blocks of 2x2 pixels."""
    blocks = F.pad(F.pixel_unshuffle(x, 2), (2, 1, 2, 1))
    return F.conv2d(blocks, F.pixel_unshuffle(F.pad(weight, (1, 0, 1, 0)), 2))


class BatchNorm2d(nn.BatchNorm2d):
    """Batch normalization; under vmap that of PyTorch would copy images to another memory order."""

    is_stacked = False

    def forward(self, x: Tensor) -> Tensor:
        """x (N, C, H, W) -> (N, C, H, W)."""
        if not (self.is_stacked and self.training):
            return super().forward(x)
        return self._transform(x, *self._measure(x))

    def pool(self, x: Tensor, pooling: nn.Module) -> Tensor:
        """Normalize x (N, C, H, W) and pool it: (N, C, H', W').

        Numbers are selected before they are normalized, so that fewer are.
        """
        if not (self.is_stacked and self.training):
            return cast(Tensor, pooling(self(x)))
        assert isinstance(pooling, nn.MaxPool2d)
        mean, inverse = (value.detach() for value in self._measure(x))
        window = pooling.kernel_size, pooling.stride, pooling.padding
        selected, _ = select(x[None], self.weight.detach()[None], mean[None], inverse[None], *window)
        return self._transform(selected.squeeze(0), mean, inverse)

    def _measure(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and inverse deviation (C,), and update the running statistics."""
        variance, mean = torch.var_mean(x.float(), dim=(0, 2, 3), correction=0)
        count = len(x) * x[0, 0].numel()
        unbiased = variance.detach() * (count / (count - 1))
        self.get_buffer("running_mean").mul_(1 - MOMENTUM).add_(MOMENTUM * mean.detach())
        self.get_buffer("running_var").mul_(1 - MOMENTUM).add_(MOMENTUM * unbiased)
        self.get_buffer("num_batches_tracked").add_(1)
        return mean, torch.rsqrt(variance + self.eps)

    def _transform(self, x: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
        scale = self.weight * inverse
        shift = self.bias - mean * scale
        return (x.float() * scale[:, None, None] + shift[:, None, None]).to(x.dtype)


class GroupNorm(nn.GroupNorm):
    """Group normalization; vmap does not have that of PyTorch for images in channels-last order."""

    is_stacked = False

    def forward(self, x: Tensor) -> Tensor:
        """x (N, C, H, W) -> (N, C, H, W)."""
        if not (self.is_stacked and self.training):
            return super().forward(x)
        groups = x.float().movedim(1, -1).unflatten(-1, (self.num_groups, -1))
        variance, mean = torch.var_mean(groups, dim=(1, 2, 4), correction=0, keepdim=True)
        normalized = ((groups - mean) * torch.rsqrt(variance + self.eps)).flatten(-2)
        return (normalized * self.weight + self.bias).movedim(-1, 1).to(x.dtype)


def can_stack(model: nn.Module) -> bool:
    """Whether all convolutions of a model can be computed for K models at once."""
    layers = [module for module in model.modules() if isinstance(module, UNSTACKED)]
    return all(isinstance(layer, Conv2d) and layer.is_fused for layer in layers)


def set_stacked(model: nn.Module, is_stacked: bool) -> None:
    """Set whether the layers of a model compute several models at once in training."""
    for layer in model.modules():
        if isinstance(layer, Conv2d | BatchNorm2d | GroupNorm):
            layer.is_stacked = is_stacked
