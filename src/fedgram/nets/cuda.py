"""Global switches of PyTorch, and GPU execution: compilation, CUDA graphs, streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any, TypeVar

import torch

from fedgram.runs.train_config import Precision

Function = TypeVar("Function", bound=Callable[..., Any])

WARM_UP = 3  # eager steps that torch.cuda.graph needs before a capture
HOPPER = 9  # major compute capability of an H100 or H200
STREAMS = 4  # models computed at the same time if each runs alone
RECOMPILATIONS = 64  # one for each batch size of the clients, and those of earlier stacks


HALF: Mapping[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Dtypes of the precisions in which backbones compute with half as many bytes."""


def storage_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of parameters and data."""
    return torch.float64 if precision == "fp64" else torch.float32


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Multiply in half precision, if this is one."""
    return torch.autocast(device.type, HALF[precision]) if precision in HALF else nullcontext()


@contextmanager
def use_precision(precision: Precision) -> Iterator[None]:
    """Set PyTorch's global precision switches, and restore them on exit."""
    allows_tf32, products = precision == "tf32" or precision in HALF, torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    reductions = (
        products.allow_fp16_reduced_precision_reduction, products.allow_bf16_reduced_precision_reduction,
    )  # fmt: skip
    torch.set_float32_matmul_precision("high" if allows_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = allows_tf32
    _allow_half_sums(fp16=False, bf16=False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        _allow_half_sums(fp16=reductions[0], bf16=reductions[1])


def _allow_half_sums(*, fp16: bool, bf16: bool) -> None:
    """Set whether products in half precision may add parts of their sums in half precision."""
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = fp16
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = bf16


@contextmanager
def disable_onednn() -> Iterator[None]:
    """Multiply matrices without oneDNN, and restore it on exit.

    On ARM processors PyTorch passes every product with a transposed matrix to it. 40 products of 64 x 64
    matrices then take 3.0 instead of 1.3 ms, and 24 ms if another process keeps a core busy, because it
    starts threads of its own (Neoverse N1, PyTorch 2.13).
    """
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


def compile_on_gpu(function: Function, device: torch.device) -> Function:
    """Compile a function with torch.compile on a GPU; return it unchanged on a CPU."""
    if device.type != "cuda":
        return function
    torch._dynamo.config.recompile_limit = RECOMPILATIONS
    fused: Function = torch.compile(function, dynamic=False)  # type: ignore[assignment]
    return fused


def has_fused_layers(device: torch.device) -> bool:
    """Whether fused convolutions run: they need a Hopper GPU, and the Triton of PyTorch 2.8 or later."""
    is_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER
    return is_hopper and find_spec("triton.tools.tensor_descriptor") is not None


class GraphRecorder:
    """Record steps as CUDA graphs that share one memory pool; return them unchanged on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        """Run the step WARM_UP times, record it once, and return the replay."""
        if self.pool is None:
            return step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.empty_cache()  # memory of the warm-up steps
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            step()
        return graph.replay


class StreamPool:
    """Streams for independent models, so that their small kernels run concurrently."""

    def __init__(self, device: torch.device, is_needed: bool) -> None:
        count = STREAMS if is_needed and device.type == "cuda" else 0
        self.streams = [torch.cuda.Stream() for _ in range(count)]

    def __enter__(self) -> StreamPool:
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream())
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)

    def use(self, turn: int) -> AbstractContextManager[Any]:
        """Make the stream of this turn the current one."""
        return torch.cuda.stream(self.streams[turn % len(self.streams)]) if self.streams else nullcontext()
