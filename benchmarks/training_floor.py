"""The least time of a training step on this GPU: its operations and its state, at the best rates there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedgram.nets.cuda import use_precision
from fedgram.nets.model import Model
from fedgram.runs.train_config import Precision

REPEATS = 20
PASSES = 8  # gradients are read for the norm; then four tensors are read and three written
SIZE = 8192


def floor(model: Model, inputs: Tensor, models: int, precision: Precision) -> float:
    """Milliseconds for a step of this many models on inputs (B, ...); not a number without a GPU."""
    if inputs.device.type != "cuda":
        return float("nan")
    numbers = sum(value.numel() for value in model.parameters())
    moved = 4 * PASSES * numbers / bandwidth(inputs.device)
    counted = operations(model.to(inputs.device), inputs) / rate(inputs.device, precision)
    return 1e3 * models * (moved + counted)


def operations(model: Model, inputs: Tensor) -> int:
    """Multiplications and additions of a step of one model, forward and twice as many backward."""
    total = 0

    def count(module: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        nonlocal total
        total += 3 * 2 * output.numel() * module.weight[0].numel()

    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    hooks = [module.register_forward_hook(count) for module in layers]
    with torch.no_grad():
        model.eval()(inputs)
    for hook in hooks:
        hook.remove()
    return total


def rate(device: torch.device, precision: Precision) -> float:
    """Operations per second of a large product."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(SIZE, SIZE, device=device, dtype=dtype) for _ in range(2))
    with use_precision("fp32" if precision == "fp32" else "tf32", device):
        return 2 * SIZE**3 / timed(lambda: left @ right)


def bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of a large copy."""
    source = torch.randn(2**29, device=device)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / timed(lambda: target.copy_(source))


def timed(work: Callable[[], object]) -> float:
    """Seconds of some work on the GPU."""
    for _ in range(3):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(REPEATS):
        work()
    end.record()
    torch.cuda.synchronize()
    return 1e-3 * float(start.elapsed_time(end)) / REPEATS
