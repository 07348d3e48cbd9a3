"""The report's opening: what was claimed, what we found, what we add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedgram._util.text import pluralize
from fedgram.display.plotting import INK
from fedgram.paper.networks import metrics, panels
from fedgram.paper.networks.agreement import Agreement
from fedgram.paper.networks.cohorts import BUDGETS, FIVE, Condition
from fedgram.paper.networks.comparable import KINDS, TITLES, ComparableRuns
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import ALL
from fedgram.paper.plots import format_power, make_panels

Documents = Sequence[Mapping[str, Any]]
SHORT = 400  # local epochs at which solved returns are compared: a tenth of the paper's
SIZE = (3.7, 3.1)  # inches; two panels side by side, or below each other on a phone
ENDS = {
    "ordinary": "main-ordinary-endpoint",
    "proximal": "main-proximal-endpoint",
    "aligned": "alignment-aligned-endpoint",
    "proximal+corrected": "main-proximal-corrected-endpoint",
    "solved": "",
}
"""Procedures of the first panel, each with the claim that has the paper's median."""


class Sentence(NamedTuple):
    """One sentence and its heading."""

    heading: str
    text: str


def tell_story(
    exact: Documents, networks: Documents, results: Results, agreement: Agreement
) -> list[Sentence]:
    """Return five sentences, four without results of networks; numbers come from claims and results.

    agreement: of all numbers that depend on training.
    """
    story = [
        Sentence(
            "Claimed",
            "Averaging a shared regression head ends at the barycenter G⋆ of the clients' optima, and one "
            "exchange of moments moves the end to centralized training, G_cen.",
        ),
        Sentence("Exact model", _tell_exact(exact)),
        Sentence("Networks", _tell_networks(networks, results, agreement)),
        Sentence("Added", _tell_added(results)),
    ]
    if results:
        story.insert(3, Sentence("Differences", _tell_differences(networks)))
    return story


def _tell_exact(claims: Documents) -> str:
    judged = [claim for claim in claims if claim["verdict"] in ("match", "compatible", "miss", "partial")]
    if not judged:
        return "The exact experiments were not run: 'fedgram reproduce ufm' takes six minutes."
    held = sum(claim["verdict"] != "miss" and claim["agrees"] is not False for claim in judged)
    partial = sum(claim["verdict"] == "partial" for claim in judged)
    so_far = f", {partial} of them with a part of the instances" if partial else ""
    return f"{held} of {len(judged)} claims about the unconstrained feature model hold{so_far}."


def _tell_networks(claims: Documents, results: Results, agreement: Agreement) -> str:
    found, compared = _by_id(claims), len(agreement.ratios)
    if not compared:
        if not results:
            return "The paper's network experiments were not run; their commands are below."
        if any(run.scale == "paper" for run in results):
            return "No number of the paper depends on the finished runs."
        runs = f"{pluralize(len(results))} {'is' if len(results) == 1 else 'are'}"
        return f"{runs} not at the paper's scale, so that its numbers cannot be compared."
    end = found["main-proximal-corrected-endpoint"]
    text = (
        f"Of {compared} numbers that depend on training, {agreement.count_within(2)} are within a "
        "factor of 2 of the paper's"
    )
    if end["ours"] == "-":
        return f"{text}."
    ours, paper = (_short(end[side]) for side in ("ours", "paper"))
    return f"{text}; corrected proximal training ends {ours} from G_cen (paper: {paper})."


def _tell_differences(claims: Documents) -> str:
    found, counts = _by_id(claims), [claim["verdict"] for claim in claims]
    missed, waiting = counts.count("miss"), counts.count("not run")
    text = (
        f"{pluralize(missed, 'claim')} about networks {'is' if missed == 1 else 'are'} missed and {waiting} "
        f"{'waits' if waiting == 1 else 'wait'} for runs that are listed below with their commands"
    )
    ordinary = found["main-ordinary-endpoint"]
    if ordinary["ours"] == "-" or ordinary["verdict"] == "not comparable":
        return f"{text}."
    ours, paper = (_short(ordinary[side]) for side in ("ours", "paper"))
    return f"Ordinary training ends {ours} from G⋆ (paper: {paper}); {text}."


def _tell_added(results: Results) -> str:
    medians = _short_medians(ComparableRuns.from_results(results))
    if not {"ordinary", "proximal", "solved"} <= set(medians):
        return (
            "Solved returns need no proximal weight, and an offset makes corrected predictions equal "
            "centralized ones."
        )
    numbers = {name: _short(value) for name, value in medians.items()}
    return (
        f"Solved returns end {numbers['solved']} from G⋆ after a tenth of the local epochs, where ordinary "
        f"training is {numbers['ordinary']} and proximal training {numbers['proximal']} away."
    )


def _short(number: str | float) -> str:
    """Two digits: 0.34, or 7.1 × 10⁻⁵ below a hundredth."""
    if float(number) >= 0.01:
        return f"{float(number):.2g}"
    digits, exponent = f"{float(number):.1e}".split("e")
    return f"{digits} × {format_power(10.0 ** int(exponent))}"


def _by_id(claims: Documents) -> dict[str, Mapping[str, Any]]:
    return {claim["id"]: claim for claim in claims}


def _short_medians(shown: ComparableRuns) -> dict[str, float]:
    """Median endpoint error after a tenth of the epochs, in the settings and seeds of all procedures."""
    condition = {name: Condition(name, SHORT) for name in panels.LOOKS}
    groups = {name: _matched(shown, list(condition.values()), each) for name, each in condition.items()}
    return {
        name: float(np.median([metrics.endpoint(run) for run in runs]))
        for name, runs in groups.items()
        if runs
    }


def _matched(shown: ComparableRuns, conditions: list[Condition], condition: Condition) -> list[Result]:
    kept = shown.same_seeds(conditions)
    settings = [name for name in ALL if all(kept.runs(name, each) for each in conditions)]
    return [run for name in settings for run in kept.runs(name, condition)]


def describe_opening(results: Results) -> str:
    """Caption of the figure: kinds of data, scale, and what bars and markers are."""
    shown = ComparableRuns.from_results(results)
    kinds = [
        f"{kind} data: {', '.join(names)}"
        for kind in KINDS
        if (
            names := list(
                dict.fromkeys(TITLES[run.setting] for run in shown.by_key.values() if run.kind == kind)
            )
        )
    ]
    bars = "Bars: the paper's medians over ten settings. " if shown.scale.name == "paper" else ""
    return f"A marker for each run, {shown.scale.name} scale. {bars}{'; '.join(kinds)}."


def draw_story(results: Results, networks: Documents) -> dict[str, Any]:
    """Draw two panels: ends of the procedures beside the paper's, and ends against local epochs."""
    shown, paper = ComparableRuns.from_results(results), _by_id(networks)
    panel: dict[str, Callable[[Any], None]] = {
        "Error at the end, every run": lambda axis: _draw_ends(axis, shown, paper),
        "Error at the end against local epochs": lambda axis: _draw_budgets(axis, shown),
    }
    figures = {}
    for title, draw in panel.items():
        figure, (axis,) = make_panels(1, 1, SIZE)
        draw(axis)
        axis.set_yscale("log")
        axis.minorticks_off()
        axis.set_title(title)
        figures[title] = panels.finish_figure(figure, []) if axis.has_data() else None
        figure.supxlabel("")
    return figures


def _draw_ends(axis: Any, shown: ComparableRuns, paper: Mapping[str, Mapping[str, Any]]) -> None:
    for place, (procedure, claim) in enumerate(ENDS.items()):
        runs = [run for setting in ALL for run in shown.runs(setting, procedure, FIVE)]
        look = panels.LOOKS.get(procedure, panels.Look(INK, "D", 5.0))
        for run, beside in zip(runs, np.linspace(-0.25, 0.25, max(len(runs), 1)), strict=False):
            panels.draw_run_markers(axis, place + beside, [(metrics.endpoint(run), [run])], look)
        if runs and claim and shown.scale.name == "paper":
            value = float(paper[claim]["paper"])
            axis.plot([place - 0.4, place + 0.4], [value] * 2, color=INK, lw=2)
    names = [f"{name.replace('+', chr(10) + '+ ')}" for name in ENDS]
    axis.set_xticks(range(len(ENDS)), names, fontsize=6.5)
    axis.set_ylabel("$e_F$ to the target")


def _draw_budgets(axis: Any, shown: ComparableRuns) -> None:
    conditions = [Condition(name, budget) for name in panels.LOOKS for budget in BUDGETS]
    for name, look in panels.LOOKS.items():
        groups = {
            shown.scale.epochs(budget): _matched(shown, conditions, Condition(name, budget))
            for budget in BUDGETS
        }
        if all(groups.values()):
            medians = [np.median([metrics.endpoint(run) for run in runs]) for runs in groups.values()]
            axis.plot(list(groups), medians, label=name, **look.open)
            axis.set_xscale("log")
            axis.set_xticks(list(groups)[::2], [f"{number}" for number in list(groups)[::2]])
    if axis.lines:
        axis.legend(loc="lower left")
    axis.set(xlabel="local epochs $E$ in a round", ylabel="median $e_F$ to the target")
