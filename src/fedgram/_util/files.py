"""Atomic file writes (temporary file + rename) and JSON."""

from __future__ import annotations

import glob
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` at the end; an error leaves `path` as it was.

    Each temporary file has a random name, because two processes may write the same path at a time.
    """
    draft = path.parent / f".{path.name}.{secrets.token_hex(4)}.draft"
    try:
        yield draft
        os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink()


def remove_temporary_files(folder: Path, name: str | None = None) -> None:
    """Remove temporary files of killed processes, of one file or of all; call it as the only writer."""
    pattern = "*" if name is None else glob.escape(name)
    for path in folder.glob(f".{pattern}.{'[0-9a-f]' * 8}.draft"):
        path.unlink(missing_ok=True)


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file atomically; write to pipes and devices directly, and follow links."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        with atomic_write(path.resolve()) as draft:
            draft.write_bytes(content)
    except OSError as error:
        raise InputError(f"Cannot write '{path}': {error.strerror}.", field=str(path)) from None


def write_json(path: str | Path, document: Any) -> None:
    """Write a JSON document in full double precision."""
    write_bytes(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: str | Path) -> Any:
    """Read a JSON document."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"Cannot read '{path}': {error.strerror}.", field=str(path)) from None
    except UnicodeDecodeError:
        raise InputError(f"Cannot parse '{path}' as JSON: it is not a text file.", field=str(path)) from None
    if not text.strip():
        raise InputError(f"'{path}' is empty.", field=str(path))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"'{path}' is not complete JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            field=str(path),
        ) from None
    except (ValueError, RecursionError):
        message = f"Cannot parse '{path}' as JSON: number or nesting too large."
        raise InputError(message, field=str(path)) from None
