"""Store a client's network and replies between rounds.

The server may repeat a request, and a node may restart. A repeated request gets the stored reply. A new
request resumes from the last round that the client trained before it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.runs.store import safe_name
from fedgram.runs.tensor_files import read_arrays, read_metadata, write_arrays, write_document

Arrays = dict[str, Array]
MODEL, JOINED, ERROR = "model.safetensors", "joining.json", "error"
INPUTS, LEVELS, FILL, TARGETS = "inputs", "levels", "fill", "targets"
BACKBONE, SITE = "backbone", "site"
"""Keys of the model file's metadata, in JSON: names of the columns, of the backbone and of the site, the
levels of categories, and the values of missing inputs. What is not known is left out."""
REMEDY = "Delete it, and the site resumes from the round before"


@dataclass(frozen=True)
class ClientStore:
    """The last two rounds of one federation at one client, and the best ones."""

    folder: Path

    def write_round(
        self, number: int, request: str, arrays: Mapping[str, Array], error: float, keep: Collection[int] = ()
    ) -> None:
        """Write a round and delete all others except the one it resumed from and those to keep.

        error: on validation rows of the network trained alone; the round with the least is kept as well.
        """
        write_arrays(self._path(number), arrays, {"question": request, ERROR: repr(error)})
        needed = {number, self.find_round_before(number), self.find_best_round(), *keep}
        for path in self.folder.glob("round-*.safetensors"):
            if path not in map(self._path, needed):
                path.unlink(missing_ok=True)

    def read_round(self, number: int, request: str | None = None) -> Arrays | None:
        """Read a round if it exists and, where given, if it answered this request."""
        path = self._path(number)
        if not path.exists():
            return None
        if request is not None and read_metadata(path, REMEDY).get("question") != request:
            return None
        return read_arrays(path, REMEDY)

    def find_round_before(self, number: int) -> int:
        """Return the last stored round before this one, or 0."""
        return max((each for each in self._rounds if each < number), default=0)

    def find_best_round(self) -> int:
        """Return the stored round with the least validation error, the first of equals; 0 without any."""
        errors = {
            each: float(read_metadata(self._path(each), REMEDY).get(ERROR, "inf")) for each in self._rounds
        }
        return min(errors, key=lambda each: (errors[each], each), default=0)

    @property
    def _rounds(self) -> list[int]:
        return [int(path.stem.removeprefix("round-")) for path in self.folder.glob("round-*.safetensors")]

    def write_model(self, model: Mapping[str, Array], names: Mapping[str, Any]) -> None:
        """Write parameters and buffers of the network that the client predicts with, and names by key."""
        known = {key: json.dumps(value) for key, value in names.items() if value}
        write_arrays(self.folder / MODEL, model, known or None)

    def write_joining(self, errors: Mapping[str, Any]) -> None:
        """Write the test errors of the chosen model and of the model trained alone."""
        write_document(self.folder / JOINED, errors)

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:02d}.safetensors"


def folder_name(site: str) -> str:
    """Return a valid folder name that no other site has."""
    name = safe_name(site)
    return name if name == site else f"{name}-{sha256(site.encode()).hexdigest()[:8]}"


def hash_request(number: int, arrays: Mapping[str, Array]) -> str:
    """Hash a round number and the arrays that came with it."""
    content = sha256(f"{number} ".encode())
    for name, value in sorted(arrays.items()):
        content.update(f"{name} {value.shape} ".encode())
        content.update(np.ascontiguousarray(value).tobytes())
    return content.hexdigest()
