"""Count the paper's numbers that ours agree with, at several factors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedgram.paper.claims import FACTORS, Claim, judge_all, load_claims
from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.studies.registry import STUDIES


@dataclass(frozen=True)
class Agreement:
    """Ratios of our numbers to the paper's, for one selection of runs and claims."""

    label: str
    ratios: tuple[float, ...]

    def count_within(self, factor: float) -> int:
        """Number of ratios between 1 / factor and factor."""
        return sum(1 / factor <= ratio <= factor for ratio in self.ratios)

    @property
    def counts(self) -> list[int]:
        """Numbers within each of `FACTORS`."""
        return [self.count_within(factor) for factor in FACTORS]


def measure_agreement(results: Iterable[Result], scale: str = "paper") -> list[Agreement]:
    """Compare the numbers that depend on training, for all data, REAL data, and like for like.

    Only runs at the given scale count, which must be the paper's whole protocol.
    """
    runs = Results(run for run in results if run.scale == scale)
    real = Results(run for run in runs if run.kind == "REAL")
    everything, real_only = measure_ratios(runs), measure_ratios(real)
    return [
        Agreement("all data", tuple(everything.values())),
        Agreement("REAL data alone", tuple(real_only.values())),
        Agreement("said of tabular data alone", _said_of("tabular", everything)),
        Agreement("said of tabular data alone, REAL data alone", _said_of("tabular", real_only)),
    ]


def _said_of(data: str, ratios: dict[Claim, float]) -> tuple[float, ...]:
    return tuple(ratio for claim, ratio in ratios.items() if claim.data == data)


def measure_ratios(runs: Results) -> dict[Claim, float]:
    """Our number over the paper's for every claim that is compared by order."""
    shown = ComparableRuns.from_results(runs)
    judged = (
        each
        for study in STUDIES.values()
        for each in judge_all(load_claims(study.name), study.measure(shown) if runs else {})
    )
    return {each.claim: each.ratio for each in judged if each.ratio is not None}
