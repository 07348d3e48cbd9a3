"""fedgram's own rows of the natural-sites benchmark."""

from __future__ import annotations

import time

import numpy as np

from fedgram.data.problem import Problem, Split
from fedgram.runs.advice import AUTO
from fedgram.training.site_learning import Learned, choose_plan, learn
from site_problems import SiteProblem
from site_results import Result

ROWS = {
    "alone": "local",
    "shared head": "ordinary",
    "shared head, proximal": "proximal",
    "FedAvg": "full-model",
    "moment head": "full-model+moment-head",
    "moment head, site effects": "full-model+moment-head+site-effects",
    "auto": AUTO,
}
"""Procedure of each row."""

SINGLE, DOUBLE = 4, 8  # bytes


def fedgram_rows(problem: SiteProblem, seed: int) -> dict[str, Result]:
    """Train every row with the network that `auto` chooses on validation rows."""
    rows, started = _to_problem(problem), time.perf_counter()
    auto = choose_plan(rows, AUTO, seed)
    seconds = {"auto": time.perf_counter() - started, "alone": time.perf_counter() - started}
    learned: dict[str, Learned] = {"auto": auto, "alone": auto}  # a blended run also trains alone
    for name in ROWS.keys() - learned.keys():
        started = time.perf_counter()
        learned[name] = learn(rows, auto.plan, [ROWS[name]], seed)
        seconds[name] = time.perf_counter() - started
    return {
        name: Result(
            _test_mse(learned[name], ROWS[name], rows), _bytes_sent(learned[name], name), seconds[name]
        )
        for name in ROWS
    }


def _to_problem(problem: SiteProblem) -> Problem:
    def part(name: str) -> dict[str, Split]:
        parts = {site: getattr(each, name) for site, each in problem.sites.items()}
        return {site: Split(each.inputs, each.targets) for site, each in parts.items()}

    return Problem(problem.name, "REAL", part("train"), part("test"), validation=part("validation"))


def _test_mse(learned: Learned, procedure: str, problem: Problem) -> float:
    predicted = learned.predict(procedure, learned.models(procedure), "test")
    squares = [(f - split.targets) ** 2 for f, split in zip(predicted, problem.test.values(), strict=True)]
    return float(np.concatenate(squares).mean())


def _bytes_sent(learned: Learned, name: str) -> float:
    """Return the bytes that a site sends: averaged layers every round, sums of features once."""
    parameters = learned.federation.clients.stack.parameters
    sizes = {key: value[0].numel() for key, value in parameters.items()}
    width, targets = parameters["feature.weight"].shape[-1], parameters["head.bias"].shape[-1]
    if name == "alone":
        return 0.0
    is_head_only = name.startswith("shared head")
    shared = sum(size for key, size in sizes.items() if key.startswith("head.") or not is_head_only)
    rounds = learned.plan.config.rounds
    sums = 1 + width + targets + (width + targets) ** 2 if "moment" in name or name == "auto" else 0
    return float(SINGLE * rounds * shared + 2 * DOUBLE * sums)
