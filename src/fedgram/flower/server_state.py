"""Keep what the server knows of each client: its last return, its key and its refused replies.

The server averages Σ p_m W_m over the last return of every client. An average over the clients that replied
would pull the shared head toward them. With the last returns the limit stays the barycenter G_⋆. A suspended
client no longer counts: its last return may be the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from fedgram._util.arrays import Array
from fedgram.federation.aggregation import AGGREGATIONS, clip_returns
from fedgram.flower.config import AggregationConfig
from fedgram.runs.audit import FIRST
from fedgram.runs.tensor_files import read_arrays, read_metadata, write_arrays

AVERAGED = ("head", "bias", "own_bias", "centered_bias")


@dataclass
class Standing:
    """What binds a client to this federation.

    key: its public key; fingerprint: of its rows; rejections: refused replies so far; suspended: why the
    client no longer takes part, or None.
    """

    key: str
    fingerprint: str
    rejections: int = 0
    suspended: str | None = None


@dataclass(eq=False)
class ServerState:
    """Last returns and standings by client.

    arrays: the AVERAGED arrays of each client's last return, without clients that never replied; audited:
    hash of the last line of the audit log.
    """

    federation_id: str
    arrays: dict[str, dict[str, Array]] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    audited: str = FIRST

    def update(self, client: str, arrays: Mapping[str, Array]) -> None:
        """Replace a client's last return."""
        self.arrays[client] = {name: arrays[name] for name in AVERAGED}

    def is_suspended(self, client: str) -> bool:
        """Whether a client no longer takes part."""
        standing = self.standings.get(client)
        return standing is not None and standing.suspended is not None

    @property
    def counted(self) -> dict[str, dict[str, Array]]:
        """Last returns of the clients that are not suspended."""
        return {client: each for client, each in self.arrays.items() if not self.is_suspended(client)}

    def average(
        self, client_weights: Mapping[str, float], config: AggregationConfig | None = None
    ) -> dict[str, Array]:
        """Aggregate the counted returns, with weights normalized over their clients."""
        config, counted = config or AggregationConfig(), self.counted
        weights = np.array([client_weights[client] for client in counted])
        averages = {}
        for name in AVERAGED:
            values = np.stack([each[name] for each in counted.values()])
            if config.clip:
                values = clip_returns(values, config.clip)
            averages[name] = AGGREGATIONS[config.method](values, weights, config.trim)
        return averages

    def spread(self, broadcast: Mapping[str, Array]) -> dict[str, float] | None:
        """Return the median distance of the counted returns from a broadcast; None without any."""
        if not self.counted:
            return None
        return {
            name: float(np.median([np.linalg.norm(each[name] - value) for each in self.counted.values()]))
            for name, value in broadcast.items()
        }

    def write(self, path: Path) -> None:
        """Write everything to one file."""
        arrays = {
            f"{client}\n{name}": value for client, each in self.arrays.items() for name, value in each.items()
        }
        standings = {client: asdict(each) for client, each in self.standings.items()}
        metadata = {"federation": self.federation_id, "audited": self.audited}
        write_arrays(path, arrays, metadata | {"standings": json.dumps(standings)})

    @classmethod
    def read(cls, path: Path) -> ServerState:
        """Read a file that `write` wrote."""
        arrays, metadata = read_arrays(path), read_metadata(path)
        standings = json.loads(metadata.get("standings", "{}"))
        state = cls(metadata["federation"], audited=metadata.get("audited", FIRST))
        state.standings.update({client: Standing(**each) for client, each in standings.items()})
        for key, value in arrays.items():
            client, _, name = key.rpartition("\n")
            state.arrays.setdefault(client, {})[name] = value
        return state
