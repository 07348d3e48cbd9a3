"""How much memory a stack needs, before it is made, and how many runs fit at once."""

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
from fedgram.data.problem import Problem, Split
from fedgram.nets.cuda import LANES, storage
from fedgram.nets.model import Backbone, example
from fedgram.nets.stack import one_at_a_time
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig

RESERVE = 0.9  # of what is free: the rest is for the allocator, libraries and captured graphs
DOUBLE = 8
ORDER = 12 * 8
"""Bytes for each place in an order of rows: the order, and what it takes to hash and sort the next one."""


@dataclass(frozen=True)
class Footprint:
    """Bytes that a stack needs: `fixed` for the data, and for each run

    state: parameters, gradients and the optimizer's two moments of all clients;
    activations: what a minibatch leaves behind of the models that are computed at once;
    returning: backbone outputs of all training rows, and last layers in double precision;
    order: the order of rows, as long for each client as for the one with the most.
    """

    fixed: int
    state: int
    activations: int
    returning: int
    order: int
    shared_activations: bool

    def of(self, runs: int) -> int:
        """Bytes for this many runs."""
        activations = self.activations * (1 if self.shared_activations else runs)
        return self.fixed + runs * (self.state + self.returning + self.order) + activations

    def fitting(self, available: int) -> int:
        """How many runs fit into this many bytes."""
        runs = 0
        while self.of(runs + 1) <= available:
            runs += 1
        return runs


def footprint(problem: Problem, backbone: Backbone, centralized: bool, settings: TrainConfig) -> Footprint:
    """What a stack of runs of this problem needs; docs/training.md has the formula."""
    splits = list(problem.train.values())
    rows = [sum(map(len, splits))] if centralized else [len(split) for split in splits]
    model, inputs = example(backbone, splits[0], settings.features)
    number = torch.finfo(storage(settings.precision)).bits // 8
    per_row = activations_per_row(model, inputs)
    alone = one_at_a_time(model)
    at_once = LANES if alone else len(rows)
    width = model.feature.in_features
    layers = model.feature.weight.numel() + model.head.weight.numel()
    return Footprint(
        fixed=sum(bytes_of(split, number) for split in (*splits, *problem.test.values())),
        state=len(rows) * 4 * number * model.size,
        activations=at_once * 2 * number * per_row * settings.batch,
        returning=sum(rows) * number * width + max(rows) * DOUBLE * (width + settings.features)
        + len(rows) * 2 * DOUBLE * layers,
        order=len(rows) * ORDER * (max(rows) + settings.batch),
        shared_activations=alone,
    )  # fmt: skip


def bytes_of(split: Split, number: int) -> int:
    """Of a client's rows on the device, whose networks have numbers of so many bytes.

    Inputs are there once, bytes as bytes; targets in double precision, and as networks are trained on them.
    """
    each = 1 if split.inputs.dtype == np.uint8 else number
    return each * split.inputs.size + (DOUBLE + number) * split.targets.size


def activations_per_row(model: nn.Module, inputs: Tensor) -> int:
    """How many numbers a row has, and the layers of a model give for it, counting every layer's output."""
    sizes = [inputs[0].numel()]

    def count(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not list(module.children()):
            sizes.append(output.numel() // len(inputs))

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    with torch.no_grad():
        model.eval()(inputs)
    for hook in hooks:
        hook.remove()
    return sum(sizes)


def available(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    about = Path("/proc/meminfo")
    if about.exists():  # free pages alone would leave out what the system gives back when asked
        entries = dict(line.split(":") for line in about.read_text().splitlines())
        return 1024 * int(entries["MemAvailable"].split()[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fitting(
    problem: Problem, backbone: Backbone, runs: Sequence[Run], settings: TrainConfig, device: torch.device
) -> int:
    """How many of these runs fit on the device at once, at least 1."""
    needed = footprint(problem, backbone, runs[0].procedure.centralized, settings)
    free = int(RESERVE * available(device))
    count = min(needed.fitting(free), len(runs))
    if not count:
        raise InputError(
            f"One run needs about {_gib(needed.of(1))}, but {device} has {_gib(free)} free: what fits is "
            f"a smaller backbone, a batch below {settings.batch}, or fewer rows.",
            field="memory",
        )
    return count


def _gib(size: int) -> str:
    return f"{size / 2**30:.2g} GiB"
