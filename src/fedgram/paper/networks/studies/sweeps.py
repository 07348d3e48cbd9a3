"""What is left without the mean term, and what local epochs and the proximal weight do: Figures 12 to 14."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import BLUE, GREY, INK, ORANGE
from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import BUDGETS, THREE, WEIGHTS, Condition, proximal
from fedgram.paper.networks.comparable import ComparableRuns, Row, paired
from fedgram.paper.networks.metrics import (
    Findings,
    Found,
    Metric,
    direction,
    endpoint,
    last_delta,
    medians,
    objective_gap,
    smaller,
)
from fedgram.paper.networks.panels import (
    REFERENCE_COLOURS,
    STAR,
    below,
    epoch_ticks,
    finish,
    line,
    setting_panels,
)
from fedgram.paper.networks.provenance import Reference, values
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import ALL
from fedgram.paper.plots import TERM_NAMES, not_run, range_band
from fedgram.runs.procedure import PROXIMAL

ZERO = 2e-7  # where the weight 0 stands on a log axis: left of the positive ones, and apart from them
COLOUR = REFERENCE_COLOURS["barycenter"]


def draw_means(results: Results) -> Any:
    """The predicted gap before and after centering targets, by its terms, with the observed one on it."""
    shown, drawn = ComparableRuns.from_results(results), list[Result]()
    figure, axes = setting_panels(shown.settings, 1.7, sharex=True, sharey=True)
    for setting, axis in axes.items():
        conditions = [shown.runs(setting, name, THREE) for name in ("ordinary", "centered")]
        drawn += [run for condition in conditions for run in condition]
        _gap_bars(axis, conditions)
        _observed_gaps(axis, conditions)
        axis.set_xticks((0, 1), ("before", "after"))
        axis.set_xlim(-0.6, 1.6)
    figure.supylabel("trace / predicted gap", fontsize=8)
    names = (f"tr {TERM_NAMES[0]}", f"tr({TERM_NAMES[1]} + {TERM_NAMES[2]})")
    handles = [*_patches(names, (BLUE, ORANGE)), line("observed, a seed each", INK, "-", "o")]
    return finish(figure, drawn, handles, note=shown.left_out)


def gap_share(run: Result, reference: Reference) -> float:
    """tr(reference - G_T) as a share of the trace of the predicted gap G_cen - G_⋆."""
    return float(np.trace(getattr(run, reference) - run.grams[-1]) / run.gap_terms.sum())


def draw_epochs(results: Results) -> Any:
    """Direction error of ordinary training to G_⋆ against local epochs."""
    shown, drawn = ComparableRuns.from_results(results), list[Result]()
    figure, axes = setting_panels(shown.settings, 1.6, sharex=True, sharey=True)
    budgets = {shown.scale.epochs(budget): Condition("ordinary", budget) for budget in BUDGETS}
    for setting, axis in axes.items():
        groups = {x: shown.runs(setting, condition, THREE) for x, condition in budgets.items()}
        _medians(axis, {x: values(group, direction("barycenter")) for x, group in groups.items()})
        drawn += [run for group in groups.values() for run in group]
        axis.set(xscale="log", yscale="log")
        axis.minorticks_off()
    epoch_ticks(axes[shown.settings[0]], drawn)  # which all panels share
    below(axes, "local epochs $E$ in a round")
    figure.supylabel(f"$d(G_T,\\,${STAR}$)$", fontsize=8)
    handles = [line("median over seeds; the band spans them", COLOUR, "-", "o")]
    return finish(figure, drawn, handles, note=shown.left_out)


def draw_weights(results: Results) -> Any:
    """Endpoint error to G_⋆ against the proximal weight; no weight at all stands apart."""
    shown, drawn = ComparableRuns.from_results(results), list[Result]()
    figure, axes = setting_panels(shown.settings, 1.6, sharex=True, sharey=True)
    for setting, axis in axes.items():
        groups = {weight: shown.runs(setting, proximal(weight), THREE) for weight in WEIGHTS}
        errors = {weight: values(group, endpoint) for weight, group in groups.items()}
        if any(groups.values()):
            _baseline(axis, errors.pop(0.0))
        _medians(axis, errors)
        drawn += [run for group in groups.values() for run in group]
        axis.set(xscale="log", yscale="log", xlim=(ZERO / 4, 4))
        axis.set_xticks([ZERO, 1e-5, 1e-3, 1e-1], ["0", "1e-5", "1e-3", "0.1"], fontsize=7)
        axis.minorticks_off()
    below(axes, r"proximal weight $\rho$")
    figure.supylabel(f"$e_F(G_T,\\,${STAR}$)$", fontsize=8)
    handles = [
        line("median over seeds; the band spans them", COLOUR, "-", "o"),
        line(r"the paper's $\rho=10^{-3}$", GREY, "--"),
    ]
    return finish(figure, drawn, handles, note=shown.left_out)


def _medians(axis: Any, samples: dict[float, Array]) -> None:
    """Medians with the range of the seeds at each place that has any: samples (seeds,) by place."""
    present = {place: values for place, values in samples.items() if values.size}
    if present:
        range_band(axis, list(present), list(present.values()), COLOUR, marker="o")
    elif not axis.lines:
        not_run(axis)


def _baseline(axis: Any, values: Array) -> None:
    """The errors without any weight, left of a grey gap in the axis, and the paper's weight as a guide."""
    if values.size:
        axis.plot([ZERO, ZERO], [values.min(), values.max()], color=COLOUR, lw=4, alpha=0.25)
        axis.plot(ZERO, np.median(values), "o", color=COLOUR)
    axis.axvspan(ZERO * 4, 3e-6, color="0.93", lw=0)
    axis.axvline(PROXIMAL, color=GREY, ls="--", lw=0.8, zorder=0)


def _gap_bars(axis: Any, conditions: list[list[Result]]) -> None:
    """Predicted shares of the terms, computed per seed and averaged; centering leaves no mean term."""
    for place, condition in enumerate(conditions):
        if condition:
            shares = np.mean([run.gap_terms / run.gap_terms.sum() for run in condition], axis=0)
            rest = shares[1] + shares[2]
            axis.bar(place, rest, 0.7, color=ORANGE, alpha=0.8)
            axis.bar(place, 0.0 if place else shares[0], 0.7, bottom=rest, color=BLUE, alpha=0.8)
        elif any(conditions):
            axis.text(place, 0.5, "not run", rotation=90, ha="center", va="center", fontsize=7, color=GREY)
    if not any(conditions):
        not_run(axis)


def _observed_gaps(axis: Any, conditions: list[list[Result]]) -> None:
    """A marker for each seed, those of both conditions joined."""
    references: tuple[Reference, Reference] = ("centralized", "within")
    for place, (condition, reference) in enumerate(zip(conditions, references, strict=True)):
        if gaps := [gap_share(run, reference) for run in condition]:
            axis.plot(np.full(len(gaps), place), gaps, "o", color=INK, mfc="w", ms=3.5, zorder=3)
    pairs = [(gap_share(one, "centralized"), gap_share(two, "within")) for one, two in paired(*conditions)]
    for pair in pairs:
        axis.plot((0, 1), pair, color=INK, lw=0.5)
    if pairs:
        axis.fill_between((0, 1), np.min(pairs, axis=0), np.max(pairs, axis=0), color=INK, alpha=0.1, lw=0)


def _patches(names: Sequence[str], colours: Sequence[str]) -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(color=colour, alpha=0.8, label=name) for name, colour in zip(names, colours, strict=True)]


LOWEST = WEIGHTS.index(1e-3)


BELOW = 0.1  # the direction error whose first budget Appendix F.3 names


def measure_means(shown: ComparableRuns) -> Found:
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


def measure_epochs(shown: ComparableRuns) -> Found:
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


def measure_rho(shown: ComparableRuns) -> Found:
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
