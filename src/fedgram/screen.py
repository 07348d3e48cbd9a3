"""Standard output for tables and sentences."""

from __future__ import annotations

from rich.console import Console

UNBOUNDED = 200


def screen() -> Console:
    """Standard output; where it is no terminal, as in a pipe, nothing bounds a table to 80 columns."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = UNBOUNDED
    return console
