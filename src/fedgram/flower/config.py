"""What a federation is to do, as its server and all its clients read it from the run's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast, get_args

from fedgram._util.errors import InputError
from fedgram._util.text import split_names
from fedgram.data.problem import Kind
from fedgram.data.tables.read_rows import TEST_FRACTION
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.penalty import Penalty

NUMBERS = ("rounds", "epochs", "batch", "features", "learning-rate", "final-learning-rate", "clip")
"""Settings that are numbers, by their keys."""
KEYS = (
    *NUMBERS, "name", "kind", "clients", "inputs", "targets", "test-fraction", "procedure", "seed",
    "backbone", "lambda-h", "lambda-w", "precision", "out", "patience",
)  # fmt: skip
"""All that is read from a configuration, which may hold more for an app's own use."""


@dataclass(frozen=True)
class FederationConfig:
    """A federation of so many clients, what they train, and how long the server waits for an answer.

    name and kind say what the data is; the run is filed under these and the backbone's name in the folder
    out. rows is all that the configuration says of clients' rows, to be told from another. patience is in
    seconds.
    """

    name: str
    kind: Kind
    clients: int
    run: Run
    settings: TrainConfig
    backbone: str
    out: Path
    patience: float
    rows: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> FederationConfig:
        """The plan in a run's configuration; what it does not say is as in the paper."""
        _check_spelling(config)
        paper = Penalty()
        penalty = Penalty(number(config, "lambda-h", paper.features), number(config, "lambda-w", paper.head))
        chosen: dict[str, Any] = {
            key.replace("-", "_"): number(config, key) for key in NUMBERS if key in config
        }
        if "precision" in config:
            chosen["precision"] = config["precision"]
        return cls(
            name=str(config.get("name", "federation")),
            kind=_kind(config),
            clients=_clients(config),
            run=Run(_procedure(config), _seed(config)),
            settings=TrainConfig(penalty=penalty, **chosen),
            backbone=str(config.get("backbone", "own")),
            out=Path(str(config.get("out", "runs"))),
            patience=number(config, "patience", 3600.0),
            rows=_rows(config),
        )


def number(config: Mapping[str, Any], key: str, default: float = 0.0) -> float:
    """A number from 0 on in a configuration."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:  # as NaN is not
        raise InputError(f"'{key}' in the configuration must be a number from 0, not {value!r}.", field=key)
    return value


def _check_spelling(config: Mapping[str, Any]) -> None:
    """A key that is nearly one of ours is a mistake: it would do nothing, and say nothing."""
    for key in config:
        if key not in KEYS and (near := get_close_matches(key, KEYS, n=1, cutoff=0.85)):
            raise InputError(f"The configuration has '{key}'; did you mean '{near[0]}'?", field=key)


def _seed(config: Mapping[str, Any]) -> int:
    seed = number(config, "seed", 0)
    if not isinstance(seed, int):
        raise InputError(f"'seed' in the configuration must be a whole number, not {seed!r}.", field="seed")
    return seed


def _clients(config: Mapping[str, Any]) -> int:
    clients = config.get("clients")
    if isinstance(clients, bool) or not isinstance(clients, int) or clients < 2:
        raise InputError(
            "The configuration must say how many clients the federation has: clients = 2 or more, not "
            f"{clients!r}.",
            field="clients",
        )
    return clients


def _rows(config: Mapping[str, Any]) -> dict[str, Any]:
    """Which columns and rows of their tables clients take, as far as the configuration says."""
    columns = {key: list(split_names(str(config[key]))) for key in ("inputs", "targets") if key in config}
    tested = {"test_fraction": float(number(config, "test-fraction", TEST_FRACTION))} if columns else {}
    return {"clients": _clients(config), **columns, **tested}


def _kind(config: Mapping[str, Any]) -> Kind:
    kind = config.get("kind", "REAL")
    if kind not in get_args(Kind):
        raise InputError(
            f"There is no kind of data '{kind}'; there are {', '.join(get_args(Kind))}.", field="kind"
        )
    return cast(Kind, kind)


def _procedure(config: Mapping[str, Any]) -> Procedure:
    procedure = Procedure.parse(str(config.get("procedure", "ordinary")))
    if procedure.centralized or procedure.full_model:
        raise InputError(
            f"'{procedure.name}' needs rows or backbones of all clients in one place, which a federation of "
            "sites does not have; 'fedgram train' trains it.",
            field="procedure",
        )
    return procedure
