"""Standard output for tables and sentences."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

UNBOUNDED = 200


def make_console() -> Console:
    """Standard output; where it is no terminal, as in a pipe, nothing bounds a table to 80 columns."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = UNBOUNDED
    return console


def print_wrapped(console: Console, line: str) -> None:
    """A sentence, folded on a terminal and in one line elsewhere."""
    console.print(line, soft_wrap=not console.is_terminal)


def plain_table(**options: Any) -> Table:
    """A table without columns as yet: a line under its headings, and no other."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="", **options)
