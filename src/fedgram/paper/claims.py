"""The numbers that the paper prints, and what it takes for ours to agree with them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

ROUNDING = 1e-13
# "The same order" means within a factor of this, either way.
ORDER = 10**0.5


@dataclass(frozen=True)
class Claim:
    """One number of the paper: where it stands, our words for it, its value, and how to compare.

    value is one number, or [low, high] for a range, or absent for a statement that always holds.
    `tolerance` is relative. A `note` says why a claim is compared in another way than its words suggest.
    """

    id: str
    experiment: str
    where: str
    says: str
    comparison: str
    value: float | tuple[float, float] | None = None
    tolerance: float = 0.0
    note: str = ""

    def __post_init__(self) -> None:
        if self.comparison not in COMPARISONS:
            raise ValueError(f"Claim {self.id} has an unknown comparison '{self.comparison}'.")

    @property
    def paper(self) -> str:
        """The paper's value for a table."""
        return self.comparison if self.value is None else format_value(self.value)


@dataclass(frozen=True)
class Measured:
    """What we found for one claim.

    value is a number, (low, high), or whether a statement held. spread holds one interval (low, high) for
    each number of the claim, over our own random draws, where the paper's draws cannot be repeated. run
    and needed count what the claim is about, at the paper's scale; fewer run than needed makes the verdict
    partial, none of them not comparable. stand_ins counts those of the run ones that were trained on other
    data than the paper's. about says what else a reader should know of these runs.
    """

    value: float | bool | tuple[float, float]
    spread: tuple[tuple[float, float], ...] = ()
    run: int = 1
    needed: int = 1
    stand_ins: int = 0
    about: str = ""

    @property
    def partial(self) -> bool:
        """Whether less was run than the claim is about."""
        return self.run < self.needed


def load_claims(experiment: str | None = None) -> list[Claim]:
    """All claims of claims.toml, or those of one experiment."""
    entries = tomllib.loads(files("fedgram.paper").joinpath("claims.toml").read_text("utf-8"))["claim"]
    claims = [Claim(**entry | _as_tuple(entry.get("value"))) for entry in entries]
    return [claim for claim in claims if experiment in (None, claim.experiment)]


def format_value(value: Any) -> str:
    """A value of a claim for a table: four digits, ranges with a dash."""
    if isinstance(value, bool | np.bool_):
        return "holds" if value else "fails"
    if isinstance(value, tuple):
        return " – ".join(format_value(part) for part in value)
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e6 else f"{value:.4g}"


def _as_tuple(value: Any) -> dict[str, Any]:
    return {"value": tuple(value)} if isinstance(value, list) else {}


def numbers(value: Any) -> tuple[float, ...]:
    """The one number of a value, or the two ends of its range."""
    return value if isinstance(value, tuple) else (value,)


def _pairs(claim: Claim, ours: Any) -> list[tuple[float, float]]:
    return list(zip(numbers(claim.value), numbers(ours), strict=True))


def _equal(claim: Claim, ours: Any) -> bool:
    return all(abs(mine - paper) <= claim.tolerance * abs(paper) for paper, mine in _pairs(claim, ours))


def inside(claim: Claim, ours: Any) -> bool:
    """Whether ours lies in the claim's range."""
    (low, high), mine = numbers(claim.value), numbers(ours)
    slack = claim.tolerance
    return min(mine) >= low - slack * abs(low) and max(mine) <= high + slack * abs(high)


def _bound(claim: Claim, ours: Any) -> bool:
    limit = numbers(claim.value)[0]
    return bool(max(numbers(ours)) <= limit + claim.tolerance * abs(limit))


def _order(claim: Claim, ours: Any) -> bool:
    return all(paper / ORDER <= mine <= paper * ORDER for paper, mine in _pairs(claim, ours))


def _rounding(claim: Claim, ours: Any) -> bool:
    return bool(max(abs(number) for number in numbers(ours)) <= ROUNDING)


def _always(claim: Claim, ours: Any) -> bool:
    return bool(ours) is True


COMPARISONS: dict[str, Callable[[Claim, Any], bool]] = {
    "equal": _equal,
    "range": inside,
    "bound": _bound,
    "order": _order,
    "rounding": _rounding,
    "always": _always,
}
MEANINGS = {
    "equal": "the same up to the claim's tolerance",
    "range": "inside the paper's range",
    "bound": "at most the paper's number",
    "order": "within a factor of √10 of the paper's number",
    "rounding": f"zero up to rounding, below {ROUNDING:g}",
    "always": "a statement without a number that has to hold",
}
"""What each comparison asks of our number, in words."""
