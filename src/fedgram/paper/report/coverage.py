"""Coverage of the paper's network experiments (its Tables 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedgram.data.problem import Kind
from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import BUDGETS, WEIGHTS, Cohort, Condition, proximal
from fedgram.paper.networks.comparable import KINDS, ComparableRuns
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import ALL, SETTINGS

STATES = {
    "full": "the paper's protocol",
    "part": "the paper's protocol, some of the runs",
    "reduced": "reduced: fewer local epochs",
    "none": "not run",
    "outside": "not part of the comparison",
}


@dataclass(frozen=True)
class ComparisonColumn:
    """A comparison: some conditions of a cohort."""

    heading: str
    cohort: Cohort
    conditions: tuple[str | Condition, ...]


def _column(heading: str, cohort: Cohort, *conditions: str | Condition) -> ComparisonColumn:
    return ComparisonColumn(heading, cohort, conditions)


MAIN = (
    _column("ordinary", cohorts.MAIN, "ordinary"),
    _column("proximal", cohorts.MAIN, "proximal"),
    _column("corrected", cohorts.MAIN, "corrected"),
    _column("corrected proximal", cohorts.MAIN, "proximal+corrected"),
    _column("aligned", cohorts.ALIGNMENT, "aligned"),
    _column("corrected aligned", cohorts.ALIGNMENT_CORRECTED, "aligned+corrected"),
    # The paper averages one run with and without alignment; we train two.
    _column("independent start", cohorts.MISMATCHED, cohorts.MISMATCHED.conditions[-1]),
    _column("solved (ours)", cohorts.SOLVED, *(Condition("solved", budget) for budget in BUDGETS)),
    _column("predict (ours)", cohorts.BETTER_PREDICTION, *cohorts.BETTER_PREDICTION.conditions),
)
SUPPLEMENTARY = (
    _column("means", cohorts.MEANS, "centered"),
    _column("E", cohorts.EPOCHS, *(Condition("ordinary", budget) for budget in BUDGETS)),
    _column("ρ", cohorts.RHO, *map(proximal, WEIGHTS)),
    _column("CNN", cohorts.ARCHITECTURE, cohorts.CNN),
    _column("CNN + C", cohorts.ARCHITECTURE, cohorts.CNN_CORRECTED),
    _column("RN34", cohorts.ARCHITECTURE, cohorts.RESNET34),
    _column("data", cohorts.LARGER_DATA, cohorts.LARGER),
    _column("full E = 4000", cohorts.FULL_MODEL, cohorts.FULL),
    _column("full E = 400", cohorts.FULL_MODEL, cohorts.FULL_SHORT),
    _column("full + C", cohorts.FULL_MODEL, cohorts.FULL_CORRECTED),
    _column("predict", cohorts.PREDICTION, *cohorts.PREDICTION.conditions),
)


def describe_coverage(results: Results) -> list[dict[str, Any]]:
    """Template values of the two coverage tables."""
    # At the smoke scale, embedded data replaces every dataset.
    by_setting = {
        name: Results(run for run in results if run.setting == name and run.scale != "smoke") for name in ALL
    }
    tables = {"Main experiments, alignment, and ours": MAIN, "Supplementary experiments": SUPPLEMENTARY}
    return [
        {
            "title": title,
            "headings": [column.heading for column in columns],
            "rows": [
                {
                    "title": SETTINGS[name].title,
                    "kinds": list_kinds(own),
                    "backbone": SETTINGS[name].backbone,
                    "cells": [find_state(own, name, column) for column in columns],
                }
                for name, own in by_setting.items()
            ],
        }
        for title, columns in tables.items()
    ]


def list_kinds(results: Iterable[Result]) -> list[Kind]:
    """Kinds of data among results, in the order of KINDS."""
    found = {run.kind for run in results}
    return [kind for kind in KINDS if kind in found]


def find_state(results: Results, setting: str, column: ComparisonColumn) -> tuple[str, str]:
    """Return the state (see STATES) of a comparison in a setting, and the text of its cell."""
    if setting not in column.cohort.settings:
        return "outside", "–"
    needed = len(column.conditions) * len(column.cohort.seeds)
    run, reduced = (_count(results.select(scale=scale), setting, column) for scale in ("paper", "reduced"))
    if run == needed:
        return "full", f"{run}"
    if run:
        return "part", f"{run} of {needed}"
    return ("reduced", f"{reduced} of {needed}") if reduced else ("none", "")


def _count(results: Results, setting: str, column: ComparisonColumn) -> int:
    comparable, seeds = ComparableRuns.from_results(results), column.cohort.seeds
    return sum(len(comparable.runs(setting, condition, seeds)) for condition in column.conditions)
