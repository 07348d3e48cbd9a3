"""Files that appear whole or not at all: written beside their path, they take its place at the end."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A path to write to beside `path`, which it replaces at the end; after an error nothing has changed.

    Each draft has a name of its own, because two processes may write the same path at a time.
    """
    draft = path.parent / f".{path.name}.{secrets.token_hex(4)}.draft"
    try:
        yield draft
        os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink()


def remove_drafts(folder: Path, of: str | None = None) -> None:
    """Remove what killed processes left in a folder, of all its files or of one; for their only writer."""
    name = "*" if of is None else glob.escape(of)
    for left in folder.glob(f".{name}.{'[0-9a-f]' * 8}.draft"):
        left.unlink(missing_ok=True)
