"""The device that trains: chosen by name, described for the manifest, and how much memory it used."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from fedgram._util.errors import InputError

SMALL = 100_000
"""Networks of fewer parameters are small."""

THREAD_RATE, MOST_THREADS = 2.5e10, 8
"""Operations a second of one thread: what ResMLP reached on an ARM server; and how many threads help."""

MOST_HOURS = 2
"""Training that takes a CPU longer is not begun unless the CPU is named."""


def named(name: str) -> torch.device:
    """The device of a name: 'auto' is the first GPU, or the CPU where there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"There is no device '{name}'; say auto, cpu, cuda or cuda:N.", field="device")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("PyTorch finds no CUDA GPU here; train with device cpu.", field="device")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise InputError(f"There is no '{name}': PyTorch finds {count} CUDA GPUs.", field="device")
    return device


def check_hours(name: str, device: torch.device, operations: float) -> None:
    """Refuse what would keep a CPU for hours that nobody chose."""
    hours = operations / (THREAD_RATE * min(torch.get_num_threads(), MOST_THREADS)) / 3600
    if name == "auto" and device.type == "cpu" and hours > MOST_HOURS:
        raise InputError(
            f"There is no GPU here, and a CPU would train for about {hours:,.0f} hours: choose fewer epochs, "
            "fewer runs or a smaller backbone, or say device cpu to train all the same.",
            field="device",
        )


def hardware(device: torch.device) -> str:
    """What the device is, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    return f"{platform.processor() or platform.machine()}, {threads}"


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one, which captured steps, streams and kernels take; nothing for a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def threads_for(parameters: int, device: torch.device) -> Iterator[None]:
    """Compute small networks on a CPU by one thread, unless OMP_NUM_THREADS says how many.

    Several gain little on an idle machine, and wait for each other in every operation on a busy one.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and parameters < SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_memory(device: torch.device) -> int:
    """The most bytes in use so far: of the GPU since it was last reset, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # not on Windows

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
