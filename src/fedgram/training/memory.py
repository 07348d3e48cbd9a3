"""Estimate the memory of a stack before it is built, and how many runs fit.

docs/runs.md has the formula.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgram._util.errors import InputError
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.nets.cuda import storage_dtype
from fedgram.nets.model import Backbone, draw_example
from fedgram.nets.stack import STACKED, is_unstacked
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig

USABLE = 0.9  # fraction of free memory; the rest is for the allocator, libraries and CUDA graphs
DOUBLE = 8  # bytes of a double
ORDER = 12 * 8  # bytes per row of an order: the order itself, and hashing and sorting the next one


@dataclass(frozen=True)
class Footprint:
    """Bytes of a stack: `fixed` for the data, and for each run the other fields.

    state: parameters, gradients and both moments of the optimizer of all clients, and the best models.
    activations: of a minibatch, for the models that are computed at once.
    returning: backbone outputs of all training rows, and last layers in double precision.
    order: the row order, as long for each client as for the largest one.
    """

    fixed: int
    state: int
    activations: int
    returning: int
    order: int
    shared_activations: bool

    def total(self, runs: int) -> int:
        """Return the bytes of a stack with this many runs."""
        activations = self.activations * (1 if self.shared_activations else runs)
        return self.fixed + runs * (self.state + self.returning + self.order) + activations

    def max_runs(self, available: int) -> int:
        """Return how many runs fit into this many bytes."""
        return max(0, 1 + (available - self.total(1)) // (self.total(2) - self.total(1)))


def footprint(problem: Problem, backbone: Backbone, centralized: bool, config: TrainConfig) -> Footprint:
    """Estimate the footprint of a stack of runs of this problem."""
    splits = list(problem.train.values())
    rows = [sum(map(len, splits))] if centralized else [len(split) for split in splits]
    model, inputs = draw_example(backbone, splits[0], config.features)
    number = torch.finfo(storage_dtype(config.precision)).bits // 8
    is_sequential = is_unstacked(model)
    width = model.feature.in_features
    all_splits = (*splits, *problem.test.values(), *problem.validation.values())
    layers = model.feature.weight.numel() + model.head.weight.numel()
    return Footprint(
        fixed=sum(_bytes_of(split, number) for split in all_splits),
        state=len(rows) * (5 if problem.validation else 4) * number * model.size,
        activations=(STACKED if is_sequential else len(rows)) * 2 * number * config.batch
        * _activations_per_row(model, inputs),
        returning=sum(rows) * number * width + max(rows) * DOUBLE * (width + config.features)
        + len(rows) * 2 * DOUBLE * layers,
        order=len(rows) * ORDER * (max(rows) + config.batch),
        shared_activations=is_sequential,
    )  # fmt: skip


def _bytes_of(split: Split, number: int) -> int:
    """Return the bytes of a client's rows for networks with numbers of this many bytes.

    Targets are stored twice: in double precision and in that of the networks.
    """
    each = 1 if split.inputs.dtype == np.uint8 else number
    return each * split.inputs.size + (DOUBLE + number) * split.targets.size


def _activations_per_row(model: nn.Module, inputs: Tensor) -> int:
    """Count the numbers of one row and of the outputs of all layers for it."""
    sizes = [inputs[0].numel()]

    def count(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not list(module.children()):
            sizes.append(output.numel() // len(inputs))

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    with torch.no_grad():
        model.eval()(inputs)
    for hook in hooks:
        hook.remove()
    return sum(sizes)


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():  # unlike free pages, MemAvailable includes reclaimable ones
        entries = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return 1024 * int(entries["MemAvailable"].split()[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def max_runs_at_once(
    problem: Problem, backbone: Backbone, runs: Sequence[Run], config: TrainConfig, device: torch.device
) -> int:
    """Return how many of these runs fit on the device at once, at least 1."""
    needed = footprint(problem, backbone, runs[0].procedure.centralized, config)
    free = int(USABLE * free_bytes(device))
    together = 2 if any(run.procedure.blended for run in runs) else 1  # with its companion
    count = min(needed.max_runs(free) // together, len(runs))
    if not count:
        raise InputError(
            f"One run needs about {_gib(needed.total(together))}, but {device} has {_gib(free)} free. Use a "
            f"smaller backbone, a batch below {config.batch}, or fewer rows.",
            field="memory",
        )
    return count


def _gib(size: int) -> str:
    return f"{size / 2**30:.2g} GiB"
