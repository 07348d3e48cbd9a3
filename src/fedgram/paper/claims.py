"""Claims of the paper, and verdicts on our measurements of them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np

ROUNDING = 1e-13  # larger numbers are not zero up to rounding
ORDER = 10**0.5  # numbers within this factor have the same order


@dataclass(frozen=True)
class Claim:
    """One number or statement of the paper, and how to compare ours with it.

    value: a number, (low, high) for a range, or None for a statement; tolerance: relative; note: why the
    comparison differs from the one that the claim suggests.
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
            raise ValueError(f"Unknown comparison of claim {self.id}: '{self.comparison}'.")

    @property
    def paper(self) -> str:
        """Value of the paper as text."""
        return self.comparison if self.value is None else format_value(self.value)


@dataclass(frozen=True)
class Measurement:
    """Our measurement of one claim.

    value: a number, (low, high), or whether a statement is true. spread: an interval (low, high) of our own
    random draws for each number of the claim, where the paper's draws cannot be repeated. run, needed: runs
    at the paper's scale; fewer than needed make the verdict partial, none makes it not comparable.
    stand_ins: runs on other data than the paper's. about: a remark.
    """

    value: float | bool | tuple[float, float]
    spread: tuple[tuple[float, float], ...] = ()
    run: int = 1
    needed: int = 1
    stand_ins: int = 0
    about: str = ""

    @property
    def partial(self) -> bool:
        """Whether fewer runs were made than the claim needs."""
        return self.run < self.needed


def load_claims(experiment: str | None = None) -> list[Claim]:
    """Load all claims, or those of one experiment."""
    return [claim for claim in _read_claims() if experiment in (None, claim.experiment)]


@cache
def _read_claims() -> tuple[Claim, ...]:
    entries = tomllib.loads(files("fedgram.paper").joinpath("claims.toml").read_text("utf-8"))["claim"]
    for entry in entries:
        if isinstance(entry.get("value"), list):
            entry["value"] = tuple(entry["value"])
    return tuple(Claim(**entry) for entry in entries)


def format_value(value: Any) -> str:
    """Format a value with four digits, ranges with a dash."""
    if isinstance(value, bool | np.bool_):
        return "holds" if value else "fails"
    if isinstance(value, tuple):
        return " – ".join(format_value(part) for part in value)
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e6 else f"{value:.4g}"


def _numbers(value: Any) -> tuple[float, ...]:
    """Number of a value, or both ends of its range."""
    return value if isinstance(value, tuple) else (value,)


def _pairs(claim: Claim, ours: Any) -> list[tuple[float, float]]:
    return list(zip(_numbers(claim.value), _numbers(ours), strict=True))


def _equal(claim: Claim, ours: Any) -> bool:
    return all(abs(mine - paper) <= claim.tolerance * abs(paper) for paper, mine in _pairs(claim, ours))


def _inside(claim: Claim, ours: Any) -> bool:
    (low, high), mine = _numbers(claim.value), _numbers(ours)
    slack = claim.tolerance
    return min(mine) >= low - slack * abs(low) and max(mine) <= high + slack * abs(high)


def _bound(claim: Claim, ours: Any) -> bool:
    limit = _numbers(claim.value)[0]
    return bool(max(_numbers(ours)) <= limit + claim.tolerance * abs(limit))


def _order(claim: Claim, ours: Any) -> bool:
    return all(paper / ORDER <= mine <= paper * ORDER for paper, mine in _pairs(claim, ours))


def _rounding(claim: Claim, ours: Any) -> bool:
    return bool(max(abs(number) for number in _numbers(ours)) <= ROUNDING)


def _always(claim: Claim, ours: Any) -> bool:
    return bool(ours) is True


Verdict = Literal["match", "miss", "partial", "not comparable", "not run"]


@dataclass(frozen=True)
class Judged:
    """A claim with our value, the verdict and a reason.

    agrees: whether our runs agree with the paper so far; None if none can be compared.
    """

    claim: Claim
    verdict: Verdict
    ours: str = "-"
    reason: str = ""
    agrees: bool | None = None

    def document(self) -> dict[str, Any]:
        """Entry of `fedgram reproduce --json`."""
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
    """Compare a claim with our measurement; partial runs get a verdict on the part."""
    if measured is None:
        return Judged(claim, "not run")
    if not measured.run:
        return Judged(claim, "not comparable", format_value(measured.value), measured.about)
    spread = "; ".join(format_value(interval) for interval in measured.spread)
    if spread:
        holds = _in_spread(claim, measured.spread)
    elif measured.partial and _is_proportional_count(claim, measured):
        holds = True
    else:
        holds = _is_true(claim, measured)
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
    """Judge all claims of an experiment; every measurement must have a claim."""
    unknown = set(measured) - {claim.id for claim in claims}
    if unknown:
        raise ValueError(f"No claim is called {', '.join(sorted(unknown))}.")
    return [judge(claim, measured.get(claim.id)) for claim in claims]


def _is_true(claim: Claim, measured: Measurement) -> bool:
    """Whether the claim is true; partial runs need only lie inside a range, whose ends need all runs."""
    if not (measured.partial and isinstance(claim.value, tuple)):
        return COMPARISONS[claim.comparison](claim, measured.value)
    low, high = claim.value
    wider = (low / ORDER, high * ORDER) if claim.comparison == "order" else (low, high)
    return _inside(replace(claim, value=wider), measured.value)


def _is_proportional_count(claim: Claim, measured: Measurement) -> bool:
    """Whether the claim is a count, and ours is proportional to the part that was run.

    A number up to 1 is a share, not a count.
    """
    if claim.comparison != "equal" or max(_numbers(claim.value)) <= 1:
        return False
    return measured.value * measured.needed == claim.value * measured.run  # type: ignore[operator]


def _stand_ins(measured: Measurement) -> str:
    if not measured.stand_ins:
        return ""
    every = measured.stand_ins == measured.run
    return f"{'all' if every else f'{measured.stand_ins:,} of them'} on stand-in data"


def _so_far(claim: Claim, measured: Measurement, holds: bool) -> str:
    """Verdict on a part of the runs."""
    if isinstance(claim.value, tuple) and not measured.spread:
        about = "within an order of" if claim.comparison == "order" else "inside"
        return f"{about if holds else 'outside'} the paper's range"
    if measured.spread and not holds:
        return "so few draws do not decide"  # extremes and counts of fewer draws have another spread
    return f"{'agrees' if holds else 'disagrees'} so far"


def _in_spread(claim: Claim, spread: tuple[tuple[float, float], ...]) -> bool:
    """Whether each number of the claim is in its interval, up to the paper's digits."""
    pairs = zip(_numbers(claim.value), spread, strict=True)
    return all(
        low - claim.tolerance * abs(number) <= number <= high + claim.tolerance * abs(number)
        for number, (low, high) in pairs
    )


COMPARISONS: dict[str, Callable[[Claim, Any], bool]] = {
    "equal": _equal,
    "range": _inside,
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
    "always": "a statement without a number that must be true",
}
"""Condition of each comparison on our number."""
