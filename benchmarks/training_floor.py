"""The least time of a training step on this GPU: its products alone, and one pass over its state."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedgram.nets.model import Model
from fedgram.nets.precision import arithmetic
from fedgram.nets.settings import Precision

REPEATS = 20
PASSES = 8  # gradients are read for the norm; then four tensors are read and three written


def floor(model: Model, inputs: Tensor, models: int, precision: Precision) -> float:
    """Milliseconds for a step of this many models on inputs (B, ...); not a number without a GPU."""
    if inputs.device.type != "cuda":
        return float("nan")
    numbers = sum(value.numel() for value in model.parameters())
    moved = 1e3 * 4 * PASSES * models * numbers / bandwidth(inputs.device)
    with arithmetic("fp32" if precision == "fp32" else "tf32", inputs.device):
        return moved + products(model.to(inputs.device), inputs, models, precision)


def products(model: Model, inputs: Tensor, models: int, precision: Precision) -> float:
    """Milliseconds of all products of a step, forward and backward."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    sizes: list[tuple[int, int, int]] = []
    operations = 0

    def note(module: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        nonlocal operations
        if isinstance(module, nn.Linear):
            sizes.append((len(output), module.in_features, module.out_features))
        else:
            operations += 2 * output.numel() * module.weight[0].numel()

    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    hooks = [module.register_forward_hook(note) for module in layers]
    with torch.no_grad():
        model.eval()(inputs)
    for hook in hooks:
        hook.remove()
    linear = [three_products(models, *each, inputs.device, dtype) for each in sizes]
    return sum(linear) + 3e3 * models * operations / (rate(inputs.device, dtype) if operations else 1.0)


def three_products(
    models: int, rows: int, width: int, out: int, device: torch.device, dtype: torch.dtype
) -> float:
    """Milliseconds of a linear layer of all models: x W, y Wᵀ and xᵀ y, each in its fastest layout."""
    shapes = ((rows, width, out), (rows, out, width), (width, rows, out))
    return sum(min(batched(models, *shape, layout, device, dtype) for layout in range(4)) for shape in shapes)


def batched(
    models: int, rows: int, inner: int, columns: int, layout: int, device: torch.device, dtype: torch.dtype
) -> float:
    """Milliseconds of (rows, inner) @ (inner, columns) for all models, either factor perhaps transposed."""

    def factor(first: int, second: int, turned: bool) -> Tensor:
        shape = (second, first) if turned else (first, second)
        made = torch.randn(models, *shape, device=device, dtype=dtype)
        return made.mT if turned else made

    left, right = factor(rows, inner, bool(layout & 1)), factor(inner, columns, bool(layout & 2))
    return timed(lambda: torch.bmm(left, right))


def rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large product."""
    size = 8192
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / (1e-3 * timed(lambda: left @ right))


def bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of a large copy."""
    source = torch.randn(2**29, device=device)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / (1e-3 * timed(lambda: target.copy_(source)))


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of some work, launched as a graph so that launching costs nothing."""
    for _ in range(3):
        work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            work()
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / REPEATS
