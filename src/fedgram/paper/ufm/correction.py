"""One-round recovery by the moment correction (Appendix D.5, Figure 8).

Our choices where the paper is silent:

- 18 rounds, as in Figure 6. Proximal weights fall by decades from 1e-1.
- The identity of eq. (13) is checked on the 512 instances of Appendix D.4 with standard-normal heads; its
  residuals are relative.
- The fixed instance of the numerical solves is seed 55 of the controlled sweeps of Appendix D.4, the paper's
  other instances with M = 4 and C = P = 3. 32 further seeds show the spread of such instances.
- Its broadcast is the limit without correction, G_⋆^(1/2), and each client starts at its own uncorrected
  optimum. Corrected clients then agree because they share an objective, not because they share a solve.
- Predictions of Appendix C.3 come from models that are fitted numerically at a head with W Wᵀ = G_cen, for
  eight more instances of each of the three smaller sizes and pair λ_H ≠ λ_W.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import INK, RED
from fedgram.paper.claims import ROUNDING, Measurement
from fedgram.paper.plots import format_power, log_slope, make_panels, shades
from fedgram.paper.storage import Table
from fedgram.paper.ufm.experiment import UNEQUAL, Experiment, Found, Results, Scale, extent
from fedgram.paper.ufm.fixed_head import fit_bias_and_features
from fedgram.theory.correct import BiasRule, correct
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import trajectory
from fedgram.theory.geometry.weights import average
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import conditional_solution, phi, predict
from fedgram.theory.select import closest_head
from fedgram.ufm.instances import (
    BARYCENTER_SIZES,
    UNIT,
    WEAK,
    barycenter_instances,
    gap_instances,
    least_commutator,
    sweep_moments,
)
from fedgram.ufm.profiled import Profiled
from fedgram.ufm.solvers import lbfgs

PER_SIZE, IDENTITIES, REDRAWN = 32, 512, 32  # instances per size, for eq. (13), and redraws of the fixed one
FITTED, FITTED_SIZES = 8, BARYCENTER_SIZES[:3]  # instances per size and penalty for Appendix C.3
PROXIMAL_WEIGHTS = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5]
DEFICITS = [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 0.0]
"""1 - γ, from no correction to the full one."""

FIXED = {
    "correction-fixed-error": (1.0, "error"),
    "correction-half-error": (0.5, "error"),
    "correction-half-heads": (0.5, "head_distance"),
}
"""Strength γ and column of claims that depend on the draw of the fixed instance."""

RULES: tuple[BiasRule, BiasRule] = ("shared", "private")
"""Bias μ_g of the server, or μ_m of the client."""

FLOOR = 1e-16  # smaller errors are drawn here


def parts(scale: Scale) -> dict[str, partial[Table]]:
    """Parts; the quick scale has fewer instances and redraws."""
    instances, groups, redrawn, checked, fitted = {
        "full": (PER_SIZE, 16, REDRAWN, IDENTITIES, FITTED),
        "quick": (8, 8, 8, 48, 2),
    }[scale]
    solved = partial(proximal_round, strengths=[1.0, 0.5], proximal_weights=PROXIMAL_WEIGHTS)
    return {
        "rounds": partial(exact_rounds, seed=0, instances=instances, deficits=DEFICITS, rounds=18),
        "returns": partial(corrected_returns, seed=0, instances=instances),
        "commutators": partial(commutators, seed=0, instances=instances),
        "gap_redraws": partial(relative_gaps, seed=1, instances=groups * PER_SIZE),
        "fixed": partial(solved, first_seed=55, seeds=1),
        "fixed_redraws": partial(solved, first_seed=1000, seeds=redrawn),
        "identities": partial(identities, seed=2, instances=checked),
        "predictions": partial(fitted_predictions, seed=3, sizes=FITTED_SIZES, instances=fitted),
    }


def exact_rounds(seed: int, instances: int, deficits: list[float], rounds: int) -> Table:
    """Error to G_cen over rounds of exact selection under (1 - deficit) C_m; a row per instance and round."""
    rng = np.random.default_rng(seed)
    tables = []
    for targets, clients in BARYCENTER_SIZES:
        drawn = barycenter_instances(rng, targets, clients, instances)
        for deficit in deficits:
            correction = correct(drawn.moments, UNIT, strength=1 - deficit)
            grams = trajectory(drawn.head, correction.grams, drawn.moments.client_weights, rounds)
            error = psd.relative_error(grams, correction.centralized)
            tables.append(Table.broadcast(
                error.shape, targets=targets, clients=clients, deficit=deficit,
                round=np.arange(rounds + 1)[:, None], instance=np.arange(instances), error=error,
            ))  # fmt: skip
    return Table.concatenate(tables)


def corrected_returns(seed: int, instances: int) -> Table:
    """Returns of the clients of the same instances in the first corrected round, Proposition 2."""
    rng = np.random.default_rng(seed)
    tables = []
    for size in BARYCENTER_SIZES:
        drawn = barycenter_instances(rng, *size, instances)
        moments, correction = drawn.moments, correct(drawn.moments, UNIT)
        # Each client adds the correction to its own covariance; the sum is Σ_cen only up to rounding.
        own = phi(moments.covariance + correction.deficit, UNIT)
        heads = closest_head(drawn.head[:, None], own)
        bias, _ = conditional_solution(heads, drawn.targets, UNIT)
        shared_bias = np.einsum("nm,nmc->nc", moments.client_weights, bias)
        shared = psd.gram(average(moments.client_weights, heads))
        tables.append(Table(
            error=psd.relative_error(shared, correction.centralized),
            head=psd.relative_error(heads, heads[:, :1]).max(axis=1),
            bias=np.linalg.norm(shared_bias - moments.pooled.mean, axis=-1),
        ))  # fmt: skip
    return Table.concatenate(tables)


def commutators(seed: int, instances: int) -> Table:
    """Least commutator over pairs of client covariances, for the same instances."""
    rng = np.random.default_rng(seed)
    drawn = [barycenter_instances(rng, *size, instances).moments for size in BARYCENTER_SIZES]
    return Table(commutator=np.concatenate([least_commutator(each.covariance) for each in drawn]))


def relative_gaps(seed: int, instances: int) -> Table:
    """Relative gaps of further instances, by size: the limits of their rounds without correction."""
    rng = np.random.default_rng(seed)
    drawn = [barycenter_instances(rng, *size, instances).moments for size in BARYCENTER_SIZES]
    return Table(relative=np.concatenate([predict(moments, UNIT).relative_gap for moments in drawn]))


def proximal_round(
    first_seed: int, seeds: int, strengths: list[float], proximal_weights: list[float]
) -> Table:
    """One corrected round whose heads are found by L-BFGS, one row per seed and strength."""
    rows = []
    for seed in range(first_seed, first_seed + seeds):
        moments = sweep_moments(np.random.default_rng(seed))
        prediction = predict(moments, WEAK)
        broadcast = psd.sqrt(prediction.barycenter.gram)
        for strength in strengths:
            heads = proximal_heads(moments, broadcast, strength, proximal_weights)
            shared = psd.gram(average(moments.client_weights, heads))
            error = psd.relative_error(shared, prediction.centralized)
            rows.append((seed, strength, error, psd.frobenius(heads - heads[0]).max()))
    return Table(zip(("seed", "strength", "error", "head_distance"), np.array(rows).T, strict=True))


def proximal_heads(
    moments: Moments, broadcast: Array, strength: float, proximal_weights: list[float]
) -> Array:
    """Minimizers of F + γ C_m + ρ/2 ‖W - W_t‖² at the last proximal weight ρ: (M, C, P).

    Each solve starts at the solution for the previous, larger weight.
    """
    deficit = correct(moments, WEAK).deficit
    heads = []
    for covariance, missing in zip(moments.covariance, deficit, strict=True):
        loss = Profiled(covariance + strength * missing, WEAK, broadcast)
        point = loss.start(closest_head(broadcast, phi(covariance, WEAK)))
        for weight in proximal_weights:
            point = lbfgs(replace(loss, proximal=weight), point).point
        heads.append(loss.head(point))
    return np.array(heads)


def identities(seed: int, instances: int) -> Table:
    """Relative residuals of F(W; Σ_m) + C_m(W) = F(W; Σ_cen), largest over clients."""
    rng = np.random.default_rng(seed)
    tables = []
    for moments in gap_instances(rng, instances):
        targets = moments.mean.shape[-1]
        head = rng.standard_normal((len(moments.mean), targets, targets))
        correction, heads = correct(moments, WEAK), head[:, None]
        client = Profiled(moments.covariance, WEAK, heads)
        pooled = Profiled(moments.pooled.covariance[:, None], WEAK, heads)
        point = client.start(heads)
        corrected = client.head(client.gradient(point)) + correction.gradient(head)
        value = (client.value(point) + correction.value(head)) / pooled.value(point) - 1
        gradient = psd.relative_error(corrected, pooled.head(pooled.gradient(point)))
        tables.append(Table(value=np.abs(value).max(axis=1), gradient=gradient.max(axis=1)))
    return Table.concatenate(tables)


def fitted_predictions(seed: int, sizes: Sequence[tuple[int, int]], instances: int) -> Table:
    """Corrected minus centralized predictions of fitted models, next to Appendix C.3: one row per instance.

    Columns are the largest residuals with the shared and the private bias, over the largest difference.
    """
    rng, tables = np.random.default_rng(seed), []
    for size, penalty in product(sizes, UNEQUAL):
        drawn = barycenter_instances(rng, *size, instances)
        correction = correct(drawn.moments, penalty)
        head = closest_head(drawn.head, correction.centralized)
        fits = [
            _fit_differences(*each, penalty)
            for each in zip(head, drawn.targets, drawn.moments.client_weights, strict=True)
        ]
        residuals: dict[str, Array] = {}
        for rule, fitted in zip(RULES, np.stack(fits, axis=1), strict=True):
            stated = correction.prediction_difference(head, rule)[..., None]
            largest = np.abs(stated).max(axis=(1, 2, 3))
            residuals[rule] = np.abs(fitted - stated).max(axis=(1, 2, 3)) / largest
        tables.append(Table(residuals))
    return Table.concatenate(tables)


def _fit_differences(head: Array, targets: Array, client_weights: Array, penalty: Penalty) -> Array:
    """Corrected minus centralized predictions with the shared and the private bias: (2, M, C, N).

    head (C, P), targets (M, C, N), client_weights (M,). The correction depends on the head alone, so a client
    fits bias and features as without it.
    """
    clients, _, count = targets.shape
    rows = np.full(count, 1 / count)
    fits = [fit_bias_and_features(head, each, rows, penalty) for each in targets]
    biases, own = np.array([bias for bias, _ in fits]), np.array([head @ features for _, features in fits])
    pooled_rows = np.repeat(client_weights, count) / count
    bias, features = fit_bias_and_features(head, np.hstack(list(targets)), pooled_rows, penalty)
    centralized = np.array(np.hsplit(head @ features, clients)) + bias[:, None]
    shared = client_weights @ biases
    return np.array([own + shared[:, None] - centralized, own + biases[..., None] - centralized])


def measure(results: Results) -> Found:
    """Measure the claims about the correction."""
    errors, commutator = errors_of(results["rounds"]), results["commutators"]["commutator"]
    return (
        _measure_recovery(errors, results["gap_redraws"]["relative"])
        | {"correction-noncommuting": _of_all((commutator > ROUNDING).all(), len(commutator))}
        | _measure_returns(results["returns"], errors[:, -1, 1].max())
        | _measure_fixed(results["fixed"], results["fixed_redraws"])
        | _measure_identities(results["identities"])
        | _measure_predictions(results["predictions"])
    )


def errors_of(table: Table) -> Array:
    """Errors to G_cen as (sizes, deficits, rounds, instances)."""
    rounds = int(table["round"].max()) + 1
    return table["error"].reshape(len(BARYCENTER_SIZES), len(DEFICITS), rounds, -1)


def _measure_recovery(errors: Array, redrawn_gaps: Array) -> Found:
    """Limits of the medians: the gap without correction, proportional to the deficit with it."""
    sizes, _, _, instances = errors.shape
    settled, run = np.median(errors[:, :, -1], axis=-1), sizes * instances
    again = np.median(redrawn_gaps.reshape(sizes, -1, PER_SIZE), axis=-1)
    slopes = np.array([log_slope(np.array(DEFICITS[1:-1]), left) for left in settled[:, 1:-1]])
    return {
        "correction-plateau": _of_all(extent(settled[:, 0]), run, extent(again, axis=0)),
        "correction-deficit-slope": _of_all(extent(slopes), run),
    }


def _measure_returns(table: Table, shared_error: Any) -> Found:
    """The first corrected round: clients share a head, the pooled mean, and G_cen."""
    error, head, bias = (table[name].max() for name in ("error", "head", "bias"))
    run = len(table["error"])
    return {
        "correction-one-round": _of_all(max(error, shared_error), run),
        "correction-heads": _of_all(head, run),
        "correction-bias": _of_all(bias, run),
    }


def _of_all(value: Any, run: int, redraws: Iterable[Array] = ()) -> Measurement:
    """A number over all instances of the six sizes."""
    return Measurement(value, redraws, run, needed=len(BARYCENTER_SIZES) * PER_SIZE)


def _measure_fixed(table: Table, redraws: Table) -> Found:
    """Numerical solves of the full and of half the correction."""
    # The distance of returned heads is the accuracy of the solver, not of the draw.
    measured: Found = {"correction-fixed-heads": table.select(strength=1.0)["head_distance"][0]}
    for claim, (strength, column) in FIXED.items():
        ours, others = (each.select(strength=strength)[column] for each in (table, redraws))
        measured[claim] = Measurement(ours[0], [others])
    return measured


def _measure_identities(table: Table) -> Found:
    """The corrected profile equals the pooled one, in value and in gradient."""
    counted = partial(Measurement, run=len(table["value"]), needed=IDENTITIES)
    return {f"correction-identity-{name}": counted(table[name].max()) for name in ("value", "gradient")}


def _measure_predictions(table: Table) -> Found:
    """Appendix C.3, with both biases."""
    needed = FITTED * len(FITTED_SIZES) * len(UNEQUAL)
    counted = partial(Measurement, run=len(table["shared"]), needed=needed)
    return {f"correction-predictions-{rule}": counted(table[rule].max()) for rule in RULES}


def draw(results: Results) -> Any:
    """Draw one panel per problem size: columns for C, rows for M."""
    errors = np.maximum(np.median(errors_of(results["rounds"]), axis=-1), FLOOR)
    figure, axes = make_panels(2, 3, (9.5, 5), sharex=True, sharey=True)
    by_targets = axes.reshape(2, 3).T.ravel()
    for axis, (targets, clients), curves in zip(by_targets, BARYCENTER_SIZES, errors, strict=True):
        _draw_recovery(axis, curves)
        axis.set_title(f"$C={targets}$, $M={clients}$")
    for axis in axes[3:]:
        axis.set(xlabel="round $t$", xticks=range(0, errors.shape[-1], 3))
    for axis in axes[::3]:
        axis.set_ylabel(r"$\|G_t-G_{\rm cen}\|_F\,/\,\|G_{\rm cen}\|_F$")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=7)
    return figure


def _draw_recovery(axis: Any, curves: Array) -> None:
    """Draw curves (deficits, rounds): no correction red, the full one dashed, scaled ones between."""
    rounds = np.arange(curves.shape[-1])
    none, *scaled, full = curves
    axis.plot(rounds, none, "s-", color=RED, label="no correction")
    for deficit, curve, color in zip(DEFICITS[1:-1], scaled, shades("viridis", len(scaled)), strict=True):
        axis.plot(rounds, curve, "o-", color=color, label=f"1 − γ = {format_power(deficit)}")
    axis.plot(rounds, full, "--", color=INK, label="full, γ = 1")
    axis.set(yscale="log", ylim=(FLOOR / 3, 30))


EXPERIMENT = Experiment(
    name="ufm-correction",
    title="One-round recovery by the moment correction",
    where="Appendix D.5, Figure 8",
    cost="about 10 s",
    parts=parts,
    measure=measure,
    draw=draw,
)
