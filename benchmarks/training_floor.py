"""The least time that a training step can take on this GPU: its products, and one pass over its state."""

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
        return moved + sum(each() for each in products(model.to(inputs.device), inputs, models, precision))


def products(model: Model, inputs: Tensor, models: int, precision: Precision) -> list[Callable[[], float]]:
    """For each layer with a product: what measures it, forward and backward, for all models."""
    found: list[Callable[[], float]] = []
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def note(module: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        x, y = given[0].to(dtype), torch.randn_like(output, dtype=dtype)
        if isinstance(module, nn.Conv2d):
            found.append(lambda: models * convolution(x, module, y))
        else:
            found.append(lambda: linear(x, module.weight.to(dtype), y, models))

    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    hooks = [module.register_forward_hook(note) for module in layers]
    with torch.no_grad():
        model.eval()(inputs)
    for hook in hooks:
        hook.remove()
    return found


def linear(x: Tensor, weight: Tensor, y: Tensor, models: int) -> float:
    """Milliseconds of three batched products: x (B, in), weight (out, in), y (B, out) of each model."""
    x, weight, y = (torch.randn(models, *each.shape, device=x.device).to(each) for each in (x, weight.mT, y))
    return timed(lambda: (torch.bmm(x, weight), torch.bmm(y, weight.mT), torch.bmm(x.mT, y)))


def convolution(x: Tensor, module: nn.Conv2d, y: Tensor) -> float:
    """Milliseconds of a convolution and its two gradients for one model, channels last."""
    x, y, weight = (
        each.to(memory_format=torch.channels_last) for each in (x, y, module.weight.detach().to(x))
    )
    stride, padding = list(module.stride), list(module.padding)

    def work() -> object:
        torch.nn.functional.conv2d(x, weight, None, module.stride, module.padding)
        return torch.ops.aten.convolution_backward(
            y, x, weight, None, stride, padding, [1, 1], False, [0, 0], 1, [True, True, False]
        )

    return timed(work)


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
