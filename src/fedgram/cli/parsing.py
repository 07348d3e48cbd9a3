"""Parse option values: comma lists, seeds and client weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize, quote_list, split_names
from fedgram.theory.geometry.weights import order_weights

# A number that is meant as a list of one seed, such as 20260301 for '20260301,', must not start as many runs.
MAX_SEEDS = 10_000


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
        message = f"Invalid --seeds: '{text}'. Pass a positive number of seeds, or a list such as 0,3 or 3,."
        raise InputError(message, field="seeds")
    if not is_list and numbers[0] > MAX_SEEDS:
        raise InputError(f"--seeds {text} is too many. Pass at most {MAX_SEEDS:,}.", field="seeds")
    return numbers if is_list else tuple(range(numbers[0]))


def parse_epochs(text: str) -> tuple[int, ...]:
    """Return the numbers of '400,1000'; none for an empty text."""
    values = split_values(text)
    if not all(value.isdecimal() for value in values):
        message = f"Invalid --epochs: '{text}'. Pass numbers separated by commas, such as 400,1000."
        raise InputError(message, field="epochs")
    return tuple(map(int, values))


def parse_weights(text: str, clients: Sequence[str]) -> Array:
    """Return the weights (M,) of 'equal', '1,2,1' (in client order) or 'north=1,south=2'."""
    if text.strip() == "equal":
        return np.ones(len(clients))
    values = split_names(text)
    if all("=" in value for value in values):
        values = _order_pairs(values, clients)
    if len(values) != len(clients):
        message = (
            f"There are {len(clients)} clients but {len(values)} weights. Pass --weights with one for each."
        )
        raise InputError(message, field="weight")
    return np.array([_parse_weight(value, client) for value, client in zip(values, clients, strict=True)])


def _order_pairs(pairs: Sequence[str], clients: Sequence[str]) -> list[str]:
    weights: dict[str, str] = {}
    for pair in pairs:
        name, value = (part.strip() for part in pair.rsplit("=", maxsplit=1))
        if name in weights:
            message = f"Client '{name}' has more than one weight. Name it once in --weights."
            raise InputError(message, client=name, field="weight")
        weights[name] = value
    return order_weights(weights, clients)


def _parse_weight(text: str, client: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (np.isfinite(value) and value > 0):
        message = f"The weight of client '{client}' must be a positive number, not '{text}'."
        raise InputError(message, client=client, field="weight")
    return value


def parse_units(text: str | None, targets: Sequence[str]) -> tuple[str, ...]:
    """Return the unit of each target from 'kg', 'kg,m' or 'mass=kg,size=m'; its name if none is given."""
    values = split_names(text or "")
    if not values:
        return tuple(targets)
    has_target = ["=" in value for value in values]
    if all(has_target):
        return _order_units(values, targets)
    if any(has_target):
        message = f"--units names the target of some units only: '{text}'. Name it for all units or for none."
        raise InputError(message, field="units")
    if len(values) not in (1, len(targets)):
        message = f"There {'is' if len(targets) == 1 else 'are'} {pluralize(len(targets), 'target')} but"
        raise InputError(f"{message} {len(values)} units. Pass one for all, or one for each.", field="units")
    return tuple(values) * (len(targets) // len(values))


def _order_units(pairs: Sequence[str], targets: Sequence[str]) -> tuple[str, ...]:
    units: dict[str, str] = {}
    for pair in pairs:
        name, unit = (part.strip() for part in pair.rsplit("=", maxsplit=1))
        if name not in targets:
            message = f"Unknown target '{name}' in --units. The targets are {quote_list(targets)}."
            raise InputError(message, field="units")
        if name in units:
            message = f"Target '{name}' has more than one unit. Name it once in --units."
            raise InputError(message, field="units")
        units[name] = unit
    return tuple(units.get(name, name) for name in targets)
