"""What all benchmarks share: options, stored results, and generated tables on pages."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.files import write_bytes


def add_options(parser: argparse.ArgumentParser, stored: Path) -> None:
    """Add the options of `finish`; the committed results are in `stored`."""
    parser.add_argument("--tables", action="store_true", help=f"show {stored.name}, measure nothing")
    parser.add_argument("--json", type=Path, help=f"write the results to this file, such as {stored.name}")
    parser.add_argument("--docs", type=Path, help="page whose tables to replace")


def finish(results: Any, tables: Callable[[Any], dict[str, str]], options: argparse.Namespace) -> None:
    """Store results, and put their tables, by name of their markers, on a page."""
    if options.json:
        write_results(results, options.json)
    if options.docs:
        for name, text in tables(results).items():
            replace_between(options.docs, name, text)


def read_results(path: Path) -> Any:
    """Read what `write_results` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_results(results: Any, path: Path) -> None:
    """Store results as JSON."""
    write_bytes(path, f"{json.dumps(results, indent=1, ensure_ascii=False)}\n".encode())


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Table for a page."""
    lines = [headings, ("---",) * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def replace_between(page: Path, name: str, text: str) -> None:
    """Replace what is between `<!-- name: begin -->` and `<!-- name: end -->`."""
    write_bytes(page, put_between(page.read_text(encoding="utf-8"), name, text).encode())


def put_between(page: str, name: str, text: str) -> str:
    """Return the page with another text between its markers."""
    begin, end = (f"<!-- {name}: {place} -->\n" for place in ("begin", "end"))
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise InputError(f"The page has no lines '{begin.strip()}' and '{end.strip()}'. Add them.")
    return f"{before}{begin}\n{text}\n{end}{after}"
