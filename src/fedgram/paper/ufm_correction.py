"""One-round recovery by the moment correction (Appendix D.5, Figure 8): exact rounds and numerical solves.

Unstated in the paper, chosen here: 18 rounds, as in Figure 6; the 512 instances of Appendix D.4 with
standard-normal heads for the identity of eq. (13), its residuals relative; proximal weights that fall by
decades from 1e-1. The fixed instance of the numerical solves is one of the controlled sweeps of
Appendix D.4, the paper's other instances with M = 4 and C = P = 3, with seed 55. Its broadcast is where
training without correction ends, G_⋆^(1/2), and each client starts from its own uncorrected optimum, so that
corrected clients agree because their objective is the same, not because their solves are. 32 further seeds
show how such instances spread.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.columns import columns, concatenated
from fedgram.paper.experiment import Experiment, Scale
from fedgram.paper.tables import Table
from fedgram.paper.ufm_correction_claims import DEFICITS, IDENTITIES, PER_SIZE, REDRAWN, measure
from fedgram.paper.ufm_correction_figure import draw
from fedgram.theory.correct import correct
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import trajectory
from fedgram.theory.geometry.weights import average
from fedgram.theory.moments import Moments
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

PROXIMAL_WEIGHTS = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5]


def parts(scale: Scale) -> dict[str, partial[Table]]:
    """Parts of the study; the quick one has fewer instances and redraws."""
    instances, groups, redrawn, checked = {
        "full": (PER_SIZE, 16, REDRAWN, IDENTITIES),
        "quick": (8, 1, 4, 48),
    }[scale]
    solved = partial(proximal_round, strengths=[1.0, 0.5], proximal_weights=PROXIMAL_WEIGHTS)
    return {
        "rounds": partial(exact_rounds, seed=0, instances=instances, deficits=DEFICITS, rounds=18),
        "returns": partial(corrected_returns, seed=0, instances=instances),
        "commutators": partial(commutators, seed=0, instances=instances),
        "gap_redraws": partial(relative_gaps, seed=1, instances=groups * instances),
        "fixed": partial(solved, first_seed=55, seeds=1),
        "fixed_redraws": partial(solved, first_seed=1000, seeds=redrawn),
        "identities": partial(identities, seed=2, instances=checked),
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
            tables.append(columns((rounds + 1, instances), targets=targets, clients=clients, deficit=deficit,
                                   round=np.arange(rounds + 1)[:, None], instance=np.arange(instances),
                                   error=psd.relative_error(grams, correction.centralized)))  # fmt: skip
    return concatenated(tables)


def corrected_returns(seed: int, instances: int) -> Table:
    """What the clients of the same instances return in the first corrected round, Proposition 2."""
    rng = np.random.default_rng(seed)
    tables = []
    for size in BARYCENTER_SIZES:
        drawn = barycenter_instances(rng, *size, instances)
        moments, correction = drawn.moments, correct(drawn.moments, UNIT)
        # Each client adds the correction to its own covariance; its sum is Σ_cen only up to rounding.
        own = phi(moments.covariance + correction.deficit, UNIT)
        heads = closest_head(drawn.head[:, None], own)
        bias, _ = conditional_solution(heads, drawn.targets, UNIT)
        shared_bias = np.einsum("nm,nmc->nc", moments.client_weights, bias)
        shared = psd.gram(average(moments.client_weights, heads))
        tables.append(
            {
                "error": psd.relative_error(shared, correction.centralized),
                "head": psd.relative_error(heads, heads[:, :1]).max(axis=1),
                "bias": np.linalg.norm(shared_bias - moments.pooled.mean, axis=-1),
            }
        )
    return concatenated(tables)


def commutators(seed: int, instances: int) -> Table:
    """How far the client covariances of the same instances are from commuting, the closest two of each."""
    rng = np.random.default_rng(seed)
    drawn = [barycenter_instances(rng, *size, instances).moments for size in BARYCENTER_SIZES]
    return {"commutator": np.concatenate([least_commutator(moments.covariance) for moments in drawn])}


def relative_gaps(seed: int, instances: int) -> Table:
    """Relative gaps of further instances, by size: where their rounds without correction settle."""
    rng = np.random.default_rng(seed)
    drawn = [barycenter_instances(rng, *size, instances).moments for size in BARYCENTER_SIZES]
    return {"relative": np.concatenate([predict(moments, UNIT).relative_gap for moments in drawn])}


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
    return dict(zip(("seed", "strength", "error", "head_distance"), np.array(rows).T, strict=True))


def proximal_heads(
    moments: Moments, broadcast: Array, strength: float, proximal_weights: list[float]
) -> Array:
    """Minimisers of F + γ C_m + ρ/2 ‖W - W_t‖² at the last proximal weight ρ: (M, C, P).

    Each solve starts where the one before it, at a larger weight, has ended.
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
    """Relative residuals of F(W; Σ_m) + C_m(W) = F(W; Σ_cen), largest over the clients of each instance."""
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
        tables.append({"value": np.abs(value).max(axis=1), "gradient": gradient.max(axis=1)})
    return concatenated(tables)


EXPERIMENT = Experiment(
    name="ufm-correction",
    title="One-round recovery by the moment correction",
    where="Appendix D.5, Figure 8",
    cost="about 10 s",
    parts=parts,
    measure=measure,
    draw=draw,
)
