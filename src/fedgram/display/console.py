"""Console and plain tables, which escape control characters of names."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fedgram._util.encodings import replace_missing
from fedgram._util.text import escape_text

PIPE_WIDTH = 200  # columns; wide enough that no table is cut in a pipe or a file
LONGEST_LINE = 100_000  # characters; nothing that we print is longer


class EscapingConsole(Console):
    """A console that shows control characters, such as those in a client's name, instead of obeying them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert text, which may have several lines; tables need the width of what is printed."""
        shown = "\n".join(map(_escape, text.split("\n")))
        return super().render_str(replace_missing(shown, self.encoding), **options)


class PlainTable(Table):
    """A table whose cells are one line each."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row; line ends in cells are escaped."""
        super().add_row(*(_escape(cell) if isinstance(cell, str) else cell for cell in cells), **options)

    def add_column(self, header: RenderableType = "", *more: Any, **options: Any) -> None:
        """Add a column; line ends in its heading are escaped."""
        super().add_column(_escape(header) if isinstance(header, str) else header, *more, **options)


def make_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Return a console on standard output or error, wider than 80 columns if that is not a terminal."""
    console = EscapingConsole(stderr=stderr, soft_wrap=soft_wrap)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_wrapped(console: Console, line: str) -> None:
    """Print a sentence, wrapped on a terminal and on one line elsewhere."""
    console.print(_escape(line), soft_wrap=not console.is_terminal)


def plain_table(**options: Any) -> Table:
    """Return an empty table with a rule below its headings and no other lines."""
    return PlainTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="", **options)


def _escape(text: str) -> str:
    return escape_text(text, LONGEST_LINE)
