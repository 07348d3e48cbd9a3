"""Atomic writes and checked reads of safetensors and JSON files.

Every file of arrays has a SHA-256 of its arrays and metadata in its header; a read refuses other bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import atomic_write, remove_temporary_files
from fedgram._util.imports import import_optional

RESTORE = "Restore the file, or delete its folder and train again"
DELETE = "Delete it to train its runs again"
CHECKSUM = "sha256"
"""Key of the checksum in the metadata of a file."""
KEYS_WITHOUT_CHECKSUM = {"question", "runs", "federation"}
"""Metadata of files that fedgram 0.1 wrote, which have no checksum."""


def _safetensors() -> Any:
    """Import safetensors, which only the extra `train` installs."""
    message = 'Runs are stored as safetensors files. Install the library with pip install "fedgram[train]".'
    return import_optional("safetensors.numpy", message, "safetensors")


@contextmanager
def _write_file(path: Path) -> Iterator[Path]:
    """Write a file with mode 0600; make its folder, and remove temporary files of killed processes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(path.parent, path.name)
        with atomic_write(path, private=True) as temporary:
            yield temporary
    except (OSError, _safetensors().SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).rpartition("error: ")[2]
        raise InputError(
            f"Cannot write '{path}': {reason}. Earlier files are intact: fix this or choose another folder, "
            "then repeat the command.",
            field=str(path),
        ) from None


def write_arrays(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays by name, with metadata and a checksum of both."""
    # safetensors ignores strides
    contiguous = {name: np.require(array, requirements="C") for name, array in arrays.items()}
    others = dict(metadata or {})
    with _write_file(path) as temporary:
        checksum = {CHECKSUM: hash_arrays(contiguous, others)}
        _safetensors().numpy.save_file(contiguous, temporary, others | checksum)


def read_arrays(path: Path, remedy: str = RESTORE, checksum: str | None = None) -> dict[str, Array]:
    """Read arrays by name and verify their checksum; `remedy` ends the message about a damaged file.

    `checksum` is the one that the file must have, if another file recorded it.
    """
    with _translate_read_errors(path, remedy), _safetensors().safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    recorded = metadata.pop(CHECKSUM, None)
    has_none = recorded is None and metadata.keys() <= KEYS_WITHOUT_CHECKSUM
    if not has_none and recorded != hash_arrays(arrays, metadata):
        raise InputError(f"'{path}' is damaged: its checksum is wrong. {remedy}.", field=str(path))
    if checksum is not None and recorded != checksum:
        raise InputError(f"'{path}' is not the file that the manifest names. {remedy}.", field=str(path))
    return arrays


def hash_arrays(arrays: Mapping[str, Array], metadata: Mapping[str, Any]) -> str:
    """Hash names, types, shapes and values of arrays, and metadata."""
    content = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        content.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        content.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return content.hexdigest()


def read_metadata(path: Path, remedy: str = RESTORE) -> dict[str, str]:
    """Read the metadata of a file of arrays."""
    with _translate_read_errors(path, remedy), _safetensors().safe_open(path, framework="np") as file:
        return file.metadata() or {}


@contextmanager
def _translate_read_errors(path: Path, remedy: str) -> Iterator[None]:
    try:
        yield
    except (OSError, _safetensors().SafetensorError) as error:
        raise InputError(f"Cannot read '{path}': {error}. {remedy}.", field=str(path)) from None


def write_document(path: Path, document: Any) -> None:
    """Write a JSON document in full double precision."""
    with _write_file(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
