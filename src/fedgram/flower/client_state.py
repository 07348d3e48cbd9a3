"""What a client keeps to itself between rounds: its network, and what it answered, in a folder of its own.

A server that lost an answer asks again, and a node that was restarted has lost its memory. Both find the
round on disk: the same question gets the same answer, and another one is answered from the round before it,
or from the last that the client took part in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from fedgram._util.arrays import Array
from fedgram.runs.store import safe
from fedgram.runs.tensor_files import read_arrays, read_metadata, write_arrays

Arrays = dict[str, Array]
MODEL = "model.safetensors"
BEFORE = "delete it, and the site goes on from the round before"


@dataclass(frozen=True)
class ClientStore:
    """The rounds of one federation that a client may still be asked about."""

    folder: Path

    def write(self, number: int, question: str, arrays: Mapping[str, Array]) -> None:
        """Keep a round and the one that it went on from, and forget the rest."""
        write_arrays(self._path(number), arrays, {"question": question})
        needed = {self._path(number), self._path(self.before(number))}
        for path in self.folder.glob("round-*.safetensors"):
            if path not in needed:
                path.unlink(missing_ok=True)

    def answered(self, number: int, question: str) -> Arrays | None:
        """A round as it was kept, if it answers this question."""
        path = self._path(number)
        asked = read_metadata(path, BEFORE).get("question") if path.exists() else None
        return read_arrays(path, BEFORE) if asked == question else None

    def read(self, number: int) -> Arrays | None:
        """A round as it was kept; none for round 0, before which there is no network yet."""
        path = self._path(number)
        return read_arrays(path, BEFORE) if path.exists() else None

    def before(self, number: int) -> int:
        """The last round before this one that the client took part in; 0 if there is none."""
        kept = (int(path.stem.removeprefix("round-")) for path in self.folder.glob("round-*.safetensors"))
        return max((each for each in kept if each < number), default=0)

    def keep_model(self, model: Mapping[str, Array]) -> None:
        """Replace the network that the client predicts with: parameters and buffers by name."""
        write_arrays(self.folder / MODEL, model)

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:02d}.safetensors"


def folder_name(site: str) -> str:
    """A folder for a site, and for no other: sites of one machine may keep theirs side by side."""
    name = safe(site)
    return name if name == site else f"{name}-{sha256(site.encode()).hexdigest()[:8]}"


def question(number: int, arrays: Mapping[str, Array]) -> str:
    """A word for what was asked: a round, and all that came with it."""
    content = sha256(f"{number} ".encode())
    for name, value in sorted(arrays.items()):
        content.update(f"{name} {value.shape} ".encode())
        content.update(np.ascontiguousarray(value).tobytes())
    return content.hexdigest()
