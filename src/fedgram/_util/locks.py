"""Folders that one process holds alone, so that a command given twice cannot mix what both write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from fedgram._util.errors import InputError

try:
    import fcntl
except ImportError:  # Windows, where nobody is kept out
    fcntl = None  # type: ignore[assignment]


@contextmanager
def lock_folders(folders: Iterable[Path]) -> Iterator[None]:
    """Hold folders, or refuse; the system frees them however the process ends.

    They are made, and removed again if nothing was written.
    """
    with ExitStack() as held:
        for folder in folders:
            held.enter_context(_made(folder))
            if fcntl is not None:
                held.enter_context(_held(folder))
        yield


@contextmanager
def wait_for_lock(folder: Path) -> Iterator[None]:
    """Hold a folder that others hold for moments only, after them."""
    with _made(folder), _held(folder, wait=True) if fcntl is not None else nullcontext():
        yield


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"Cannot write to '{folder}' ({error.strerror}); choose another folder.", field=str(folder)
        ) from None
    try:
        yield
    finally:
        for each in new:
            with suppress(OSError):  # it is not empty
                each.rmdir()


@contextmanager
def _held(folder: Path, wait: bool = False) -> Iterator[None]:
    opened = os.open(folder, os.O_RDONLY)
    try:
        _lock(opened, folder, wait)
        yield
    finally:
        os.close(opened)


def _lock(opened: int, folder: Path, wait: bool) -> None:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise InputError(
            f"Another process writes to '{folder}': wait for it, or choose another folder.",
            field=str(folder),
        ) from None
    except OSError:  # a file system without locks
        return
