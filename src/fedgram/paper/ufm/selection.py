"""Selection by a vanishing proximal term (Appendix D.2, Figure 5).

128 clients for each of six sizes (C, P). Our choices where the paper is silent:

- Weights fall by quarter decades from 1 to the smallest weight shown. The first solve starts at the broadcast
  with its best bias and features.
- Broadcasts have Haar singular vectors.
- Each instance has six exact optimal heads, drawn uniformly from the orbit, and six L-BFGS returns.
- We read "head initializations" as training of the head alone: L-BFGS minimizes the profiled loss. Its
  minimizers have the same heads as those of the joint loss.
- Joint solves work in the C + 1 sample directions that contain targets, which changes none of their steps.
- Lemma 1 (ii) is checked on 16 more clients of each size and pair λ_H ≠ λ_W, for ρ from 1e2 to 1e-4. Each
  joint solve starts at a random bias.

We draw other instances than the paper, so we compare its medians at the smallest weight with 32 further
suites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import BLUE, GREY, INK, ORANGE, RED
from fedgram.paper.claims import Measurement
from fedgram.paper.plots import draw_guide, draw_median_band, log_slope, make_panels
from fedgram.paper.storage import Table
from fedgram.paper.ufm.experiment import UNEQUAL, Experiment, Found, Results, Scale, extent, group_by_size
from fedgram.theory.geometry import psd
from fedgram.theory.predict import local_optimum, phi
from fedgram.theory.select import closest_head
from fedgram.ufm.instances import SELECTION_SIZES, ClientInstance, random_orthogonal, selection_instances
from fedgram.ufm.joint import Joint, Sample
from fedgram.ufm.profiled import Profiled
from fedgram.ufm.solvers import TOLERANCE, lbfgs, proximal_path, trust_exact

INSTANCES = 128
WEIGHTS = [10 ** (-k / 4) for k in range(24)]
STARTS = 6
BOUNDED = 16  # instances of each size and penalty for Lemma 1 (ii)
BOUND_WEIGHTS = [1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3, 1e-4]
ERRORS = ("gram_error", "selection_error")
SLOT = 10**-6.6  # place of ρ = 0, left of the axis break
BREAK = 10**-6.15
FLOOR = 1e-8  # exact optima, at 1e-15, are drawn here: seven empty decades would hide the quartiles


def parts(scale: Scale) -> dict[str, partial[Table]]:
    """Parts, the longest first; the quick scale has four instances of each size."""
    batches, instances, suites = {"full": (2, INSTANCES // 2, 32), "quick": (1, 4, 4)}[scale]
    bounded_sizes, bounded = {"full": (SELECTION_SIZES, BOUNDED), "quick": (SELECTION_SIZES[:3], 2)}[scale]
    sizes = {
        f"targets{targets}_width{width}_batch{batch}": partial(
            selection,
            seed=[targets, width, batch],
            size=[targets, width],
            instances=instances,
            weights=WEIGHTS,
            starts=STARTS,
        )
        for targets, width in reversed(SELECTION_SIZES)
        for batch in range(batches)
    }
    redrawn = partial(redraws, seed=0, suites=suites, instances=INSTANCES, weight=WEIGHTS[-1])
    minimized = partial(
        penalized_minimizers, seed=1, sizes=bounded_sizes, instances=bounded, weights=BOUND_WEIGHTS
    )
    return {"redraws": redrawn, "minimizers": minimized, **sizes}


def selection(seed: list[int], size: list[int], instances: int, weights: list[float], starts: int) -> Table:
    """Errors of returned heads: a row per instance and weight and, for ρ = 0, per instance and start.

    `kind` is the procedure: proximal training, unregularized L-BFGS, or an exact optimum on the orbit.
    """
    (targets, width), rng = size, np.random.default_rng(seed)
    clients = selection_instances(rng, targets, width, instances)
    initial = rng.standard_normal((instances, starts, targets, width))
    rotation = random_orthogonal(rng, (instances, starts), width)
    losses, zeros = _losses(clients), [0.0] * starts
    paths = [[solution.head for solution in proximal_path(loss, weights)] for loss in losses]
    free = [
        [lbfgs(loss.profile, loss.profile.start(head)).head for head in heads]
        for loss, heads in zip(losses, initial, strict=True)
    ]
    optima = psd.factor(_grams(clients))[:, None] @ rotation[..., :targets, :]
    return Table.concatenate(
        [
            _rows("proximal", clients, np.array(paths), weights),
            _rows("L-BFGS", clients, np.array(free), zeros),
            _rows("exact", clients, optima, zeros),
        ]
    )


def redraws(seed: int, suites: int, instances: int, weight: float) -> Table:
    """Median errors at one small weight of further instances: a row per suite and size."""
    rng, rows = np.random.default_rng(seed), []
    for suite in range(suites):
        for targets, width in SELECTION_SIZES:
            clients = selection_instances(rng, targets, width, instances)
            errors = _errors(clients, near_optimum(clients, weight)[:, None])
            rows.append((suite, targets, width, *(np.median(error) for error in errors)))
    return Table(zip(("suite", "targets", "width", *ERRORS), np.array(rows).T, strict=True))


def penalized_minimizers(
    seed: int, sizes: Sequence[tuple[int, int]], instances: int, weights: list[float]
) -> Table:
    """Minimizers of eq. (1) with ρ/2 ‖W - W_t‖², next to Lemma 1 (ii): one row each.

    `excess` and `penalized` are the objectives without and with the penalty, minus L⋆, in units of the bound
    ρ/2 d²(G, G_m). Each solve starts at a random bias, and at the last head and features.
    """
    rng, rows = np.random.default_rng(seed), []
    for (targets, width), penalty in product(sizes, UNEQUAL):
        clients = replace(selection_instances(rng, targets, width, instances), penalty=penalty)
        least = local_optimum(clients.covariance, penalty)
        distance = psd.distance(psd.gram(clients.broadcast), _grams(clients))
        for number, loss in enumerate(_losses(clients)):
            point, mean = loss.start(loss.broadcast), clients.targets[number].mean(axis=-1)
            for weight in weights:
                head, _, features = loss.split(point)
                start = loss.join(head, rng.standard_normal(targets), features)
                penalized = replace(loss, proximal=weight)
                point = trust_exact(penalized, start, min(TOLERANCE, 1e-6 * weight)).point
                bound = 0.5 * weight * distance[number] ** 2
                excess, total = (each.value(point) - least[number] for each in (loss, penalized))
                bias = np.abs(loss.split(point)[1] - mean).max()
                rows.append((weight, excess / bound, total / bound, bias))
    return Table(zip(("weight", "excess", "penalized", "bias"), np.array(rows).T, strict=True))


def near_optimum(clients: ClientInstance, weight: float) -> Array:
    """Minimizers (N, C, P) at a weight so small that two Newton steps from Π(W) reach them.

    The first step leaves a gradient of order ρ², the second one at rounding.
    """
    loss = Profiled(clients.covariance, clients.penalty, clients.broadcast, weight)
    point = loss.start(closest_head(clients.broadcast, _grams(clients)))
    for _ in range(2):
        point = point - np.linalg.solve(loss.hessian(point), loss.gradient(point)[..., None])[..., 0]
    return loss.head(point)


def _losses(clients: ClientInstance) -> list[Joint]:
    """The joint loss of every client, in its rotated sample."""
    return [
        Joint(Sample.from_targets(targets).compress(), clients.penalty, broadcast)
        for targets, broadcast in zip(clients.targets, clients.broadcast, strict=True)
    ]


def _grams(clients: ClientInstance) -> Array:
    return phi(clients.covariance, clients.penalty)


def _errors(clients: ClientInstance, heads: Array) -> tuple[Array, Array]:
    """e_G and e_Π (N, K) of heads (N, K, C, P)."""
    grams = _grams(clients)
    selected = closest_head(clients.broadcast, grams)
    gram_error = psd.relative_error(psd.gram(heads), grams[:, None])
    return gram_error, psd.relative_error(heads, selected[:, None])


def _rows(kind: str, clients: ClientInstance, heads: Array, weights: list[float]) -> Table:
    """One row for each of the heads (N, K, C, P), with weights (K,)."""
    *shape, targets, width = heads.shape
    errors = dict(zip(ERRORS, _errors(clients, heads), strict=True))
    return Table.broadcast(
        tuple(shape), targets=targets, width=width, kind=kind, weight=np.array(weights), **errors
    )


def measure(results: Results) -> Found:
    """Measure the claims about selection."""
    tables = list(by_size(results).values())
    exact, free_gram, free_head = (
        np.concatenate([at_zero(table, *column) for table in tables])
        for column in (("exact", "gram_error"), ("L-BFGS", "gram_error"), ("L-BFGS", "selection_error"))
    )
    run = len(exact) // STARTS
    counted = partial(Measurement, run=run, needed=INSTANCES * len(SELECTION_SIZES))
    gram, head = (_medians(results["redraws"], tables, name) for name in ERRORS)
    return {
        "selection-gram-slope": counted(_slopes(tables, "gram_error")),
        "selection-head-slope": counted(_slopes(tables, "selection_error")),
        "selection-gram-median": counted(*gram),
        "selection-head-median": counted(*head),
        "selection-exact": counted(exact.max()),
        "selection-unregularised-gram": counted(free_gram.max()),
        "selection-unregularised-head": counted(np.median(free_head)),
        **_measure_bounds(results["minimizers"]),
    }


def _measure_bounds(table: Table) -> Found:
    """Lemma 1 (ii) with eq. (15), and the bias of the minimizers."""
    run = len(table["weight"]) // len(BOUND_WEIGHTS)
    counted = partial(Measurement, run=run, needed=BOUNDED * len(SELECTION_SIZES) * len(UNEQUAL))
    return {
        "selection-excess": counted(extent(table["excess"])),
        "selection-penalized": counted(table["penalized"].max()),
        "selection-bias": counted(table["bias"].max()),
    }


def _slopes(tables: list[Table], name: str) -> tuple[Array, Array]:
    """Smallest and largest log-log slope over the sizes of the median error, for ρ ≤ 1e-1."""
    slopes = []
    for weights, errors in (by_weight(table, name) for table in tables):
        small = weights <= 0.1
        slopes.append(log_slope(weights[small], np.median(errors, axis=0)[small]))
    return extent(np.array(slopes))


def _medians(
    redrawn: Table, tables: list[Table], name: str
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Smallest and largest median over the sizes at the smallest weight, in our suite and in further ones."""
    medians = np.array([np.median(by_weight(table, name)[1][:, -1]) for table in tables])
    others = redrawn[name].reshape(-1, len(SELECTION_SIZES))
    return extent(medians), extent(others, axis=1)


def by_size(results: Results) -> dict[tuple[int, ...], Table]:
    """One table for each size (C, P), smallest first."""
    tables = (table for table in results.values() if "kind" in table)
    return group_by_size(tables, "targets", "width")


def by_weight(table: Table, name: str) -> tuple[Array, Array]:
    """Weights (W,), largest first, and a column of proximal training, (instances, W)."""
    weights, errors = table.select(kind="proximal").samples_by("weight", name)
    return weights[::-1], errors[::-1].T


def at_zero(table: Table, kind: str, name: str) -> Array:
    """Column of all heads of one kind at ρ = 0, (instances x starts,)."""
    return table.select(kind=kind)[name]


def draw(results: Results) -> Any:
    """Draw one panel for each size."""
    figure, axes = make_panels(2, 3, (10, 6), sharex=True, sharey=True)
    for axis, ((targets, width), table) in zip(axes, by_size(results).items(), strict=True):
        _draw_path(axis, table)
        _draw_zero_slot(axis, table)
        axis.set_title(f"$C={targets}$, $P={width}$")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    for axis in axes[3:]:
        axis.set_xlabel(r"$\rho$")
    for axis in axes[::3]:
        axis.set_ylabel("relative error")
    return figure


def _draw_path(axis: Any, table: Table) -> None:
    for name, marker, color, label in (
        ("gram_error", "o", BLUE, r"$e_G(\rho)$"),
        ("selection_error", "s", ORANGE, r"$e_\Pi(\rho)$"),
    ):
        weights, errors = by_weight(table, name)
        draw_median_band(axis, weights, errors.T, color, marker=marker, ms=2.5, lw=0.8, label=label)
    draw_guide(axis, weights, (1e-3, 2e-5), 1, ls="-", label="slope one")
    axis.set(xscale="log", yscale="log", xlim=(SLOT / 2.5, 2), ylim=(FLOOR, 5))


def _draw_zero_slot(axis: Any, table: Table) -> None:
    """Draw medians at ρ = 0 left of a break in the axis, with quartiles for L-BFGS."""
    exact = np.median(at_zero(table, "exact", "gram_error"))
    low, free, high = np.quantile(at_zero(table, "L-BFGS", "selection_error"), (0.25, 0.5, 0.75))
    label = r"exact optima, $e_G$ (drawn at the floor)"
    axis.plot([SLOT], [np.maximum(exact, FLOOR)], "o", color=INK, ms=5, ls="", clip_on=False, label=label)
    axis.errorbar([SLOT], [free], [[free - low], [high - free]], fmt="s", color=RED, ms=4.5, lw=1,
                  label=r"L-BFGS from random starts, $e_\Pi$")  # fmt: skip
    axis.axvline(BREAK, color=GREY, lw=0.7, ls=(0, (2, 2)))
    axis.set_xticks([SLOT, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1], ["0", *(f"$10^{{{k}}}$" for k in range(-5, 1))])
    axis.minorticks_off()


EXPERIMENT = Experiment(
    name="ufm-selection",
    title="Selection by a vanishing regularizer",
    where="Appendix D.2, Figure 5",
    cost="about 45 s",
    parts=parts,
    measure=measure,
    draw=draw,
)
