"""Replace generated tables on pages, between two comments."""

from __future__ import annotations

from pathlib import Path

from fedgram._util.errors import InputError
from fedgram._util.files import write_bytes


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
