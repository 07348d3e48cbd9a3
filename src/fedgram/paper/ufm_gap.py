"""The three terms of the gap to centralized training (Appendix D.4, Figure 7): the random instances.

Unstated in the paper, chosen here: the grids C in {2, 3, 4, 5, 6, 8}, M in {2, 3, 4, 6, 8, 16} and κ in
{50, 20, 10, 5, 2, 1.2} of panels c to e and h to j; twelve sizes (C, M) that take turns over the 512
instances; equal moments made by moving them onto their weighted averages. The paper's seeds 55 to 62 do not
pin its draws, so numbers that depend on them are held against redraws of ours (`ufm_gap_claims`).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.columns import concatenated
from fedgram.paper.experiment import Experiment, Scale
from fedgram.paper.tables import Table
from fedgram.paper.ufm_gap_claims import INSTANCES, PER_SETTING, SEEDS, measure
from fedgram.paper.ufm_gap_figure import draw
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

MEAN_STRENGTHS = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0]
COVARIANCE_STRENGTHS = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]

# Settings (C, M, κ). The covariance eigenvalues start at κ λ_H λ_W: 25 gives the interval [0.25, 3] of the
# 512 instances.
SWEEPS = {
    "targets": [(targets, 4, 25.0) for targets in (2, 3, 4, 5, 6, 8)],
    "clients": [(3, clients, 25.0) for clients in (2, 3, 4, 6, 8, 16)],
    "margin": [(3, 4, margin) for margin in (50.0, 20.0, 10.0, 5.0, 2.0, 1.2)],
}


def parts(scale: Scale) -> dict[str, partial[Table]]:
    """Parts of the study; the quick one has fewer instances and fewer redraws of them."""
    instances, redrawn, per_setting, minima = {
        "full": (INSTANCES, 16 * INSTANCES, PER_SETTING, 64 * PER_SETTING),
        "quick": (48, 48, 16, 16),
    }[scale]
    sweeps = {
        name: partial(composition, seed=seed, settings=settings, instances=per_setting)
        for seed, (name, settings) in enumerate(SWEEPS.items(), start=1)
    }
    return {
        "controlled": partial(
            controlled, first_seed=55, seeds=SEEDS, means=MEAN_STRENGTHS, covariances=COVARIANCE_STRENGTHS
        ),
        "controlled_redraws": partial(
            controlled, first_seed=1000, seeds=64 * SEEDS, means=[3.0], covariances=[1.0]
        ),
        "suite": partial(suite, seed=0, instances=instances),
        "equalised": partial(equalised, seed=0, instances=instances),
        "suite_redraws": partial(suite, seed=4, instances=redrawn),
        **sweeps,
        "two_client_redraws": partial(composition, seed=5, settings=[(3, 2, 25.0)], instances=minima),
    }


def controlled(first_seed: int, seeds: int, means: list[float], covariances: list[float]) -> Table:
    """Traces of the three terms while the means, or the covariances, of each seed are moved apart.

    One row per seed and strength; `moved` says which moments.
    """
    numbers = np.arange(first_seed, first_seed + seeds)
    base = _stacked([sweep_moments(np.random.default_rng(number)) for number in numbers])
    tables = [
        {
            "seed": numbers,
            "moved": np.full(seeds, moved),
            "strength": np.full(seeds, strength),
            **_by_term("trace", _gap(scaled(base, strength)).traces),
        }
        for moved, scaled, strengths in (
            ("means", scale_means, means),
            ("covariances", scale_covariances, covariances),
        )
        for strength in strengths
    ]
    return concatenated(tables)


def suite(seed: int, instances: int) -> Table:
    """Terms, bounds and identities of random instances of all sizes, one row each."""
    by_size = gap_instances(np.random.default_rng(seed), instances)
    return concatenated([_suite_rows(turn, moments) for turn, moments in enumerate(by_size)])


def _suite_rows(turn: int, moments: Moments) -> Table:
    """Instances of one size: the `turn`-th of the sizes that take turns, so that `number` orders them all."""
    prediction = predict(moments, WEAK)
    gap, client_weights, star = explain(prediction), moments.client_weights, prediction.barycenter.gram
    count, (targets, clients) = len(client_weights), GAP_SIZES[turn]
    to_star = psd.distance(star[:, None], prediction.grams)
    first_to_second = psd.distance(prediction.grams[:, 0], prediction.grams[:, 1])
    return {
        "number": turn + len(GAP_SIZES) * np.arange(count),
        "targets": np.full(count, targets),
        "clients": np.full(count, clients),
        **_by_term("trace", gap.traces),
        **_by_term("eigenvalue", gap.smallest_eigenvalue),
        "dispersion": gap.dispersion,
        "bounds_hold": gap.bounds_hold,
        "variance": (client_weights * to_star**2).sum(axis=-1),  # eq. (12), right-hand side
        "scatter_residual": gap.scatter_residual * gap.scale / psd.frobenius(gap.averaging),
        "first_to_star": to_star[:, 0],
        "geodesic": client_weights[:, 1] * first_to_second,  # p_2 d(G_1, G_2)
    }


def equalised(seed: int, instances: int) -> Table:
    """Traces of the terms that equal means, equal covariances, or both, remove from the same instances."""
    tables = []
    for moments in gap_instances(np.random.default_rng(seed), instances):
        means_equal, covariances_equal = scale_means(moments, 0.0), scale_covariances(moments, 0.0)
        tables.append(
            {
                "mean": _gap(means_equal).traces[:, 0],
                "covariance": _gap(covariances_equal).traces[:, 1],
                "averaging": _gap(covariances_equal).traces[:, 2],
                **_by_term("both", _gap(scale_means(covariances_equal, 0.0)).traces),
            }
        )
    return concatenated(tables)


def composition(seed: int, settings: list[tuple[int, int, float]], instances: int) -> Table:
    """Shares, smallest eigenvalues and relative gap in settings (C, M, κ), one row per instance."""
    rng = np.random.default_rng(seed)
    tables = []
    for targets, clients, margin in settings:
        gap = _gap(gap_moments(rng, targets, clients, instances, (margin * WEAK.threshold, 3.0)))
        tables.append(
            {
                "targets": np.full(instances, targets),
                "clients": np.full(instances, clients),
                "margin": np.full(instances, margin),
                **_by_term("share", gap.shares),
                **_by_term("eigenvalue", gap.smallest_eigenvalue),
                "relative": gap.relative,
            }
        )
    return concatenated(tables)


def _gap(moments: Moments) -> Gap:
    return explain(predict(moments, WEAK))


def _by_term(name: str, values: Array) -> Table:
    """Columns name_mean, name_covariance and name_averaging of values (..., 3)."""
    return {f"{name}_{term}": values[..., i] for i, term in enumerate(TERMS)}


def _stacked(moments: list[Moments]) -> Moments:
    """Moments of one size as one batch, with a new leading axis."""
    return Moments(
        count=moments[0].count,
        mean=np.stack([one.mean for one in moments]),
        covariance=np.stack([one.covariance for one in moments]),
        client_weights=np.stack([one.client_weights for one in moments]),
    )


EXPERIMENT = Experiment(
    name="ufm-gap",
    title="Three terms of the gap",
    where="Appendix D.4, Figure 7",
    cost="about 20 s",
    parts=parts,
    measure=measure,
    draw=draw,
)
