"""Client weights as a person types them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import between_commas
from fedgram.theory.geometry.weights import in_client_order


def parse_weights(text: str, clients: Sequence[str]) -> Array:
    """'equal', numbers in client order ('1,2,1'), or pairs ('north=1,south=2') as an array (M,).

    A pair whose name has a comma stands in quotes.
    """
    if text.strip() == "equal":
        return np.ones(len(clients))
    parts = between_commas(text)
    if all("=" in part for part in parts):
        parts = _in_order([_pair(part) for part in parts], clients)
    if len(parts) != len(clients):
        raise InputError(f"There are {len(clients)} clients but {len(parts)} weights.", field="weight")
    return np.array([_number(part, client) for part, client in zip(parts, clients, strict=True)])


def _pair(part: str) -> tuple[str, str]:
    name, _, value = part.rpartition("=")
    return name.strip(), value.strip()


def _in_order(pairs: Sequence[tuple[str, str]], clients: Sequence[str]) -> list[str]:
    ordered = in_client_order(dict(pairs), clients)
    if len(ordered) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"Client '{repeated}' has more than one weight; give it one.", client=repeated, field="weight"
        )
    return ordered


def _number(text: str, client: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (np.isfinite(value) and value > 0):
        raise InputError(
            f"The weight of client '{client}' must be a positive number, not '{text}'.",
            client=client,
            field="weight",
        )
    return value
