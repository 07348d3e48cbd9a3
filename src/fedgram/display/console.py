"""Console and plain tables, which escape control characters of names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace
from math import ceil
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import SegmentLines
from rich.table import Column, Table
from rich.text import Text

from fedgram._util.encodings import replace_missing
from fedgram._util.text import escape_text

PIPE_WIDTH = 200  # columns of a table in a pipe or a file, if it can be that narrow
LEAST_TEXT = 8  # columns that a name keeps on any terminal; the rest of it follows below
LEAST_NUMBER = 24  # columns; no number is longer, with its deviation or interval
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
    """A table that cuts nothing: numbers stay whole, text and headings continue on the next line.

    `keys` columns say what a row is about. If a table is too wide, its parts all have them.
    """

    def __init__(self, *, keys: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.keys = keys

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row; line ends in cells are escaped."""
        super().add_row(*(_escape(cell) if isinstance(cell, str) else cell for cell in cells), **options)

    def add_column(self, header: RenderableType = "", *more: Any, **options: Any) -> None:
        """Add a column, of numbers if it is right-justified; line ends in its heading are escaped."""
        shown = _escape(header) if isinstance(header, str) else header
        super().add_column(shown, *more, overflow="fold", **options)

    def fit(self, console: Console, width: int) -> int:
        """Narrow columns until the table has `width` columns, or the least that it can; return how many.

        Words stay whole where there is room. Rich itself would cut numbers, and leave no room for names.
        """
        for column in self.columns:
            column.width = None
        sizes = [_column_widths(console, column) for column in self.columns]
        natural, *floors = zip(*sizes, strict=True)
        gaps = _measure(console, self).maximum - sum(natural)
        widths = list(natural)
        for least in floors:
            _shrink(widths, least, width - gaps)
        for column, own in zip(self.columns, widths, strict=True):
            column.width = own
        return sum(widths) + gaps

    def split(self, console: Console, width: int) -> list[PlainTable]:
        """Return tables with some of the columns each, no wider than `width` if they can be that narrow."""
        if (least := self.fit(console, width)) <= width:
            return [self]
        gaps = least - sum(column.width or 0 for column in self.columns)
        sizes = [_column_widths(console, each)[1] + ceil(gaps / len(self.columns)) for each in self.columns]
        parts: list[list[int]] = []
        for number in range(self.keys, len(self.columns)):
            if parts and sum(sizes[each] for each in (*parts[-1], number)) <= width:
                parts[-1].append(number)
            else:
                parts.append([*range(self.keys), number])
        return [self._select(part) for part in parts]

    def _select(self, numbers: Sequence[int]) -> PlainTable:
        """Return a table of some of the columns."""
        part = copy(self)
        part.columns = [
            replace(self.columns[number], _index=place, width=None) for place, number in enumerate(numbers)
        ]
        return part


def make_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Return a console on standard output or error, wider than 80 columns if that is not a terminal."""
    console = EscapingConsole(stderr=stderr, soft_wrap=soft_wrap)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_wrapped(console: Console, line: str) -> None:
    """Print a sentence, wrapped on a terminal and on one line elsewhere."""
    console.print(_escape(line), soft_wrap=not console.is_terminal)


def print_table(console: Console, table: PlainTable, indent: int = 0) -> None:
    """Print a table; where it is too wide, the other columns follow below, and what they are about again."""
    for number, part in enumerate(table.split(console, console.width - indent)):
        if number:
            part.title = None
        width = indent + part.fit(console, console.width - indent)
        indented = Padding(part, (0, 0, 0, indent), expand=False)
        lines = console.render_lines(indented, console.options.update(width=width), pad=False)
        console.print(SegmentLines(lines, new_lines=True), crop=False)


def plain_table(*headings: str, text: Collection[str] | None = None, **options: Any) -> PlainTable:
    """Return an empty table with a rule below its headings and no other lines.

    `text` has the headings of columns of text, by default the first one; all other columns are numbers.
    """
    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="", **options)
    for place, heading in enumerate(headings):
        is_text = place == 0 if text is None else heading in text
        table.add_column(heading, justify="left" if is_text else "right")
    return table


def _column_widths(console: Console, column: Column) -> tuple[int, int, int]:
    """Return the width of a column on one line, the width that breaks no word, and its least width."""
    heading, *cells = (_measure(console, cell) for cell in (column.header, *column.cells))
    longest, word = max([1, *(cell.maximum for cell in cells)]), max([1, *(cell.minimum for cell in cells)])
    is_number = column.justify == "right"
    least = max(min(longest, LEAST_NUMBER if is_number else LEAST_TEXT), min(heading.minimum, LEAST_TEXT))
    whole_words = max(least, heading.minimum, 0 if is_number else word)
    return max(heading.maximum, longest), whole_words, least


def _shrink(widths: list[int], floors: Sequence[int], total: int) -> None:
    """Narrow the widest columns, in place, until they have this total or their floors."""
    while sum(widths) > total:
        slack = [width if width > floor else 0 for width, floor in zip(widths, floors, strict=True)]
        if not any(slack):
            return
        widths[slack.index(max(slack))] -= 1


def _measure(console: Console, shown: RenderableType) -> Measurement:
    return Measurement.get(console, console.options.update(width=LONGEST_LINE), shown)


def _escape(text: str) -> str:
    return escape_text(text, LONGEST_LINE)
