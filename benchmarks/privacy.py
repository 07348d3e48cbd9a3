"""Error of the gap from private moments, and when it is refused.

    python benchmarks/privacy.py [--trials 20] [--rows 500,1000,2000,5000,20000] [--epsilon 0.5,1,2,4]
        [--bounds private]

GENERATED: four sites, two normal targets. Every site has a random mean (standard deviation 0.3) and standard
deviations between 0.67 and 1.5 along random axes, which leaves a gap of about 6 % (median). Bounds are -4 and
4, or estimated privately with a fifth of ε; δ = 1e-6.

Columns: the fraction of trials whose gap is refused because the noise decides it. Of the others: the median
half width of the noise's 95 % interval for the relative gap; the fraction of these intervals that contain the
gap of the clipped rows; the median half width of the sampling interval; the median and the largest error of
the gap due to noise and clipping, as a fraction of the gap.
"""

from __future__ import annotations

import argparse

import numpy as np

from fedgram import AccuracyError, InputError, Moments, intervals, predict
from fedgram.data.private_moments import PRIVATE, map_rows, private_moments
from fedgram.theory.noise import check_noise, noise_intervals

SITES, TARGETS, BOUNDS, DELTA, DRAWS = 4, 2, (-4.0, 4.0), 1e-6, 300


def draw_rows(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    basis = np.linalg.qr(rng.standard_normal((SITES, TARGETS, TARGETS)))[0]
    deviation = np.exp(rng.uniform(-0.4, 0.4, (SITES, 1, TARGETS)))
    mixing = (basis * deviation) @ basis.swapaxes(-1, -2)
    mean = 0.3 * rng.standard_normal((SITES, TARGETS))
    return {f"site {m}": rng.standard_normal((rows, TARGETS)) @ mixing[m] + mean[m] for m in range(SITES)}


def measure(
    rows: dict[str, np.ndarray], epsilon: float, bounds: tuple[float, float] | str
) -> tuple[float, ...] | None:
    """Half width, coverage, sampling half width and relative error of one release; None if refused."""
    exact = float(predict(Moments.from_arrays(rows)).relative_gap)
    try:
        prediction = predict(private_moments(rows, bounds=bounds, epsilon=epsilon, delta=DELTA))
        noise = noise_intervals(prediction, draws=DRAWS)
        check_noise(prediction, noise)
    except (AccuracyError, InputError):  # the noise decides, or too few rows for bounds
        return None
    low, high = noise.relative
    clipped = {
        name: map_rows(values, privacy) * privacy.half_width + privacy.center
        for (name, values), privacy in zip(rows.items(), prediction.moments.privacy, strict=True)
    }
    covered = float(low <= predict(Moments.from_arrays(clipped)).relative_gap <= high)
    sampling = np.ptp(intervals(prediction, resamples=DRAWS).relative) / 2
    error = abs(float(prediction.relative_gap) - exact) / exact
    return (high - low) / 2, covered, sampling, error


def print_table(
    trials: int, row_counts: list[int], epsilons: list[float], bounds: tuple[float, float] | str
) -> None:
    print("| rows per site | ε | refused | noise ± | covers | sampling ± | median error | largest error |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for epsilon in epsilons:
        for rows in row_counts:
            rng = np.random.default_rng(rows)
            found = [measure(draw_rows(rng, rows), epsilon, bounds) for _ in range(trials)]
            kept = np.array([each for each in found if each is not None])
            refused = f"{1 - len(kept) / trials:.0%}"
            if len(kept) <= trials / 2:
                print(f"| {rows:,} | {epsilon:g} | {refused} | | | | | |", flush=True)
                continue
            half, covers, sampling, error = kept.T
            print(
                f"| {rows:,} | {epsilon:g} | {refused} | {np.median(half):.1%} | {covers.mean():.0%} | "
                f"{np.median(sampling):.1%} | {np.median(error):.0%} | {error.max():.0%} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--rows", default="500,1000,2000,5000,20000")
    parser.add_argument("--epsilon", default="0.5,1,2,4")
    parser.add_argument("--bounds", choices=("given", PRIVATE), default="given")
    given = parser.parse_args()
    rows = [int(part) for part in given.rows.split(",")]
    epsilons = [float(part) for part in given.epsilon.split(",")]
    print_table(given.trials, rows, epsilons, PRIVATE if given.bounds == PRIVATE else BOUNDS)


if __name__ == "__main__":
    main()
