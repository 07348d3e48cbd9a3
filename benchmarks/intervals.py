"""Coverage and time of the sampling intervals of the gap.

    python benchmarks/intervals.py [--trials 600] [--rows 50,200,1000] [--sites 2,4,12] [--json FILE]
    python benchmarks/intervals.py --tables [--docs docs/benchmarks.md]

GENERATED sites with two targets. In every trial each site has a random mean (standard deviation 0.7) and a
random covariance with eigenvalues between 0.3 and 3. Targets are
a linear map of independent noise: normal; skewed (gamma with shape 2, kurtosis 6); heavy-tailed (Student's t
with 5 degrees of freedom, kurtosis 9). "no gap" has equal sites with normal targets.

Columns: the median gap of the populations; the fraction of nominal 95 % intervals for the relative gap that
contain that of the population, with resampled rows and with moments alone; the same for mean errors with
resampled rows; the fraction of p-values below 5 %.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmark_pages import add_options, finish, markdown_table, read_results
from fedgram import Moments, Penalty, intervals, predict
from fedgram.data.resampling import row_sampler

Array = np.ndarray

STORED = Path(__file__).with_name("intervals_results.json")
TARGETS, RESAMPLES, PENALTY = 2, 300, Penalty()
NO_GAP = "no gap"
SIZES = ((2, 3), (2, 12), (3, 8), (6, 4), (8, 3))
COLUMNS = ("gap, rows", "gap, moments", "mean errors, rows", "p < 0.05")
NOISE = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "skewed": lambda rng, shape: (rng.gamma(2.0, size=shape) - 2) / np.sqrt(2),
    "heavy-tailed": lambda rng, shape: rng.standard_t(5, size=shape) / np.sqrt(5 / 3),
}


def population(rng: np.random.Generator, sites: int, is_equal: bool) -> tuple[Array, Array]:
    """Means (M, C) and covariances (M, C, C) of all sites."""
    if is_equal:
        return np.zeros((sites, TARGETS)), np.broadcast_to(np.eye(TARGETS), (sites, TARGETS, TARGETS))
    basis = np.linalg.qr(rng.standard_normal((sites, TARGETS, TARGETS)))[0]
    values = rng.uniform(0.3, 3.0, (sites, 1, TARGETS))
    return 0.7 * rng.standard_normal((sites, TARGETS)), (basis * values) @ basis.swapaxes(-1, -2)


def trials(kind: str, rows: int, sites: int, number: int, is_equal: bool) -> Iterator[tuple[float, ...]]:
    """The true gap, and then per column whether intervals contain the truth (or the p-value is small)."""
    rng = np.random.default_rng([rows, sites, list(NOISE).index(kind)])
    for trial in range(number):
        mean, covariance = population(rng, sites, is_equal)
        noise = NOISE[kind](rng, (sites, rows, TARGETS)) @ np.linalg.cholesky(covariance).swapaxes(-1, -2)
        sample = {str(m): values for m, values in enumerate(mean[:, None] + noise)}
        truth = predict(Moments([rows] * sites, mean, covariance), PENALTY)
        prediction = predict(Moments.from_arrays(sample), PENALTY)
        sampler = row_sampler(sample, prediction.moments.count, seed=trial)
        by_rows = intervals(prediction, sampler=sampler, resamples=RESAMPLES)
        by_moments = intervals(prediction, resamples=RESAMPLES, seed=trial)
        hits = [low <= truth.relative_gap <= high for low, high in (by_rows.relative, by_moments.relative)]
        low, high = np.moveaxis(by_rows.mean_error, -1, 0)
        error = -truth.moments.offset
        yield (
            float(truth.relative_gap),
            *hits,
            float(((low <= error) & (error <= high)).mean()),
            by_rows.p_value < 0.05,
        )


def measure_coverage(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Coverage for every kind of targets, number of rows and number of sites."""
    for kind in options.kinds.split(","):
        is_equal = kind == NO_GAP
        for rows in map(int, options.rows.split(",")):
            for sites in map(int, options.sites.split(",")):
                name = "normal" if is_equal else kind
                found = np.array(list(trials(name, rows, sites, options.trials, is_equal)))
                coverage = dict(zip(COLUMNS, found[:, 1:].mean(axis=0).tolist(), strict=True))
                gap = float(np.median(found[:, 0]))
                case = {"targets": kind, "rows": rows, "sites": sites, "trials": len(found), "gap": gap}
                yield {**case, **coverage}


def measure_times() -> Iterator[dict[str, Any]]:
    """CPU time of 1,000 resamples."""
    for targets, sites in SIZES:
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((sites, 200, targets)) @ (np.eye(targets) + 0.2)
        yield {"targets": targets, "sites": sites, "milliseconds": time_resamples(rows)}


def tables(results: dict[str, Any]) -> dict[str, str]:
    """Tables of the page, by name."""
    times = [
        (f"({row['targets']}, {row['sites']})", f"{row['milliseconds']:.0f}") for row in results["times"]
    ]
    coverage = results["coverage"]
    return {
        "interval times": markdown_table(("(C, M)", "ms of CPU time"), times),
        "interval coverage": _coverage_table(
            [row for row in coverage if row["targets"] != NO_GAP], COLUMNS[:-1]
        ),
        "intervals without a gap": _coverage_table(
            [row for row in coverage if row["targets"] == NO_GAP], COLUMNS
        ),
    }


def _coverage_table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> str:
    headings = ("targets", "rows per site", "sites", "median gap", *columns)
    trials = sorted({row["trials"] for row in rows})
    said = f"Trials per row: {' or '.join(f'{number:,}' for number in trials)}."
    return f"{said}\n\n{markdown_table(headings, (_format_coverage(row, columns) for row in rows))}"


def _format_coverage(row: dict[str, Any], columns: tuple[str, ...]) -> tuple[str, ...]:
    case = (row["targets"], f"{row['rows']:,}", str(row["sites"]), f"{row['gap']:.1%}")
    return *case, *(f"{row[name]:.3f}" for name in columns)


def time_resamples(rows: Array) -> float:
    """Milliseconds of CPU time for the gap, its causes, shares and mean errors; the best of seven."""
    from fedgram.theory.intervals import moments_sampler
    from fedgram.theory.resamples import gap_statistics

    moments = Moments.from_arrays(list(rows))
    draw, best = moments_sampler(moments), np.inf
    for _ in range(7):
        start = time.process_time()
        drawn = draw(1000, False)
        gap_statistics(drawn.mean, drawn.root, moments.client_weights, PENALTY)
        best = min(best, time.process_time() - start)
    return 1000 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=600, help="per row of the table")
    parser.add_argument("--kinds", default=",".join([*NOISE, NO_GAP]))
    parser.add_argument("--rows", default="50,200,1000")
    parser.add_argument("--sites", default="2,4,12")
    add_options(parser, STORED)
    options = parser.parse_args()
    results = read_results(STORED) if options.tables else measure(options)
    print("\n".join(tables(results).values()))
    finish(results, tables, options)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    coverage = []
    for row in measure_coverage(options):
        coverage.append(row)
        print(" ".join(_format_coverage(row, COLUMNS)), flush=True)
    return {"times": list(measure_times()), "coverage": coverage}


if __name__ == "__main__":
    main()
