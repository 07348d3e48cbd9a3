"""Bures–Wasserstein barycenters: time and accuracy of fedgram, POT, pyRiemann, geomstats and OTT-JAX.

    python benchmarks/barycenter.py [--json benchmarks/barycenter_results.json]
    python benchmarks/barycenter.py --tables [--docs docs/benchmarks.md] [--figure FILE]

The second command shows what is stored in `barycenter_results.json`, and measures nothing. The figure of the
page is docs/figures/barycenter_benchmark.png.

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
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console

from barycenter_peers import Ladder, Peer, Solve, load
from barycenter_problems import problems, reference
from barycenter_results import STORED, Row, draw_times, read_rows, show_table, tables
from benchmark_pages import add_options, finish
from fedgram import barycenter

ONE_CORE = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}
SAMPLE, SCALED = 16, 128
ALLOWANCE = 3.0


def main() -> None:
    arguments = parsed()
    console = Console()
    rows = read_rows(STORED) if arguments.tables else measure(console)
    console.print(show_table(rows))
    finish([asdict(row) for row in rows], tables, arguments)
    if arguments.figure:
        draw_times(rows, arguments.figure)


def measure(console: Console) -> list[Row]:
    """Run everyone on every problem, on one core."""
    if any(os.environ.get(name) != value for name, value in ONE_CORE.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_CORE})
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    peers, notes = load()
    for note in notes:
        console.print(note)
    return [row for problem, grams in problems().items() for row in compare(problem, grams, peers, console)]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, STORED)
    parser.add_argument("--figure", type=Path, help="draw the times to this file")
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


if __name__ == "__main__":
    main()
