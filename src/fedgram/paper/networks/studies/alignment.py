"""Alignment of returned heads (Appendix F.5): claims and figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgram.display.plotting import GREY, INK
from fedgram.paper.claims import ORDER
from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import (
    ALIGNED,
    FIVE,
    START_PAIRS,
    THREE,
)
from fedgram.paper.networks.comparable import ComparableRuns, Row
from fedgram.paper.networks.metrics import (
    Findings,
    Found,
    Metric,
    _by_setting,
    both,
    endpoint,
    error,
    every,
    last_delta,
    medians,
    removed,
    smaller,
    trajectory,
)
from fedgram.paper.networks.panels import (
    LOOKS,
    REFERENCE_NAMES,
    WIDTH,
    Look,
    finish,
    line,
    seed_dots,
    setting_slots,
)
from fedgram.paper.networks.provenance import Reference, corrected, pair_values, values
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.plots import panels

SELECTION = ("ordinary", "proximal", "aligned")


STARTS = {"common": Look(INK, "o"), "independent": Look(GREY, "^")}


def draw_alignment(results: Results) -> Any:
    """Endpoint errors of three ways to select, and what alignment takes off one averaging's objective."""
    shown = ComparableRuns.from_results(results)
    figure, axes = panels(3, 1, (WIDTH, 6.6), sharex=True)
    drawn = _selected(axes[0], shown, "barycenter", SELECTION, FIVE)
    drawn += _selected(axes[1], shown, "centralized", tuple(map(corrected, SELECTION)), THREE)
    drawn += _removed(axes[2], shown)
    looks = {name: LOOKS[name] for name in SELECTION}
    looks |= {f"{name} initial backbones": look for name, look in STARTS.items()}
    handles = [line(name, look.colour, "", look.marker, "none") for name, look in looks.items()]
    return finish(figure, drawn, handles, columns=5)


def _selected(
    axis: Any, shown: ComparableRuns, reference: Reference, procedures: Sequence[str], seeds: Sequence[int]
) -> list[Result]:
    """Endpoint errors of procedures side by side in every setting of the alignment experiments."""
    drawn = list[Result]()
    for place, setting in enumerate(ALIGNED):
        for side, name, procedure in zip((-0.24, 0.0, 0.24), SELECTION, procedures, strict=True):
            if group := shown.runs(setting, procedure, seeds):
                seed_dots(axis, place + side, values(group, endpoint), LOOKS[name])
                drawn += group
    axis.set(yscale="log", ylabel=f"$e_F(G_T,\\,${REFERENCE_NAMES[reference]}$)$")
    axis.set_title("without correction" if reference == "barycenter" else "with moment correction")
    setting_slots(axis, ALIGNED, {run.setting for run in drawn})
    return drawn


def _removed(axis: Any, shown: ComparableRuns) -> list[Result]:
    """The share of the objective that alignment removes from the first averaging, by initial backbones."""
    drawn = list[Result]()
    for place, setting in enumerate(ALIGNED):
        for side, (start, look) in zip((-0.15, 0.15), STARTS.items(), strict=True):
            raw, aligned = (shown.runs(setting, condition) for condition in START_PAIRS[start])
            if (shares := pair_values(raw, aligned, removed)).size:
                seed_dots(axis, place + side, 100 * shares, look)
                drawn += [*raw, *aligned]
    axis.set(ylabel="% of the objective")
    axis.set_title("what alignment removes from the objective after the first averaging")
    setting_slots(axis, ALIGNED, {run.setting for run in drawn})
    return drawn


CORRECTED = ("aligned+corrected", "corrected", "proximal+corrected")


def measure_alignment(shown: ComparableRuns) -> Found:
    """Selection by alignment, Tables 6 and 7."""
    found = Findings(cohorts.ALIGNMENT, shown)
    corrected = Findings(cohorts.ALIGNMENT_CORRECTED, shown)
    free = {"delta": last_delta, "trajectory": trajectory, "endpoint": endpoint}
    measured: Found = {}
    for name in ("ordinary", "proximal", "aligned"):
        words = "corrected" if name == "ordinary" else f"{name}+corrected"
        measured |= {
            f"alignment-{name}-{what}": found.fair_median(name, metric) for what, metric in free.items()
        }
        measured[f"alignment-{name}-corrected-1"] = corrected.fair_median(words, error("centralized", 1))
        measured[f"alignment-{name}-corrected-8"] = corrected.fair_median(words, endpoint)
    for what, metric in free.items():
        measured[f"alignment-below-ordinary-{what}"] = found.always(smaller(metric), "aligned", "ordinary")
    for number in (2, 3):
        there = corrected.fair_median("proximal+corrected", error("centralized", number))
        measured[f"alignment-proximal-corrected-{number}"] = there
    return measured | {
        "alignment-below-proximal-trajectory": found.always(smaller(trajectory), "aligned", "proximal"),
        "alignment-below-proximal-endpoint": found.share(smaller(endpoint), "aligned", "proximal"),
        "alignment-medians": both(
            found.over(("aligned", "ordinary", "proximal"), lambda rows: _first_least(rows, *free.values())),
            corrected.over(CORRECTED, lambda rows: _first_least(rows, error("centralized", 1), endpoint)),
        ),
        "alignment-three-rounds": corrected.over(CORRECTED[::2], _three_rounds_for_one),
        **_mismatched(shown),
    }


def _first_least(rows: list[Row], *metrics: Metric) -> bool:
    """Whether the first condition has the least median of each quantity."""
    return all(medians(rows, metric).argmin() == 0 for metric in metrics)


def _three_rounds_for_one(rows: list[Row]) -> bool:
    """Whether the second condition is of the order of the first one's round 1 in round 3, not before."""
    there = medians(rows, error("centralized", 1))[0]
    later = [medians(rows, error("centralized", number))[1] / there for number in (1, 2, 3)]
    return bool(later[1] > ORDER >= later[2] and later[0] > ORDER)


def _mismatched(shown: ComparableRuns) -> Found:
    """The part of the training objective that alignment removes from one aggregation."""
    measured: Found = {}
    for name, pair in cohorts.START_PAIRS.items():
        found = Findings(cohorts.MISMATCHED, shown)
        lower = every(lambda raw, aligned: removed(raw, aligned) > 0)
        measured[f"mismatched-{name}-lower"] = found.over(pair, lower, as_one=True)
        measured[f"mismatched-{name}-range"] = found.over(pair, _range_over_settings, as_one=True)
        for setting in cohorts.ALIGNED:
            one = Findings(cohorts.MISMATCHED.at(setting), shown)
            measured[f"mismatched-{name}-{setting}"] = one.over(pair, _median_removed, as_one=True)
    return measured


def _median_removed(rows: list[Row]) -> float:
    return float(np.median([removed(*row) for row in rows]))


def _range_over_settings(rows: list[Row]) -> tuple[float, float]:
    medians = [_median_removed(group) for group in _by_setting(rows)]
    return min(medians), max(medians)
