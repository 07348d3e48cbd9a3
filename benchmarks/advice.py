"""Is the advice right? Verdicts on a part of the rows, and what joining changes on rows they have not seen.

    python benchmarks/advice.py --data-dir DATA [--problems bdf,star]
    python benchmarks/advice.py --tables --docs docs/benchmarks.md

Problems are those of `sites.py`, with seeds that it does not use. The verdicts of `advise` get the training
and validation rows of every site (80 %; of Beijing those before its last year) and hold out a fifth of them.
The recommended network is then trained on all these rows, as the last line of `fedgram advise` does, and
compared with working alone on the test rows (20 %; Beijing's last year). Results are kept in a JSON file
after every problem; a rerun computes only what is missing. `advice_results.py` says what each seed tests.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

import site_problems
from advice_results import SEEDS, STORED, tables, write
from benchmark_pages import read_results, replace_between
from fedgram._util.arrays import Array
from fedgram.data.holdout import divide_rows
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.federation.alone import choose_alone
from fedgram.runs.advice import AUTO, Alone
from fedgram.training.site_learning import Learned, choose_plan, learn
from fedgram.training.verdicts import judge_sites, lowest_over_sites, total_change
from site_fedgram import to_problem
from site_problems import PROBLEMS, Rows, SiteProblem
from sites import new_parser, run_parsed, select


def main() -> None:
    run_parsed(new_parser(__doc__, STORED), run)


def run(options: argparse.Namespace) -> None:
    results = read_results(options.output) if options.output.exists() else {}
    problems = () if options.tables else select(options.problems, PROBLEMS, "problem")
    for seed, name in product(SEEDS, problems):
        found = results.setdefault(seed, {})
        if name not in found:
            started = time.perf_counter()
            found[name] = measure(site_problems.load(name, int(seed), options.data_dir), int(seed))
            write(results, options.output)
            seconds = time.perf_counter() - started
            print(f"{name:16}seed {seed}{seconds:8.0f} s", file=sys.stderr, flush=True)
    for name, text in tables(results).items():
        print(f"{name}\n\n{text}")
        if options.docs:
            replace_between(options.docs, name, text)


def measure(problem: SiteProblem, seed: int) -> dict[str, Any]:
    """Return the verdicts and, for every site, the errors on rows that they have not seen.

    The seed draws the split and the networks.
    """
    visible, whole = visible_rows(problem, seed), to_problem(problem)
    trial = choose_plan(visible, AUTO, seed)
    targets = [split.targets for split in visible.test.values()]
    method = choose_alone(trial.predict_alone(AUTO), targets)
    alone, joined = square_errors(visible, trial, method)
    scale = np.ones(alone[0].shape[1])
    sites = judge_sites(visible, alone, joined, scale)
    change = total_change(visible, alone, joined)
    unseen_alone, unseen_joined = square_errors(whole, learn(whole, trial.plan, [AUTO], seed), method)
    return {
        "alone": method,
        "change": _round(change),
        "over_sites": _round([lowest_over_sites(alone, joined)])[0],
        "unseen_change": _round(total_change(whole, unseen_alone, unseen_joined)),
        "sites": {
            "verdict": [site.verdict for site in sites],
            "test_rows": [site.test_rows for site in sites],
            "gain": _round(site.difference[0] for site in sites),
            "low": _round(site.difference[1] for site in sites),
            "high": _round(site.difference[2] for site in sites),
            "unseen_rows": list(map(len, unseen_alone)),
            "unseen_alone": _round(each.mean() if len(each) else np.nan for each in unseen_alone),
            "unseen_joined": _round(each.mean() if len(each) else np.nan for each in unseen_joined),
        },
    }


def visible_rows(problem: SiteProblem, seed: int) -> Problem:
    """Return the rows for the verdicts, divided as `fedgram advise` divides a table at random."""
    rows = {name: site.fitting for name, site in problem.sites.items()}
    parts = divide_rows({name: len(each.targets) for name, each in rows.items()}, seed=seed)

    def take(each: Rows, index: Array) -> Split:
        return Split(each.inputs[index], each.targets[index])

    train, test, validation = (
        {name: take(each, getattr(parts[name], part)) for name, each in rows.items()}
        for part in ("train", "test", "validation")
    )
    return Problem(problem.name, problem.kind, train, test, problem.target_names, validation=validation)


def square_errors(
    problem: Problem, learned: Learned, method: Alone
) -> tuple[Sequence[Array], Sequence[Array]]:
    """Return squared errors (N_m, C) of each site's test rows, alone with this method and joined."""
    targets = [split.targets for split in problem.test.values()]
    alone = learned.predict_alone(AUTO)[method]
    joined = learned.predict(AUTO, learned.models(AUTO), "test")
    before, after = (
        [(f - y) ** 2 for f, y in zip(predicted, targets, strict=True)] for predicted in (alone, joined)
    )
    return before, after


def _round(values: Any) -> list[float | None]:
    """Round to six digits for the file; None where there is no number."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


if __name__ == "__main__":
    main()
