"""Max-pooling of normalized images of K models in channels-last order, a Triton kernel for each direction."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgram.nets.stacked_ops import output_length

BLOCK = 1024  # numbers that a program computes


@triton.jit
def select_kernel(  # type: ignore[no-untyped-def]
    x, weight, selected, taps, images,
    H: tl.constexpr, W: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Select the largest number of each window, or the smallest where the weight (K, C) is negative.

    Of equal ones the first, as PyTorch does.
    """
    image = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < HEIGHT * WIDTH * C
    c = index % C
    w = index // C % WIDTH
    h = index // (C * WIDTH)
    source = x + image * (H * W * C) + c
    sign = tl.where(tl.load(weight + image // images * C + c) < 0, -1.0, 1.0)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    first = tl.zeros((BLOCK,), tl.int32)
    for tap in tl.static_range(KERNEL * KERNEL):
        row = h * STRIDE - PADDING + tap // KERNEL
        column = w * STRIDE - PADDING + tap % KERNEL
        exists = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        value = sign * tl.load(source + (row * W + column) * C, exists, other=0.0).to(tl.float32)
        is_larger = exists & ((value > largest) | (value != value))
        largest = tl.where(is_larger, value, largest)
        first = tl.where(is_larger, tap, first)
    to = image * (HEIGHT * WIDTH * C) + index
    tl.store(selected + to, (sign * largest).to(selected.dtype.element_ty), inside)
    tl.store(taps + to, first.to(tl.int8), inside)


@triton.jit
def unselect_kernel(  # type: ignore[no-untyped-def]
    slope, taps, x, offset, factor, result, images,
    H: tl.constexpr, W: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute offset + factor x + the slopes of the windows (HEIGHT, WIDTH) that selected a number of x."""
    WINDOWS: tl.constexpr = (KERNEL + STRIDE - 1) // STRIDE
    image = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < H * W * C
    c = index % C
    column = index // C % W
    row = index // (C * W)
    to = image * (H * W * C) + index
    channel = image // images * C + c
    value = tl.load(x + to, inside).to(tl.float32)
    total = tl.load(offset + channel) + tl.load(factor + channel) * value
    for window in tl.static_range(WINDOWS * WINDOWS):
        h = (row + PADDING) // STRIDE - window // WINDOWS
        w = (column + PADDING) // STRIDE - window % WINDOWS
        r = row + PADDING - h * STRIDE
        s = column + PADDING - w * STRIDE
        exists = inside & (h >= 0) & (h < HEIGHT) & (w >= 0) & (w < WIDTH) & (r < KERNEL) & (s < KERNEL)
        at = image * (HEIGHT * WIDTH * C) + (h * WIDTH + w) * C + c
        is_selected = tl.load(taps + at, exists, other=-1) == r * KERNEL + s
        total += tl.where(is_selected, tl.load(slope + at, exists, other=0.0).to(tl.float32), 0.0)
    tl.store(result + to, total.to(result.dtype.element_ty), inside)


def select(x: Tensor, weight: Tensor, kernel: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """Select numbers (K, N, H', W', C) of windows of x (K, N, H, W, C); return them and their taps."""
    models, images, h, w, channels = x.shape
    height, width = (output_length(length, kernel, stride, padding) for length in (h, w))
    selected = x.new_empty(models, images, height, width, channels)
    taps = torch.empty_like(selected, dtype=torch.int8)
    select_kernel[(models * images, triton.cdiv(height * width * channels, BLOCK))](
        x, weight.contiguous(), selected, taps, images, h, w, height, width, channels,
        kernel, stride, padding, BLOCK,
    )  # fmt: skip
    return selected, taps


def unselect(
    slope: Tensor, taps: Tensor, x: Tensor, offset: Tensor, factor: Tensor, kernel: int, stride: int,
    padding: int,
) -> Tensor:  # fmt: skip
    """Return offset + factor x + the slopes (K, N, H', W', C) of selected numbers of x (K, N, H, W, C)."""
    models, images, h, w, channels = x.shape
    result = torch.empty_like(x)
    unselect_kernel[(models * images, triton.cdiv(h * w * channels, BLOCK))](
        slope, taps, x, offset.contiguous(), factor.contiguous(), result, images, h, w,
        *slope.shape[2:4], channels, kernel, stride, padding, BLOCK,
    )  # fmt: skip
    return result
