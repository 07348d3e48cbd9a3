"""Contraction of finite rounds near their fixed point, next to the bound of Theorem 2 (3)."""

from __future__ import annotations

from itertools import product

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.storage import Table
from fedgram.paper.ufm.experiment import unequal
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.weights import average
from fedgram.ufm.displacement import contraction
from fedgram.ufm.finite import ProfiledUpdate, newton
from fedgram.ufm.finite_instances import FAMILIES, TARGETS
from fedgram.ufm.instances import random_orthogonal


def contractions(
    seed: int, instances: int, horizons: list[float], steps: list[int], rounds: int, width: int
) -> Table:
    """Contraction of Gram errors near G_{η,E}, next to Theorem 2 (3): one row per instance, E and h.

    `guaranteed` is ½ h θ_min. `rate` is the least 1 - (‖G_t - G_{η,E}‖ / ‖G_0 - G_{η,E}‖)^(1/t) over starts
    and rounds t.
    """
    rng, h = np.random.default_rng(seed), np.array(horizons)[:, None]
    tables = []
    for (family, _), penalty in product(FAMILIES.values(), unequal(0.1)):
        clients = family(rng, instances)
        within = average(clients.client_weights, clients.covariance)
        guaranteed = 0.5 * h[:, 0] * contraction(within, penalty)[:, None]
        rows = random_orthogonal(rng, (instances, 1, 1), width)[..., :TARGETS, :]
        for local in steps:
            covariance, weights = clients.covariance[:, None, None], clients.client_weights[:, None, None]
            update = ProfiledUpdate(covariance, weights, penalty, h / local, local)
            fixed = newton(update).gram
            radius = 0.5 * np.linalg.eigvalsh(fixed)[..., :1, None]
            first = fixed + radius * _directions(rng, within)[:, None]
            head, factors = psd.factor(first) @ rows, []
            for t in range(1, rounds + 1):
                head = update.next_head(head)
                left = psd.frobenius(psd.gram(head) - fixed) / psd.frobenius(first - fixed)
                factors.append(left ** (1 / t))
            rate = 1 - np.max(factors, axis=(0, -1))
            tables.append(Table.broadcast(rate.shape, h=h[:, 0], guaranteed=guaranteed, rate=rate))
    return Table.concatenate(tables)


def _directions(rng: np.random.Generator, within: Array) -> Array:
    """Eight random symmetric directions and ±v vᵀ, v the weakest eigenvector of Σ_within: (N, 10, C, C).

    The error along v vᵀ falls slowest. All have unit norm.
    """
    weak = np.linalg.eigh(within)[1][..., :1]
    slowest = (weak @ weak.mT)[:, None]
    drawn = psd.symmetric(rng.standard_normal((len(within), 8, *within.shape[-2:])))
    drawn /= psd.frobenius(drawn)[..., None, None]
    return np.concatenate([drawn, slowest, -slowest], axis=1)


def guaranteed_share(table: Table) -> float:
    """Largest ½ h θ_min over the rate of contraction; infinite if an error did not fall."""
    share = np.full_like(table["rate"], np.inf)
    np.divide(table["guaranteed"], table["rate"], out=share, where=table["rate"] > 0)
    return float(share.max())
