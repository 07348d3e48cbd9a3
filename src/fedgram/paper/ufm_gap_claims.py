"""The three terms of the gap (Appendix D.4): numbers for its claims, with the spread of our own draws.

Medians over eight seeds are held against 64 other groups of eight seeds; counts and ratios over the 512
instances, against 16 other suites of 512; the least eigenvalue of the sweeps, against 64 other minima of 256
two-client instances; medians over the settings of the sweeps, against bootstrap samples of the instances.
"""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.claims import Measured
from fedgram.paper.columns import extent, largest
from fedgram.paper.experiment import Results
from fedgram.paper.tables import Table
from fedgram.theory.explain import TERMS

SEEDS, INSTANCES, PER_SETTING = 8, 512, 256  # of each controlled sweep, of panels f and g, of each setting

TINY, FLOOR = 1e-12, 1e-16


def measure(results: Results) -> dict[str, Measured]:
    """Numbers for the claims about the gap."""
    return (
        _controlled(results["controlled"], results["controlled_redraws"])
        | _removed(results["equalised"])
        | _semidefinite(results["suite"], results["suite_redraws"])
        | _variance(results["suite"], results["suite_redraws"])
        | _sweeps(results)
    )


def _controlled(table: Table, redraws: Table) -> dict[str, Measured]:
    """Panels a and b: what moves which term, and by how much."""
    means, covariances = _eights(table, "means"), _eights(table, "covariances")
    apart, base = _eights(redraws, "means"), _eights(redraws, "covariances")
    mean, covariance, averaging = range(3)
    return {
        "gap-mean-zero": Measured(largest(means[0, :, mean])),
        "gap-mean-trace": _median_of_eight(means[-1, :, mean], apart[..., mean]),
        "gap-mean-sweep-constant": Measured(largest(means[..., covariance:] - means[:1, :, covariance:])),
        "gap-covariance-trace": _median_of_eight(covariances[-1, :, covariance], base[..., covariance]),
        "gap-averaging-trace": _median_of_eight(covariances[-1, :, averaging], base[..., averaging]),
        "gap-covariance-zero": Measured(largest(covariances[0, :, covariance:])),
        "gap-mean-trace-covariance-sweep": _median_of_eight(covariances[-1, :, mean], base[..., mean]),
        "gap-covariance-sweep-constant": Measured(largest(covariances[..., mean] - covariances[:1, :, mean])),
    }


def _removed(table: Table) -> dict[str, Measured]:
    """What is left of the terms that equal moments remove."""
    left = max(largest(column) for column in table.values())
    return {"gap-removed": Measured(left, run=len(table["mean"]), needed=INSTANCES)}


def _semidefinite(table: Table, redraws: Table) -> dict[str, Measured]:
    """Panel f: smallest eigenvalues of all terms, and the tiny ones of the mean term."""
    smallest = by_term(table, "eigenvalue")
    tiny = table["eigenvalue_mean"] < TINY
    where = (table["clients"][tiny] == 2) & (table["targets"][tiny] >= 5)
    run = len(tiny)
    return {
        "gap-instances": Measured(smallest.size, run=run, needed=INSTANCES),
        "gap-smallest-eigenvalue": Measured(min(float(smallest.min()), 0.0), run=run, needed=INSTANCES),
        "gap-tiny-count": _count_below(TINY, table, redraws),
        "gap-floor-count": _count_below(FLOOR, table, redraws),
        "gap-tiny-where": Measured(bool(where.all()), run=run, needed=INSTANCES),
    }


def _variance(table: Table, redraws: Table) -> dict[str, Measured]:
    """Panel g: the averaging trace as a variance, between D and 2D."""
    two, run = table["clients"] == 2, len(table["number"])
    ratio, again = (each["trace_averaging"] / each["dispersion"] for each in (table, redraws))
    extents = np.array([extent(again[_suite(redraws) == k]) for k in np.unique(_suite(redraws))])
    geodesic = table["first_to_star"][two] / table["geodesic"][two] - 1
    identity = table["variance"] / table["trace_averaging"] - 1
    return {
        "gap-pairwise-bounds": Measured(bool(table["bounds_hold"].all()), run=run, needed=INSTANCES),
        "gap-variance-ratio": Measured(
            extent(ratio), (extent(extents[:, 0]), extent(extents[:, 1])), run, INSTANCES
        ),
        "gap-two-clients": Measured(largest(ratio[two] - 1), run=run, needed=INSTANCES),
        "gap-geodesic": Measured(largest(geodesic), run=run, needed=INSTANCES),
        "gap-variance-identity": Measured(largest(identity), run=run, needed=INSTANCES),
        "gap-scatter-identity": Measured(largest(table["scatter_residual"]), run=run, needed=INSTANCES),
    }


def _sweeps(results: Results) -> dict[str, Measured]:
    """Panels c to e and h to j: one value per setting, over 256 instances of it."""
    eigenvalues = np.stack([_by_setting(results, f"eigenvalue_{term}") for term in TERMS], axis=-1)
    worst, run = eigenvalues.min(axis=1), eigenvalues.shape[1]
    setting, term = np.unravel_index(worst.argmin(), worst.shape)
    two_clients = bool(_by_setting(results, "clients")[setting, 0] == 2)
    minima = results["two_client_redraws"]["eigenvalue_mean"].reshape(-1, run).min(axis=1)
    return {
        "gap-sweeps-positive": Measured(bool((worst > 0).all()), run=run, needed=PER_SETTING),
        "gap-sweeps-minimum": Measured(float(worst.min()), (extent(minima),), run, PER_SETTING),
        "gap-sweeps-minimum-where": Measured(
            TERMS[term] == "mean" and two_clients, run=run, needed=PER_SETTING
        ),
        **{f"gap-share-{term}": _medians(_by_setting(results, f"share_{term}")) for term in TERMS},
        "gap-relative": _medians(_by_setting(results, "relative")),
    }


def by_term(table: Table, name: str) -> Array:
    """Columns name_mean, name_covariance and name_averaging as (rows, 3)."""
    return np.stack([table[f"{name}_{term}"] for term in TERMS], axis=-1)


def _eights(table: Table, moved: str) -> Array:
    """Traces (strengths or groups, 8, 3) of the sweep in which these moments were moved."""
    return by_term(table, "trace")[table["moved"] == moved].reshape(-1, SEEDS, len(TERMS))


def _median_of_eight(values: Array, redrawn: Array) -> Measured:
    """Median over eight seeds, and how it spreads over groups (G, 8)."""
    return Measured(float(np.median(values)), (extent(np.median(redrawn, axis=1)),))


def _count_below(bound: float, table: Table, redraws: Table) -> Measured:
    """How many smallest eigenvalues of the mean term lie below the bound, in ours and in other suites."""
    count, again = (table["eigenvalue_mean"] < bound, redraws["eigenvalue_mean"] < bound)
    spread = extent(np.bincount(_suite(redraws), weights=again))
    return Measured(int(count.sum()), (spread,), run=len(count), needed=INSTANCES)


def _suite(table: Table) -> Array:
    """Which suite of 512 each instance belongs to."""
    return table["number"] // INSTANCES


def _by_setting(results: Results, column: str) -> Array:
    """A column of all three sweeps as (settings, instances)."""
    tables = [(results[name], len(np.unique(results[name][name]))) for name in SWEEPS]
    return np.concatenate([table[column].reshape(settings, -1) for table, settings in tables])


def _medians(samples: Array) -> Measured:
    """Smallest and largest median over settings (settings, instances), with their bootstrap spread."""
    rng, instances = np.random.default_rng(0), samples.shape[1]
    drawn = (rng.integers(instances, size=samples.shape) for _ in range(200))
    again = np.array([np.median(np.take_along_axis(samples, rows, axis=1), axis=1) for rows in drawn])
    spread = extent(again.min(axis=1)), extent(again.max(axis=1))
    return Measured(extent(np.median(samples, axis=1)), spread, run=instances, needed=PER_SETTING)
