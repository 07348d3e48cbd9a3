"""What makes a run, and what it took: the two halves of its manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.penalty import Penalty

FORMAT = "fedgram-run/1"
NOT_RECORDED = "not recorded"
"""The network of runs that know no fingerprint of it."""


@dataclass(frozen=True)
class Data:
    """What a run remembers of its problem; rows (M,) of each client, 0 for clients without test rows."""

    name: str
    kind: str
    digest: str
    targets: tuple[str, ...]
    clients: tuple[str, ...]
    train_rows: tuple[int, ...]
    test_rows: tuple[int, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Setup:
    """What makes a run: two runs with equal ones are the same run.

    parameters counts those of one client's model, and network is a fingerprint of it (`nets.model`), so that
    another network under the same name is noticed.
    """

    procedure: Procedure
    seed: int
    settings: TrainConfig
    backbone: str
    parameters: int
    network: str
    data: Data

    @property
    def run(self) -> Run:
        """The run within its federation."""
        return Run(self.procedure, self.seed)

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Setup:
        """What `document` wrote."""
        settings, data = document["settings"], document["data"]
        return cls(
            procedure=Procedure(**document["procedure"]),
            seed=document["seed"],
            settings=TrainConfig(**settings | {"penalty": Penalty(**settings["penalty"])}),
            backbone=document["backbone"],
            parameters=document["parameters"],
            network=document.get("network", NOT_RECORDED),
            data=Data(**{key: _tuples(value) for key, value in data.items()}),
        )

    def document(self) -> dict[str, Any]:
        """As plain lists and numbers, to be read back by `parse`."""
        return _plain(self)

    def differences(self, other: Setup) -> list[str]:
        """Every field in which another setup differs, as 'field is ours there, theirs here'."""
        ours, theirs = dict(_fields(self.document())), dict(_fields(other.document()))
        same_rows = self.data.digest == other.data.digest  # then it does not matter where they come from
        return [
            f"{name} is {_shown(ours.get(name))} there and {_shown(theirs.get(name))} here"
            for name in {**ours, **theirs}
            if ours.get(name) != theirs.get(name) and not (same_rows and name.startswith("data.provenance"))
        ]


FEDERATION = "a Flower federation"
"""What the provenance of a run says of who trained it, if it was not one process."""


@dataclass(frozen=True)
class Account:
    """How far a run is, and what that took.

    seconds: of the stack, for each finished round; stack: how many runs were trained at once; device and
    hardware that did it; peak_memory in bytes; versions of what computed it; stopped: why the run was given
    up, in words, None if it was not.
    """

    seconds: tuple[float, ...]
    stack: int
    device: str
    hardware: str
    peak_memory: int
    versions: Mapping[str, str]
    stopped: str | None = None

    @property
    def rounds(self) -> int:
        """How many rounds are finished."""
        return len(self.seconds)

    @property
    def seconds_per_run(self) -> float:
        """The run's share of the time that its stack took."""
        return sum(self.seconds) / self.stack

    def document(self) -> dict[str, Any]:
        """As plain lists and numbers, sums included."""
        sums = {"seconds_in_total": sum(self.seconds), "seconds_per_run": self.seconds_per_run}
        return _plain(self) | sums

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Account:
        """What `document` wrote."""
        return cls(**{key: _tuples(document[key]) for key in cls.__dataclass_fields__})


def digest(setups: Sequence[Setup]) -> str:
    """A short name for these runs of these settings, in this order."""
    parts = [
        {name: value for name, value in _fields(setup.document()) if not name.startswith("data.provenance")}
        for setup in setups
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _plain(made: Setup | Account) -> dict[str, Any]:
    """As JSON reads it back: NumPy's numbers as numbers, what it does not know in words."""
    text = json.dumps(asdict(made), default=lambda value: getattr(value, "item", value.__str__)())
    plain: dict[str, Any] = json.loads(text)
    return plain


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _fields(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All values of a nested document, each with its place as 'settings.penalty.head'."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _shown(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:16]}..."
