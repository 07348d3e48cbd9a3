"""Lock folders so that one process at a time writes to each."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fedgram._util.errors import InputError

LOCK_FILE = ".lock"

# Errors of file systems without locks, such as some network mounts. There folders stay unlocked.
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextmanager
def lock_folders(folders: Iterable[Path]) -> Iterator[None]:
    """Lock folders, or fail at once if another process holds one of them.

    Create missing folders, and remove them again if nothing was written. The operating system frees the
    locks however the process ends.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_lock(folder, timeout=0))
        yield


@contextmanager
def wait_for_lock(folder: Path) -> Iterator[None]:
    """Lock a folder as soon as no other process holds it."""
    with _lock(folder, timeout=-1):
        yield


@contextmanager
def _lock(folder: Path, timeout: float) -> Iterator[None]:
    created = [each for each in (folder, *folder.parents) if not each.exists()]
    lock = FileLock(folder / LOCK_FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=timeout)
    except Timeout:
        raise InputError(
            f"Another process writes to '{folder}'. Wait for it, or choose another folder.", field=str(folder)
        ) from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise InputError(
                f"Cannot write to '{folder}': {error.strerror}. Choose another folder.", field=str(folder)
            ) from None
    try:
        yield
    finally:
        # Before the release: a process that waits then sees that its file is gone, and opens a new one.
        with suppress(OSError):  # Windows cannot remove an open file; there `release` does it
            (folder / LOCK_FILE).unlink()
        lock.release()
        for each in created:
            with suppress(OSError):  # not empty
                each.rmdir()
