"""One progress bar for training, experiments and downloads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedgram._util.text import format_bytes, format_duration
from fedgram.display.console import make_console

if TYPE_CHECKING:
    from fedgram.training import Status


# Seconds without a line, after which a training that is not finished says how far it is.
SILENCE = 30.0

# Seconds of progress that estimate the time left. An epoch of many sites can take a minute.
RECENT = 600.0


class ProgressBar:
    """Show progress on standard error.

    Without a terminal, print lines instead: one after the first epoch of each round, one per finished part.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}
        self._last_round = (0, 0)
        self._last_line_at = time.monotonic()

    def log(self, message: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(message)

    def on_epoch(self, status: Status) -> None:
        """Show a finished epoch."""
        line = str(status)
        self._update("training", line, status.done, status.rounds * status.epochs)
        if self._last_round != (status.stack, status.round):
            self._log_without_terminal(line)
        self._last_round = (status.stack, status.round)

    def on_fraction(self, name: str, fraction: float) -> None:
        """Show which fraction of a training is done; without a terminal, at its end and now and then."""
        self._update(name, name, round(1000 * fraction), 1000)
        left = self._bar.tasks[self._task(name)].time_remaining
        remaining = f", {format_duration(left)} left" if left else ""
        self._bar.update(self._task(name), description=f"{name}{remaining}")
        if fraction >= 1:
            self._log_without_terminal(f"trained {name}")
        elif time.monotonic() - self._last_line_at > SILENCE:
            self._log_without_terminal(f"training {name}: {fraction:.0%}{remaining}")

    def on_start(self, finished: int, total: int) -> None:
        """Show the number of finished parts and of all parts of an experiment."""
        self._update("parts", "running", finished, total)
        if finished:
            self.log(f"{finished} of {total} parts are already finished.")

    def on_part(self, name: str) -> None:
        """Count a finished part of an experiment."""
        self._bar.update(self._task("parts"), advance=1, description=name)
        self._log_without_terminal(f"finished {name}")

    def on_bytes(self, file: str, received: int, total: int | None) -> None:
        """Show the progress of a download."""
        self._update(file, f"{file} {format_bytes(received)}", received, total)

    def _update(self, task: str, description: str, completed: int, total: int | None) -> None:
        number = self._task(task)
        if self._bar.tasks[number].completed > completed:  # another training of this name has begun
            self._bar.reset(number)
        self._bar.update(number, description=description, completed=completed, total=total)

    def _task(self, name: str) -> TaskID:
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=None)
        return self._tasks[name]

    def _log_without_terminal(self, line: str) -> None:
        self._last_line_at = time.monotonic()
        if not self._bar.console.is_terminal:
            self.log(line)


@contextmanager
def progress_bar(kept: str = "") -> Iterator[ProgressBar]:
    """Show progress; on Ctrl-C, say what is kept and exit with 130."""
    console = make_console(stderr=True, soft_wrap=True)
    columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal,
        speed_estimate_period=RECENT, get_time=time.monotonic,
    ) as bar:  # fmt: skip
        try:
            yield ProgressBar(bar)
        except KeyboardInterrupt:
            remedy = f"Interrupted: {kept} are kept. Run the same command to continue." if kept else ""
            raise typer.Abort(remedy) from None
