"""Tables of `advice.py`: how often verdicts are right on rows that they have not seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmark_pages import markdown_table
from fedgram._util.files import write_bytes
from fedgram.runs.advice import AUTO
from fedgram.training.verdicts import recommend
from site_results import geometric_mean

STORED = Path(__file__).with_name("advice_results.json")

SEEDS = {
    "5": "in view when the rule for working alone was last set",
    "6": "a draw that set no rule, 54 tables",
}
"""Seeds of the rows, their split and the networks; `sites.py` has 0 to 2."""

Results = Mapping[str, Mapping[str, Any]]
"""Verdicts and errors by problem, as `advice.measure` returns them."""


def write(results: Mapping[str, Results], path: Path) -> None:
    """Write a JSON file with one line per problem and seed."""
    blocks = []
    for seed, problems in results.items():
        lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in problems.items())
        blocks.append(f'"{seed}": {{\n' + ",\n".join(lines) + "\n}")
    write_bytes(path, ("{\n" + ",\n".join(blocks) + "\n}\n").encode())


def expected_change(result: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the change that the advice expects, with its interval: NaN with too few test rows."""
    mean, low, high = (np.nan if each is None else each for each in result["change"])
    return mean, low, high


def recommends_joining(result: Mapping[str, Any]) -> bool:
    """Whether `advise` recommends joining on a problem."""
    over_sites = result["over_sites"]
    return recommend(expected_change(result), np.inf if over_sites is None else over_sites) == AUTO


def gains_clearly(result: Mapping[str, Any]) -> bool:
    """Whether the interval of the expected change shows a gain."""
    return expected_change(result)[2] < 0


class Site(NamedTuple):
    """A site with its verdict, the interval of its gain, and its errors on unseen rows."""

    problem: str
    verdict: str
    high: float
    rows: int
    alone: float
    joined: float


def tables(results: Mapping[str, Results]) -> dict[str, str]:
    """Return the tables of every seed by the name of their markers."""

    def repeat_for_seeds(table: Callable[[Results], str]) -> str:
        return "\n".join(f"Seed {seed}, {SEEDS[seed]}:\n\n{table(each)}" for seed, each in results.items())

    return {"total advice": repeat_for_seeds(total_table), "site advice": repeat_for_seeds(site_table)}


def total_table(results: Results) -> str:
    """Answers for all sites of a problem, and what joining then changed on unseen rows."""
    answers: dict[str, Callable[[Mapping[str, Any]], bool]] = {
        "federate (clear gain)": lambda each: recommends_joining(each) and gains_clearly(each),
        "no clear difference": lambda each: recommends_joining(each) and not gains_clearly(each),
        "stay alone": lambda each: not recommends_joining(each),
    }
    rows = []
    for label, applies in answers.items():
        if found := [each["unseen_change"][0] for each in results.values() if applies(each)]:
            rows.append((label, str(len(found)), *_describe_changes(found)))
    changes = [each["unseen_change"][0] for each in results.values()]
    rows.append(("all problems", str(len(changes)), *_describe_changes(changes)))
    headings = ("answer", "problems", "error fell", "rose", "error after joining, geometric mean", "range")
    return f"{markdown_table(headings, rows)}\n{_describe_policies(results)}"


def _describe_changes(changes: Sequence[float]) -> tuple[str, str, str, str]:
    """Counts of falling and rising errors, and the ratio of errors."""
    ratios = 1 + np.array(changes)
    fell = int((ratios < 1).sum())
    mean = geometric_mean(ratios.tolist())
    return str(fell), str(len(ratios) - fell), f"{mean:.2f}", f"{ratios.min():.2f} to {ratios.max():.2f}"


def _describe_policies(results: Results) -> str:
    """Compare the recommendation with joining always and with the better choice, known afterwards."""
    ratio = {name: 1 + each["unseen_change"][0] for name, each in results.items()}
    followed = [ratio[name] if recommends_joining(each) else 1.0 for name, each in results.items()]
    always, best = list(ratio.values()), [min(each, 1.0) for each in ratio.values()]
    return (
        f"Error relative to working alone, geometric mean: {geometric_mean(followed):.3f} if all follow the "
        f"recommendation, {geometric_mean(always):.3f} if all join, {geometric_mean(best):.3f} with the "
        "better of both, known afterwards.\n"
    )


def site_table(results: Results) -> str:
    """Verdicts for single sites, and what joining then changed there on unseen rows."""
    sites = [site for name, each in results.items() for site in list_sites(name, each["sites"])]
    verdicts: dict[str, Callable[[Site], bool]] = {
        "clear gain": lambda site: site.verdict == "join",
        "no clear difference": lambda site: site.verdict == "undecided",
        "- of these, own interval shows a loss": lambda site: site.verdict == "undecided" and site.high < 0,
        "stay alone (clear loss)": lambda site: site.verdict == "alone",
        "too few test rows": lambda site: site.verdict == "untested",
    }
    rows = []
    for label, applies in verdicts.items():
        if not (found := [site for site in sites if applies(site)]):
            continue
        gained = sum(site.joined < site.alone for site in found)
        weights = np.array([site.rows for site in found])
        alone, joined = (np.array([getattr(site, kind) for site in found]) for kind in ("alone", "joined"))
        problems = len({site.problem for site in found})
        share = f"{gained} ({gained / len(found):.0%})"
        ratio = f"{weights @ joined / (weights @ alone):.2f}"
        rows.append((label, str(len(found)), str(problems), share, ratio))
    return markdown_table(
        ("verdict", "sites", "in problems", "gained on unseen rows", "error after joining, all their rows"),
        rows,
    )


def list_sites(problem: str, columns: Mapping[str, Sequence]) -> list[Site]:
    """Sites with unseen rows."""
    names = ("verdict", "high", "unseen_rows", "unseen_alone", "unseen_joined")
    rows = zip(*(columns[name] for name in names), strict=True)
    return [Site(problem, *row) for row in rows if row[2]]
