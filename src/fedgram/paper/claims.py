"""The numbers that the paper prints, and what it takes for ours to agree with them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Literal

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
class Measurement:
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


Verdict = Literal["match", "miss", "partial", "not comparable", "not run"]


@dataclass(frozen=True)
class Judged:
    """A claim beside what we measured, with the verdict and, where it needs one, a reason.

    agrees: whether what was run of it agrees with the paper; None where nothing was that can be compared.
    """

    claim: Claim
    verdict: Verdict
    ours: str = "-"
    reason: str = ""
    agrees: bool | None = None

    def document(self) -> dict[str, Any]:
        """The entry of `fedgram reproduce --json`."""
        claim = self.claim
        return {
            "id": claim.id,
            "where": claim.where,
            "says": claim.says,
            "paper": claim.paper,
            "ours": self.ours,
            "comparison": claim.comparison,
            "verdict": self.verdict,
            "reason": self.reason,
            "agrees": self.agrees,
        }


def judge(claim: Claim, measured: Measurement | None) -> Judged:
    """Hold one claim against what we measured; of a part of the runs, say what it shows so far."""
    if measured is None:
        return Judged(claim, "not run")
    if not measured.run:
        return Judged(claim, "not comparable", format_value(measured.value), measured.about)
    spread = "; ".join(format_value(interval) for interval in measured.spread)
    if spread:
        holds = _in_spread(claim, measured.spread)
    elif measured.partial and _counts(claim, measured):
        holds = True
    else:
        holds = _held(claim, measured)
    verdict: Verdict = "partial" if measured.partial else "match" if holds else "miss"
    reasons = (
        f"{measured.run:,} of {measured.needed:,} runs" if measured.partial else "",
        _stand_ins(measured),
        measured.about,
        _so_far(claim, measured, holds) if measured.partial else "",
        f"our own draws spread over {spread}" if spread else "",
        "" if measured.partial else claim.note,
    )
    reason = "; ".join(filter(None, reasons))
    undecided = measured.partial and bool(measured.spread) and not holds
    return Judged(claim, verdict, format_value(measured.value), reason, None if undecided else holds)


def judge_all(claims: list[Claim], measured: Mapping[str, Measurement | None]) -> list[Judged]:
    """Hold the claims of an experiment against its measurements, none of which may be without a claim."""
    unknown = set(measured) - {claim.id for claim in claims}
    if unknown:
        raise ValueError(f"No claim is called {', '.join(sorted(unknown))}.")
    return [judge(claim, measured.get(claim.id)) for claim in claims]


def _held(claim: Claim, measured: Measurement) -> bool:
    """Whether the claim holds; of a range, whose ends need all runs, whether a part of them lies inside."""
    if not (measured.partial and isinstance(claim.value, tuple)):
        return COMPARISONS[claim.comparison](claim, measured.value)
    low, high = claim.value
    wider = (low / ORDER, high * ORDER) if claim.comparison == "order" else (low, high)
    return inside(replace(claim, value=wider), measured.value)


def _counts(claim: Claim, measured: Measurement) -> bool:
    """Whether the claim is how many there are, so that a part of the runs has that part of them.

    A share, which is 1 at most, is of the runs that there are.
    """
    if claim.comparison != "equal" or max(numbers(claim.value)) <= 1:
        return False
    return measured.value * measured.needed == claim.value * measured.run  # type: ignore[operator]


def _stand_ins(measured: Measurement) -> str:
    """How many of the runs were trained on stand-ins for the paper's data."""
    if not measured.stand_ins:
        return ""
    every = measured.stand_ins == measured.run
    return f"{'all' if every else f'{measured.stand_ins:,} of them'} on stand-in data"


def _so_far(claim: Claim, measured: Measurement, holds: bool) -> str:
    """What a part of the runs says."""
    if isinstance(claim.value, tuple) and not measured.spread:
        about = "within an order of" if claim.comparison == "order" else "inside"
        return f"{about if holds else 'outside'} the paper's range"
    if measured.spread and not holds:
        return "so few draws do not decide"  # extremes and counts of fewer draws spread elsewhere
    return f"{'agrees' if holds else 'disagrees'} so far"


def _in_spread(claim: Claim, spread: tuple[tuple[float, float], ...]) -> bool:
    """Whether each number of the claim lies in its interval, up to the digits that the paper prints."""
    pairs = zip(numbers(claim.value), spread, strict=True)
    return all(
        low - claim.tolerance * abs(number) <= number <= high + claim.tolerance * abs(number)
        for number, (low, high) in pairs
    )


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
