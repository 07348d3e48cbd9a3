"""Print reproductions to a terminal: claims, costs and the list of experiments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from fedgram.display.console import PlainTable, make_console, plain_table, print_table
from fedgram.paper.claims import Judged, Verdict
from fedgram.paper.launch.launch import StudyOutcome
from fedgram.paper.launch.plan import ExperimentPlan, Request, estimate_cost, plan_experiments
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import ALL
from fedgram.paper.networks.studies.registry import STUDIES, Study
from fedgram.paper.registry import GROUPS, MODULES, load_experiment
from fedgram.paper.ufm.experiment import Experiment
from fedgram.paper.ufm.runner import SCALES, Outcome, folder_of
from fedgram.runs.procedure import BIAS_RULES

STYLES: dict[Verdict, str] = {
    "match": "green",
    "compatible": "green",
    "miss": "bold red",
    "partial": "yellow",
    "not comparable": "dim",
    "not run": "dim",
}
COLUMNS = ("name", "what", "where", "cost", "finished")


console = make_console()

Group = tuple[str, int, str]
"""Setting, E and procedure."""

Rows = Sequence[tuple[Group, list[Result]]]
"""Runs of each group."""


def print_outcome(outcome: Outcome | StudyOutcome) -> None:
    """Print the claims of one experiment with our values and verdicts, or a summary if it has none."""
    if isinstance(outcome, Outcome):
        _print_title(outcome.experiment, f"GENERATED data, {outcome.scale} scale")
        _print_judged(outcome.judged)
    else:
        _print_title(outcome.plan.study, _describe_runs(outcome))
        if outcome.judged:
            _print_judged(outcome.judged)
        else:
            _print_summary(outcome.results)
        for reason in outcome.plan.reasons:
            console.print(reason, soft_wrap=True)
    console.print(f"Files: {outcome.files[-1].parent}", soft_wrap=True)


def _print_title(experiment: Experiment | Study, about: str) -> None:
    console.print(f"\n{experiment.name}: {experiment.title} ({experiment.where})")
    console.print(about, soft_wrap=True)


def _describe_runs(outcome: StudyOutcome) -> str:
    """Data, scale, and finished runs among the requested ones and, if different, among all."""
    plan, done = outcome.plan, {run.key for run in outcome.results}
    asked = f"finished: {sum(key in done for key in plan.wanted):,} of {len(plan.wanted):,} runs asked for"
    in_all = "" if len(plan.wanted) == plan.total else f", {len(done):,} of {plan.total:,} in all"
    return f"{outcome.data} data; {plan.scale.description}; {asked}{in_all}"


def _print_judged(claims: Sequence[Judged]) -> None:
    """Print claims with our values, and the number of each verdict."""
    table = plain_table("claim", "paper", "ours", "verdict", text=("claim", "verdict"))
    for judged in claims:
        claim, verdict = judged.claim, judged.verdict + (f": {judged.reason}" if judged.reason else "")
        table.add_row(claim.says, claim.paper, judged.ours, verdict, style=STYLES[judged.verdict])
    print_table(console, table)
    counts = Counter(judged.verdict for judged in claims)
    console.print(", ".join(f"{counts[verdict]} {verdict}" for verdict in STYLES if counts[verdict]) + ".")


def list_experiments(request: Request) -> list[dict[str, str]]:
    """List all experiments, by the headings of their columns."""
    rows = [*(_exact_row(name, request.out) for name in MODULES), *list_rows(request)]
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def _exact_row(name: str, out: Path) -> tuple[str, ...]:
    found = load_experiment(name)
    done = [scale for scale in SCALES if (folder_of(found, out, scale) / "manifest.json").exists()]
    return name, found.title, found.where, f"{found.cost} on 2 cores", ", ".join(done) or "no"


def print_list(experiments: Iterable[dict[str, str]]) -> None:
    """Print all experiments with their cost and progress."""
    table = plain_table(*COLUMNS, text=COLUMNS)
    for row in experiments:
        table.add_row(*row.values())
    print_table(console, table)
    groups = "; ".join(f"'{name}' runs {len(members)} experiments" for name, members in GROUPS.items())
    console.print(f"{groups}.", soft_wrap=True)


def cost_lines(plans: Sequence[ExperimentPlan]) -> list[str]:
    """Describe the runs that experiments will train, and those that they cannot."""
    in_all = estimate_cost(key for plan in plans for key in plan.missing)
    return [
        f"Scale {plans[0].scale.description}.",
        *(
            f"{plan.study.name}: {len(plan.wanted):,} of {plan.total:,} runs asked for, "
            f"{len(plan.wanted) - len(plan.missing):,} of them finished; {plan.remaining}."
            for plan in plans
        ),
        *([f"Experiments share runs; in all: {in_all}."] if len(plans) > 1 and in_all.runs else []),
        *dict.fromkeys(reason for plan in plans for reason in plan.reasons),
    ]


def list_rows(request: Request) -> list[tuple[str, ...]]:
    """List network experiments: name, title, place, cost with available settings, and finished runs."""
    results = Results.load(request.results_folder)
    return [_list_row(plan) for plan in plan_experiments(list(STUDIES.values()), request, results)]


def _list_row(plan: ExperimentPlan) -> tuple[str, ...]:
    study, settings = plan.study, {name for name, _ in plan.study.varieties}
    available = len(settings - {name for name, _ in plan.not_run})
    cost = f"{plan.remaining}; {available} of {len(settings)} settings available"
    finished = f"{len(plan.wanted) - len(plan.missing):,} of {plan.total:,} runs"
    return study.name, study.title, study.where, cost, finished


def _print_summary(results: Results) -> None:
    """Print medians over seeds of every budget and procedure, one table for each dataset."""
    groups: dict[Group, list[Result]] = {}
    for run in results:
        groups.setdefault((run.setting, run.epochs, run.procedure.name), []).append(run)
    ordered = sorted(groups.items(), key=lambda entry: (ALL.index(entry[0][0]), *entry[0][1:]))
    tables: dict[str, tuple[list[str], Rows]] = {}
    for setting, rows in groupby(ordered, key=lambda entry: entry[0][0]):
        found = list(rows)
        settings, _ = tables.setdefault(found[0][1][0].dataset, ([], found))
        settings.append(setting)  # at smoke scale several settings share their runs
    for settings, its_rows in tables.values():
        print_table(console, _summary(settings, its_rows))
    console.print(
        "Medians over seeds: error to the limit and test MSE under each bias after the last round; a run's "
        "share of the seconds of its stack.",
        soft_wrap=True,
    )


def _summary(settings: Sequence[str], rows: Rows) -> PlainTable:
    """Table of the settings that share one dataset."""
    any_run = rows[0][1][0]
    title = f"{any_run.dataset} ({any_run.kind}) for {', '.join(settings)}"
    table = plain_table(
        "E", "procedure", "seeds", "error", *BIAS_RULES, "seconds", text=("procedure",), title=title,
        title_justify="left", title_style="", collapse_padding=True,
    )  # fmt: skip
    for (_, epochs, procedure), runs in rows:
        numbers = [[run.target_error[-1], *run.test_mse[-1], run.seconds] for run in runs]
        medians = (f"{value:.2g}" for value in np.median(numbers, axis=0))
        table.add_row(str(epochs), procedure, str(len(runs)), *medians)
    return table
