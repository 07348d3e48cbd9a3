"""Centered targets, local epochs and proximal weight (Appendices F.2 to F.4, Figures 12 to 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from fedgram.display.plotting import BLUE, GREY, INK, ORANGE
from fedgram.paper.networks import cohorts, metrics, panels, tables
from fedgram.paper.networks.cohorts import BUDGETS, THREE, WEIGHTS, Condition, proximal
from fedgram.paper.networks.comparable import TITLES, ComparableRuns, Row, pair_runs
from fedgram.paper.networks.metrics import Findings, Found, Metric, Reference
from fedgram.paper.networks.results import Result
from fedgram.paper.networks.settings import ALL
from fedgram.paper.plots import TERM_NAMES
from fedgram.runs.procedure import PROXIMAL

PRINTED = (50, 400, 1000, 4000)  # local epochs whose medians Appendix F.3 prints
LOWEST = WEIGHTS.index(1e-3)  # where the paper's medians are smallest
BELOW = 0.1  # direction error for which Appendix F.3 names the first sufficient budget
ZERO = 2e-7  # place of the weight 0 on a log axis, left of the positive ones
Against = Literal["epochs", "seconds"]
AXES: dict[Against, str] = {
    "epochs": "local epochs $E$ in a round",
    "seconds": "a run's share of its stack's time, seconds",
}
TYPICAL_DIRECTION = metrics.Median(metrics.direction("barycenter"), is_by_setting=True)
LOOK = panels.Look(panels.REFERENCE_COLORS["barycenter"], "o")
OBSERVED = panels.Look(INK, "o")


def measure_means(shown: ComparableRuns) -> Found:
    """Measure training on centered targets, Appendix F.2."""
    found = Findings(cohorts.MEANS, shown)
    turned = metrics.direction("barycenter")
    return {
        "means-positive": found.always(lambda run: _left(run)[0] > 0, "centered"),
        "means-direction": found.median("centered", turned),
        "means-ratio": found.median("centered", lambda run: _left(run)[1]),
        "means-far": found.share(lambda run: turned(run) > 0.05, "centered"),
        "means-moved": found.share(lambda a, b: abs(turned(a) - turned(b)) > 0.02, "centered", "ordinary"),
    }


def _left(run: Result) -> tuple[float, float]:
    """Smallest eigenvalue of G_within - G_T, and its trace over tr(M_Σ + M_A)."""
    gap = run.within - run.grams[-1]
    return float(np.linalg.eigvalsh(gap)[0]), float(np.trace(gap) / run.gap_terms[1:].sum())


def measure_epochs(shown: ComparableRuns) -> Found:
    """Measure endpoints against local epochs, Appendix F.3."""
    found = Findings(cohorts.EPOCHS, shown)
    printed = {budget: Condition("ordinary", budget) for budget in PRINTED}
    budgets: Found = {
        f"epochs-{budget}": found.fair(condition, TYPICAL_DIRECTION) for budget, condition in printed.items()
    }
    firsts: Found = {
        f"epochs-first-{name}": found.at(name).over(cohorts.EPOCHS.conditions, _first_budget) for name in ALL
    }
    return budgets | firsts | {"epochs-falls": found.over(tuple(printed.values()), _falls_with_epochs)}


def _falls_with_epochs(rows: list[Row]) -> bool:
    """Whether the median over settings of the median direction error falls with every larger E."""
    medians = (TYPICAL_DIRECTION([(run,) for run in runs]) for runs in zip(*rows, strict=True))
    return all(a > b for a, b in pairwise(medians))


def _first_budget(rows: list[Row]) -> float:
    """First budget of the paper whose median direction error is below 0.1; infinite if none is."""
    below = metrics.medians(rows, metrics.direction("barycenter")) < BELOW
    return float(BUDGETS[int(below.argmax())]) if below.any() else float("inf")


def measure_rho(shown: ComparableRuns) -> Found:
    """Measure the dependence on the proximal weight, Appendix F.4 and Table 5."""
    found = Findings(cohorts.RHO, shown)
    sweep = tuple(map(proximal, WEIGHTS))
    return tables.WEIGHT.measure(shown) | {
        "rho-delta-falls": found.always(metrics.smaller(metrics.last_delta), "proximal", "ordinary"),
        "rho-endpoint-falls": found.always(metrics.smaller(metrics.endpoint), "proximal", "ordinary"),
        "rho-delta-valley": found.over(sweep, partial(_valley, metric=metrics.last_delta)),
        "rho-endpoint-valley": found.over(sweep, partial(_valley, metric=metrics.endpoint)),
        "rho-objective-least": found.over(
            sweep, lambda rows: metrics.medians(rows, metrics.objective_gap).argmin() == 0
        ),
        "rho-objective-rises": found.over(sweep, partial(_rises, metric=metrics.objective_gap)),
    }


def _valley(rows: list[Row], metric: Metric) -> bool:
    """Whether the medians fall up to ρ = 1e-3 and rise after it."""
    found = metrics.medians(rows, metric)
    falls = all(a > b for a, b in pairwise(found[: LOWEST + 1]))
    return falls and _rises(rows, metric)


def _rises(rows: list[Row], metric: Metric) -> bool:
    """Whether the medians rise from ρ = 1e-3 on."""
    return all(a < b for a, b in pairwise(metrics.medians(rows, metric)[LOWEST:]))


def draw_means(shown: ComparableRuns) -> Any:
    """Draw the terms of the predicted gap before and after centering targets, and the observed gap."""
    drawn = list[Result]()
    figure, axes = panels.make_setting_panels(shown.settings, 1.7, ylabel="trace / predicted gap")
    for setting, axis in axes.items():
        conditions = [shown.runs(setting, name, THREE) for name in ("ordinary", "centered")]
        drawn += [run for condition in conditions for run in condition]
        _draw_gap_bars(axis, conditions)
        _draw_observed_gaps(axis, conditions)
        axis.set_xticks((0, 1), ("before", "after"))
        axis.set_xlim(-0.6, 1.6)
    names = (f"tr {TERM_NAMES[0]}", f"tr({TERM_NAMES[1]} + {TERM_NAMES[2]})")
    handles = [*_patches(names, (BLUE, ORANGE)), OBSERVED.handle("observed, a seed each")]
    without = [TITLES[name] for name in shown.settings if not shown.runs(name, "centered", THREE)]
    note = f"Without runs on centered targets: {', '.join(without)}." if without else ""
    return panels.finish_figure(figure, drawn, handles, note=note, settings=ALL)


def gap_share(run: Result, reference: Reference) -> float:
    """tr(reference - G_T) as a share of the trace of the predicted gap G_cen - G_⋆."""
    return float(np.trace(getattr(run, reference) - run.grams[-1]) / run.gap_terms.sum())


def _draw_gap_bars(axis: Any, conditions: list[list[Result]]) -> None:
    """Draw predicted shares of the terms, averaged over seeds; centering leaves no mean term."""
    for place, condition in enumerate(conditions):
        if condition:
            shares = np.mean([run.gap_terms / run.gap_terms.sum() for run in condition], axis=0)
            rest = shares[1] + shares[2]
            axis.bar(place, rest, 0.7, color=ORANGE, alpha=0.8)
            axis.bar(place, 0.0 if place else shares[0], 0.7, bottom=rest, color=BLUE, alpha=0.8)


def _draw_observed_gaps(axis: Any, conditions: list[list[Result]]) -> None:
    """Draw a marker for each seed, and join those of both conditions."""
    references: tuple[Reference, Reference] = ("centralized", "within")
    for pair in pair_runs(*conditions):
        gaps = [gap_share(run, reference) for run, reference in zip(pair, references, strict=True)]
        axis.plot((0, 1), gaps, color=INK, lw=0.5)
    for place, (condition, reference) in enumerate(zip(conditions, references, strict=True)):
        observed = [(gap_share(run, reference), [run]) for run in condition]
        panels.draw_run_markers(axis, place, observed, OBSERVED)


def _patches(names: Sequence[str], colors: Sequence[str]) -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(color=color, alpha=0.8, label=name) for name, color in zip(names, colors, strict=True)]


def draw_epochs(shown: ComparableRuns) -> Any:
    """Draw the direction error of ordinary training to G_⋆ against local epochs."""
    label = f"$d(G_T,$ {panels.STAR})"
    handles = [LOOK.handle(panels.SEEDS)]
    return draw_budgets(shown, {"ordinary": LOOK}, metrics.direction("barycenter"), label, handles)


def draw_budgets(
    shown: ComparableRuns, looks: Mapping[str, panels.Look], metric: Metric, label: str, handles: list[Any],
    against: Against = "epochs", seeds: tuple[int, ...] = THREE,
) -> Any:  # fmt: skip
    """Draw a quantity of procedures, which have these looks, for every budget of local epochs."""
    drawn = list[Result]()
    figure, axes = panels.make_setting_panels(shown.settings, 1.6, AXES[against], label)
    for setting, axis in axes.items():
        for procedure, look in looks.items():
            groups = _by_budget(shown, setting, procedure, seeds)
            places = [float(np.median([getattr(run, against) for run in group])) for group in groups]
            panels.draw_runs(axis, places, groups, metric, look)
            drawn += [run for group in groups for run in group]
        axis.set(xscale="log", yscale="log")
        axis.minorticks_off()
    if against == "epochs" and drawn:
        panels.set_epoch_ticks(axes[shown.settings[0]], drawn)  # shared by all panels
    return panels.finish_figure(figure, drawn, handles, settings=ALL)


def _by_budget(
    shown: ComparableRuns, setting: str, procedure: str, seeds: tuple[int, ...]
) -> list[list[Result]]:
    """Runs of a procedure in one setting, grouped by local epochs, ascending."""
    conditions = {shown.scale.epochs(budget): Condition(procedure, budget) for budget in BUDGETS}
    groups = [shown.runs(setting, condition, seeds) for condition in conditions.values()]
    return [group for group in groups if group]


def draw_weights(shown: ComparableRuns) -> Any:
    """Draw the endpoint error to G_⋆ against the proximal weight, with weight 0 apart."""
    drawn = list[Result]()
    label = f"$e_F(G_T,$ {panels.STAR})"
    figure, axes = panels.make_setting_panels(shown.settings, 1.6, "proximal weight ρ", label)
    for setting, axis in axes.items():
        groups = {weight: shown.runs(setting, proximal(weight), THREE) for weight in WEIGHTS}
        drawn += [run for group in groups.values() for run in group]
        _draw_baseline(axis, groups.pop(0.0))
        panels.draw_runs(axis, groups, groups.values(), metrics.endpoint, LOOK)
        axis.set(xscale="log", yscale="log", xlim=(ZERO / 4, 4))
        axis.set_xticks([ZERO, 1e-5, 1e-3, 1e-1], ["0", "1e-5", "1e-3", "0.1"], fontsize=7)
        axis.minorticks_off()
    handles = [LOOK.handle(panels.SEEDS), panels.legend_line("the paper's ρ = 10⁻³", GREY, "--")]
    return panels.finish_figure(figure, drawn, handles, settings=ALL)


def _draw_baseline(axis: Any, runs: list[Result]) -> None:
    """Draw the errors at weight 0 left of a grey gap in the axis, and the paper's weight as a guide."""
    panels.draw_run_markers(axis, ZERO, [(metrics.endpoint(run), [run]) for run in runs], LOOK)
    axis.axvspan(ZERO * 4, 3e-6, color=GREY, alpha=0.15, lw=0)
    axis.axvline(PROXIMAL, color=GREY, ls="--", lw=0.8, zorder=0)
