"""Bures–Wasserstein barycenters: time and accuracy of fedgram, POT, pyRiemann, geomstats and OTT-JAX.

    python benchmarks/barycenter.py [--figure FILE] [--json FILE]

Grams are rotated at random, with eigenvalues between 0.4 and 4 unless it says otherwise, and all clients
weigh the same. Everyone has one core. Milliseconds are CPU time of a call, the median of interleaved
repeats; on an idle machine the clock shows the same. fedgram has its extra `fast`, which compiles like
OTT-JAX; compiling is left out.

Every peer is run at a ladder of its settings (tolerances, iterations), and timed at the fastest of those
that come within a factor of 3 of the least error that it reaches at all: as well set as if one knew the
answer. "OTT-JAX, tuned" also has its number of Newton–Schulz iterations per square root chosen like this;
they then stop by count and not by accuracy. fedgram has no settings, and checks its input.

Errors are relative, in the Frobenius norm. Up to C = 8 the reference is the recursion in 40-digit
arithmetic. Beyond, it is the plain recursion on factors in double precision, run for long in several
rotated coordinates and averaged, whose spread says how far to trust it. In a batch the largest error of
16 problems is shown. Where a peer has no batched call, the time of 128 problems is scaled up ("~"). A
peer is missing where no setting gives a finite answer.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from barycenter_peers import Ladder, Peer, Solve, load
from barycenter_problems import problems, reference
from fedgram import barycenter

ONE_CORE = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}
SAMPLE, SCALED = 16, 128
ALLOWANCE = 3.0


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    problem: str
    who: str
    milliseconds: float
    error: float
    scaled: bool


def main() -> None:
    arguments = parsed()
    if any(os.environ.get(name) != value for name, value in ONE_CORE.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_CORE})
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    console = Console()
    peers, notes = load()
    for note in notes:
        console.print(note)
    rows = [row for problem, grams in problems().items() for row in compare(problem, grams, peers, console)]
    console.print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if arguments.figure:
        draw(rows, arguments.figure)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", type=Path, help="draw the times to this file")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    return parser.parse_args()


def ours(grams: np.ndarray) -> np.ndarray:
    return barycenter(grams).gram


def compare(problem: str, grams: np.ndarray, peers: dict[str, Peer], console: Console) -> list[Row]:
    batched = grams.ndim == 4
    some = grams[:SAMPLE] if batched else grams[None]
    truth, spread = map(np.array, zip(*map(reference, some), strict=True))
    console.print(f"{problem}: reference good to {spread.max():.0e}")
    some, truth = (some, truth) if batched else (some[0], truth[0])
    contestants, inputs = {"fedgram": ours}, {"fedgram": grams}
    for name, peer in peers.items():
        with quiet():
            chosen = best_setting(peer(grams.shape[-1], batched), some, truth)
        if chosen is not None:
            contestants[name] = chosen
            inputs[name] = grams[:SCALED] if batched and name in ("POT", "pyRiemann") else grams
    with quiet():
        seconds = timed(contestants, inputs)
        errors = {name: relative_error(np.asarray(solve(some)), truth) for name, solve in contestants.items()}
    scale = {name: len(grams) / len(inputs[name]) for name in contestants}
    return [
        Row(problem, name, 1e3 * seconds[name] * scale[name], errors[name], scale[name] > 1)
        for name in contestants
    ]


def relative_error(found: np.ndarray, truth: np.ndarray) -> float:
    return float((np.linalg.norm(found - truth, axis=(-2, -1)) / np.linalg.norm(truth, axis=(-2, -1))).max())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def best_setting(ladders: Iterable[Ladder], grams: np.ndarray, truth: np.ndarray) -> Solve | None:
    """The fastest setting among those that come within ALLOWANCE of the least error; None if all fail."""
    tried: list[tuple[float, Solve]] = []
    for ladder in ladders:
        errors: list[float] = []
        for solve in ladder:
            with contextlib.suppress(np.linalg.LinAlgError, ValueError):
                error = relative_error(np.asarray(solve(grams)), truth)
                errors.append(error if np.isfinite(error) else np.inf)
                tried.append((errors[-1], solve))
            if len(errors) > 2 and min(errors[-2:]) > 0.7 * min(errors[:-2]):  # climbing on brings nothing
                break
    least = min((error for error, _ in tried), default=np.inf)
    if least == np.inf:
        return None
    good = {str(i): solve for i, (error, solve) in enumerate(tried) if error <= ALLOWANCE * least}
    seconds = timed(good, dict.fromkeys(good, grams), effort=0.3, least=1)
    return good[min(seconds, key=seconds.__getitem__)]


def timed(
    contestants: dict[str, Solve], inputs: dict[str, np.ndarray], effort: float = 3.0, least: int = 3
) -> dict[str, float]:
    """Median CPU seconds of each: interleaved repeats, at least least, for about effort seconds each."""
    number, repeats, samples = {}, {}, {name: [] for name in contestants}
    for name, solve in contestants.items():
        solve(inputs[name])
        once = max(cpu_seconds(solve, inputs[name], 1), 1e-6)
        number[name] = max(1, round(5e-3 / once))
        repeats[name] = min(25, max(least, round(effort / (once * number[name]))))
    for turn in range(max(repeats.values())):
        for name, solve in contestants.items():
            if turn < repeats[name]:
                samples[name].append(cpu_seconds(solve, inputs[name], number[name]))
    return {name: float(np.median(sample)) for name, sample in samples.items()}


def cpu_seconds(solve: Solve, grams: np.ndarray, number: int) -> float:
    start = time.process_time()
    for _ in range(number):
        solve(grams)
    return (time.process_time() - start) / number


# Output


def table(rows: list[Row]) -> Table:
    shown = Table("(C, M)", "", "ms", "times ours", "error", title="Barycenters on one core")
    for column in shown.columns[2:]:
        column.justify = "right"
    own = {row.problem: row.milliseconds for row in rows if row.who == "fedgram"}
    for row in rows:
        first = row.who == "fedgram"
        if first and row is not rows[0]:
            shown.add_section()
        time_shown = f"{'~' if row.scaled else ''}{row.milliseconds:.3g}"
        ratio = "" if first else f"{row.milliseconds / own[row.problem]:.2g}"
        shown.add_row(row.problem if first else "", row.who, time_shown, ratio, f"{row.error:.1e}")
    return shown


def draw(rows: list[Row], path: Path) -> None:
    """Bars for the benign problems, where everyone is accurate and time is what differs."""
    import matplotlib.pyplot as plt

    rows = [row for row in rows if "," not in row.problem.partition(")")[2] and "singular" not in row.problem]
    names = list(dict.fromkeys(row.who for row in rows))
    labels = list(dict.fromkeys(row.problem for row in rows))
    figure, axes = plt.subplots(figsize=(9.0, 3.6), layout="constrained")
    for index, name in enumerate(names):
        mine = [row for row in rows if row.who == name]
        places = [
            labels.index(row.problem) + (index - (len(names) - 1) / 2) * 0.8 / len(names) for row in mine
        ]
        axes.bar(places, [row.milliseconds for row in mine], width=0.8 / len(names), label=name)
    axes.set(yscale="log", ylabel="CPU time of a call [ms]", xlabel="(C, M)", xticks=range(len(labels)))
    axes.set_xticklabels(labels)
    axes.legend(ncols=2, frameon=False)
    axes.set_title("Bures–Wasserstein barycenters, GENERATED Grams, one core", fontsize=9)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
