"""Choose and describe the device that trains."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from fedgram._util.errors import InputError
from fedgram.nets.cuda import HALF
from fedgram.runs.train_config import Precision

SMALL = 100_000  # parameters; smaller networks train on one thread
THREAD_RATE = 2.5e10  # operations per second and thread, measured with ResMLP on an ARM server
MAX_THREADS = 8  # more threads did not help there
MAX_CPU_HOURS = 2  # longer training needs an explicit device


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; 'auto' is the first GPU, or the CPU if there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"Unknown device '{name}'. Choose auto, cpu, cuda or cuda:N.", field="device")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("PyTorch finds no CUDA GPU. Train with device cpu.", field="device")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise InputError(f"Unknown device '{name}': PyTorch finds {count} CUDA GPUs.", field="device")
    return device


def check_precision(device: torch.device, precision: Precision) -> None:
    """Reject half precision on a CPU, where it is slow."""
    if device.type == "cpu" and precision in HALF:
        message = f"{precision} needs a GPU. Train with precision fp32 on a CPU."
        raise InputError(message, field="precision")


def estimate_cpu_hours(operations: float) -> float:
    """Estimate how long this machine's CPU computes for."""
    return operations / (THREAD_RATE * min(torch.get_num_threads(), MAX_THREADS)) / 3600


def check_cpu_hours(device: str, hours: float, work: str, remedy: str) -> None:
    """Reject long training on a CPU that only device 'auto' chose.

    The message is "No GPU found for <work>. <remedy>, or pass --device cpu ...".
    """
    if device == "auto" and hours > MAX_CPU_HOURS and resolve_device("auto").type == "cpu":
        raise InputError(
            f"No GPU found for {work}. {remedy}, or pass --device cpu (device='cpu').", field="device"
        )


def describe_hardware(device: torch.device) -> str:
    """Name the GPU, or the CPU and its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    return f"{platform.processor() or platform.machine()}, {threads}"


def use_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one, which CUDA graphs, streams and kernels use."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def limit_threads(parameters: int, device: torch.device) -> Iterator[None]:
    """Use one CPU thread for small networks, unless OMP_NUM_THREADS is set.

    More threads gain little on an idle machine and wait for each other on a busy one.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and parameters < SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_memory(device: torch.device) -> int:
    """Return the peak bytes of the GPU since its last reset, or of this process; 0 if it is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
