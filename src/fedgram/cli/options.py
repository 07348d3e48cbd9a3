"""Options that name several things: lists with commas, options given several times, and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import typer

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import split_names
from fedgram.theory.geometry.weights import order_weights

Seeds = Annotated[
    str, typer.Option(help="How many seeds (5 is 0 to 4), or which, with commas ('0,3', one is '3,').")
]


def split_options(*texts: str) -> tuple[str, ...]:
    """What options name between commas, each once."""
    return tuple(dict.fromkeys(part for text in texts for part in split_names(text)))


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of '5' (0 to 4), '0,3' or '3,'."""
    try:
        numbers = tuple(int(part) for part in split_options(text))
    except ValueError:
        numbers = ()  # so they are refused below
    which = "," in text
    if not numbers or min(numbers) < (0 if which else 1):
        raise InputError(
            f"--seeds is how many seeds, 1 or more, or which, with commas, like 0,3 or 3,; not '{text}'.",
            field="seeds",
        )
    return numbers if which else tuple(range(numbers[0]))


def parse_weights(text: str, clients: Sequence[str]) -> Array:
    """'equal', numbers in client order ('1,2,1'), or pairs ('north=1,south=2') as an array (M,).

    A pair whose name has a comma stands in quotes.
    """
    if text.strip() == "equal":
        return np.ones(len(clients))
    split_options = split_names(text)
    if all("=" in part for part in split_options):
        split_options = _in_order([_pair(part) for part in split_options], clients)
    if len(split_options) != len(clients):
        raise InputError(
            f"There are {len(clients)} clients but {len(split_options)} weights.", field="weight"
        )
    return np.array([_number(part, client) for part, client in zip(split_options, clients, strict=True)])


def _pair(part: str) -> tuple[str, str]:
    name, _, value = part.rpartition("=")
    return name.strip(), value.strip()


def _in_order(pairs: Sequence[tuple[str, str]], clients: Sequence[str]) -> list[str]:
    ordered = order_weights(dict(pairs), clients)
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
