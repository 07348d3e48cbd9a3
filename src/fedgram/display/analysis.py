"""What a prediction says about one federation, collected for text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram.data.outliers import Outliers
from fedgram.theory.effects import Effects, effects
from fedgram.theory.explain import Gap
from fedgram.theory.intervals import Intervals
from fedgram.theory.moments import Moments
from fedgram.theory.noise import noise_intervals
from fedgram.theory.predict import Prediction

# Rows per target below which a client's moments are uncertain.
FEW_ROWS = 10
# Kurtosis above which moments of a sample say too little about the population. It is 3 for normal targets,
# and about 5 to 20 in samples of Student's t with 5 degrees of freedom, where intervals keep their coverage.
HEAVY_TAILS = 30.0


@dataclass(frozen=True, eq=False)
class Analysis:
    """A gap with its effects, intervals and warnings.

    Parameters
    ----------
    gap, effects
        Results of `explain` and `effects`.
    units
        Unit of each target, or its name.
    scale
        Pooled standard deviations by which targets were divided, (C,), or None.
    intervals
        Result of `intervals`, or None.
    sampled
        What was resampled: "moments", "rows" or "blocks of rows"; empty if that is not known.
    outliers
        Clients and targets with values far from the others.
    relative_without_outliers
        Relative gap without the rows of outliers, or None.
    is_robust
        Whether targets were winsorized.
    heavy_tails
        (client, target, kurtosis) where it is above HEAVY_TAILS.
    noise
        Result of `noise_intervals`; None if no client's moments are private.
    """

    gap: Gap
    effects: Effects
    units: tuple[str, ...]
    scale: Array | None = None
    intervals: Intervals | None = None
    sampled: str = "moments"
    outliers: Sequence[Outliers] = ()
    relative_without_outliers: float | None = None
    is_robust: bool = False
    heavy_tails: Sequence[tuple[str, str, float]] = ()
    noise: Intervals | None = None

    @property
    def prediction(self) -> Prediction:
        """The explained prediction."""
        return self.gap.prediction

    @property
    def moments(self) -> Moments:
        """Moments of the prediction."""
        return self.prediction.moments

    @property
    def unit_scale(self) -> Array:
        """Size of each target's unit in the prediction, (C,)."""
        return np.ones(len(self.units)) if self.scale is None else self.scale

    @property
    def is_standardized(self) -> bool:
        """Whether targets were divided by their pooled standard deviations."""
        return self.scale is not None and bool(np.allclose(self.moments.pooled.deviation, 1))

    @property
    def few_rows(self) -> tuple[str, ...]:
        """Clients with fewer than 10 rows per target."""
        least = FEW_ROWS * len(self.moments.targets)
        counts = zip(self.moments.clients, self.moments.count, strict=True)
        return tuple(name for name, count in counts if count < least)


def analyze_gap(gap: Gap, scale: Array | None = None, found: Intervals | None = None) -> Analysis:
    """Analyze a gap without its rows; scale (C,): unit of each target, by default that of the moments."""
    moments = gap.prediction.moments
    scale = moments.scale if scale is None else scale
    return Analysis(
        gap,
        effects(gap.prediction, scale),
        moments.targets,
        scale=scale if (scale != 1).any() else None,
        intervals=found,
        sampled="moments" if found is None or found.is_parametric else "",
        noise=noise_intervals(gap.prediction, scale=scale),
    )


def find_heavy_tails(rows: dict[str, Array], targets: Sequence[str]) -> list[tuple[str, str, float]]:
    """List clients and targets with a large kurtosis: rows (n, C) of each client."""
    found = []
    for client, values in rows.items():
        centered = values - values.mean(axis=0)
        kurtosis = (centered**4).mean(axis=0) / (centered**2).mean(axis=0) ** 2
        by_target = zip(targets, kurtosis.tolist(), strict=True)
        found += [(client, name, value) for name, value in by_target if value > HEAVY_TAILS]
    return found
