"""Refuse archives that unpack to far more than their size (zip bombs)."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from fedgram._util.errors import InputError

# Of the published archives, dSprites' npz expands most: 26 MB to 3.0 GB, 113 times its size.
MAX_EXPANSION = 200
# An archive may always unpack to this many bytes.
ALWAYS_ALLOWED = 1 << 26
# Zip files within zip files whose contents count; the published Beijing archive has two levels.
MAX_NESTING = 3
CHUNK_BYTES = 1 << 20

STREAMS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
ZIPS = (".zip", ".npz")


def check_archive(path: Path) -> None:
    """Raise InputError if an archive, or one inside it, unpacks to more than MAX_EXPANSION times its size.

    Damaged archives pass: their loaders name what is wrong.
    """
    limit = max(ALWAYS_ALLOWED, MAX_EXPANSION * path.stat().st_size)
    try:
        if path.suffix in ZIPS:
            with path.open("rb") as file:
                size = _measure_zip(file, MAX_NESTING)
        elif path.suffix in STREAMS:
            with STREAMS[path.suffix](path) as stream:
                size = _measure_stream(stream, limit)
        else:
            return
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError):
        return
    if size > limit:
        raise InputError(
            f"'{path}' unpacks to more than {limit:,} bytes, {MAX_EXPANSION} times its size. Delete it and "
            "fetch it again.",
            field=str(path),
        )


def _measure_zip(file: IO[bytes], nesting: int) -> int:
    """Add up the sizes in a zip's directory, and those in zips inside it; zipfile reads no more than them."""
    with zipfile.ZipFile(file) as archive:
        size = 0
        for member in archive.infolist():
            size += member.file_size
            if nesting and Path(member.filename).suffix in ZIPS:
                with archive.open(member) as inner:
                    size += _measure_zip(inner, nesting - 1)
    return size


def _measure_stream(stream: IO[bytes], limit: int) -> int:
    size = 0
    while size <= limit and (chunk := stream.read(CHUNK_BYTES)):
        size += len(chunk)
    return size
