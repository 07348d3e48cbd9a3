"""Coverage and time of the sampling intervals of the gap.

    python benchmarks/intervals.py [--trials 500] [--rows 50,200,1000] [--sites 2,4,12]

GENERATED sites with two targets. In every trial each site has a random mean (standard deviation 0.7) and a
random covariance with eigenvalues between 0.3 and 3, which leaves a gap of 10 to 16 % (medians). Targets are
a linear map of independent noise: normal; skewed (gamma with shape 2, kurtosis 6); heavy-tailed (Student's t
with 5 degrees of freedom, kurtosis 9). "no gap" has equal sites with normal targets.

Columns: the fraction of nominal 95 % intervals for the relative gap that contain that of the population, with
resampled rows and with moments alone; the same for mean errors with resampled rows; the fraction of p-values
below 5 %.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

from fedgram import Moments, Penalty, intervals, predict
from fedgram.data.resampling import row_sampler

Array = np.ndarray

TARGETS, RESAMPLES, PENALTY = 2, 300, Penalty()
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


def trials(kind: str, rows: int, sites: int, number: int, is_equal: bool) -> Iterator[tuple[bool, ...]]:
    """Whether intervals of the gap (from rows, from moments) and of mean errors contain the truth."""
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
        yield *hits, float(((low <= error) & (error <= high)).mean()), by_rows.p_value < 0.05


def print_coverage(arguments: argparse.Namespace) -> None:
    print("| targets | rows per site | sites | gap, rows | gap, moments | mean errors, rows | p < 0.05 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind in arguments.kinds.split(","):
        is_equal = kind == "no gap"
        for rows in map(int, arguments.rows.split(",")):
            for sites in map(int, arguments.sites.split(",")):
                name = "normal" if is_equal else kind
                found = np.mean(list(trials(name, rows, sites, arguments.trials, is_equal)), axis=0)
                cells = " | ".join(f"{value:.3f}" for value in found)
                print(f"| {kind} | {rows} | {sites} | {cells} |", flush=True)


def print_times() -> None:
    print("| (C, M) | 1,000 resamples, ms of CPU time |")
    print("| --- | --- |")
    for targets, sites in ((2, 3), (2, 12), (3, 8), (6, 4), (8, 3)):
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((sites, 200, targets)) @ (np.eye(targets) + 0.2)
        print(f"| ({targets}, {sites}) | {time_resamples(rows):.0f} |", flush=True)


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
    parser.add_argument("--trials", type=int, default=500, help="per row of the table")
    parser.add_argument("--kinds", default=",".join([*NOISE, "no gap"]))
    parser.add_argument("--rows", default="50,200,1000")
    parser.add_argument("--sites", default="2,4,12")
    arguments = parser.parse_args()
    print_times()
    print()
    if arguments.trials:
        print_coverage(arguments)


if __name__ == "__main__":
    main()
