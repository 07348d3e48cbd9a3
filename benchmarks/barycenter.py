"""Bures–Wasserstein barycenters: fedgram against POT, pyRiemann, geomstats and OTT-JAX, time and accuracy.

    python benchmarks/barycenter.py [--figure FILE] [--json FILE]

Grams are rotated at random, with eigenvalues between 0.4 and 4, and all clients weigh the same. Everyone
has one core. Milliseconds are CPU time of a call, the median of interleaved repeats; on an idle machine
the clock shows the same. Compiling is left out.

Every peer is run at a ladder of its settings (tolerances, iterations), and timed at the fastest of those
that come within a factor of 3 of the least error that it reaches at all: as well set as if one knew the
answer. "OTT-JAX, tuned" also has its number of Newton–Schulz iterations per square root chosen like this;
they then stop by count and not by accuracy. fedgram has no settings, and checks its input.

Errors are relative, in the Frobenius norm. Up to C = 8 the reference is the recursion in 40-digit
arithmetic. Beyond, it is the plain recursion on factors in double precision, run for long in several
rotated coordinates and averaged, whose spread says how far to trust it. In a batch the largest error of
16 problems is shown. Where a peer has no batched call, the time of 128 problems is scaled up ("~").
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import mpmath
import numpy as np
from rich.console import Console
from rich.table import Table

from fedgram import barycenter

ONE_CORE = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}
SIZES = [(2, 3), (3, 8), (6, 4), (8, 8), (32, 32), (128, 16)]
BATCH, BATCH_SIZE = 4096, (3, 8)
SAMPLE, SCALED = 16, 128
ALLOWANCE = 3.0

Solve = Callable[[np.ndarray], np.ndarray]  # Grams (M, C, C) -> (C, C), or (K, M, C, C) -> (K, C, C)
Ladder = Iterable[Solve]  # the same peer, made to work harder and harder
Peer = Callable[[int, bool], Iterable[Ladder]]  # size, whether batched -> ladders


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
    rows = [row for size in SIZES for row in compare(size, None, peers, console)]
    rows += compare(BATCH_SIZE, BATCH, peers, console)
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


# Problems and references


def problems(size: int, clients: int, count: int | None) -> np.ndarray:
    rng = np.random.default_rng(size + 1000 * clients)
    shape = (clients,) if count is None else (count, clients)
    basis = np.linalg.qr(rng.standard_normal((*shape, size, size)))[0]
    grams = (basis * rng.uniform(0.4, 4.0, (*shape, 1, size))) @ np.swapaxes(basis, -1, -2)
    return 0.5 * (grams + np.swapaxes(grams, -1, -2))


def reference(grams: np.ndarray) -> tuple[np.ndarray, float]:
    """The barycenter of grams (M, C, C) by means of its own, and the relative error to be expected in it."""
    if grams.shape[-1] <= 8:
        return multiprecision(grams), 1e-16
    turned = [rotated(grams, seed) for seed in range(4)]
    mean = np.mean(turned, axis=0)
    return mean, float(np.std(turned, axis=0).max() / np.abs(mean).max())


def multiprecision(grams: np.ndarray) -> np.ndarray:
    """G ← G^(-1/2) (Σ p (G^(1/2) G_m G^(1/2))^(1/2))² G^(-1/2) in 40 digits."""
    with mpmath.workdps(40):
        clients = [mpmath.matrix(gram.tolist()) for gram in grams]
        gram = mpmath.matrix(grams.mean(axis=0).tolist())
        change = mpmath.mpf(1)
        while change > mpmath.mpf(10) ** -20:
            root = square_root(gram)
            inner = sum((square_root(root * client * root) for client in clients), mpmath.zeros(gram.rows))
            inverse = root**-1
            moved = inverse * inner * inner * inverse / len(clients) ** 2
            change, gram = mpmath.mnorm(moved - gram, "f") / mpmath.mnorm(gram, "f"), moved
        return np.array(gram.tolist(), dtype=np.float64)


def square_root(matrix: mpmath.matrix) -> mpmath.matrix:
    values, basis = mpmath.eigsy(matrix)
    return basis * mpmath.diag([mpmath.sqrt(value) for value in values]) * basis.T


def rotated(grams: np.ndarray, seed: int) -> np.ndarray:
    """A ← Σ p B_m O_m, O_m the polar factor of B_mᵀA, in coordinates turned at random."""
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal(grams.shape[1:]))[0]
    roots = np.linalg.cholesky(basis.T @ grams @ basis)
    head = roots.mean(axis=0)
    for _ in range(25):
        left, _, right = np.linalg.svd(np.swapaxes(roots, 1, 2) @ head)
        head = (roots @ left @ right).mean(axis=0)
    return basis @ head @ head.T @ basis.T


def relative_error(found: np.ndarray, truth: np.ndarray) -> float:
    return float((np.linalg.norm(found - truth, axis=(-2, -1)) / np.linalg.norm(truth, axis=(-2, -1))).max())


# Contestants


def load() -> tuple[dict[str, Peer], list[str]]:
    """The peers that import, and a sentence about each that does not."""
    peers: dict[str, Peer] = {}
    notes = []
    for name, install in {"POT": pot, "pyRiemann": pyriemann, "geomstats": geomstats, "OTT-JAX": ott}.items():
        try:
            peers.update(install())
        except Exception as reason:
            notes.append(f"{name} does not import: {reason}.")
            if "trapz" in str(reason):
                notes.append(f"{name} is run after all, with that name, which NumPy 2.4 removed, put back.")
                vars(np)["trapz"] = np.trapezoid
                peers.update(install())
    return peers, notes


def pot() -> dict[str, Peer]:
    import ot

    def ladder(method: str) -> Iterator[Solve]:
        for count in (8, 10, 12, 15, 20, 30, 45):
            yield each(
                lambda grams, count=count: ot.gaussian.bures_wasserstein_barycenter(
                    np.zeros(grams.shape[:2]), grams, method=method, num_iter=count, eps=0.0
                )[1]
            )

    # Its other method contracts three matrices at once, which takes minutes from C = 32 on.
    small, large = ("fixed_point", "gradient_descent"), ("fixed_point",)
    return {"POT": lambda size, batched: map(ladder, small if size <= 8 else large)}


def pyriemann() -> dict[str, Peer]:
    from pyriemann.geometry.mean import mean_wasserstein

    def ladder() -> Iterator[Solve]:
        for tolerance in 10.0 ** -np.arange(8, 15):
            yield each(lambda grams, tolerance=tolerance: mean_wasserstein(grams, tol=tolerance, maxiter=40))

    return {"pyRiemann": lambda size, batched: [ladder()]}


def geomstats() -> dict[str, Peer]:
    from geomstats.geometry.spd_matrices import SPDBuresWassersteinMetric, SPDMatrices
    from geomstats.learning.frechet_mean import FrechetMean

    logging.getLogger().setLevel(logging.ERROR)  # it warns of every mean that takes all its iterations

    def ladder(size: int, batched: bool) -> Iterator[Solve]:
        space = SPDMatrices(size, equip=False)
        space.equip_with_metric(SPDBuresWassersteinMetric)
        for count in (6, 8, 10, 12, 15, 20, 30):
            mean = FrechetMean(space, method="batch" if batched else "default").set(
                epsilon=0.0, max_iter=count
            )
            yield lambda grams, mean=mean: np.asarray(mean.fit(np.moveaxis(grams, -3, 0)).estimate_)

    return {"geomstats": lambda size, batched: [ladder(size, batched)]}


def ott() -> dict[str, Peer]:
    import jax
    from ott.geometry import costs

    jax.config.update("jax_enable_x64", True)

    def counted(count: int) -> dict[str, int]:
        # Its barycenter looks at the tolerance but once, after inner_iterations: they have to be counted out.
        return {"min_iterations": count, "max_iterations": count, "inner_iterations": count}

    def ladder(size: int, batched: bool, roots: dict[str, float] | None) -> Iterator[Solve]:
        for count in (8, 9, 10, 12, 14):

            def one(grams: jax.Array, count: int = count) -> jax.Array:
                weights = jax.numpy.full(grams.shape[0], 1 / grams.shape[0])
                return costs.Bures(size).covariance_fixpoint_iter(
                    covs=grams, weights=weights, tolerance=0.0, sqrtm_kw=roots, **counted(count)
                )[0]

            compiled = jax.jit(jax.vmap(one) if batched else one)
            yield lambda grams, compiled=compiled: compiled(grams).block_until_ready()

    def tuned(size: int, batched: bool) -> Iterator[Ladder]:
        for inner in (11, 14, 17) if size <= 8 else ():  # makes no difference to large matrices
            yield ladder(size, batched, {"threshold": 0.0, **counted(inner)})

    return {"OTT-JAX": lambda size, batched: [ladder(size, batched, None)], "OTT-JAX, tuned": tuned}


def each(solve: Solve) -> Solve:
    """A solver of one problem made to take a batch, one after the other."""
    return lambda grams: solve(grams) if grams.ndim == 3 else np.stack([solve(problem) for problem in grams])


def ours(grams: np.ndarray) -> np.ndarray:
    return barycenter(grams).gram


# Comparison


def compare(size: tuple[int, int], count: int | None, peers: dict[str, Peer], console: Console) -> list[Row]:
    problem = f"{size}" if count is None else f"{count} of {size}"
    grams = problems(*size, count)
    some = grams if count is None else grams[:SAMPLE]
    references = [reference(gram) for gram in (some if count else [some])]
    truth = np.array([gram for gram, _ in references]) if count else references[0][0]
    console.print(f"{problem}: reference good to {max(spread for _, spread in references):.0e}")
    contestants, inputs = {"fedgram": ours}, {"fedgram": grams}
    for name, peer in peers.items():
        with quiet():
            chosen = best_setting(peer(size[0], count is not None), some, truth)
        if chosen is None:
            continue
        contestants[name] = chosen
        inputs[name] = grams[:SCALED] if count and name in ("POT", "pyRiemann") else grams
    with quiet():
        seconds = timed(contestants, inputs)
        errors = {name: relative_error(np.asarray(solve(some)), truth) for name, solve in contestants.items()}
    scale = {name: len(grams) / len(inputs[name]) for name in contestants}
    return [
        Row(problem, name, 1e3 * seconds[name] * scale[name], errors[name], scale[name] > 1)
        for name in contestants
    ]


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
                errors.append(relative_error(np.asarray(solve(grams)), truth))
                tried.append((errors[-1], solve))
            if len(errors) > 2 and min(errors[-2:]) > 0.7 * min(errors[:-2]):  # climbing on brings nothing
                break
    if not tried:
        return None
    enough = ALLOWANCE * min(error for error, _ in tried)
    good = {str(i): solve for i, (error, solve) in enumerate(tried) if error <= enough}
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
    import matplotlib.pyplot as plt

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
    axes.legend(ncols=3, frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
