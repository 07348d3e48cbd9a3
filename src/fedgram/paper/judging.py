"""Claims of the paper held against what was measured: a verdict for each, and its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedgram.paper.claims import COMPARISONS, ORDER, Claim, Measured, format_value, inside, numbers

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


def judge(claim: Claim, measured: Measured | None) -> Judged:
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


def judge_all(claims: list[Claim], measured: Mapping[str, Measured | None]) -> list[Judged]:
    """Hold the claims of an experiment against its measurements, none of which may be without a claim."""
    unknown = set(measured) - {claim.id for claim in claims}
    if unknown:
        raise ValueError(f"No claim is called {', '.join(sorted(unknown))}.")
    return [judge(claim, measured.get(claim.id)) for claim in claims]


def _held(claim: Claim, measured: Measured) -> bool:
    """Whether the claim holds; of a range, whose ends need all runs, whether a part of them lies inside."""
    if not (measured.partial and isinstance(claim.value, tuple)):
        return COMPARISONS[claim.comparison](claim, measured.value)
    low, high = claim.value
    wider = (low / ORDER, high * ORDER) if claim.comparison == "order" else (low, high)
    return inside(replace(claim, value=wider), measured.value)


def _counts(claim: Claim, measured: Measured) -> bool:
    """Whether the claim is how many there are, so that a part of the runs has that part of them.

    A share, which is 1 at most, is of the runs that there are.
    """
    if claim.comparison != "equal" or max(numbers(claim.value)) <= 1:
        return False
    return measured.value * measured.needed == claim.value * measured.run  # type: ignore[operator]


def _stand_ins(measured: Measured) -> str:
    """How many of the runs were trained on stand-ins for the paper's data."""
    if not measured.stand_ins:
        return ""
    every = measured.stand_ins == measured.run
    return f"{'all' if every else f'{measured.stand_ins:,} of them'} on stand-in data"


def _so_far(claim: Claim, measured: Measured, holds: bool) -> str:
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
