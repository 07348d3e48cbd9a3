"""What the claims about finite steps are held against (Appendix G.4)."""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.claims import ROUNDING, Measured
from fedgram.paper.columns import extent
from fedgram.paper.experiment import Results
from fedgram.paper.style import log_slope
from fedgram.paper.tables import Table


def measure(results: Results) -> dict[str, Measured]:
    """Numbers for the claims about finite steps."""
    sweep_, commuting_, moved = results["sweep"], results["commuting"], results["displacement"]
    h = sweep_["rate"] * sweep_["steps"]
    long, longest = h >= 40, sweep_["steps"] == 2000
    checked = longest & np.isin(sweep_["rate"], (0.1, 0.5))
    ratio = moved["measured"] / moved["predicted"]
    return _redrawn(results["redraws"], sweep_, checked, long) | {
        "finite-one-step": Measured(float(sweep_["to_within"][sweep_["steps"] == 1].max())),
        "finite-linear": Measured(_linear_slope(sweep_)),
        "finite-approach": Measured(_approaches(sweep_)),
        "finite-crossing": Measured(_crossing(sweep_)),
        "finite-rounds-slope": Measured(_rounds_slope(sweep_)),
        "finite-local-gram": Measured(float(sweep_["gram_error"][checked].max())),
        "finite-head-motion": Measured(bool((sweep_["head_motion"][sweep_["steps"] > 1] > 1e-12).all())),
        "finite-commuting-selection": Measured(float(commuting_["selection_error"].max())),
        "finite-commuting-distance": Measured(float(commuting_["to_star"].max())),
        "finite-coordinates": Measured(len(ratio)),
        "finite-signs": Measured(bool((ratio > 0).all()) and set(np.sign(moved["predicted"])) == {-1, 1}),
        "finite-ratios": Measured(
            _small_step_ratios(moved)[0],
            _spread_of_extents(np.array(_small_step_ratios(results["displacement_redraws"]))),
        ),
    } | _stability(results["stability"])  # fmt: skip


def _redrawn(redrawn: Table, sweep_: Table, checked: Array, long: Array) -> dict[str, Measured]:
    """Claims that depend on the draw of three instances, with the spread over groups of three."""
    plateau = _by_instance(sweep_, "to_star", long)
    selection = _by_instance(sweep_, "selection_error", checked)
    groups = {name: redrawn[name].reshape(-1, 3) for name in redrawn if name != "group"}
    first = (sweep_["rate"] == 0.02) & (sweep_["steps"] == 1)
    last = sweep_["rate"] * sweep_["steps"] >= 20
    return {
        "finite-plateau": Measured(extent(plateau), _spread_of_extents(groups["to_star"])),
        "finite-local-selection": Measured(extent(selection), _spread_of_extents(groups["selection_error"])),
        "finite-rounds-small": Measured(
            float(np.median(sweep_["rounds"][first])), (extent(np.median(groups["rounds_short"], axis=1)),)
        ),
        "finite-rounds-large": Measured(
            float(np.median(sweep_["rounds"][last])), (extent(np.median(groups["rounds_long"], axis=1)),)
        ),
    }


def _small_step_ratios(table: Table) -> list[tuple[float, float]]:
    """Range of measured over predicted where h <= 0.25, for every four instances: eight configurations."""
    small = table["rate"] * table["steps"] <= 0.25 + 1e-12  # 0.05 x 5 is a rounding error above 0.25
    ratio, group = (table["measured"] / table["predicted"])[small], table["instance"][small] // 4
    return [extent(ratio[group == number]) for number in np.unique(group)]


def _stability(records: Table) -> dict[str, Measured]:
    error = np.abs(records["radius"] - records["predicted"])
    keys = list(zip(records["family"], records["instance"], records["steps"], strict=True))
    slopes = []
    for key in dict.fromkeys(keys):
        chosen = np.array([other == key for other in keys])
        if key[0] == "near_threshold":
            chosen &= records["h"] <= 1e-3
        slopes.append(log_slope(records["h"][chosen], error[chosen]))
    return {
        "finite-records": Measured(len(error)),
        "finite-stable": Measured(bool((records["radius"] < 1).all())),
        "finite-slope": Measured(float(np.median(slopes))),
    }


def _by_instance(table: Table, name: str, chosen: Array) -> Array:
    """Median of a column over the chosen rows of each instance."""
    instances = np.unique(table["instance"])
    return np.array([np.median(table[name][chosen & (table["instance"] == i)]) for i in instances])


def _spread_of_extents(groups: Array) -> tuple[tuple[float, float], tuple[float, float]]:
    """Over groups (G, members): how the smallest of a group spreads, and how the largest does."""
    return extent(groups.min(axis=1)), extent(groups.max(axis=1))


def _medians(table: Table, name: str) -> tuple[Array, Array, Array]:
    """Rates, step counts and the median of a column over instances, one entry per (η, E)."""
    pairs = sorted(set(zip(table["rate"].tolist(), table["steps"].tolist(), strict=True)))
    chosen = [(table["rate"] == rate) & (table["steps"] == steps) for rate, steps in pairs]
    return (*np.array(pairs).T, np.array([np.median(table[name][rows]) for rows in chosen]))


def _linear_slope(table: Table) -> float:
    rate, steps, distance = _medians(table, "to_within")
    small = (steps > 1) & (rate * (steps - 1) <= 0.1)
    return log_slope((rate * (steps - 1))[small], distance[small])


def _approaches(table: Table) -> bool:
    """Whether more steps never move a fixed point back, at each instance and rate and up to rounding."""
    order = np.lexsort((table["steps"], table["rate"], table["instance"]))
    counts = len(np.unique(table["steps"]))
    away, left = (np.diff(table[name][order].reshape(-1, counts)) for name in ("to_within", "to_star"))
    return bool((away > -ROUNDING).all() and (left < ROUNDING).all())


def _rounds_slope(table: Table) -> float:
    rate, steps, rounds = _medians(table, "rounds")
    small = rate * steps <= 0.5
    return log_slope((rate * steps)[small], rounds[small])


def _crossing(table: Table) -> float:
    """η(E - 1) where the two medians are first equal, between the neighbours on a log axis."""
    rate, steps, near = _medians(table, "to_within")
    ratio = np.log(near / _medians(table, "to_star")[2])
    x = rate * (steps - 1)
    order = np.argsort(x)[np.sort(x) > 0]
    first = max(1, int(np.argmax(ratio[order] > 0)))
    beside = order[first - 1 : first + 1]  # further on the ratio need not grow
    return float(np.exp(np.interp(0.0, ratio[beside], np.log(x[beside]))))
