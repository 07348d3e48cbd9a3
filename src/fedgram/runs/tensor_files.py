"""Files that appear whole or not at all: arrays in safetensors, words in JSON."""

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

DAMAGED = "restore the file, or delete its folder and train again"
FORGET = "delete it, and what it holds is trained again"


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
def _draft_of(path: Path) -> Iterator[Path]:
    """A draft in a folder that is made for it; what killed processes left of the path is removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(path.parent, path.name)
        with atomic_write(path) as draft:
            yield draft
    except (OSError, _safetensors().SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).rpartition("error: ")[2]
        raise InputError(
            f"Cannot write '{path}' ({reason}); all that was written before is sound: put that right or "
            "choose another folder, and the same command goes on from there.",
            field=str(path),
        ) from None


def write_arrays(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays, with words about them."""
    # safetensors reads memory in a row, whatever the strides.
    rows = {name: np.require(array, requirements="C") for name, array in arrays.items()}
    with _draft_of(path) as draft:
        _safetensors().numpy.save_file(rows, draft, dict(metadata or {}))


def read_arrays(path: Path, remedy: str = DAMAGED) -> dict[str, Array]:
    """The arrays of a file by name; remedy says what to do about one that cannot be read."""
    try:
        return dict(_safetensors().numpy.load_file(path))
    except (OSError, _safetensors().SafetensorError) as error:
        raise _unreadable(path, error, remedy) from None


def read_metadata(path: Path, remedy: str = DAMAGED) -> dict[str, str]:
    """The words about the arrays of a file."""
    try:
        with _safetensors().safe_open(path, framework="np") as file:
            return file.metadata() or {}
    except (OSError, _safetensors().SafetensorError) as error:
        raise _unreadable(path, error, remedy) from None


def _unreadable(path: Path, error: Exception, remedy: str) -> InputError:
    return InputError(f"Cannot read '{path}' ({error}); {remedy}.", field=str(path))


def write_document(path: Path, document: Any) -> None:
    """Write a JSON document in full double precision."""
    with _draft_of(path) as draft:
        draft.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
