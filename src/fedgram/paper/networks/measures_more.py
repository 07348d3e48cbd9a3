"""The claims of Appendices F.5 to F.7, measured."""

from __future__ import annotations

import numpy as np

from fedgram.paper.claims import ORDER
from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import Condition
from fedgram.paper.networks.findings import (
    Findings,
    Found,
    Metric,
    both,
    change,
    closer_in_direction,
    direction,
    endpoint,
    error,
    every,
    last_delta,
    medians,
    removed,
    smaller,
    test_mse,
    train_mse,
    trajectory,
)
from fedgram.paper.networks.shown import Row, Shown

CORRECTED = ("aligned+corrected", "corrected", "proximal+corrected")


def measure_alignment(shown: Shown) -> Found:
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


def _mismatched(shown: Shown) -> Found:
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


def measure_architecture(shown: Shown) -> Found:
    """Other networks and larger data, first half of Table 8."""
    networks = Findings(cohorts.ARCHITECTURE, shown)
    larger = Findings(cohorts.LARGER_DATA, shown)
    return {
        **_robustness("cnn", networks, cohorts.CNN),
        **_robustness("cnn-corrected", networks, cohorts.CNN_CORRECTED),
        **_robustness("resnet34", networks, cohorts.RESNET34),
        **_robustness("larger", larger, cohorts.LARGER),
    }


def measure_full_model(shown: Shown) -> Found:
    """Full-model averaging, second half of Table 8."""
    found = Findings(cohorts.FULL_MODEL, shown)
    return {
        **_robustness("full-400", found, cohorts.FULL_SHORT),
        **_robustness("full-4000", found, cohorts.FULL),
        **_robustness("full-corrected", found, cohorts.FULL_CORRECTED),
    }


def _robustness(name: str, found: Findings, condition: Condition) -> Found:
    """A row of Table 8: direction errors, and the share of runs closer in direction to G_⋆."""
    return {
        f"{name}-to-barycenter": found.median(condition, direction("barycenter")),
        f"{name}-to-centralized": found.median(condition, direction("centralized")),
        f"{name}-closer": found.share(closer_in_direction, condition),
    }


def measure_prediction(shown: Shown) -> Found:
    """Test error, Table 9 and Figure 16."""
    found = Findings(cohorts.PREDICTION, shown)
    measured: Found = {}
    procedures = {"ordinary": "ordinary", "proximal": "proximal", "corrected": "proximal+corrected"}
    for name, words in procedures.items():
        measured[f"prediction-{name}-barycenter"] = found.fair_median(words, error("barycenter"))
        measured[f"prediction-{name}-centralized"] = found.fair_median(words, error("centralized"))
    for name in ("proximal", "corrected"):
        pair = procedures[name], "ordinary"
        measured |= {
            f"prediction-{name}-train": found.over(pair, lambda rows: _fall(rows, train_mse)),
            f"prediction-{name}-test": found.over(pair, lambda rows: _fall(rows, test_mse)),
            f"prediction-{name}-train-always": found.always(smaller(train_mse), *pair),
            f"prediction-{name}-test-share": found.share(smaller(test_mse), *pair),
        }
    return measured | {
        "prediction-proximal-test-largest": found.over(("proximal", "ordinary"), _largest_change),
        "prediction-corrected-test-range": found.over(("proximal+corrected", "ordinary"), _mean_changes),
        **{
            f"prediction-corrected-test-{setting}": Findings(cohorts.PREDICTION.at(setting), shown).over(
                ("proximal+corrected", "ordinary"), _mean_change
            )
            for setting in ("dsprites", "mpiigaze")
        },
    }


def _median_removed(rows: list[Row]) -> float:
    return float(np.median([removed(*row) for row in rows]))


def _range_over_settings(rows: list[Row]) -> tuple[float, float]:
    medians = [_median_removed(group) for group in _by_setting(rows)]
    return min(medians), max(medians)


def _by_setting(rows: list[Row]) -> list[list[Row]]:
    names = dict.fromkeys(row[0].setting for row in rows)
    return [[row for row in rows if row[0].setting == name] for name in names]


def _changes(rows: list[Row], metric: Metric) -> list[float]:
    return [change(metric)(*row) for row in rows]


def _fall(rows: list[Row], metric: Metric) -> float:
    """By how much a loss falls, median over pairs; negative if it rises."""
    return -float(np.median(_changes(rows, metric)))


def _largest_change(rows: list[Row]) -> float:
    return float(np.max(np.abs(_changes(rows, test_mse))))


def _mean_changes(rows: list[Row]) -> tuple[float, float]:
    """The least and the largest mean change of a setting."""
    means = [_mean_change(group) for group in _by_setting(rows)]
    return min(means), max(means)


def _mean_change(rows: list[Row]) -> float:
    return float(np.mean(_changes(rows, test_mse)))
