"""Atomic file writes (temporary file + fsync + rename) and JSON."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.text import escape_text

TEMPORARY_ENDINGS = tuple(f".{'[0-9a-f]' * 8}{suffix}" for suffix in (".tmp", ".draft"))
"""Globs of the ends of temporary names; earlier versions wrote the second."""


@contextmanager
def atomic_write(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` at the end; an error leaves `path` as it was.

    Each temporary file has a random name, because two processes may write the same path at a time. A private
    file has mode 0600 from its first byte on.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        if private:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)
        with suppress(OSError):  # some systems cannot open a folder
            _flush_to_disk(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _flush_to_disk(path: Path) -> None:
    """Wait until a file or folder is on disk; a rename may otherwise survive a crash without its bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporary_files(folder: Path, name: str | None = None) -> None:
    """Remove temporary files of killed processes, of one file or of all; call it as the only writer."""
    pattern = "*" if name is None else glob.escape(name)
    for ending in TEMPORARY_ENDINGS:
        for path in folder.glob(f".{pattern}{ending}"):
            path.unlink(missing_ok=True)


def check_folder_of(path: str | Path) -> None:
    """Raise InputError if the folder of a file that will be written does not exist."""
    if not Path(path).resolve().parent.is_dir():
        raise InputError(f"Cannot write '{path}': its folder does not exist. Create it.", field=str(path))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file atomically; write to pipes and devices directly, and follow links."""
    path = Path(path)
    check_folder_of(path)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        with atomic_write(path.resolve()) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise InputError(f"Cannot write '{path}': {error.strerror}.", field=str(path)) from None


def write_json(path: str | Path, document: Any) -> None:
    """Write a JSON document in full double precision."""
    write_bytes(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    """Return the hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice; JSON parsers disagree about which one counts."""


def parse_json(text: str) -> Any:
    """Parse JSON; raise DuplicateKeyError for an object with a repeated key."""
    return json.loads(text, object_pairs_hook=_unique_keys)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        raise DuplicateKeyError(escape_text(next(name for name in names if names.count(name) > 1)))
    return document


def read_json(path: str | Path) -> Any:
    """Read a JSON document; a byte-order mark, which some editors write, is skipped."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        if text.strip():
            return parse_json(text)
        problem = f"'{path}' is empty."
    except OSError as error:
        problem = f"Cannot read '{path}': {error.strerror}."
    except UnicodeDecodeError:
        problem = f"Cannot parse '{path}' as JSON: it is not a text file."
    except DuplicateKeyError as error:
        problem = f"'{path}' has the key '{error}' twice in one object. Remove one."
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        reason = error.msg.removesuffix(" at")  # "Unterminated string starting at"
        problem = f"'{path}' is not complete JSON: {reason} at {place}."
    except (ValueError, RecursionError):
        problem = f"Cannot parse '{path}' as JSON: number or nesting too large."
    raise InputError(problem, field=str(path))
