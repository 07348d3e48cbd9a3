"""What a GPU needs to be kept busy: compiled losses, steps captured once and replayed, several lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch

from fedgram.runs.train_config import Precision

Function = TypeVar("Function", bound=Callable[..., Any])

WARM_UP = 3  # what torch.cuda.graph asks for before a capture
LANES = 4
RECOMPILATIONS = 64  # one for each batch size among the clients, and those of other stacks before


def compiled(function: Function, device: torch.device) -> Function:
    """The function with its elementwise work fused, on a GPU; else itself."""
    if device.type != "cuda":
        return function
    torch._dynamo.config.recompile_limit = RECOMPILATIONS
    fused: Function = torch.compile(function, dynamic=False)  # type: ignore[assignment]
    return fused


class Recorder:
    """Makes steps that launch as one graph, on a GPU; all use the same memory for what comes between."""

    def __init__(self, device: torch.device) -> None:
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        """The step as one launch. It runs a few times for that."""
        if self.pool is None:
            return step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.empty_cache()  # what the trial steps used is not needed again
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            step()
        return graph.replay


class Lanes:
    """Streams on which independent models take turns, so that small kernels of several run side by side."""

    def __init__(self, device: torch.device, several: bool) -> None:
        count = LANES if several and device.type == "cuda" else 0
        self.streams = [torch.cuda.Stream() for _ in range(count)]

    def __enter__(self) -> Lanes:
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream())
        return self

    def __exit__(self, *problem: object) -> None:
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)

    def lane(self, turn: int) -> AbstractContextManager[Any]:
        """The stream whose turn it is."""
        return torch.cuda.stream(self.streams[turn % len(self.streams)]) if self.streams else nullcontext()


def storage(precision: Precision) -> torch.dtype:
    """The type of parameters and data."""
    return torch.float64 if precision == "fp64" else torch.float32


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """Compute in this precision, and put the global switches back afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
