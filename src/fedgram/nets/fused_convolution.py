"""Convolutions of K models in one Triton kernel each, as matrix products over the images of a minibatch.

A tile of the result is one position (h, w) of many images. Each tap of a kernel adds the product of its
weights with one position of the source, so borders need no padding and are not computed. Tensors are in
channels-last order: x (K, N, H, W, C), w (K, O, R, S, C), y (K, N, H', W', O).

Numbers have 16 bits, or 32 for products in TF32. GPUs multiply the latter only if both factors are stored
with the summed index last, so some factors are transposed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from fedgram.nets.stacked_ops import output_length

# Sizes of tiles, stages and warps are the best of four to six for most layers of a ResNet-18 (8 models,
# 256 images, one H200).
IMAGES = 128  # of a tile
LARGEST = 128  # channels of a tile
BYTES = 128  # of each image or channel that a step of a product reads
ALIGNED = 16  # bytes, to which the hardware that copies tiles needs rows aligned
PROGRAMS = 1024  # wanted of a kernel for weights; with an eighth the GPU is busy enough
SUMS = 2048  # fewest numbers that one of these programs sums


@triton.jit
def gather_kernel(  # type: ignore[no-untyped-def]
    source, weight, result, images,
    H: tl.constexpr, W: tl.constexpr, PITCH: tl.constexpr, C: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BACKWARD: tl.constexpr, ROWS_FIRST: tl.constexpr,
    IMAGES: tl.constexpr, TILE: tl.constexpr, SUMMED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the result (HEIGHT, WIDTH, OUT) from the source (H, W, PITCH).

    Each tap reads C numbers of the source. Backward, the result is the gradient of images. ROWS_FIRST: the
    weights are (C, R, S, OUT), else (OUT, R, S, C) or, backward, (R, S, OUT, C).
    """
    program = tl.program_id(0)
    channel = (program % (OUT // TILE)) * TILE
    program = program // (OUT // TILE)
    position = program % (HEIGHT * WIDTH)
    program = program // (HEIGHT * WIDTH)
    image = (program % tl.cdiv(images, IMAGES)) * IMAGES
    model = program // tl.cdiv(images, IMAGES)
    h = position // WIDTH
    w = position % WIDTH
    # Taps (r, s) whose position of the source is inside it: (h STRIDE - PADDING + r, ...), or backward
    # ((h + PADDING - r) / STRIDE, ...), which is whole for every STRIDE-th tap.
    if BACKWARD:
        r_first = tl.maximum(0, h + PADDING - (H - 1) * STRIDE)
        r_first += (h + PADDING - r_first) % STRIDE
        r_count = tl.maximum(0, (tl.minimum(R - 1, h + PADDING) - r_first) // STRIDE + 1)
        s_first = tl.maximum(0, w + PADDING - (W - 1) * STRIDE)
        s_first += (w + PADDING - s_first) % STRIDE
        s_count = tl.maximum(0, (tl.minimum(S - 1, w + PADDING) - s_first) // STRIDE + 1)
    else:
        r_first = tl.maximum(0, PADDING - h * STRIDE)
        r_count = tl.minimum(R, H + PADDING - h * STRIDE) - r_first
        s_first = tl.maximum(0, PADDING - w * STRIDE)
        s_count = tl.minimum(S, W + PADDING - w * STRIDE) - s_first
    PARTS: tl.constexpr = C // SUMMED
    sums = tl.zeros((IMAGES, TILE), tl.float32)
    for turn in tl.range(0, r_count * s_count * PARTS, num_stages=STAGES):
        tap = turn // PARTS
        summed = (turn % PARTS) * SUMMED
        if BACKWARD:
            r = r_first + STRIDE * (tap // s_count)
            s = s_first + STRIDE * (tap % s_count)
            at = (h + PADDING - r) // STRIDE * W + (w + PADDING - s) // STRIDE
        else:
            r = r_first + tap // s_count
            s = s_first + tap % s_count
            at = (h * STRIDE - PADDING + r) * W + w * STRIDE - PADDING + s
        left = source.load([model, image, at * PITCH + summed]).reshape(IMAGES, SUMMED)
        if ROWS_FIRST:
            right = weight.load([model, summed, (r * S + s) * OUT + channel]).reshape(SUMMED, TILE)
        elif BACKWARD:
            right = weight.load([model, (r * S + s) * OUT + channel, summed]).reshape(TILE, SUMMED).T
        else:
            right = weight.load([model, channel, (r * S + s) * C + summed]).reshape(TILE, SUMMED).T
        sums = tl.dot(left, right, sums)
    result.store([model, image, position * OUT + channel], sums.to(result.dtype).reshape(1, IMAGES, TILE))


@triton.jit
def weight_kernel(  # type: ignore[no-untyped-def]
    slope, source, result, images, models,
    H: tl.constexpr, W: tl.constexpr, PITCH: tl.constexpr, C: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    IMAGES_LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SUMMED: tl.constexpr,
    SPLIT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute a tile of one tap's gradient, summed over a part of the positions.

    The result is (SPLIT, K, OUT, R, S, C). IMAGES_LAST: slope and source are (K, ..., N), else (K, N, ...).
    """
    program = tl.program_id(0)
    column = (program % (C // COLUMNS)) * COLUMNS
    program = program // (C // COLUMNS)
    row = (program % (OUT // ROWS)) * ROWS
    program = program // (OUT // ROWS)
    tap = program % (R * S)
    program = program // (R * S)
    part = program % SPLIT
    model = program // SPLIT
    r = tap // S
    s = tap % S
    # Positions (h, w) of the slope whose position (h STRIDE - PADDING + r, ...) of the source is inside it.
    h_first = tl.maximum(0, (PADDING - r + STRIDE - 1) // STRIDE)
    h_count = tl.minimum(HEIGHT - 1, (H - 1 + PADDING - r) // STRIDE) - h_first + 1
    w_first = tl.maximum(0, (PADDING - s + STRIDE - 1) // STRIDE)
    w_count = tl.minimum(WIDTH - 1, (W - 1 + PADDING - s) // STRIDE) - w_first + 1
    turns = tl.cdiv(images, SUMMED)
    each = tl.cdiv(h_count * w_count, SPLIT)
    end = tl.minimum(h_count * w_count, (part + 1) * each)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in tl.range(part * each * turns, end * turns, num_stages=STAGES):
        image = (turn % turns) * SUMMED
        h = h_first + turn // turns // w_count
        w = w_first + turn // turns % w_count
        to = (h * WIDTH + w) * OUT + row
        at = ((h * STRIDE - PADDING + r) * W + w * STRIDE - PADDING + s) * PITCH + column
        if IMAGES_LAST:
            left = slope.load([model, to, image]).reshape(ROWS, SUMMED)
            right = source.load([model, at, image]).reshape(COLUMNS, SUMMED).T
        else:
            left = slope.load([model, image, to]).reshape(SUMMED, ROWS).T
            right = source.load([model, image, at]).reshape(SUMMED, COLUMNS)
        sums = tl.dot(left, right, sums)
    rows = row + tl.arange(0, ROWS)
    columns = tap * C + column + tl.arange(0, COLUMNS)
    base = ((part * models + model).to(tl.int64) * OUT + rows[:, None]) * (R * S * C)
    tl.store(result + base + columns[None, :], sums.to(result.dtype.element_ty))


@triton.jit
def transpose_kernel(  # type: ignore[no-untyped-def]
    source, result, rows, columns, padded, TILE: tl.constexpr
):
    """Transpose (K, rows, columns) to (K, columns, padded) with zeros at the end."""
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    model = tl.program_id(2).to(tl.int64)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    tile = tl.load(source + (model * rows + row[:, None]) * columns + column[None, :], inside, other=0.0)
    to = result + (model * columns + column[:, None]) * padded + row[None, :]
    tl.store(to, tile.T, (column[:, None] < columns) & (row[None, :] < padded))


def convolve(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Convolve x (K, N, H, W, C) with weight (K, O, R, S, C)."""
    sides = zip(x.shape[2:4], weight.shape[2:4], strict=True)
    size = [output_length(length, kernel, stride, padding) for length, kernel in sides]
    result = x.new_empty(*x.shape[:2], *size, weight.shape[1])
    rows, columns, channels = _count_taps(weight.shape[2], weight.shape[3], weight.shape[4])
    shape = rows, columns, stride, padding
    _gather(x, weight.flatten(2), result, channels, shape, backward=False)
    return result


def convolve_data(slope: Tensor, weight: Tensor, size: Sequence[int], stride: int, padding: int) -> Tensor:
    """Return the gradient (K, N, *size, C) of images for the slope (K, N, H', W', O) of the result."""
    result = slope.new_empty(*slope.shape[:2], *size, weight.shape[4])
    shape = weight.shape[2], weight.shape[3], stride, padding
    flat = weight.flatten(2)
    factor = _transpose(flat) if _is_single(weight) else flat
    _gather(slope, factor, result, weight.shape[1], shape, backward=True)
    return result


def _gather(
    source: Tensor, weight: Tensor, result: Tensor, channels: int, shape: tuple[int, ...], *, backward: bool
) -> None:
    models, images, height, width, out = result.shape
    tile, summed = gcd(out, LARGEST), min(channels, BYTES // source.element_size())
    rows_first = backward and not _is_single(source)
    descriptors = (
        TensorDescriptor.from_tensor(source.flatten(2), [1, IMAGES, summed]),
        TensorDescriptor.from_tensor(weight, [1, summed, tile] if rows_first else [1, tile, summed]),
        TensorDescriptor.from_tensor(result.flatten(2), [1, IMAGES, tile]),
    )
    programs = models * triton.cdiv(images, IMAGES) * height * width * (out // tile)
    gather_kernel[(programs,)](
        *descriptors, images, *source.shape[2:], channels, height, width, out, *shape,
        backward, rows_first, IMAGES, tile, summed, 4 if tile == 64 else 3, num_warps=4,
    )  # fmt: skip


def convolve_weight(slope: Tensor, x: Tensor, kernel: Sequence[int], stride: int, padding: int) -> Tensor:
    """Return the gradient (K, O, *kernel, C) of weights for the slope (K, N, H', W', O) of the result."""
    models, images, height, width, out = slope.shape
    rows, columns, channels = _count_taps(kernel[0], kernel[1], x.shape[4])
    tiles = gcd(out, LARGEST), gcd(channels, LARGEST)
    programs = models * rows * columns * (out // tiles[0]) * (channels // tiles[1])
    split = _choose_split(programs, images * height * width)
    dtype = torch.float32 if split > 1 else x.dtype
    result = x.new_empty(split, models, out, *kernel, x.shape[4], dtype=dtype)
    factors, images_last = [slope.flatten(2), x.flatten(2)], _is_single(x)
    if images_last:
        factors, summed, stages, warps = [_transpose(each) for each in factors], 32, 4, 4
    else:
        summed, stages, warps = 128, 3, 8 if min(tiles) == LARGEST else 4
    descriptors = [
        TensorDescriptor.from_tensor(factor, [1, tile, summed] if images_last else [1, summed, tile])
        for factor, tile in zip(factors, tiles, strict=True)
    ]
    weight_kernel[(programs * split,)](
        *descriptors, result, images, models, *x.shape[2:], channels, height, width, out, rows, columns,
        stride, padding, images_last, *tiles, summed, split, stages, num_warps=warps,
    )  # fmt: skip
    return result[0] if split == 1 else result.sum(dim=0).to(x.dtype)


def _is_single(values: Tensor) -> bool:
    return values.element_size() == 4


def _count_taps(rows: int, columns: int, channels: int) -> tuple[int, int, int]:
    """Return rows and columns of taps and the numbers of each; with few channels a tap is a whole row."""
    return (rows, 1, columns * channels) if channels < 64 else (rows, columns, channels)


def _choose_split(programs: int, summed: int) -> int:
    """Choose how many programs share a sum, so that the GPU is busy."""
    if programs >= PROGRAMS // 8:
        return 1
    return max(1, min(triton.next_power_of_2(PROGRAMS // programs), summed // SUMS))


def _transpose(values: Tensor) -> Tensor:
    """Transpose (K, rows, columns) to (K, columns, rows), with zeros up to aligned rows."""
    models, rows, columns = values.shape
    padded = rows + -rows % (ALIGNED // values.element_size())
    result, tile = values.new_empty(models, columns, padded), 64
    grid = (triton.cdiv(columns, tile), triton.cdiv(padded, tile), models)
    transpose_kernel[grid](values, result, rows, columns, padded, tile, num_warps=8)
    return result
