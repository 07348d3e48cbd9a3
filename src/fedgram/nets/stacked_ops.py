"""Operators on the images of K models for PyTorch's compiler, autograd and vmap; kernels compute them.

Images are (K, N, C, H, W) and kernels (K, O, C, R, S); in memory channels come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def output_length(length: int, kernel: int, stride: int, padding: int) -> int:
    """Return how many windows a side of an image has."""
    return (length + 2 * padding - kernel) // stride + 1


@torch.library.custom_op("fedgram::convolve", mutates_args=())
def convolve(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Convolve x (K, N, C, H, W) with weight (K, O, C, R, S), each model its own."""
    from fedgram.nets import fused_convolution

    return _channels_first(
        fused_convolution.convolve(_channels_last(x), _channels_last(weight), stride, padding)
    )


@torch.library.custom_op("fedgram::convolve_data", mutates_args=())
def convolve_data(slope: Tensor, weight: Tensor, size: Sequence[int], stride: int, padding: int) -> Tensor:
    """Return the gradient (K, N, C, *size) of images."""
    from fedgram.nets import fused_convolution

    return _channels_first(
        fused_convolution.convolve_data(_channels_last(slope), _channels_last(weight), size, stride, padding)
    )


@torch.library.custom_op("fedgram::convolve_weight", mutates_args=())
def convolve_weight(slope: Tensor, x: Tensor, kernel: Sequence[int], stride: int, padding: int) -> Tensor:
    """Return the gradient (K, O, C, *kernel) of weights."""
    from fedgram.nets import fused_convolution

    return _channels_first(
        fused_convolution.convolve_weight(_channels_last(slope), _channels_last(x), kernel, stride, padding)
    )


@convolve.register_fake
def _(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    sides = zip(x.shape[3:], weight.shape[3:], strict=True)
    size = [output_length(length, kernel, stride, padding) for length, kernel in sides]
    return _empty(x, (*x.shape[:2], weight.shape[1], *size))


@convolve_data.register_fake
def _(slope: Tensor, weight: Tensor, size: Sequence[int], stride: int, padding: int) -> Tensor:
    return _empty(slope, (*slope.shape[:2], weight.shape[2], *size))


@convolve_weight.register_fake
def _(slope: Tensor, x: Tensor, kernel: Sequence[int], stride: int, padding: int) -> Tensor:
    return _empty(x, (slope.shape[0], slope.shape[2], x.shape[2], *kernel))


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
    x, weight, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    x, weight = ctx.saved_tensors
    steps = ctx.stride, ctx.padding
    of_x, of_weight = ctx.needs_input_grad[:2]
    return (
        convolve_data(slope, weight, list(x.shape[3:]), *steps) if of_x else None,
        convolve_weight(slope, x, list(weight.shape[3:]), *steps) if of_weight else None,
        None,
        None,
    )


convolve.register_autograd(_differentiate, setup_context=_save)


@convolve.register_vmap
def _(info: Any, axes: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, int]:
    x, weight = (_merge(value, axis, info.batch_size) for value, axis in zip((x, weight), axes, strict=False))
    return convolve(x, weight, stride, padding).unflatten(0, (info.batch_size, -1)), 0


@torch.library.custom_op("fedgram::select", mutates_args=())
def select(
    x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, kernel: int, stride: int, padding: int
) -> tuple[Tensor, Tensor]:
    """Return the number of each window of x (K, N, C, H, W) that is largest after normalization, and its tap.

    weight (K, C) is that of the normalization; only its sign matters. mean and inverse (K, C), the inverse
    standard deviation, are those of x, and the gradient takes into account that they depend on it.
    """
    from fedgram.nets import fused_pooling

    largest, taps = fused_pooling.select(_channels_last(x), weight, kernel, stride, padding)
    return _channels_first(largest), _channels_first(taps)


@torch.library.custom_op("fedgram::unselect", mutates_args=())
def unselect(
    slope: Tensor, taps: Tensor, x: Tensor, offset: Tensor, factor: Tensor, kernel: int, stride: int,
    padding: int,
) -> Tensor:  # fmt: skip
    """Return offset + factor x + the slopes of the windows that selected a number of x (K, N, C, H, W)."""
    from fedgram.nets import fused_pooling

    images = _channels_last(slope), _channels_last(taps), _channels_last(x)
    return _channels_first(fused_pooling.unselect(*images, offset, factor, kernel, stride, padding))


@select.register_fake
def _(
    x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor, kernel: int, stride: int, padding: int
) -> tuple[Tensor, Tensor]:
    size = [output_length(length, kernel, stride, padding) for length in x.shape[3:]]
    largest = _empty(x, (*x.shape[:3], *size))
    return largest, torch.empty_like(largest, dtype=torch.int8)


@unselect.register_fake
def _(
    slope: Tensor, taps: Tensor, x: Tensor, offset: Tensor, factor: Tensor, kernel: int, stride: int,
    padding: int,
) -> Tensor:  # fmt: skip
    return _empty(x, x.shape)


def _save_selected(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, _, mean, inverse, *ctx.window = inputs
    ctx.save_for_backward(x, mean, inverse, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate_selected(ctx: Any, slope: Tensor, _: None) -> tuple[Tensor | None, ...]:
    """Pass slopes back to the selected numbers, and through mean and deviation to all."""
    x, mean, inverse, selected, taps = ctx.saved_tensors
    count = x.numel() // mean.numel()
    axes, wide = (1, 3, 4), (slice(None), None, slice(None), None, None)
    normalized = (selected.float() - mean[wide]) * inverse[wide]
    total = slope.float().sum(axes) / count
    factor = -inverse * (slope.float() * normalized).sum(axes) / count
    whole = unselect(slope, taps, x, -total - mean * factor, factor, *ctx.window)
    return whole, *(None,) * 6


select.register_autograd(_differentiate_selected, setup_context=_save_selected)


@select.register_vmap
def _(info: Any, axes: Any, *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    merged = (_merge(value, axis, info.batch_size) for value, axis in zip(inputs[:4], axes, strict=False))
    largest, taps = select(*merged, *inputs[4:])
    shape = (info.batch_size, -1)
    return (largest.unflatten(0, shape), taps.unflatten(0, shape)), (0, 0)


def _merge(value: Tensor, axis: int | None, size: int) -> Tensor:
    """Merge the axis of vmap with the leading axis of models."""
    whole = value.expand(size, *value.shape) if axis is None else value.movedim(axis, 0)
    return whole.flatten(0, 1)


def _channels_last(value: Tensor) -> Tensor:
    return value.permute(0, 1, 3, 4, 2).contiguous()


def _channels_first(value: Tensor) -> Tensor:
    return value.permute(0, 1, 4, 2, 3)


def _empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    models, first, channels, height, width = shape
    return _channels_first(like.new_empty(models, first, height, width, channels))
