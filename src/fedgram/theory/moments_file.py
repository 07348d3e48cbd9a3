"""Read moments files: JSON of format `fedgram-moments/1`.

    {"format": "fedgram-moments/1", "targets": [names],
     "clients": [{"name", "count", "mean": [C], "covariance": [[C]], "weight": optional,
                  "privacy": optional {"epsilon", "delta", "bounds": [[low, high]], "noise"}}]}

Reading checks the structure; `Moments` checks the numbers.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.errors import InputError
from fedgram._util.files import read_json
from fedgram._util.text import pluralize
from fedgram.theory.privacy import Privacy

FORMAT = "fedgram-moments/1"


def read_matrix(path: str | Path) -> Any:
    """Read a JSON matrix; the caller checks that it is square and definite."""
    return _parse_numbers(read_json(path), f"The matrix in '{path}'", dimensions=2)


def read_fields(path: str | Path) -> dict[str, Any]:
    """Read the keyword arguments of `Moments`."""
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        raise InputError(
            f"'{path}' is not a moments file: its format is {found!r}, not '{FORMAT}'. "
            "Write one with 'fedgram moments'.",
            field="format",
        )
    targets = document.get("targets")
    if not (isinstance(targets, list) and targets and all(isinstance(name, str) for name in targets)):
        raise InputError(f"'targets' in '{path}' must be a list of target names.", field="targets")
    clients = document.get("clients")
    if not (isinstance(clients, list) and all(isinstance(client, dict) for client in clients) and clients):
        raise InputError(f"'clients' in '{path}' must be a list of objects.", field="clients")
    parsed = [_parse_client(client, n, len(targets), path) for n, client in enumerate(clients, start=1)]
    return {
        "clients": tuple(client["name"] for client in parsed),
        "targets": tuple(targets),
        "count": np.array([client["count"] for client in parsed]),
        "mean": np.array([client["mean"] for client in parsed]),
        "covariance": np.array([client["covariance"] for client in parsed]),
        "client_weights": _collect_weights(parsed),
        "privacy": tuple(client["privacy"] for client in parsed),
    }


def _parse_client(client: dict[str, Any], number: int, targets: int, path: str | Path) -> dict[str, Any]:
    name = client.get("name")
    if name is None or (isinstance(name, str) and not name.strip()):
        raise InputError(f"Client number {number} in '{path}' has no name. Add one.", field="name")
    if not isinstance(name, str):
        raise InputError(
            f"The name of client number {number} in '{path}' must be text, not {json.dumps(name)}. Put it in "
            "quotes.",
            field="name",
        )
    privacy = _parse_privacy(client.get("privacy"), name, targets, path)
    fields: dict[str, Any] = {"name": name, "privacy": privacy}
    for field, dimensions in (("count", 0), ("mean", 1), ("covariance", 2), ("weight", 0)):
        if field in client:
            fields[field] = _parse_field(client[field], name, field, dimensions, targets)
        elif field != "weight":
            raise InputError(f"Client '{name}' has no '{field}'.", client=name, field=field)
    return fields


def _parse_privacy(value: Any, client: str, targets: int, path: str | Path) -> Privacy | None:
    if value is None:
        return None
    dimensions = {"epsilon": 0, "delta": 0, "bounds": 2, "noise": 0}
    if not isinstance(value, dict) or value.keys() != dimensions.keys():
        raise InputError(
            f"The privacy of client '{client}' must have epsilon, delta, bounds and noise.",
            client=client,
            field="privacy",
        )
    numbers = {
        key: _parse_numbers(value[key], f"'{key}' of client '{client}'", number, client=client, field=key)
        for key, number in dimensions.items()
    }
    if numbers["bounds"].shape != (targets, 2):
        raise InputError(
            f"The bounds of client '{client}' must be {targets} by 2.", client=client, field="bounds"
        )
    try:
        return Privacy(
            float(numbers["epsilon"]), float(numbers["delta"]), numbers["bounds"], float(numbers["noise"])
        )
    except InputError as error:
        message = f"Invalid privacy of client '{client}' in '{path}': {error.message}"
        raise InputError(message, client=client, field=error.field) from None


def _parse_field(value: Any, client: str, field: str, dimensions: int, targets: int) -> Any:
    array = _parse_numbers(value, f"The {field} of client '{client}'", dimensions, client=client, field=field)
    if array.shape == (targets,) * dimensions:
        return array
    wanted = pluralize(targets, "target")
    if dimensions == 1:
        found = f"has {pluralize(len(array), 'number')}, but there {'is' if targets == 1 else 'are'} {wanted}"
    else:
        size = " by ".join(map(str, array.shape))
        found = f"must be {targets} by {targets} for {wanted}, but is {size}"
    raise InputError(f"The {field} of client '{client}' {found}.", client=client, field=field)


def _parse_numbers(value: Any, what: str, dimensions: int, **place: str) -> Any:
    with suppress(ValueError, OverflowError):  # lists of different lengths, huge numbers
        if _is_numeric(value) and (array := np.array(value, dtype=np.float64)).ndim == dimensions:
            return array
    kind = ("a number", "a list of numbers", "a list of equally long lists of numbers")[dimensions]
    raise InputError(f"{what} must be {kind}.", **place)


def _is_numeric(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_numeric, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _collect_weights(clients: list[dict[str, Any]]) -> Any:
    missing = [client["name"] for client in clients if "weight" not in client]
    if not missing:
        return np.array([client["weight"] for client in clients])
    if len(missing) < len(clients):
        raise InputError(
            f"Client '{missing[0]}' has no weight but others do. Set a weight for all clients or for none.",
            client=missing[0],
            field="weight",
        )
    return None
