"""Keep each client's last return, so that an absent client keeps its weight.

The server averages Σ p_m W_m over the last return of every client. An average over the clients that replied
would pull the shared head toward them. With the last returns the limit stays the barycenter G_⋆.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgram._util.arrays import Array
from fedgram.runs.tensor_files import read_arrays, read_metadata, write_arrays

AVERAGED = ("head", "bias", "own_bias", "centered_bias")


@dataclass(frozen=True, eq=False)
class LastReturns:
    """The AVERAGED arrays of each client's last return, without clients that never replied."""

    federation_id: str
    arrays: dict[str, dict[str, Array]] = field(default_factory=dict)

    def update(self, client: str, arrays: Mapping[str, Array]) -> None:
        """Replace a client's last return."""
        self.arrays[client] = {name: arrays[name] for name in AVERAGED}

    def average(self, client_weights: Mapping[str, float]) -> dict[str, Array]:
        """Average the last returns, with weights normalized over the clients that have one."""
        total = sum(client_weights[client] for client in self.arrays)
        return {
            name: np.sum([client_weights[c] / total * each[name] for c, each in self.arrays.items()], axis=0)
            for name in AVERAGED
        }

    def write(self, path: Path) -> None:
        """Write all returns to one file."""
        arrays = {
            f"{client}\n{name}": value for client, each in self.arrays.items() for name, value in each.items()
        }
        write_arrays(path, arrays, {"federation": self.federation_id})

    @classmethod
    def read(cls, path: Path) -> LastReturns:
        """Read a file that `write` wrote."""
        returns = cls(read_metadata(path)["federation"])
        for key, value in read_arrays(path).items():
            client, _, name = key.rpartition("\n")
            returns.arrays.setdefault(client, {})[name] = value
        return returns
