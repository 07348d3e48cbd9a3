"""What the server remembers of every client: what it returned last, which counts while it is silent.

Averaging those that answered would move the limit towards them in every round. With what the others
returned last in the average, all clients keep their weights, and the limit is G_⋆ as if none were ever away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgram._util.arrays import Array
from fedgram.runs.tensor_files import read_arrays, read_metadata, write_arrays

SHARED = ("head", "bias", "own_bias", "centered_bias")
"""What is averaged."""


@dataclass(frozen=True, eq=False)
class LastReturns:
    """For every client and name in SHARED what it returned last; clients that never answered are left out."""

    federation: str
    last: dict[str, dict[str, Array]] = field(default_factory=dict)

    def remember(self, client: str, arrays: Mapping[str, Array]) -> None:
        """Take what a client returned in the place of what it returned before."""
        self.last[client] = {name: arrays[name] for name in SHARED}

    def average(self, client_weights: Mapping[str, float]) -> dict[str, Array]:
        """Σ p_m of what all clients returned last, by name; weights add up to 1 over those that ever did."""
        total = sum(client_weights[client] for client in self.last)
        return {
            name: np.sum([client_weights[c] / total * kept[name] for c, kept in self.last.items()], axis=0)
            for name in SHARED
        }

    def returned(self, client: str, name: str, like: Array) -> Array:
        """What a client returned last, NaN if it never did."""
        return self.last[client][name] if client in self.last else np.full_like(like, np.nan)

    def write(self, path: Path) -> None:
        """Replace the file of it."""
        arrays = {
            f"{client}\n{name}": value for client, kept in self.last.items() for name, value in kept.items()
        }
        write_arrays(path, arrays, {"federation": self.federation})

    @classmethod
    def read(cls, path: Path) -> LastReturns:
        """What was written."""
        memory = cls(read_metadata(path)["federation"])
        for key, value in read_arrays(path).items():
            client, _, name = key.rpartition("\n")
            memory.last.setdefault(client, {})[name] = value
        return memory
