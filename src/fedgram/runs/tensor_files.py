"""Atomic writes and reads of safetensors and JSON files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import atomic_write, remove_temporary_files

RESTORE = "Restore the file, or delete its folder and train again"
DELETE = "Delete it to train its runs again"


def _safetensors() -> Any:
    """Import safetensors, which only the extra `train` installs."""
    try:
        import safetensors.numpy
    except ImportError:
        raise InputError(
            'Runs are stored as safetensors files. Install the library with pip install "fedgram[train]".',
            field="safetensors",
        ) from None
    return safetensors


@contextmanager
def _write_file(path: Path) -> Iterator[Path]:
    """Write a file atomically; make its folder, and remove temporary files of killed processes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(path.parent, path.name)
        with atomic_write(path) as draft:
            yield draft
    except (OSError, _safetensors().SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).rpartition("error: ")[2]
        raise InputError(
            f"Cannot write '{path}': {reason}. Earlier files are intact: fix this or choose another folder, "
            "then repeat the command.",
            field=str(path),
        ) from None


def write_arrays(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays by name, with metadata."""
    # safetensors ignores strides
    contiguous = {name: np.require(array, requirements="C") for name, array in arrays.items()}
    with _write_file(path) as draft:
        _safetensors().numpy.save_file(contiguous, draft, dict(metadata or {}))


def read_arrays(path: Path, remedy: str = RESTORE) -> dict[str, Array]:
    """Read arrays by name; `remedy` ends the message about an unreadable file."""
    with _translate_read_errors(path, remedy):
        return dict(_safetensors().numpy.load_file(path))


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
    with _write_file(path) as draft:
        draft.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
