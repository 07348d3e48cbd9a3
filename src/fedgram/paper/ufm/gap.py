"""The three terms of the gap to centralized training (Appendix D.4, Figure 7).

Our choices where the paper is silent:

- Grids of panels c to e and h to j: C in {2, 3, 4, 5, 6, 8}, M in {2, 3, 4, 6, 8, 16} and
  κ in {50, 20, 10, 5, 2, 1.2}.
- Twelve sizes (C, M) take turns over the 512 instances.
- Moments become equal by moving them onto their weighted averages.

The paper's seeds 55 to 62 do not determine its draws, so we compare numbers that depend on them with redraws.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import GREY, TERM_COLORS
from fedgram.paper.claims import Measurement
from fedgram.paper.plots import TERM_MARKERS, TERM_NAMES, draw_median_band, make_panels
from fedgram.paper.storage import Table
from fedgram.paper.ufm.experiment import Experiment, Found, Results, Scale, extent, largest
from fedgram.theory.explain import TERMS, Gap, explain
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments
from fedgram.theory.predict import predict
from fedgram.ufm.instances import (
    GAP_SIZES,
    WEAK,
    gap_instances,
    gap_moments,
    scale_covariances,
    scale_means,
    sweep_moments,
)

SEEDS, INSTANCES, PER_SETTING = 8, 512, 256  # per controlled sweep; in panels f and g; per setting
MEAN_STRENGTHS = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0]
COVARIANCE_STRENGTHS = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]

# Settings (C, M, κ). Covariance eigenvalues start at κ λ_H λ_W: 25 gives the interval [0.25, 3] of the 512
# instances.
SWEEPS = {
    "targets": [(targets, 4, 25.0) for targets in (2, 3, 4, 5, 6, 8)],
    "clients": [(3, clients, 25.0) for clients in (2, 3, 4, 6, 8, 16)],
    "margin": [(3, 4, margin) for margin in (50.0, 20.0, 10.0, 5.0, 2.0, 1.2)],
}
TINY, FLOOR = 1e-12, 1e-16  # the paper counts eigenvalues below both; figures draw none below the floor
STYLES = tuple(zip(TERMS, TERM_COLORS, TERM_MARKERS, TERM_NAMES, strict=True))
AXES = {"targets": "targets $C$", "clients": "clients $M$", "margin": r"margin bound $\kappa$"}


def parts(scale: Scale) -> dict[str, partial[Table]]:
    """Parts; the quick scale has fewer redraws."""
    suites, sweeps, minima = {"full": (32, 32, 128), "quick": (4, 4, 16)}[scale]
    swept = {
        name: partial(composition, seed=seed, settings=settings, instances=PER_SETTING)
        for seed, (name, settings) in enumerate(SWEEPS.items(), start=1)
    }
    every = [setting for settings in SWEEPS.values() for setting in settings]
    return {
        "controlled": partial(
            controlled, first_seed=55, seeds=SEEDS, means=MEAN_STRENGTHS, covariances=COVARIANCE_STRENGTHS
        ),
        "controlled_redraws": partial(
            controlled, first_seed=1000, seeds=64 * SEEDS, means=[3.0], covariances=[1.0]
        ),
        "suite": partial(suite, seed=0, instances=INSTANCES),
        "equalized": partial(equalized, seed=0, instances=INSTANCES),
        "suite_redraws": partial(suite, seed=4, instances=suites * INSTANCES),
        **swept,
        "sweep_redraws": partial(composition, seed=6, settings=every, instances=sweeps * PER_SETTING),
        "two_client_redraws": partial(
            composition, seed=5, settings=[(3, 2, 25.0)], instances=minima * PER_SETTING
        ),
    }


def controlled(first_seed: int, seeds: int, means: list[float], covariances: list[float]) -> Table:
    """Traces of the three terms as the means, or the covariances, move apart.

    One row per seed and strength; `moved` names the moments.
    """
    numbers = np.arange(first_seed, first_seed + seeds)
    base = _stack([sweep_moments(np.random.default_rng(number)) for number in numbers])
    tables = [
        Table.broadcast(
            numbers.shape,
            seed=numbers,
            moved=moved,
            strength=strength,
            **_by_term("trace", _gap(scaled(base, strength)).traces),
        )
        for moved, scaled, strengths in (
            ("means", scale_means, means),
            ("covariances", scale_covariances, covariances),
        )
        for strength in strengths
    ]
    return Table.concatenate(tables)


def suite(seed: int, instances: int) -> Table:
    """Terms, bounds and identities of random instances of all sizes, one row each."""
    by_size = gap_instances(np.random.default_rng(seed), instances)
    return Table.concatenate([_suite_rows(turn, moments) for turn, moments in enumerate(by_size)])


def _suite_rows(turn: int, moments: Moments) -> Table:
    """Instances of the `turn`-th of the sizes that take turns; `number` orders all instances."""
    prediction = predict(moments, WEAK)
    gap, client_weights, star = explain(prediction), moments.client_weights, prediction.barycenter.gram
    count, (targets, clients) = len(client_weights), GAP_SIZES[turn]
    to_star = psd.distance(star[:, None], prediction.grams)
    first_to_second = psd.distance(prediction.grams[:, 0], prediction.grams[:, 1])
    return Table.broadcast(
        (count,),
        number=turn + len(GAP_SIZES) * np.arange(count),
        targets=targets,
        clients=clients,
        **_by_term("trace", gap.traces),
        **_by_term("eigenvalue", gap.smallest_eigenvalue),
        dispersion=gap.dispersion,
        bounds_hold=gap.bounds_hold,
        variance=(client_weights * to_star**2).sum(axis=-1),  # eq. (12), right-hand side
        scatter_residual=gap.scatter_residual * gap.scale / psd.frobenius(gap.averaging),
        first_to_star=to_star[:, 0],
        geodesic=client_weights[:, 1] * first_to_second,  # p_2 d(G_1, G_2)
    )


def equalized(seed: int, instances: int) -> Table:
    """Traces of the terms that equal means, equal covariances, or both should remove."""
    tables = []
    for moments in gap_instances(np.random.default_rng(seed), instances):
        means_equal, covariances_equal = scale_means(moments, 0.0), scale_covariances(moments, 0.0)
        tables.append(Table(
            mean=_gap(means_equal).traces[:, 0],
            covariance=_gap(covariances_equal).traces[:, 1],
            averaging=_gap(covariances_equal).traces[:, 2],
            **_by_term("both", _gap(scale_means(covariances_equal, 0.0)).traces),
        ))  # fmt: skip
    return Table.concatenate(tables)


def composition(seed: int, settings: list[tuple[int, int, float]], instances: int) -> Table:
    """Shares, smallest eigenvalues and relative gap in settings (C, M, κ), one row per instance."""
    rng = np.random.default_rng(seed)
    tables = []
    for targets, clients, margin in settings:
        gap = _gap(gap_moments(rng, targets, clients, instances, (margin * WEAK.threshold, 3.0)))
        tables.append(Table.broadcast(
            (instances,), targets=targets, clients=clients, margin=margin,
            **_by_term("share", gap.shares),
            **_by_term("eigenvalue", gap.smallest_eigenvalue),
            relative=gap.relative,
        ))  # fmt: skip
    return Table.concatenate(tables)


def _gap(moments: Moments) -> Gap:
    return explain(predict(moments, WEAK))


def _by_term(name: str, values: Array) -> dict[str, Array]:
    """Columns name_mean, name_covariance and name_averaging of values (..., 3)."""
    return {f"{name}_{term}": values[..., i] for i, term in enumerate(TERMS)}


def _stack(moments: list[Moments]) -> Moments:
    """Stack moments of one size along a new leading axis."""
    return Moments(
        count=moments[0].count,
        mean=np.stack([one.mean for one in moments]),
        covariance=np.stack([one.covariance for one in moments]),
        client_weights=np.stack([one.client_weights for one in moments]),
    )


def measure(results: Results) -> Found:
    """Measure the claims about the gap."""
    return (
        _measure_controlled(results["controlled"], results["controlled_redraws"])
        | {"gap-removed": max(map(largest, results["equalized"].values()))}
        | _measure_semidefinite(results["suite"], results["suite_redraws"])
        | _measure_variance(results["suite"], results["suite_redraws"])
        | _measure_sweeps(results)
    )


def _measure_controlled(table: Table, redraws: Table) -> Found:
    """Panels a and b: which moments move which term, and by how much."""
    means, covariances = _eights(table, "means"), _eights(table, "covariances")
    apart, base = _eights(redraws, "means"), _eights(redraws, "covariances")
    mean, covariance, averaging = range(3)
    return {
        "gap-mean-zero": largest(means[0, :, mean]),
        "gap-mean-trace": _median_of_eight(means[-1, :, mean], apart[..., mean]),
        "gap-mean-grows": _rises(means[..., mean]),
        "gap-mean-sweep-constant": largest(means[..., covariance:] - means[:1, :, covariance:]),
        "gap-covariance-trace": _median_of_eight(covariances[-1, :, covariance], base[..., covariance]),
        "gap-averaging-trace": _median_of_eight(covariances[-1, :, averaging], base[..., averaging]),
        "gap-covariance-zero": largest(covariances[0, :, covariance:]),
        "gap-mean-trace-covariance-sweep": _median_of_eight(covariances[-1, :, mean], base[..., mean]),
        "gap-covariance-sweep-constant": largest(covariances[..., mean] - covariances[:1, :, mean]),
        "gap-covariance-grows": _rises(covariances[..., covariance:]),
    }


def _rises(traces: Array) -> bool:
    """Whether traces (strengths, ...) rise at every step."""
    return bool((np.diff(traces, axis=0) > 0).all())


def _measure_semidefinite(table: Table, redraws: Table) -> Found:
    """Panel f: smallest eigenvalues of all terms, and the tiny ones of the mean term."""
    tiny = table["eigenvalue_mean"] < TINY
    where = (table["clients"][tiny] == 2) & (table["targets"][tiny] >= 5)
    return {
        "gap-smallest-eigenvalue": min(by_term(table, "eigenvalue").min(), 0.0),
        "gap-tiny-count": _count_below(TINY, table, redraws),
        "gap-floor-count": _count_below(FLOOR, table, redraws),
        "gap-tiny-where": where.all(),
    }


def _measure_variance(table: Table, redraws: Table) -> Found:
    """Panel g: the averaging trace as a variance, between D and 2D."""
    two = table["clients"] == 2
    ratio, again = (each["trace_averaging"] / each["dispersion"] for each in (table, redraws))
    suites = [again[_suite(redraws) == number] for number in np.unique(_suite(redraws))]
    geodesic = table["first_to_star"][two] / table["geodesic"][two] - 1
    identity = table["variance"] / table["trace_averaging"] - 1
    return {
        "gap-pairwise-bounds": table["bounds_hold"].all(),
        "gap-variance-ratio": Measurement(extent(ratio), zip(*map(extent, suites), strict=True)),
        "gap-two-clients": largest(ratio[two] - 1),
        "gap-geodesic": largest(geodesic),
        "gap-variance-identity": largest(identity),
        "gap-scatter-identity": largest(table["scatter_residual"]),
    }


def _measure_sweeps(results: Results) -> Found:
    """Panels c to e and h to j: one value per setting, over 256 instances of it."""
    eigenvalues = np.stack([_by_setting(results, f"eigenvalue_{term}") for term in TERMS], axis=-1)
    worst = eigenvalues.min(axis=1)
    setting, term = np.unravel_index(worst.argmin(), worst.shape)
    two_clients = bool(_by_setting(results, "clients")[setting, 0] == 2)
    minima = results["two_client_redraws"]["eigenvalue_mean"].reshape(-1, PER_SETTING).min(axis=1)
    return {
        "gap-sweeps-positive": (worst > 0).all(),
        "gap-sweeps-minimum": Measurement(worst.min(), [np.maximum(minima, FLOOR)]),
        "gap-sweeps-minimum-where": TERMS[term] == "mean" and two_clients,
        **{f"gap-share-{term}": _medians(results, f"share_{term}") for term in TERMS},
        "gap-relative": _medians(results, "relative"),
    }


def by_term(table: Table, name: str) -> Array:
    """Columns name_mean, name_covariance and name_averaging as (rows, 3)."""
    return np.stack([table[f"{name}_{term}"] for term in TERMS], axis=-1)


def _eights(table: Table, moved: str) -> Array:
    """Traces (strengths or groups, 8, 3) of the sweep in which these moments were moved."""
    return by_term(table.select(moved=moved), "trace").reshape(-1, SEEDS, len(TERMS))


def _median_of_eight(values: Array, redrawn: Array) -> Measurement:
    """Median over eight seeds, and over further groups (G, 8)."""
    return Measurement(np.median(values), [np.median(redrawn, axis=1)])


def _count_below(bound: float, table: Table, redraws: Table) -> Measurement:
    """Number of smallest eigenvalues of the mean term below a bound, in our suite and in further ones."""
    count, again = (table["eigenvalue_mean"] < bound, redraws["eigenvalue_mean"] < bound)
    return Measurement(count.sum(), [np.bincount(_suite(redraws), weights=again)])


def _suite(table: Table) -> Array:
    """Number of the suite of 512 that each instance belongs to."""
    return table["number"] // INSTANCES


def _by_setting(results: Results, column: str) -> Array:
    """A column of all three sweeps as (settings, instances)."""
    tables = [(results[name], len(SWEEPS[name])) for name in SWEEPS]
    return np.concatenate([table[column].reshape(settings, -1) for table, settings in tables])


def _medians(results: Results, column: str) -> Measurement:
    """Smallest and largest median over the settings, in our sweeps and in further ones."""
    ours = _by_setting(results, column)
    again = np.median(results["sweep_redraws"][column].reshape(len(ours), -1, PER_SETTING), axis=-1)
    return Measurement(extent(np.median(ours, axis=1)), extent(again, axis=0))


def draw(results: Results) -> Any:
    """Draw all ten panels: composition in the upper row, semidefiniteness in the lower one."""
    figure, axes = make_panels(2, 5, (13, 5.4))
    _draw_traces(axes[0], results["controlled"], "means", "(a) means moved apart")
    _draw_traces(axes[1], results["controlled"], "covariances", "(b) covariances moved apart")
    axes[0].legend(loc="upper left")
    for letter, name, axis in zip("cde", SWEEPS, axes[2:5], strict=True):
        _draw_shares(axis, results[name], name)
        axis.set_title(f"({letter}) share of the gap trace")
    _draw_sorted_eigenvalues(axes[5], results["suite"])
    _draw_variance(axes[6], results["suite"])
    for letter, name, axis in zip("hij", SWEEPS, axes[7:10], strict=True):
        _draw_eigenvalues(axis, results[name], name)
        axis.set_title(f"({letter}) smallest eigenvalue")
    axes[7].legend(loc="lower left")
    return figure


def _draw_traces(axis: Any, table: Table, moved: str, title: str) -> None:
    """Draw the trace of each term against the strength s, linear below 1e-3 so that zeros are visible."""
    for term, color, marker, label in STYLES:
        strengths, samples = table.select(moved=moved).samples_by("strength", f"trace_{term}")
        draw_median_band(axis, strengths, samples, color, marker=marker, label=label)
    axis.set_yscale("symlog", linthresh=1e-3, linscale=0.5)
    axis.set(xlabel="strength $s$", ylabel="trace", ylim=(-2e-4, 10), title=title)


def _draw_shares(axis: Any, table: Table, name: str) -> None:
    for term, color, marker, _ in STYLES:
        x, samples = table.samples_by(name, f"share_{term}")
        draw_median_band(axis, x, samples, color, marker=marker)
    axis.set(xscale="log", ylabel="share of trace", ylim=(0, 1))
    _mark_values(axis, x, name)


def _draw_eigenvalues(axis: Any, table: Table, name: str) -> None:
    """Draw the median with its band and, dashed, the worst instance of each setting."""
    for term, color, marker, label in STYLES:
        x, samples = table.samples_by(name, f"eigenvalue_{term}")
        samples = np.maximum(samples, FLOOR)
        draw_median_band(axis, x, samples, color, marker=marker)
        axis.plot(
            x, samples.min(axis=1), "--", marker=marker, mfc="none", color=color, label=f"{label} worst"
        )
    axis.set(xscale="log", yscale="log", ylabel=r"$\lambda_{\min}$", ylim=(1e-13, 2))
    _mark_values(axis, x, name)


def _draw_sorted_eigenvalues(axis: Any, table: Table) -> None:
    for term, color, _, _ in STYLES:
        values = np.sort(np.maximum(table[f"eigenvalue_{term}"], FLOOR))
        axis.plot(np.arange(1, len(values) + 1), values, lw=1.8, color=color)
    axis.set(yscale="log", xlabel="instance, sorted", ylabel=r"$\lambda_{\min}$", ylim=(3e-17, 2))
    axis.set_title("(f) sorted smallest eigenvalue")


def _draw_variance(axis: Any, table: Table) -> None:
    """Draw the averaging trace against pairwise dispersion, between the lines D and 2D."""
    dispersion, trace = table["dispersion"], table["trace_averaging"]
    for clients, marker in zip(np.unique(table["clients"]), TERM_MARKERS, strict=True):
        row = table["clients"] == clients
        axis.plot(dispersion[row], trace[row], marker, color=TERM_COLORS[2], mfc="none", alpha=0.6,
                  label=f"$M={clients}$")  # fmt: skip
    ends = np.array([dispersion.min() / 1.5, dispersion.max() * 1.5])
    axis.plot(ends, ends, color=GREY, lw=0.8, label="$D$")
    axis.plot(ends, 2 * ends, "--", color=GREY, lw=0.8, label="$2D$")
    axis.set(xscale="log", yscale="log", xlabel="pairwise dispersion $D$", ylabel=f"tr {TERM_NAMES[2]}")
    axis.set_title("(g) averaging term as a variance")
    axis.legend(loc="upper left")


def _mark_values(axis: Any, values: Array, name: str) -> None:
    """Put ticks at the values themselves: they are few, and no powers of ten."""
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()
    axis.set_xlabel(AXES[name])


EXPERIMENT = Experiment(
    name="ufm-gap",
    title="Three terms of the gap",
    where="Appendix D.4, Figure 7",
    cost="about 20 s",
    parts=parts,
    measure=measure,
    draw=draw,
)
