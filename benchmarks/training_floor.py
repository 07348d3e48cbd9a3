"""The least time of a training step on this GPU: operations, state and activations at its best rates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedgram.nets.cuda import HALF, use_precision
from fedgram.nets.model import Model
from fedgram.runs.train_config import Precision

REPEATS = 20
# Gradients are read for the norm; then four tensors are read and three written. In half precision gradients
# have half as many bytes, and copies of the parameters are written.
STATE_BYTES, HALF_STATE_BYTES = 8 * 4, 6 * 4 + 3 * 2
OUTPUT_PASSES = 5  # written, read by the next layer and by the backward pass; gradients written and read
SIZE = 8192


def floor(model: Model, inputs: Tensor, models: int, precision: Precision) -> float:
    """Milliseconds for a step of this many models on inputs (B, ...); not a number without a GPU."""
    if inputs.device.type != "cuda":
        return float("nan")
    device = inputs.device
    numbers = sum(value.numel() for value in model.parameters())
    operations, outputs = count_layers(model.to(device), inputs)
    width, state = (2, HALF_STATE_BYTES) if precision in HALF else (4, STATE_BYTES)
    moved = (state * numbers + width * OUTPUT_PASSES * outputs) / bandwidth(device)
    return 1e3 * models * (moved + operations / rate(device, precision))


def count_layers(model: Model, inputs: Tensor) -> tuple[int, int]:
    """Operations of a step of one model, forward and twice as many backward, and numbers that layers output.

    Layers are convolutions and linear layers. What comes between them could be fused with them.
    """
    operations = outputs = 0

    def count(module: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        nonlocal operations, outputs
        operations += 3 * 2 * output.numel() * module.weight[0].numel()
        outputs += output.numel()

    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    hooks = [module.register_forward_hook(count) for module in layers]
    with torch.no_grad():
        model.eval()(inputs)
    for hook in hooks:
        hook.remove()
    return operations, outputs


def rate(device: torch.device, precision: Precision) -> float:
    """Operations per second of a large product."""
    dtype = HALF.get(precision, torch.float32)
    left, right = (torch.randn(SIZE, SIZE, device=device, dtype=dtype) for _ in range(2))
    with use_precision(precision):
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
