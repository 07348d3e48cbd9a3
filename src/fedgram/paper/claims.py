"""Claims of the paper, and verdicts on our measurements of them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Any, Literal

import numpy as np

from fedgram.paper.draws import FALSE_ALARMS, combine, noticed_factor, p_value

ROUNDING = 1e-14  # larger numbers are not zero up to rounding, where the paper prints none
SLACK = 10.0  # rounding may be this many times the paper's: it depends on the order of additions
ORDER = 10**0.5  # numbers within this factor have the same order
FACTORS = (1.25, 1.5, 2.0, ORDER)
"""Factors at which agreement with the paper is counted."""
FAR = 3.0  # a part of the runs decides against a claim only beyond this many tolerances
Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Claim:
    """One number or statement of the paper, and how to compare ours with it.

    value: a number, (low, high) for a range, None for a statement, or a limit of ours; tolerance: relative;
    factor: of "order"; data: 'tabular' or 'images' if the paper says it of these settings alone; trained:
    whether it depends on training and not on the data alone; note: why the comparison differs from the one
    that the claim suggests.
    """

    id: str
    experiment: str
    where: str
    says: str
    comparison: str
    value: float | tuple[float, float] | None = None
    tolerance: float = 0.0
    factor: float = ORDER
    data: str = ""
    trained: bool = True
    note: str = ""

    def __post_init__(self) -> None:
        if self.comparison not in COMPARISONS:
            raise ValueError(f"Unknown comparison of claim {self.id}: '{self.comparison}'.")

    @property
    def paper(self) -> str:
        """Value of the paper as text; the comparison if the paper prints none."""
        is_printed = self.value is not None and self.comparison != "limit"
        return format_value(self.value) if is_printed else self.comparison


@dataclass(frozen=True)
class Measurement:
    """Our measurement of one claim.

    value: a number, (low, high), or whether a statement is true; NumPy's become Python's. redraws: for each
    number of a "draw", its values in further draws of ours at the paper's size. run, needed: runs at the
    paper's scale; fewer than needed make the verdict partial, none makes it not comparable. stand_ins: runs
    on other data than the paper's. about: a remark. possible: smallest and largest value over all needed
    runs, whatever the missing ones give; None if unknown.
    """

    value: Any
    redraws: Iterable[Iterable[float]] = ()
    run: int = 1
    needed: int = 1
    stand_ins: int = 0
    about: str = ""
    possible: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _to_python(self.value))
        object.__setattr__(self, "redraws", tuple(tuple(map(float, each)) for each in self.redraws))

    @property
    def partial(self) -> bool:
        """Whether fewer runs were made than the claim needs."""
        return self.run < self.needed


def _to_python(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(float, value))
    return bool(value) if isinstance(value, bool | np.bool_) else float(value)


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


def _numbers(value: Any) -> Numbers:
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
    factor = claim.factor
    return all(paper / factor <= mine <= paper * factor for paper, mine in _pairs(claim, ours))


def _rounding(claim: Claim, ours: Any) -> bool:
    limit = ROUNDING if claim.value is None else SLACK * abs(_numbers(claim.value)[0])
    return bool(max(abs(number) for number in _numbers(ours)) <= limit)


def _always(claim: Claim, ours: Any) -> bool:
    return bool(ours) is True


def _draw(claim: Claim, ours: Any) -> bool:
    raise ValueError(f"Claim {claim.id} needs redraws: its comparison is 'draw'.")


def compatibility(claim: Claim, measured: Measurement) -> float:
    """p-value that the paper's numbers and ours are draws from the distribution of our redraws.

    The redraws have the paper's size. A partial value of ours varies more, so it may be further away by a
    factor of √10.
    """
    slack = _slack(claim, measured)
    return combine([
        p_value(number, np.array(redraws), tolerance)
        for (paper, ours), redraws in zip(_pairs(claim, measured.value), measured.redraws, strict=True)
        for number, tolerance in ((paper, claim.tolerance), (ours, slack))
    ])  # fmt: skip


def resolution(claim: Claim, measured: Measurement) -> float:
    """Smallest factor between our number and the typical redraw that a "draw" is certain to notice."""
    return noticed_factor([np.array(each) for each in measured.redraws]) * (1 + _slack(claim, measured))


def _slack(claim: Claim, measured: Measurement) -> float:
    """Tolerance of our number in a "draw"."""
    return claim.tolerance + (ORDER - 1) * measured.partial


Verdict = Literal["match", "compatible", "miss", "partial", "not comparable", "not run"]


@dataclass(frozen=True)
class Judged:
    """A claim with our value, the verdict and a reason.

    agrees: whether our runs agree with the paper so far; None if none can be compared. ratio: ours over the
    paper's, for one positive number that depends on training. deviation: see `measure_deviation`.
    possible: see `Measurement`. least_deviation: deviation of the nearest of these numbers.
    """

    claim: Claim
    verdict: Verdict
    ours: str = "-"
    reason: str = ""
    agrees: bool | None = None
    ratio: float | None = None
    deviation: float | None = None
    possible: tuple[float, float] | None = None
    least_deviation: float | None = None

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
            "deviation": self.deviation,
            "possible": self.possible and [each if isfinite(each) else None for each in self.possible],
            "least_deviation": self.least_deviation,
        }


def judge(claim: Claim, measured: Measurement | None) -> Judged:
    """Compare a claim with our measurement.

    A part of the runs is partial, or a miss if it decides against the claim.
    """
    if measured is None:
        return Judged(claim, "not run")
    if not measured.run:
        return Judged(claim, "not comparable", format_value(measured.value), measured.about)
    chance = compatibility(claim, measured) if claim.comparison == "draw" else None
    holds = _is_true(claim, measured) if chance is None else chance >= FALSE_ALARMS
    missed = _decides_against(claim, measured, holds) if measured.partial else not holds
    match: Verdict = "match" if chance is None else "compatible"
    holds = holds and not (missed and measured.partial)
    verdict: Verdict = "miss" if missed else "partial" if measured.partial else match
    reasons = (
        f"{measured.run:,} of {measured.needed:,} runs" if measured.partial else "",
        _stand_ins(measured),
        measured.about,
        _so_far(claim, holds, missed) if measured.partial and chance is None else "",
        "" if holds else _describe_possible(claim, measured),
        "" if chance is None else _describe_chance(claim, measured, chance, holds),
        "" if measured.partial else claim.note,
    )
    ratio = _ratio(claim, measured.value)
    return Judged(
        claim, verdict, format_value(measured.value), "; ".join(filter(None, reasons)), holds, ratio,
        measure_deviation(claim, measured.value), measured.possible, _least_deviation(claim, measured),
    )  # fmt: skip


def as_measurement(found: Any) -> Measurement | None:
    """Return a measurement, or a number or statement about all runs as one; None if nothing was run."""
    return found if found is None or isinstance(found, Measurement) else Measurement(found)


def judge_all(claims: list[Claim], measured: Mapping[str, Any]) -> list[Judged]:
    """Judge all claims of an experiment by what `as_measurement` takes; each must have a claim."""
    unknown = set(measured) - {claim.id for claim in claims}
    if unknown:
        raise ValueError(f"No claim is called {', '.join(sorted(unknown))}.")
    return [judge(claim, as_measurement(measured.get(claim.id))) for claim in claims]


def _is_true(claim: Claim, measured: Measurement) -> bool:
    """Whether the claim is true; partial runs need only lie inside a range, whose ends need all runs."""
    if not (measured.partial and isinstance(claim.value, tuple)):
        return COMPARISONS[claim.comparison](claim, measured.value)
    low, high = claim.value
    wider = (low / claim.factor, high * claim.factor) if claim.comparison == "order" else (low, high)
    return _inside(replace(claim, value=wider), measured.value)


def _decides_against(claim: Claim, measured: Measurement, holds: bool) -> bool:
    """Whether a part of the runs decides against the claim.

    A counterexample in a part is one in the whole. Numbers may still move: only far ones decide. Of medians
    it is known which ones are possible: they decide if none of these agrees.
    """
    if claim.comparison == "overall":
        return False
    nearest = _nearest_possible(claim, measured)
    if nearest is not None:
        return not COMPARISONS[claim.comparison](claim, nearest)
    far = replace(claim, tolerance=FAR * claim.tolerance, factor=ORDER * claim.factor)
    return not holds and (claim.comparison == "draw" or not _is_true(far, measured))


def _ratio(claim: Claim, ours: Any) -> float | None:
    """Ours over the paper's number, for a comparison by order of one number that depends on training."""
    if not (claim.trained and claim.comparison == "order" and isinstance(claim.value, float)):
        return None
    return float(ours) / claim.value


def measure_deviation(claim: Claim, ours: Any) -> float | None:
    """Factor, at least 1, between our numbers and the paper's; beyond its bound or range if it has one.

    None for statements, and where a number is not positive.
    """
    if claim.value is None:
        return None
    paper, mine = _numbers(claim.value), _numbers(ours)
    if not all(number > 0 for number in (*paper, *mine)):
        return None
    if claim.comparison in ("bound", "range", "rounding", "limit"):
        below = min(paper) / min(mine) if claim.comparison == "range" else 1.0
        return float(max(1.0, below, max(mine) / max(paper)))
    return float(max(max(a / b, b / a) for a, b in zip(paper, mine, strict=True)))


def _nearest_possible(claim: Claim, measured: Measurement) -> float | None:
    """Number nearest to the paper's that all runs can give, whatever the missing ones give."""
    if (
        measured.possible is None
        or np.isnan(measured.possible).any()
        or not isinstance(claim.value, float | int)
    ):
        return None
    return float(np.clip(claim.value, *measured.possible))


def _least_deviation(claim: Claim, measured: Measurement) -> float | None:
    nearest = _nearest_possible(claim, measured) if measured.partial else measured.value
    return None if nearest is None else measure_deviation(claim, nearest)


def _describe_possible(claim: Claim, measured: Measurement) -> str:
    """What the missing runs can still change."""
    least = _least_deviation(claim, measured) if measured.partial else None
    if least is None:
        return ""
    if least == 1:
        return "the missing runs can still give the paper's number"
    return f"at least a factor of {least:.3g} from the paper's, whatever the missing runs give"


def _stand_ins(measured: Measurement) -> str:
    if not measured.stand_ins:
        return ""
    every = measured.stand_ins == measured.run
    return f"{'all' if every else f'{measured.stand_ins:,} of them'} on stand-in data"


def _describe_chance(claim: Claim, measured: Measurement, chance: float, holds: bool) -> str:
    """The p-value of a "draw", and which factors the comparison notices."""
    partly = "compatible with further draws, " if measured.partial else ""
    factor = resolution(claim, measured)
    noticed = f", notices factors above {factor:.2g}" if isfinite(factor) else ""
    return f"{partly if holds else 'incompatible, '}p = {chance:.2g}{noticed}"


def _so_far(claim: Claim, holds: bool, missed: bool) -> str:
    """Verdict on a part of the runs."""
    if isinstance(claim.value, tuple):
        about = "within an order of" if claim.comparison == "order" else "inside"
        return f"{about if holds else 'far outside' if missed else 'outside'} the paper's range"
    if missed:
        return "far outside so far" if claim.comparison in ("equal", "order") else "a counterexample"
    return f"{'agrees' if holds else 'disagrees'} so far"


COMPARISONS: dict[str, Callable[[Claim, Any], bool]] = {
    "equal": _equal,
    "draw": _draw,
    "range": _inside,
    "bound": _bound,
    "order": _order,
    "rounding": _rounding,
    "limit": _bound,
    "always": _always,
    "overall": _always,
}
MEANINGS = {
    "equal": "the same up to the claim's tolerance",
    "draw": (
        "the paper's number and ours are compatible with one distribution, that of our further draws; "
        f"false alarms: {FALSE_ALARMS:.0%} of such claims"
    ),
    "range": "inside the paper's range",
    "bound": "at most the paper's number",
    "order": "within a factor of the paper's number: √10, or less for quantities that are bounded",
    "rounding": f"zero up to rounding: at most {SLACK:g} times the paper's, or {ROUNDING:g} if it has none",
    "limit": "at most a limit that we set, because the paper prints no number",
    "always": "a statement that must be true of every run",
    "overall": "a statement about medians over all runs that must be true",
}
"""Condition of each comparison on our number."""
