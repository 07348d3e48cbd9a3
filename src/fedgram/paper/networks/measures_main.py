"""The claims of Section 5.2 and Appendices F.1 to F.4, measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from fedgram.paper.claims import Measured
from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import BUDGETS, WEIGHTS, Condition, proximal
from fedgram.paper.networks.findings import (
    Findings,
    Found,
    Metric,
    closer_in_direction,
    direction,
    endpoint,
    error,
    last_delta,
    medians,
    objective_gap,
    smaller,
    trajectory,
)
from fedgram.paper.networks.results import Result
from fedgram.paper.networks.scales import SCALES
from fedgram.paper.networks.settings import ALL, SETTINGS
from fedgram.paper.networks.shown import Row, Shown
from fedgram.theory.penalty import Penalty

LOWEST = WEIGHTS.index(1e-3)
BELOW = 0.1  # the direction error whose first budget Appendix F.3 names


def measure_main(shown: Shown) -> Found:
    """Selection and moment correction, Table 4."""
    found = Findings(cohorts.MAIN, shown)
    measured: Found = {}
    for name, corrected in (("ordinary", "corrected"), ("proximal", "proximal+corrected")):
        measured |= {
            f"main-{name}-endpoint": found.fair_median(name, endpoint),
            f"main-{name}-trajectory": found.fair_median(name, trajectory),
            f"main-{name}-delta": found.fair_median(name, last_delta),
            f"main-{name}-corrected-direction-1": found.fair_median(corrected, direction("centralized", 1)),
            f"main-{name}-corrected-1": found.fair_median(corrected, error("centralized", 1)),
            f"main-{name}-corrected-endpoint": found.fair_median(corrected, endpoint),
        }
    return measured | _main_statements(found)


def _main_statements(found: Findings) -> Found:
    barycenter, centralized = error("barycenter"), error("centralized")
    four = tuple(condition.procedure for condition in cohorts.MAIN.conditions)
    return {
        "main-proximal-closer": found.always(smaller(endpoint), "proximal", "ordinary"),
        "main-proximal-medians": found.over(four, _proximal_medians_smaller),
        "main-to-barycenter": found.always(_nearer(barycenter, centralized), "proximal"),
        "main-to-centralized": found.always(_nearer(centralized, barycenter), "proximal+corrected"),
        "main-ordinary-direction": found.always(closer_in_direction, "ordinary"),
        "main-corrected-improves": found.over(("proximal+corrected",), _improves_after_round_1),
        "main-active": found.always(lambda run: run.least_variance > Penalty().threshold, "ordinary"),
        "main-smallest-variance": found.over(
            ("ordinary",), lambda rows: min(run.least_variance for (run,) in rows)
        ),
        "main-runs": Measured(_runs_in_all()),
    }


def measure_means(shown: Shown) -> Found:
    """Removing the mean contribution, Appendix F.2."""
    found = Findings(cohorts.MEANS, shown)
    turned = direction("barycenter")
    return {
        "means-positive": found.always(lambda run: _left(run)[0] > 0, "centered"),
        "means-direction": found.median("centered", turned),
        "means-ratio": found.median("centered", lambda run: _left(run)[1]),
        "means-far": found.share(lambda run: turned(run) > 0.05, "centered"),
        "means-moved": found.share(lambda a, b: abs(turned(a) - turned(b)) > 0.02, "centered", "ordinary"),
    }


def measure_epochs(shown: Shown) -> Found:
    """Local epochs and the endpoint, Appendix F.3."""
    found = Findings(cohorts.EPOCHS, shown)
    medians: Found = {
        f"epochs-{budget}": found.fair(Condition("ordinary", budget), _median_of_settings)
        for budget in (50, 400, 1000, 4000)
    }
    firsts: Found = {
        f"epochs-first-{name}": Findings(cohorts.EPOCHS.at(name), shown).over(
            cohorts.EPOCHS.conditions, _first_budget
        )
        for name in ALL
    }
    return medians | firsts


def measure_rho(shown: Shown) -> Found:
    """Dependence on the proximal weight, Appendix F.4 and Table 5."""
    found = Findings(cohorts.RHO, shown)
    metrics = {"delta": last_delta, "objective": objective_gap, "endpoint": endpoint}
    cells: Found = {
        f"rho-{weight:g}-{name}": found.fair_median(proximal(weight), metric)
        for weight in WEIGHTS
        for name, metric in metrics.items()
    }
    sweep = tuple(map(proximal, WEIGHTS))
    return cells | {
        "rho-delta-falls": found.always(smaller(last_delta), "proximal", "ordinary"),
        "rho-endpoint-falls": found.always(smaller(endpoint), "proximal", "ordinary"),
        "rho-delta-valley": found.over(sweep, partial(_valley, metric=last_delta)),
        "rho-endpoint-valley": found.over(sweep, partial(_valley, metric=endpoint)),
        "rho-objective-least": found.over(sweep, lambda rows: medians(rows, objective_gap).argmin() == 0),
        "rho-objective-rises": found.over(sweep, partial(_rises, metric=objective_gap)),
    }


def _nearer(near: Metric, far: Metric) -> Callable[[Result], bool]:
    return lambda run: near(run) < far(run)


def _proximal_medians_smaller(rows: list[Row]) -> bool:
    """Whether every median of Table 4 is smaller under proximal training."""
    ordinary, near = [(row[0], row[2]) for row in rows], [(row[1], row[3]) for row in rows]
    free, corrected = (
        (endpoint, trajectory, last_delta),
        (direction("centralized", 1), error("centralized", 1)),
    )
    better = [medians(near, metric)[0] < medians(ordinary, metric)[0] for metric in free]
    better += [medians(near, metric)[1] < medians(ordinary, metric)[1] for metric in (*corrected, endpoint)]
    return all(better)


def _improves_after_round_1(rows: list[Row]) -> bool:
    return bool(medians(rows, endpoint)[0] < medians(rows, error("centralized", 1))[0])


def _runs_in_all() -> int:
    """How many different runs all comparisons of the paper ask for.

    Those with mismatched coordinates are one for each initialisation, setting and seed.
    """
    sources = {(name, larger): SETTINGS[name].sources[0] for name in ALL for larger in (False, True)}
    others = (cohort for cohort in cohorts.PAPER if cohort is not cohorts.MISMATCHED)
    keys = {key for cohort in others for key in cohort.keys(SCALES["paper"], sources)}
    return len(keys) + 2 * len(cohorts.MISMATCHED.settings) * len(cohorts.MISMATCHED.seeds)


def _left(run: Result) -> tuple[float, float]:
    """Smallest eigenvalue of G_within - G_T, and its trace over tr(M_Σ + M_A)."""
    gap = run.within - run.grams[-1]
    return float(np.linalg.eigvalsh(gap)[0]), float(np.trace(gap) / run.gap_terms[1:].sum())


def _median_of_settings(rows: list[Row]) -> float:
    """Median over settings of the median over seeds of the direction error to G_⋆."""
    settings = dict.fromkeys(run.setting for (run,) in rows)
    turned = direction("barycenter")
    return float(
        np.median([np.median([turned(run) for (run,) in rows if run.setting == name]) for name in settings])
    )


def _first_budget(rows: list[Row]) -> float:
    """The first budget of the paper whose median direction error is below 0.1; infinite if none is."""
    below = medians(rows, direction("barycenter")) < BELOW
    return float(BUDGETS[int(below.argmax())]) if below.any() else float("inf")


def _valley(rows: list[Row], metric: Metric) -> bool:
    """Whether the medians fall up to ρ = 1e-3 and rise after it."""
    found = medians(rows, metric)
    falls = all(a > b for a, b in pairwise(found[: LOWEST + 1]))
    return falls and _rises(rows, metric)


def _rises(rows: list[Row], metric: Metric) -> bool:
    """Whether the medians rise from ρ = 1e-3 on."""
    return all(a < b for a, b in pairwise(medians(rows, metric)[LOWEST:]))
