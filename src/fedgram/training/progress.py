"""Show the progress of training in a terminal or a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedgram.training.stack_training import Status

OnEpoch = Callable[[Status], None]

# Seconds between updates of a notebook's line, which travel to a browser.
UPDATE_EVERY = 0.2


@contextmanager
def show_progress() -> Iterator[OnEpoch]:
    """Yield a function that shows an epoch; it shows nothing where standard error is a pipe or a file."""
    if _is_notebook():
        yield _make_notebook_line()
    elif sys.stderr.isatty():
        columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
        with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
            task = bar.add_task("training")
            yield lambda status: bar.update(
                task, description=str(status), completed=status.done, total=status.rounds * status.epochs
            )
    else:
        yield lambda status: None


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


def _make_notebook_line() -> OnEpoch:
    """Return a function that keeps one line of a notebook's output up to date."""
    display = import_module("IPython.display").display
    line = display({"text/plain": "training"}, raw=True, display_id=True)
    shown = -UPDATE_EVERY

    def update(status: Status) -> None:
        nonlocal shown
        is_last = status.done == status.rounds * status.epochs
        if is_last or time.monotonic() - shown >= UPDATE_EVERY:
            shown = time.monotonic()
            line.update({"text/plain": str(status)}, raw=True)

    return update
