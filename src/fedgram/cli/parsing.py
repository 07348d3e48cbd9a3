"""Parse option values: comma lists, seeds and client weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import split_names
from fedgram.theory.geometry.weights import order_weights


def split_values(*texts: str) -> tuple[str, ...]:
    """Split option values at commas and drop duplicates."""
    return tuple(dict.fromkeys(part for text in texts for part in split_names(text)))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of '5' (0 to 4), '0,3' or '3,'."""
    try:
        numbers = tuple(int(part) for part in split_values(text))
    except ValueError:
        numbers = ()
    is_list = "," in text
    if not numbers or min(numbers) < (0 if is_list else 1):
        raise InputError(
            f"Invalid --seeds: '{text}'. Pass a positive number of seeds, or a list such as 0,3 or 3,.",
            field="seeds",
        )
    return numbers if is_list else tuple(range(numbers[0]))


def parse_weights(text: str, clients: Sequence[str]) -> Array:
    """Return the weights (M,) of 'equal', '1,2,1' (in client order) or 'north=1,south=2'."""
    if text.strip() == "equal":
        return np.ones(len(clients))
    values = split_names(text)
    if all("=" in value for value in values):
        values = _order_pairs(values, clients)
    if len(values) != len(clients):
        raise InputError(f"There are {len(clients)} clients but {len(values)} weights.", field="weight")
    return np.array([_parse_weight(value, client) for value, client in zip(values, clients, strict=True)])


def _order_pairs(pairs: Sequence[str], clients: Sequence[str]) -> list[str]:
    weights: dict[str, str] = {}
    for pair in pairs:
        name, value = (part.strip() for part in pair.rsplit("=", maxsplit=1))
        if name in weights:
            raise InputError(f"Client '{name}' has more than one weight.", client=name, field="weight")
        weights[name] = value
    return order_weights(weights, clients)


def _parse_weight(text: str, client: str) -> float:
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
