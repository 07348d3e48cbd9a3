"""Coverage of the paper's network experiments and datasets (its Tables 1 to 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedgram.data.problem import Kind
from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import BUDGETS, Cohort, Condition
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
    """A comparison: all conditions of a cohort, or `only` some."""

    heading: str
    cohort: Cohort
    only: tuple[str | Condition, ...] = ()

    @property
    def conditions(self) -> tuple[str | Condition, ...]:
        """Conditions that it compares."""
        return self.only or self.cohort.conditions


MAIN = (
    ComparisonColumn("ordinary", cohorts.MAIN, ("ordinary",)),
    ComparisonColumn("proximal", cohorts.MAIN, ("proximal",)),
    ComparisonColumn("corrected", cohorts.MAIN, ("corrected",)),
    ComparisonColumn("corrected proximal", cohorts.MAIN, ("proximal+corrected",)),
    ComparisonColumn("aligned", cohorts.ALIGNMENT, ("aligned",)),
    ComparisonColumn("corrected aligned", cohorts.ALIGNMENT_CORRECTED, ("aligned+corrected",)),
    # The paper averages one run with and without alignment; we train two.
    ComparisonColumn("independent start", cohorts.MISMATCHED, cohorts.MISMATCHED.conditions[-1:]),
    ComparisonColumn("solved (ours)", cohorts.SOLVED, tuple(Condition("solved", each) for each in BUDGETS)),
    ComparisonColumn("predict (ours)", cohorts.BETTER_PREDICTION),
)
SUPPLEMENTARY = (
    ComparisonColumn("means", cohorts.MEANS, ("centered",)),
    ComparisonColumn("E", cohorts.EPOCHS),
    ComparisonColumn("ρ", cohorts.RHO),
    ComparisonColumn("CNN", cohorts.ARCHITECTURE, (cohorts.CNN,)),
    ComparisonColumn("CNN + C", cohorts.ARCHITECTURE, (cohorts.CNN_CORRECTED,)),
    ComparisonColumn("RN34", cohorts.ARCHITECTURE, (cohorts.RESNET34,)),
    ComparisonColumn("data", cohorts.LARGER_DATA),
    ComparisonColumn("full E = 4000", cohorts.FULL_MODEL, (cohorts.FULL,)),
    ComparisonColumn("full E = 400", cohorts.FULL_MODEL, (cohorts.FULL_SHORT,)),
    ComparisonColumn("full + C", cohorts.FULL_MODEL, (cohorts.FULL_CORRECTED,)),
    ComparisonColumn("predict", cohorts.PREDICTION),
)


def describe_coverage(results: Results) -> list[dict[str, Any]]:
    """Template values of the two coverage tables."""
    # At the smoke scale, embedded data replaces every dataset.
    by_setting = {
        name: Results(run for run in results if run.setting == name and run.scale != "smoke") for name in ALL
    }
    kinds = {name: list_kinds(own) for name, own in by_setting.items()}
    tables = {"Main experiments, alignment, and ours": MAIN, "Supplementary experiments": SUPPLEMENTARY}
    return [
        {
            "title": title,
            "headings": [column.heading for column in columns],
            "rows": [
                vars(SETTINGS[name])
                | {"kinds": kinds[name], "cells": [find_state(own, name, column) for column in columns]}
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


def describe_datasets(results: Results) -> list[dict[str, Any]]:
    """Template values of the table of datasets: the paper's sizes (Table 1) beside ours."""
    own = Results(run for run in results if run.scale != "smoke" and not run.larger)
    rows = []
    for name, setting in SETTINGS.items():
        run = next(iter(ComparableRuns.from_results(own.select(setting=name)).by_key.values()), None)
        paper = setting.targets, setting.size.clients, setting.size.rows, setting.size.test_rows
        ours: tuple[int | None, ...] = (None,) * len(paper)
        if run:
            ours = run.grams.shape[-1], len(run.client_grams), run.train_rows, run.test_rows
        row = {"title": setting.title, "kinds": list_kinds([run] if run else [])}
        row |= {"dataset": run.dataset if run else "not run", "shape": " × ".join(map(str, setting.inputs))}
        rows.append(row | {"cells": list(zip(paper, ours, strict=True))})
    return rows
