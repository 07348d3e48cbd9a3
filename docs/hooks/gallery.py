"""Turn scripts with `# %%` cells into pages: comments become text, code becomes executed blocks."""

from __future__ import annotations

import re
from pathlib import Path

CELL = re.compile(r"^# %%.*\n", flags=re.MULTILINE)


def read_script(path: Path) -> str:
    """Return the page of a script as Markdown."""
    header, *cells = CELL.split(path.read_text(encoding="utf-8"))
    title, _, text = header.strip().strip('"').partition("\n")
    download = f"[Download the script]({path.name}){{ .script }}"
    return "\n\n".join([f"# {title.rstrip('.')}", text.strip(), *map(_read_cell, cells), download]) + "\n"


def _read_cell(cell: str) -> str:
    """Split a cell into its leading comment and its code."""
    lines = cell.strip("\n").splitlines()
    size = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:size])
    code = "\n".join(lines[size:]).strip("\n")
    return f"{text}\n\n```python\n{code}\n```\n" if code else text
