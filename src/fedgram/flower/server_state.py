"""Keep what the server knows of each client: its last return, its key and its refused replies.

The server averages Σ p_m W_m over the last return of every client. An average over the clients that replied
would pull the shared head toward them. With the last returns the limit stays the barycenter G_⋆. A suspended
client no longer counts: its last return may be the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from fedgram._util.arrays import Array
from fedgram.federation.aggregation import AGGREGATIONS, clip_returns
from fedgram.flower.config import AggregationConfig
from fedgram.runs.audit import FIRST
from fedgram.runs.tensor_files import read_arrays, read_metadata, write_arrays

SHARED, BEST, SCALING = "shared", "best", "scaling"
"""Names of the server's own arrays: what it broadcasts after a round, what the best round ended with, and
how columns are standardized."""
DOCUMENTS = ("standings", "returned", "errors", "sizes", "best", "best_local")
"""Metadata of the file that are JSON."""


@dataclass
class Standing:
    """What binds a client to this federation.

    key: its public key; fingerprint: of its rows; validation_rows: how many; rejections: refused replies so
    far; suspended: why the client no longer takes part, or None.
    """

    key: str
    fingerprint: str
    validation_rows: int = 0
    rejections: int = 0
    suspended: str | None = None


@dataclass
class BestRound:
    """The round with the least error on the validation rows of all clients; round 0 before the first."""

    round: int = 0
    error: float = math.inf

    def update(self, number: int, error: float) -> bool:
        """Keep the round if its error is the least so far; return whether it was kept."""
        if is_better := error < self.error:
            self.round, self.error = number, error
        return is_better


@dataclass(eq=False)
class ServerState:
    """Last returns and standings by client, and what the server chose so far.

    arrays: each client's last return, without clients that never replied; errors: each client's last squared
    errors on validation rows, by name; own: the server's arrays by round and name, SHARED of the last two
    rounds, BEST of the best one, SCALING of round 0; sizes: lengths of the network's axes D and S; best: of
    the shared model; best_local: of the models trained alone, for all clients together; audited: hash of the
    last line of the audit log.
    """

    federation_id: str
    arrays: dict[str, dict[str, Array]] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    own: dict[tuple[str, int], dict[str, Array]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    best: BestRound = field(default_factory=BestRound)
    best_local: BestRound = field(default_factory=BestRound)
    audited: str = FIRST

    @property
    def has_validation(self) -> bool:
        """Whether any client has validation rows."""
        return any(each.validation_rows for each in self.standings.values())

    def update(self, client: str, arrays: Mapping[str, Array]) -> None:
        """Replace a client's last return."""
        self.arrays[client] = dict(arrays)

    def share(self, number: int, arrays: Mapping[str, Array]) -> None:
        """Keep the broadcasts after a round and the round before, which a crash may repeat."""
        self.own = {key: each for key, each in self.own.items() if key[0] != SHARED or key[1] >= number - 1}
        self.own[SHARED, number] = dict(arrays)

    def keep_best(self, number: int, arrays: Mapping[str, Array]) -> None:
        """Keep what the best round ended with."""
        self.own = {key: each for key, each in self.own.items() if key[0] != BEST}
        self.own[BEST, number] = dict(arrays)

    def update_errors(self, name: str, errors: Mapping[str, float]) -> None:
        """Replace the last squared errors of clients."""
        for client, error in errors.items():
            self.errors.setdefault(client, {})[name] = error

    def mean_error(self, name: str) -> float:
        """Return the mean over all validation rows; clients count with their last error, unless suspended."""
        known = [client for client in self.errors if name in self.errors[client]]
        # A client that was readmitted with a new key has no standing until it is back.
        counted = [client for client in known if client in self.standings and not self.is_suspended(client)]
        rows = sum(self.standings[client].validation_rows for client in counted)
        return sum(self.errors[client][name] for client in counted) / rows if rows else math.nan

    def is_suspended(self, client: str) -> bool:
        """Whether a client no longer takes part."""
        standing = self.standings.get(client)
        return standing is not None and standing.suspended is not None

    @property
    def counted(self) -> dict[str, dict[str, Array]]:
        """Last returns of the clients that are not suspended."""
        return {client: each for client, each in self.arrays.items() if not self.is_suspended(client)}

    def average(self, client_weights: Mapping[str, float], config: AggregationConfig) -> dict[str, Array]:
        """Aggregate the counted returns, with weights normalized over their clients."""
        counted = self.counted
        weights = np.array([client_weights[client] for client in counted])
        averages = {}
        for name in next(iter(counted.values())):
            values = np.stack([each[name] for each in counted.values()])
            if config.clip:
                values = clip_returns(values, config.clip)
            averages[name] = AGGREGATIONS[config.method](values, weights, config.trim)
        return averages

    def spread(self, broadcast: Mapping[str, Array]) -> dict[str, float] | None:
        """Return the median distance of the counted returns from a broadcast; None without any."""
        returned = list(self.counted.values())
        if not returned or not returned[0].keys() >= broadcast.keys():
            return None
        return {
            name: float(np.median([np.linalg.norm(each[name] - value) for each in returned]))
            for name, value in broadcast.items()
        }

    def write(self, path: Path) -> None:
        """Write everything to one file."""
        named = {(client, ""): each for client, each in self.arrays.items()}
        named |= {("", f"{kind} {number}"): each for (kind, number), each in self.own.items()}
        # Names of clients have no line breaks.
        arrays = {
            "\n".join((*key, name)): value for key, each in named.items() for name, value in each.items()
        }
        document = {
            "standings": {client: asdict(each) for client, each in self.standings.items()},
            "returned": list(self.arrays),
            "errors": self.errors,
            "sizes": self.sizes,
            "best": asdict(self.best),
            "best_local": asdict(self.best_local),
        }
        metadata = {"federation": self.federation_id, "audited": self.audited}
        write_arrays(path, arrays, metadata | {name: json.dumps(value) for name, value in document.items()})

    @classmethod
    def read(cls, path: Path) -> ServerState:
        """Read a file that `write` wrote."""
        arrays, metadata = read_arrays(path), read_metadata(path)
        documents = {name: json.loads(metadata[name]) for name in DOCUMENTS}
        state = cls(
            metadata["federation"],
            {client: {} for client in documents["returned"]},
            {client: Standing(**each) for client, each in documents["standings"].items()},
            documents["errors"],
            sizes=documents["sizes"],
            best=BestRound(**documents["best"]),
            best_local=BestRound(**documents["best_local"]),
            audited=metadata["audited"],
        )
        for key, value in arrays.items():
            client, own, name = key.split("\n")
            if client:
                state.arrays[client][name] = value
            else:
                kind, number = own.split()
                state.own.setdefault((kind, int(number)), {})[name] = value
        return state
