"""What a client keeps to itself between rounds: its network, and what it answered, in a folder of its own.

A server that lost an answer asks again, and a node that was restarted has lost its memory. Both find the
round on disk: the same question gets the same answer, and another one is answered from the round before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from fedgram.psd import Array
from fedgram.runs.files import read_arrays, read_metadata, write_arrays

Arrays = dict[str, Array]


@dataclass(frozen=True)
class PrivateFiles:
    """The last two rounds of one federation, which a word that its server drew tells from others."""

    folder: Path
    federation: str

    def write(self, number: int, question: str, arrays: Mapping[str, Array]) -> None:
        """Keep a round and the one before it, and forget the rest."""
        about = {"federation": self.federation, "question": question}
        write_arrays(self._path(number), arrays, about)
        for path in self.folder.glob("round-*.safetensors"):
            if path not in (self._path(number), self._path(number - 1)):
                path.unlink(missing_ok=True)

    def answered(self, number: int, question: str) -> Arrays | None:
        """A round as it was kept, if it answers this question."""
        path = self._path(number)
        kept = self._about(path)
        return read_arrays(path) if kept.get("question") == question else None

    def read(self, number: int) -> Arrays | None:
        """A round as it was kept."""
        path = self._path(number)
        return read_arrays(path) if self._about(path) else None

    def _about(self, path: Path) -> dict[str, str]:
        """The words about a file of this federation; none if there is no such file."""
        about = read_metadata(path) if path.exists() else {}
        return about if about.get("federation") == self.federation else {}

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:02d}.safetensors"


def question(number: int, arrays: Mapping[str, Array]) -> str:
    """A word for what was asked: a round, and all that came with it."""
    content = sha256(f"{number} ".encode())
    for name, value in sorted(arrays.items()):
        content.update(f"{name} {value.shape} ".encode())
        content.update(np.ascontiguousarray(value).tobytes())
    return content.hexdigest()
