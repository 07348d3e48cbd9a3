"""Start programs that stop together, with all processes that they start."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from types import FrameType
from typing import Self

import psutil

from fedgram._util.errors import InputError

POLL_INTERVAL = 0.1
"""Seconds between two looks at a condition."""
GRACE = 5.0
"""Seconds that a program may take to end itself; Flower's took 0.2 to 3 s."""
LOG_TAIL = 3
"""Lines of a program's log in an error message."""
ANSI = re.compile(r"\x1b\[[0-9;]*m")
"""Colors in a log."""
BIN = Path(sys.executable).parent
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
C_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded before any fork
MARK = "FEDGRAM_PROGRAM"
"""Environment variable with a random name of the program, which its descendants inherit."""


class Processes:
    """Programs by name, each with a log in `folder`; leaving the context stops all of them.

    `environment` is added to the environment of every program. The folder of this Python is first in its
    PATH, because Flower starts programs by name.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {**os.environ, **environment, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.marks: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with _ignore_interrupts():
            self.stop(*self.running)

    def start(self, name: str, *command: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a program, which appends its output to its log."""
        self.marks[name] = token_hex(16)
        own = {**(environment or {}), MARK: self.marks[name]}
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]], cwd=self.folder,
                env=self.environment | own, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process only
                preexec_fn=_end_with_parent if C_LIBRARY else None,
            )  # fmt: skip

    def stop(self, *names: str, grace: float = GRACE) -> None:
        """End programs and all their descendants; kill those that are left after `grace` seconds."""
        stopped = [self.running.pop(name) for name in names]
        family = _find_marked({self.marks.pop(name) for name in names})
        for each in stopped:
            with suppress(psutil.NoSuchProcess):
                root = psutil.Process(each.pid)
                family |= {root, *root.children(recursive=True)}
        for each in stopped:
            each.terminate() if grace else each.kill()
        _, left = psutil.wait_procs(list(family), grace)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, GRACE)
        for each in stopped:
            each.wait()

    def log(self, name: str) -> Path:
        """Return the path of a program's log."""
        return self.folder / f"{name}.log"

    def has_ended(self, name: str) -> bool:
        """Whether a program has ended."""
        return self.running[name].poll() is not None

    def wait_until(
        self,
        condition: Callable[[], bool],
        what: str,
        seconds: float,
        needs: Collection[str] | None = None,
    ) -> None:
        """Wait for a condition; raise InputError after `seconds`, or if a program ends that it needs.

        By default it needs all programs.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            for name in self.running if needs is None else needs:
                if self.has_ended(name):
                    raise InputError(
                        f"'{name}' ended while waiting for {what}: {self._read_tail(name)} Its log is "
                        f"'{self.log(name)}'.",
                        field=name,
                    )
            if time.monotonic() > deadline:
                raise InputError(
                    f"Timeout after {seconds:g} s while waiting for {what}. The logs are in '{self.folder}'.",
                    field="timeout",
                )
            time.sleep(POLL_INTERVAL)

    def _read_tail(self, name: str) -> str:
        text = ANSI.sub("", self.log(name).read_text(errors="replace"))
        lines = [line.strip() for line in text.splitlines()]
        return " ".join([line for line in lines if line][-LOG_TAIL:])


def _end_with_parent() -> None:
    """Let Linux end this process if its parent is killed, which then cannot stop it."""
    if C_LIBRARY:
        C_LIBRARY.prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _find_marked(marks: Container[str]) -> set[psutil.Process]:
    """Find the processes of programs by their environment: a killed program's children have no parent."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # others' processes, and those that have ended
            if process.environ().get(MARK) in marks:
                found.add(process)
    return found


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, so that they end a command as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    names = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    with _handle_signals({name: interrupt for name in names if hasattr(signal, name)}):
        yield


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore a second Ctrl-C while programs are stopped."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    with _handle_signals({name: signal.SIG_IGN for name in names if hasattr(signal, name)}):
        yield


@contextmanager
def _handle_signals(
    handlers: Mapping[str, Callable[[int, FrameType | None], None] | signal.Handlers],
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it receives signals
        return
    before = {name: signal.signal(getattr(signal, name), handler) for name, handler in handlers.items()}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
