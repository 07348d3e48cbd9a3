"""Alignment of returned heads (Appendix F.5, Tables 6 and 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgram.display.plotting import GREY, INK
from fedgram.paper.claims import ORDER
from fedgram.paper.networks import cohorts, metrics, panels, tables
from fedgram.paper.networks.cohorts import ALIGNED, FIVE, START_PAIRS, THREE, with_correction
from fedgram.paper.networks.comparable import ComparableRuns, Row, pair_runs
from fedgram.paper.networks.metrics import Findings, Found, Metric, Reference
from fedgram.paper.networks.results import Result
from fedgram.paper.plots import make_panels

SELECTION = ("ordinary", "proximal", "aligned")
CORRECTED = tuple(map(with_correction, ("aligned", "ordinary", "proximal")))
ALIKE = 1.5  # the paper's largest factor is 1.30
STARTS = {"common": panels.Look(INK, "o"), "independent": panels.Look(GREY, "^")}


def measure_alignment(shown: ComparableRuns) -> Found:
    """Measure selection by alignment, Tables 6 and 7."""
    found = Findings(cohorts.ALIGNMENT, shown)
    corrected = Findings(cohorts.ALIGNMENT_CORRECTED, shown)
    free = {"delta": metrics.last_delta, "trajectory": metrics.trajectory, "endpoint": metrics.endpoint}
    measured = tables.ALIGNMENT.measure(shown)
    for what, metric in free.items():
        measured[f"alignment-below-ordinary-{what}"] = found.always(
            metrics.smaller(metric), "aligned", "ordinary"
        )
    for number in (2, 3):
        median = metrics.Median(metrics.error("centralized", number))
        measured[f"alignment-proximal-corrected-{number}"] = corrected.fair("proximal+corrected", median)
    return measured | {
        "alignment-below-proximal-trajectory": found.always(
            metrics.smaller(metrics.trajectory), "aligned", "proximal"
        ),
        "alignment-below-proximal-endpoint": found.share(
            metrics.smaller(metrics.endpoint), "aligned", "proximal"
        ),
        "alignment-medians": metrics.both(
            found.over(("aligned", "ordinary", "proximal"), lambda rows: _first_least(rows, *free.values())),
            corrected.over(
                CORRECTED, lambda rows: _first_least(rows, metrics.error("centralized", 1), metrics.endpoint)
            ),
        ),
        "alignment-three-rounds": corrected.over(CORRECTED[::2], _three_rounds_for_one),
        **_measure_mismatched(shown),
    }


def _first_least(rows: list[Row], *quantities: Metric) -> bool:
    """Whether the first condition has the least median of each quantity."""
    return all(metrics.medians(rows, metric).argmin() == 0 for metric in quantities)


def _three_rounds_for_one(rows: list[Row]) -> bool:
    """Whether the second condition needs three rounds for the order of the first one's round 1."""
    there = metrics.medians(rows, metrics.error("centralized", 1))[0]
    later = [metrics.medians(rows, metrics.error("centralized", number))[1] / there for number in (1, 2, 3)]
    return bool(later[1] > ORDER >= later[2] and later[0] > ORDER)


def _measure_mismatched(shown: ComparableRuns) -> Found:
    """Measure the part of the objective that alignment removes from one averaging."""
    found = Findings(cohorts.MISMATCHED, shown)
    measured: Found = {}
    lower = metrics.every(lambda raw, aligned: metrics.removed(raw, aligned) > 0)
    for name, pair in START_PAIRS.items():
        measured[f"mismatched-{name}-lower"] = found.over(pair, lower, as_one=True)
        measured[f"mismatched-{name}-range"] = found.over(pair, _range_over_settings, as_one=True)
        for setting in ALIGNED:
            there = found.at(setting).over(pair, _median_removed, as_one=True)
            measured[f"mismatched-{name}-{setting}"] = there
    four = (*START_PAIRS["common"], *START_PAIRS["independent"])
    return measured | {"mismatched-similar": found.over(four, _removes_alike)}


def _removes_alike(rows: list[Row]) -> bool:
    """Whether the medians for both starts differ by less than a factor of 1.5 in every setting."""
    removed = [
        (_median_removed([row[:2] for row in group]), _median_removed([row[2:] for row in group]))
        for group in metrics.by_setting(rows)
    ]
    return all(common < ALIKE * other and other < ALIKE * common for common, other in removed)


def _median_removed(rows: list[Row]) -> float:
    return float(np.median([metrics.removed(*row) for row in rows]))


def _range_over_settings(rows: list[Row]) -> tuple[float, float]:
    medians = [_median_removed(group) for group in metrics.by_setting(rows)]
    return min(medians), max(medians)


def draw_alignment(shown: ComparableRuns) -> Any:
    """Draw endpoint errors of three procedures, and the share of the objective that alignment removes."""
    settings = [setting for setting in ALIGNED if setting in shown.settings]
    if not settings:
        return None
    figure, axes = make_panels(3, 1, (panels.WIDTH, 6.6), sharex=True)
    drawn = _draw_endpoints(axes[0], shown, settings, "barycenter", SELECTION, FIVE)
    corrected = tuple(map(with_correction, SELECTION))
    drawn += _draw_endpoints(axes[1], shown, settings, "centralized", corrected, THREE)
    drawn += _draw_removed(axes[2], shown, settings)
    looks = {name: panels.LOOKS[name] for name in SELECTION}
    looks |= {f"{name} initial backbones": look for name, look in STARTS.items()}
    handles = [look.handle(name, "") for name, look in looks.items()]
    return panels.finish_figure(figure, drawn, handles, columns=5, note="Bars are medians.", settings=ALIGNED)


def _draw_endpoints(
    axis: Any, shown: ComparableRuns, settings: Sequence[str], reference: Reference,
    procedures: Sequence[str], seeds: Sequence[int],
) -> list[Result]:  # fmt: skip
    """Draw endpoint errors of procedures side by side in every setting."""
    drawn = list[Result]()
    for place, setting in enumerate(settings):
        for side, name, procedure in zip((-0.24, 0.0, 0.24), SELECTION, procedures, strict=True):
            if group := shown.runs(setting, procedure, seeds):
                errors = [metrics.endpoint(run) for run in group]
                panels.draw_seed_dots(
                    axis, place + side, errors, [[run] for run in group], panels.LOOKS[name]
                )
                drawn += group
    axis.set(yscale="log", ylabel=f"$e_F(G_T,$ {panels.REFERENCE_NAMES[reference]})")
    axis.margins(y=0.12)  # markers at the lowest error stay whole
    axis.set_title("without correction" if reference == "barycenter" else "with moment correction")
    panels.mark_settings(axis, settings)
    return drawn


def _draw_removed(axis: Any, shown: ComparableRuns, settings: Sequence[str]) -> list[Result]:
    """Draw the share of the objective that alignment removes from the first averaging."""
    drawn = list[Result]()
    for place, setting in enumerate(settings):
        for side, (start, look) in zip((-0.15, 0.15), STARTS.items(), strict=True):
            pairs = pair_runs(*(shown.runs(setting, condition) for condition in START_PAIRS[start]))
            if shares := [100 * metrics.removed(*pair) for pair in pairs]:
                panels.draw_seed_dots(axis, place + side, shares, pairs, look)
                drawn += [run for pair in pairs for run in pair]
    axis.set(ylabel="% of the objective")
    axis.set_title("what alignment removes from the objective after the first averaging")
    panels.mark_settings(axis, settings)
    return drawn
