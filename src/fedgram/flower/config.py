"""Read the federation's settings from the Flower run config."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast, get_args

from fedgram._util.errors import InputError
from fedgram._util.text import split_names
from fedgram.data.columns import LARGEST, level_name
from fedgram.data.holdout import VALIDATION_FRACTION
from fedgram.data.problem import Kind
from fedgram.data.site_summary import MAX_LEVELS
from fedgram.data.tables.read_rows import TEST_FRACTION
from fedgram.federation.aggregation import AGGREGATIONS
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.penalty import Penalty

NUMBERS = ("rounds", "epochs", "batch", "features", "learning-rate", "final-learning-rate", "clip")
"""Keys of numeric training settings."""
LARGEST_INTEGER = 2**63
"""Flower's messages have whole numbers of 64 bits."""
KEYS = (
    *NUMBERS, "name", "kind", "clients", "inputs", "targets", "test-fraction",
    "time", "categories", "fill", "drop-missing", "validation-fraction", "decay", "procedure", "seed",
    "backbone", "lambda-h", "lambda-w", "precision", "out", "reply-timeout", "aggregation", "trim",
    "clip-returns", "max-rejections", "secure", "standardize", "sites", "dataset",
)  # fmt: skip
"""All keys that fedgram reads. An app may add its own."""
RENAMED_KEYS = {"patience": "reply-timeout"}
"""Keys of earlier versions."""


@dataclass(frozen=True)
class AggregationConfig:
    """How the server averages returns.

    method: a key of AGGREGATIONS; trim: clients that the trimmed mean drops at each end; clip: bound on a
    return's distance from the median return, in median distances, or 0 for none.
    """

    method: str = "mean"
    trim: int = 1
    clip: float = 0.0

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> AggregationConfig:
        """Read the keys 'aggregation', 'trim' and 'clip-returns'."""
        method, clients = config.get("aggregation", "mean"), config["clients"]
        if method not in AGGREGATIONS:
            raise InputError(
                f"Invalid 'aggregation' in the run config: {method!r}. Use {', '.join(AGGREGATIONS)}.",
                field="aggregation",
            )
        trim = int(read_number(config, "trim", 1, minimum=1, whole=True))
        if method == "trimmed" and 2 * trim >= clients:
            raise InputError(
                f"Invalid 'trim' in the run config: {trim}. With {clients} clients use at most "
                f"{(clients - 1) // 2}.",
                field="trim",
            )
        clip = read_number(config, "clip-returns", 0.0)
        if 0 < clip < 1:
            raise InputError(
                f"Invalid 'clip-returns' in the run config: {clip:g}. Use at least 1, or 0 for no clipping.",
                field="clip-returns",
            )
        return cls(str(method), trim, float(clip))

    @property
    def name(self) -> str:
        """Name in the manifest of a run, such as 'trimmed 1, clipped 3'."""
        name = f"trimmed {self.trim}" if self.method == "trimmed" else self.method
        return f"{name}, clipped {self.clip:g}" if self.clip else name


@dataclass(frozen=True)
class FederationConfig:
    """Settings that the server and all clients share.

    The server stores the run in out/name/backbone. `row_selection` is the part of the config that selects
    the clients' rows; a resumed run must have the same. `reply_timeout` is in seconds. A client with
    `max_rejections` refused replies is suspended. `validation_fraction` of each client's training rows are
    for validation. With `secure`, the server sees totals over clients only. With `standardize`, columns have
    pooled mean 0 and variance 1.
    """

    name: str
    kind: Kind
    clients: int
    run: Run
    settings: TrainConfig
    backbone: str
    out: Path
    reply_timeout: float
    aggregation: AggregationConfig = AggregationConfig()
    max_rejections: int = 3
    row_selection: Mapping[str, Any] = field(default_factory=dict)
    validation_fraction: float = 0.0
    secure: bool = False
    standardize: bool = False

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Any]) -> FederationConfig:
        """Read a run config; missing settings take the paper's values."""
        _check_keys(run_config)
        paper = Penalty()
        settings: dict[str, Any] = {
            key.replace("-", "_"): read_number(run_config, key) for key in NUMBERS if key in run_config
        }
        settings |= {key: run_config[key] for key in ("precision", "decay") if key in run_config}
        settings["penalty"] = Penalty(
            read_number(run_config, "lambda-h", paper.features),
            read_number(run_config, "lambda-w", paper.head),
        )
        return cls(
            name=str(run_config.get("name", "federation")),
            kind=_read_kind(run_config),
            clients=int(read_number(run_config, "clients", minimum=2, whole=True)),
            run=Run(_read_procedure(run_config), int(read_number(run_config, "seed", 0, whole=True))),
            settings=TrainConfig(**settings),
            backbone=str(run_config.get("backbone", "own")),
            out=Path(str(run_config.get("out", "runs"))),
            reply_timeout=read_number(run_config, "reply-timeout", 3600.0, is_positive=True),
            aggregation=AggregationConfig.from_run_config(run_config),
            max_rejections=int(read_number(run_config, "max-rejections", 3, minimum=1, whole=True)),
            row_selection=_read_row_selection(run_config),
            validation_fraction=read_validation_fraction(run_config),
            secure=read_flag(run_config, "secure"),
            standardize=read_standardize(run_config),
        )


def read_standardize(config: Mapping[str, Any]) -> bool:
    """Whether columns are standardized: by default those of tables; named datasets have their own scaling."""
    has_columns = bool(config.get("inputs")) and not config.get("dataset")
    return read_flag(config, "standardize", has_columns)


def read_categories(config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Read the levels of every input that is a category, a JSON object such as '{"sex": ["F", "M"]}'."""
    text = config.get("categories", "")
    try:
        found = json.loads(text or "{}")
        levels = {name: tuple(map(level_name, each)) for name, each in found.items()}
        is_valid = all(isinstance(each, list) and _are_levels(levels[name]) for name, each in found.items())
    except (TypeError, ValueError, AttributeError):
        is_valid = False
    if not is_valid:
        raise InputError(
            f"Invalid 'categories' in the run config: {str(text)[:100]!r}. Write the levels of each column "
            """as JSON, such as '{"sex": ["F", "M"]}'.""",
            field="categories",
        )
    if others := [name for name in levels if name not in split_names(str(config.get("inputs", "")))]:
        raise InputError(
            f"Category '{others[0]}' is no input. Add it to 'inputs', or drop it from 'categories'.",
            field="categories",
        )
    return levels


def read_fill(config: Mapping[str, Any]) -> dict[str, float | str]:
    """Read the values of missing inputs, a JSON object such as '{"age": 41.0, "sex": ""}'."""
    text, categories = config.get("fill", ""), read_categories(config)
    try:
        values = dict(json.loads(text or "{}"))
    except (TypeError, ValueError):
        values = {"": None}
    for name, value in values.items():
        if name not in split_names(str(config.get("inputs", ""))):
            raise InputError(
                f"Invalid 'fill' in the run config: {str(text)[:100]!r}. Write a value for each input as "
                """JSON, such as '{"age": 41.0}'.""",
                field="fill",
            )
        is_number = type(value) in (int, float) and abs(value) <= LARGEST
        if value != "" if name in categories else not is_number:
            needed = '"": a missing category has no level' if name in categories else "a number"
            raise InputError(
                f"Invalid 'fill' of '{name}' in the run config: {value!r}. Use {needed}.", field="fill"
            )
    return values


def _are_levels(levels: Sequence[str]) -> bool:
    return 0 < len(levels) == len(set(levels)) <= MAX_LEVELS and "" not in levels


def read_flag(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """Read true or false."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"Invalid '{key}' in the run config: {value!r}. Use true or false.", field=key)
    return value


def read_number(
    config: Mapping[str, Any],
    key: str,
    default: float | None = None,
    minimum: int = 0,
    whole: bool = False,
    is_positive: bool = False,
) -> float:
    """Read a number of at least `minimum`, or above 0 with `is_positive`."""
    value = config.get(key, default)
    if isinstance(value, int) and value >= LARGEST_INTEGER:
        raise InputError(f"'{key}' in the run config is {value}. Use a number below 2^63.", field=key)
    # type() excludes bool, and `not value >= minimum` excludes NaN.
    is_number = type(value) in ((int,) if whole else (int, float))
    if not is_number or not (value > 0 if is_positive else value >= minimum):
        least = "above 0" if is_positive else f"of at least {minimum}"
        raise InputError(
            f"Invalid '{key}' in the run config: {value!r}. Use a {'whole ' * whole}number {least}.",
            field=key,
        )
    return value


def _check_keys(config: Mapping[str, Any]) -> None:
    """Reject renamed and misspelled keys, which would otherwise have no effect."""
    for key in config:
        if key in KEYS:
            continue
        near = [RENAMED_KEYS[key]] if key in RENAMED_KEYS else get_close_matches(key, KEYS, 1, cutoff=0.85)
        if near:
            raise InputError(f"Unknown key in the run config: '{key}'. Use '{near[0]}'.", field=key)


def _read_row_selection(config: Mapping[str, Any]) -> dict[str, Any]:
    selection: dict[str, Any] = {"clients": config["clients"]}
    if fraction := read_validation_fraction(config):
        selection["validation"] = fraction
    if read_standardize(config):
        selection["standardize"] = True
    if config.get("dataset"):
        return selection | {"dataset": str(config["dataset"])}
    columns = {key: list(split_names(str(config[key]))) for key in ("inputs", "targets") if key in config}
    if categories := read_categories(config):
        selection["categories"] = {name: list(levels) for name, levels in categories.items()}
    if fill := read_fill(config):
        selection["fill"] = fill
    if read_flag(config, "drop-missing"):
        selection["drop_missing"] = True
    if config.get("time"):
        selection["time"] = str(config["time"])
    if columns:
        selection |= columns | {"test_fraction": float(read_number(config, "test-fraction", TEST_FRACTION))}
    return selection


def _read_kind(config: Mapping[str, Any]) -> Kind:
    kind = config.get("kind", "REAL")
    if kind not in get_args(Kind):
        raise InputError(
            f"Invalid 'kind' in the run config: {kind!r}. Use {' or '.join(get_args(Kind))}.", field="kind"
        )
    return cast(Kind, kind)


def _read_procedure(config: Mapping[str, Any]) -> Procedure:
    procedure = Procedure.parse(str(config.get("procedure", "ordinary")))
    if procedure.centralized:
        raise InputError(
            f"Procedure '{procedure.name}' pools the rows of all clients, so no federation can run it. Train "
            "it with 'fedgram train'.",
            field="procedure",
        )
    return procedure


def read_validation_fraction(config: Mapping[str, Any]) -> float:
    """Read the fraction of validation rows; by default 0, or what the procedure's choices need."""
    procedure = _read_procedure(config)
    needed = VALIDATION_FRACTION if procedure.needs_validation else 0.0
    fraction = read_number(config, "validation-fraction", needed)
    if not fraction < 1:
        raise InputError(
            f"Invalid 'validation-fraction' in the run config: {fraction:g}. Use a number below 1.",
            field="validation-fraction",
        )
    return float(fraction)
