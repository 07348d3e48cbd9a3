"""Console, plain tables and byte counts."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 200  # columns; wide enough that no table is cut in a pipe or a file


def make_console() -> Console:
    """Return a console on standard output, wider than 80 columns if that is not a terminal."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_wrapped(console: Console, line: str) -> None:
    """Print a sentence, wrapped on a terminal and on one line elsewhere."""
    console.print(line, soft_wrap=not console.is_terminal)


def plain_table(**options: Any) -> Table:
    """Return an empty table with a rule below its headings and no other lines."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="", **options)


def format_bytes(count: int) -> str:
    """Format a number of bytes: 3.2 MB."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
