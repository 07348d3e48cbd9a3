"""The two halves of a run's manifest: its setup and its account."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.penalty import Penalty

FORMAT = "fedgram-run/1"

NOT_RECORDED = "not recorded"
"""Value of `Setup.network` in manifests of versions without fingerprints."""

MEAN = "mean"
"""Value of `Setup.aggregation` of a run that averages with client weights."""

FEDERATION = "a Flower federation"
"""Value of the provenance key 'trained by' of a run that Flower trained."""

MEANING = ("data.provenance.inputs", "data.provenance.encoding")
"""What columns mean. Standardized rows can be equal although names, levels or units differ."""

VALIDATION_ROWS = "validation_rows"
"""Provenance key of a run that Flower trained: number of all clients' validation rows, if there are any."""


@dataclass(frozen=True)
class Data:
    """Description of a problem; train_rows and test_rows (M,) count the rows of each client."""

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
    """Inputs that determine a run; equal setups are the same run.

    parameters counts those of one client's model. network is its fingerprint (`nets.model.fingerprint`),
    which reveals another network under the same name. aggregation is how the server averages.
    """

    procedure: Procedure
    seed: int
    settings: TrainConfig
    backbone: str
    parameters: int
    network: str
    data: Data
    aggregation: str = MEAN

    @property
    def run(self) -> Run:
        """Procedure and seed."""
        return Run(self.procedure, self.seed)

    @property
    def without_limit(self) -> str:
        """Why the averaged head has no predicted limit, as a phrase; empty if it has one."""
        if self.aggregation != MEAN:
            return f"it aggregates by '{self.aggregation}' instead of the mean"
        return self.procedure.without_limit

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Setup:
        """Read a setup from a manifest."""
        config, data = document["settings"], document["data"]
        return cls(
            procedure=Procedure(**document["procedure"]),
            seed=document["seed"],
            settings=TrainConfig(**config | {"penalty": Penalty(**config["penalty"])}),
            backbone=document["backbone"],
            parameters=document["parameters"],
            network=document.get("network", NOT_RECORDED),
            data=Data(**{key: _to_tuple(value) for key, value in data.items()}),
            aggregation=document.get("aggregation", MEAN),
        )

    def document(self) -> dict[str, Any]:
        """Convert to JSON values, which `from_document` reads."""
        document = _to_json(self)
        if self.aggregation == MEAN:
            del document["aggregation"]  # as in earlier versions, so that the digests of setups stay the same
        return document

    def differences(self, other: Setup) -> list[str]:
        """List the fields that differ, as 'field is ours there and theirs here'."""
        ours, theirs = (
            {"aggregation": each.aggregation} | dict(_flatten(each.document())) for each in (self, other)
        )
        same_rows = self.data.digest == other.data.digest  # then their origin may differ
        return [
            _describe_difference(name, _shorten(ours.get(name)), _shorten(theirs.get(name)))
            for name in {**ours, **theirs}
            if ours.get(name) != theirs.get(name) and not (same_rows and _is_origin(name))
        ]


@dataclass(frozen=True)
class Account:
    """Progress of a run and its cost.

    seconds: of the stack, for each finished round; stack: how many runs it trained; peak_memory in bytes;
    versions of the libraries; stopped: why the run was stopped early, or None; chosen: rounds, strengths and
    shares that were chosen on validation rows, and the test MSE of each client with them; tested: errors of
    the final models on test rows (`HeldOutErrors`).
    """

    seconds: tuple[float, ...]
    stack: int
    device: str
    hardware: str
    peak_memory: int
    versions: Mapping[str, str]
    stopped: str | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict)
    tested: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Number of finished rounds."""
        return len(self.seconds)

    @property
    def seconds_per_run(self) -> float:
        """The run's share of its stack's time."""
        return sum(self.seconds) / self.stack

    def document(self) -> dict[str, Any]:
        """Convert to JSON values, with sums."""
        sums = {"seconds_in_total": sum(self.seconds), "seconds_per_run": self.seconds_per_run}
        return _to_json(self) | sums

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Account:
        """Read an account from a manifest."""
        known = {key: _to_tuple(document[key]) for key in cls.__dataclass_fields__ if key in document}
        return cls(**known)


def digest(setups: Sequence[Setup]) -> str:
    """Hash setups, in this order, without the origin of their data."""
    parts = [
        {name: value for name, value in _flatten(setup.document()) if not _is_origin(name)}
        for setup in setups
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _is_origin(name: str) -> bool:
    """Whether a field says where rows come from, such as their file."""
    return name.startswith("data.provenance") and not name.startswith(MEANING)


def _to_json(made: Setup | Account) -> dict[str, Any]:
    """Convert to JSON values; NumPy numbers become numbers, unknown types text."""
    text = json.dumps(asdict(made), default=lambda value: getattr(value, "item", value.__str__)())
    document: dict[str, Any] = json.loads(text)
    return document


def _to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _flatten(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values of a nested document with names such as 'settings.penalty.head'."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _describe_difference(name: str, there: str, here: str) -> str:
    if reason := {"data.digest": "other rows", "network": "other layers or initial weights"}.get(name):
        return f"{name} differs ({reason})"  # the hashes would tell a reader nothing
    return f"{name} is {there} there and {here} here" if there != here else f"{name} differs"


def _shorten(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:16]}..."


def unreadable_run(path: Path, error: Exception) -> InputError:
    """Say that the description of a run has other contents than this version writes."""
    return InputError(
        f"This version cannot read '{path}' ({error}). Use the version that wrote it, or delete its folder "
        "and train again.",
        field=str(path),
    )
