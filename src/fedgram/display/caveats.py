"""Caveats of an analysis: what its intervals assume, how targets were scaled, and what is unreliable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import percent, quote_list
from fedgram.data.outliers import describe_outliers
from fedgram.display.analysis import FEW_ROWS, Analysis

DOMINANT = 0.75
"""Share of one client in all rows above which its count may be a mistake."""


def assumptions(analysis: Analysis) -> list[str]:
    """State what the intervals assume, and whether targets were standardized."""
    lines = []
    if analysis.scale is not None:
        lines.append(scaling(analysis.moments.targets, analysis.scale))
    if analysis.intervals is not None:
        resamples = f"Intervals come from {analysis.intervals.resamples:,} resamples"
        assumed = {
            "moments": "normal targets and independent rows; skewed or heavy tails make them too narrow",
            "rows": "independent rows (use --time COLUMN for time series)",
            "blocks of rows": "that blocks of rows are independent",
        }.get(analysis.sampled)
        of_what = f" of {analysis.sampled}. They assume {assumed}." if assumed else "."
        lines.append(resamples + of_what)
    return lines


def scaling(targets: Sequence[str], scale: Array) -> str:
    """State what targets were divided by, and which numbers have which units."""
    return (
        f"Targets were divided by their scales ({list_scales(targets, scale)}). Mean errors and RMS "
        "differences are in the targets' own units; all other numbers are of the divided targets."
    )


def list_scales(targets: Sequence[str], scale: Array) -> str:
    """List what each target was divided by."""
    return ", ".join(f"{name} {value:.3g}" for name, value in zip(targets, scale, strict=True))


def warnings(analysis: Analysis) -> list[str]:
    """State what makes the answer unreliable."""
    found = [_few_rows, _dominant_client, _outliers, _heavy_tails]
    return [warning for find in found for warning in find(analysis)]


def _few_rows(analysis: Analysis) -> list[str]:
    if not analysis.few_rows:
        return []
    have = "has" if len(analysis.few_rows) == 1 else "have"
    narrow = ", and its interval is too narrow" if analysis.intervals else ""
    few = f"{quote_list(analysis.few_rows)} {have} fewer than {FEW_ROWS} rows per target"
    return [f"{few}. The gap is uncertain{narrow}."]


def _dominant_client(analysis: Analysis) -> list[str]:
    moments = analysis.moments
    m = int(np.argmax(moments.client_weights))
    if (weight := float(moments.client_weights[m])) <= DOMINANT:
        return []
    what = "rows" if moments.is_weighted_by_rows else "weight"
    return [f"'{moments.clients[m]}' has {percent(weight)} of all {what}. Check that this is right."]


def _outliers(analysis: Analysis) -> list[str]:
    if not analysis.outliers:
        return []
    rest = analysis.relative_without_outliers
    change = "" if rest is None else f" Without their rows the gap is {percent(rest)}."
    remedy = "--robust clipped them." if analysis.is_robust else "Correct them, or use --robust."
    return [f"{describe_outliers(analysis.outliers)}{change} {remedy}"]


def _heavy_tails(analysis: Analysis) -> list[str]:
    if not analysis.heavy_tails or analysis.intervals is None:
        return []
    client, target, kurtosis = max(analysis.heavy_tails, key=lambda found: found[2])
    return [
        f"'{target}' has heavy tails, most at '{client}' (kurtosis {kurtosis:.0f}, normal 3). The intervals "
        "are too narrow."
    ]
