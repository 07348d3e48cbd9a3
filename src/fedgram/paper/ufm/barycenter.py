"""Convergence to the Bures–Wasserstein barycenter (Appendix D.3, Figure 6).

16 federations of each size (C, M). Our choices where the paper is silent:

- Adam takes 300 steps of rate 0.02 in each round, from the broadcast head, b = μ_m and the ridge-optimal H,
  with its averages reset. It runs in the samples' own basis, because its steps depend on the basis.
- Proximal solves work in the C + 1 sample directions that contain targets, which changes none of their steps.
- The plateau of an error is its median after the last round.
- Theorem 1 is checked on 16 more federations of each size and pair λ_H ≠ λ_W: 40 exact rounds from random G_0
  with eigenvalues from 1e-3 to 1e3 and P = C, 2C and 4C. Biases are fitted in the four smaller sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import INK, RED
from fedgram.paper.claims import Measurement
from fedgram.paper.plots import format_power, log_slope, make_panels, shades
from fedgram.paper.storage import Table
from fedgram.paper.ufm.experiment import UNEQUAL, Experiment, Found, Results, Scale, extent, group_by_size
from fedgram.paper.ufm.fixed_head import fit_bias_and_features
from fedgram.theory.geometry import psd
from fedgram.theory.predict import Prediction, phi, predict
from fedgram.ufm.instances import (
    BARYCENTER_SIZES,
    FederatedInstance,
    assemble,
    barycenter_instances,
    least_commutator,
    random_orthogonal,
)
from fedgram.ufm.joint import Joint, Sample
from fedgram.ufm.rounds import exact, minimize_together, proximal, run_rounds
from fedgram.ufm.solvers import adam

INSTANCES = 16
ROUNDS = 18
ROUNDING = 1e-13  # smaller errors and commutators are rounding
LEVEL = {"adam": 3, "proximal": 16}  # rounds from which the error no longer falls
WEIGHTS = np.array([1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
WIDTHS = [1, 2, 4]  # P / C of the random starts
FITTED_SIZES, FITTED_ROUNDS = BARYCENTER_SIZES[:4], 3  # larger sizes would take a minute


def parts(scale: Scale) -> dict[str, partial[Table]]:
    """Parts, the longest first; the quick scale trains two instances of two small sizes."""
    batches, instances, trained = {
        "full": (2, INSTANCES // 2, BARYCENTER_SIZES),
        "quick": (1, 2, ((2, 3), (4, 3))),
    }[scale]
    procedures = {
        f"rho{weight:g}": partial(proximal_rounds, weight=weight) for weight in WEIGHTS.tolist()
    } | {
        "adam": partial(adam_rounds, steps=300, rate=0.02),
        "exact": partial(exact_rounds),
    }
    checked = {"full": INSTANCES, "quick": 2}[scale]
    theorem = {
        "starts": partial(
            random_starts, seed=0, sizes=BARYCENTER_SIZES, instances=checked, widths=WIDTHS, rounds=40
        ),
        "biases": partial(fitted_biases, seed=1, sizes=FITTED_SIZES, instances=checked, rounds=FITTED_ROUNDS),
    }
    return theorem | {
        f"targets{targets}_clients{clients}_{name}_batch{batch}": partial(
            procedure,
            seed=[targets, clients, batch],
            size=[targets, clients],
            instances=instances,
            rounds=ROUNDS,
        )
        for (targets, clients), (name, procedure), batch in product(
            reversed(BARYCENTER_SIZES), procedures.items(), range(batches)
        )
        if name == "exact" or (targets, clients) in trained
    }


def exact_rounds(seed: list[int], size: list[int], instances: int, rounds: int) -> Table:
    """Clients return their optimal head closest to the broadcast: one row per round and instance."""
    drawn, prediction = _draw_instances(seed, size, instances)
    run = run_rounds(drawn.head, exact(prediction.grams), drawn.moments.client_weights, rounds)
    return _rows("exact", 0.0, prediction, run.grams)


def adam_rounds(
    seed: list[int], size: list[int], instances: int, rounds: int, steps: int, rate: float
) -> Table:
    """Clients train (W, b, H) from the broadcast without a penalty: one row per round and instance."""
    drawn, prediction = _draw_instances(seed, size, instances)
    clients = Joint(Sample.from_targets(drawn.targets), drawn.penalty, drawn.head[:, None])
    local = minimize_together(clients, partial(adam, steps=steps, rate=rate))
    run = run_rounds(drawn.head, local, drawn.moments.client_weights, rounds)
    return _rows("adam", 0.0, prediction, run.grams)


def proximal_rounds(seed: list[int], size: list[int], instances: int, rounds: int, weight: float) -> Table:
    """Clients minimize the penalized loss from Π_m(W_t): one row per round and instance."""
    drawn, prediction = _draw_instances(seed, size, instances)
    client_weights, grams = drawn.moments.client_weights, []
    for number, head in enumerate(drawn.head):
        clients = [
            Joint(Sample.from_targets(each).compress(), drawn.penalty, head) for each in drawn.targets[number]
        ]
        local = proximal(clients, prediction.grams[number], weight)
        grams.append(run_rounds(head, local, client_weights[number], rounds).grams)
    return _rows("proximal", weight, prediction, np.stack(grams, axis=1))


def random_starts(
    seed: int, sizes: Sequence[tuple[int, int]], instances: int, widths: list[int], rounds: int
) -> Table:
    """Last Grams of exact rounds from random G_0 and P = width C: one row per start and instance.

    `difference` is relative to the last Gram from the first start.
    """
    rng, tables = np.random.default_rng(seed), []
    for (targets, clients), penalty in product(sizes, UNEQUAL):
        moments = barycenter_instances(rng, targets, clients, instances).moments
        grams, limits = phi(moments.covariance, penalty), []
        for width in widths:
            basis = random_orthogonal(rng, (instances,), targets)
            first = assemble(basis, 10 ** rng.uniform(-3, 3, (instances, targets)))
            turn = random_orthogonal(rng, (instances,), width * targets)[:, :targets]
            run = run_rounds(psd.factor(first) @ turn, exact(grams), moments.client_weights, rounds)
            limits.append(run.grams[-1])
        difference = psd.relative_error(np.array(limits), limits[0])
        tables.append(Table.broadcast(difference.shape, difference=difference))
    return Table.concatenate(tables)


def fitted_biases(seed: int, sizes: Sequence[tuple[int, int]], instances: int, rounds: int) -> Table:
    """Shared biases minus μ_g after rounds 1..T, if clients fit b and H to the selected head numerically.

    One row per round and instance.
    """
    rng, rows = np.random.default_rng(seed), []
    for (targets, clients), penalty in product(sizes, UNEQUAL):
        drawn = barycenter_instances(rng, targets, clients, instances)
        moments, row_weights = drawn.moments, np.full(2 * targets, 1 / (2 * targets))
        local = exact(phi(moments.covariance, penalty))
        returned = run_rounds(drawn.head, local, moments.client_weights, rounds).returned
        for t, number in product(range(rounds), range(instances)):
            biases = [
                fit_bias_and_features(head, each, row_weights, penalty)[0]
                for head, each in zip(returned[t, number], drawn.targets[number], strict=True)
            ]
            shared = moments.client_weights[number] @ np.array(biases)
            rows.append((t + 1, np.abs(shared - moments.pooled.mean[number]).max()))
    return Table(zip(("round", "bias"), np.array(rows).T, strict=True))


def _draw_instances(seed: list[int], size: list[int], instances: int) -> tuple[FederatedInstance, Prediction]:
    targets, clients = size
    drawn = barycenter_instances(np.random.default_rng(seed), targets, clients, instances)
    return drawn, predict(drawn.moments, drawn.penalty)


def _rows(procedure: str, weight: float, prediction: Prediction, grams: Array) -> Table:
    """Errors to G_⋆ of shared Grams (T + 1, N, C, C); `commutator` is the least over pairs of clients."""
    error = psd.relative_error(grams, prediction.barycenter.gram)
    covariance = prediction.moments.covariance
    return Table.broadcast(
        error.shape,
        targets=covariance.shape[-1],
        clients=covariance.shape[-3],
        procedure=procedure,
        weight=weight,
        round=np.arange(len(error))[:, None],
        error=error,
        commutator=least_commutator(covariance),
    )


def measure(results: Results) -> Found:
    """Measure the claims about convergence."""
    tables = list(by_size(results).values())
    curves = np.array([median_curve(table, "exact") for table in tables])
    commutators = np.concatenate([table["commutator"] for table in tables])
    counted = partial(Measurement, run=_instances(tables, "exact"), needed=INSTANCES * len(BARYCENTER_SIZES))
    return {
        "barycenter-noncommuting": counted((commutators > ROUNDING).all()),
        "barycenter-exact": counted(curves[:, -1].max()),
        "barycenter-geometric": counted(all(_halves(curve) for curve in curves)),
        **_measure_theorem(results["starts"]["difference"], results["biases"]["bias"]),
        **_measure_plateaus([table for table in tables if "adam" in table["procedure"]]),
    }


def _measure_theorem(differences: Array, biases: Array) -> Found:
    """Limits from random starts, and shared biases, of Theorem 1."""
    each = INSTANCES * len(UNEQUAL)
    limits, rounds = len(BARYCENTER_SIZES) * len(WIDTHS) * each, len(FITTED_SIZES) * FITTED_ROUNDS * each
    return {
        "barycenter-starts": Measurement(differences.max(), run=len(differences), needed=limits),
        "barycenter-bias": Measurement(biases.max(), run=len(biases), needed=rounds),
    }


def _measure_plateaus(tables: list[Table]) -> Found:
    """Plateaus of trained clients, in the sizes that were trained."""
    counted = partial(Measurement, run=_instances(tables, "adam"), needed=INSTANCES * len(BARYCENTER_SIZES))
    adam = np.array([median_curve(table, "adam") for table in tables])
    near = np.array([[median_curve(table, "proximal", each) for each in WEIGHTS] for table in tables])
    free, level, late = adam[..., -1], near[..., -1], adam[..., LEVEL["adam"] :]
    slopes = [log_slope(WEIGHTS, each) for each in level]
    closer = level[:, WEIGHTS <= 1e-3] < free[:, None]
    return {
        "barycenter-plateau-slope": counted(extent(np.array(slopes))),
        "barycenter-proximal-levels": counted(extent(level / near[..., LEVEL["proximal"]])),
        "barycenter-adam-levels": counted((late.max(axis=-1) / late.min(axis=-1)).max()),
        "barycenter-unregularised": counted(extent(free)),
        "barycenter-ordering": counted(closer.all()),
    }


def _halves(curve: Array) -> bool:
    """Whether every round at least halves the error while it is above rounding."""
    before, after = curve[:-1], curve[1:]
    return bool((after <= 0.5 * before)[before > ROUNDING].all())


def _instances(tables: list[Table], procedure: str) -> int:
    return sum(len(table.select(procedure=procedure, round=0)["round"]) for table in tables)


def by_size(results: Results) -> dict[tuple[int, ...], Table]:
    """One table for each size (C, M), smallest first."""
    return group_by_size((each for each in results.values() if "procedure" in each), "targets", "clients")


def median_curve(table: Table, procedure: str, weight: float = 0.0) -> Array:
    """Median error over instances after rounds 0..T of one procedure, (T + 1,)."""
    chosen = table.select(procedure=procedure, weight=weight)
    return np.median(chosen.samples_by("round", "error")[1], axis=1)


def draw(results: Results) -> Any:
    """Draw a panel for each size with trained clients, and one for the exact curves of the others."""
    tables = by_size(results)
    trained = {size: table for size, table in tables.items() if "adam" in table["procedure"]}
    others = {size: table for size, table in tables.items() if size not in trained}
    count = len(trained) + bool(others)
    rows = -(-count // 3)
    figure, axes = make_panels(rows, -(-count // rows), (10, 3 * rows), sharex=True, sharey=True)
    for axis, ((targets, clients), table) in zip(axes, trained.items(), strict=False):
        _draw_curves(axis, table)
        axis.set_title(f"$C={targets}$, $M={clients}$")
    if others:
        _draw_exact(axes[len(trained)], others)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=8)
    for axis in axes:
        axis.set(yscale="log", ylim=(1e-16, 20), xticks=range(0, 19, 3), xlabel="round")
        axis.label_outer()
    axes[0].set_ylabel(r"relative error to $G_{\bigstar}$")
    return figure


def _draw_exact(axis: Any, tables: dict[tuple[int, ...], Table]) -> None:
    """Draw the curves of exact selection of several sizes, where no client was trained."""
    for ((targets, clients), table), color in zip(
        tables.items(), shades("viridis", len(tables)), strict=True
    ):
        label = f"$C={targets}$, $M={clients}$"
        axis.plot(np.unique(table["round"]), median_curve(table, "exact"), "--", color=color, label=label)
    axis.set_title("exact selection, other sizes")
    axis.legend(loc="upper right")


def _draw_curves(axis: Any, table: Table) -> None:
    """Dashed: exact selection. Circles: proximal returns. Red squares: unregularized joint training."""
    rounds = np.unique(table["round"])
    axis.plot(rounds, median_curve(table, "adam"), "s-", color=RED, label="Adam, ρ = 0")
    weights = np.unique(table.select(procedure="proximal")["weight"])[::-1]
    for weight, color in zip(weights, shades("viridis", len(weights)), strict=True):
        label = f"ρ = {format_power(weight)}"
        axis.plot(rounds, median_curve(table, "proximal", weight), "o-", color=color, label=label)
    axis.plot(rounds, median_curve(table, "exact"), "--", color=INK, label="exact selection")


EXPERIMENT = Experiment(
    name="ufm-barycenter",
    title="Convergence to the barycenter",
    where="Appendix D.3, Figure 6",
    cost="about 200 s",
    parts=parts,
    measure=measure,
    draw=draw,
)
