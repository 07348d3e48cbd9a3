"""Finite profiled steps (Appendix G.4, Figure 17): fixed points, rounds, displacement and local rate.

Unstated in the paper, chosen here: Dirichlet(2) client weights; the ten step counts below; panel d as
4 instances x 3 rates x 2 step counts, of which eight have h <= 0.25; 20 generic, 16 repeated and 16
near-threshold instances for panel e. Seeds are ours, so numbers that depend on the draw are held against
groups of three redrawn instances.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.columns import columns, concatenated
from fedgram.paper.experiment import Experiment, Scale
from fedgram.paper.tables import Table
from fedgram.paper.ufm_finite_claims import measure
from fedgram.paper.ufm_finite_figure import draw
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import barycenter
from fedgram.theory.geometry.weights import average
from fedgram.theory.predict import phi
from fedgram.ufm.displacement import commuting_displacement, contraction
from fedgram.ufm.finite import ProfiledUpdate, iterate, newton, return_errors, spectral_radius
from fedgram.ufm.finite_instances import (
    FAMILIES,
    PENALTY,
    Clients,
    commuting,
    commuting_both_signs,
    generic,
    initial_heads,
)

RATES = [0.02, 0.05, 0.1, 0.2, 0.5]
STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 2000]
HORIZONS = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]


def parts(scale: Scale) -> dict[str, partial[Table]]:
    """Parts of the study; the quick one redraws fewer groups."""
    groups = {"full": 32, "quick": 8}[scale]
    return {
        "sweep": partial(sweep, seed=0, instances=3, rates=RATES, steps=STEPS),
        "commuting": partial(commuting_sweep, seed=1, rates=[0.1, 0.5], steps=2000),
        "displacement": partial(displacements, seed=2, instances=4, rates=[0.05, 0.2, 0.5], steps=[2, 5]),
        "stability": partial(stability, seed=3, horizons=HORIZONS, steps=[2, 4, 8]),
        "redraws": partial(redraws, seed=4, groups=groups),
        "displacement_redraws": partial(
            displacements, seed=5, instances=4 * groups, rates=[0.05, 0.2, 0.5], steps=[2, 5]
        ),
    }


def sweep(seed: int, instances: int, rates: list[float], steps: list[int]) -> Table:
    """Fixed points of all (η, E) by running rounds; one row per instance, rate and step count."""
    rng = np.random.default_rng(seed)
    clients, heads = generic(rng, instances), initial_heads(rng, instances)
    return concatenated([_fixed_points(clients, heads, rates, count) for count in steps])


def commuting_sweep(seed: int, rates: list[float], steps: int) -> Table:
    """The same for one instance whose clients commute."""
    rng = np.random.default_rng(seed)
    return _fixed_points(commuting(rng, 1), initial_heads(rng, 1), rates, steps)


def displacements(seed: int, instances: int, rates: list[float], steps: list[int]) -> Table:
    """Measured and predicted displacement of every coordinate of commuting configurations."""
    clients = commuting_both_signs(np.random.default_rng(seed), instances)
    start = phi(average(clients.client_weights, clients.covariance), PENALTY)
    coefficient = commuting_displacement(clients.eigenvalues, clients.client_weights, PENALTY)
    tables = []
    for rate, count in product(rates, steps):
        found = newton(
            ProfiledUpdate(clients.covariance, clients.client_weights, PENALTY, np.array(rate), count)
        )
        measured = clients.in_basis(found.gram - start)
        tables.append(columns(measured.shape, instance=np.arange(instances)[:, None], rate=rate, steps=count,
                               measured=measured, predicted=rate * (count - 1) * coefficient))  # fmt: skip
    return concatenated(tables)


def stability(seed: int, horizons: list[float], steps: list[int]) -> Table:
    """Spectral radius of the Gram map's Jacobian at its fixed point, and its first-order prediction."""
    rng, h = np.random.default_rng(seed), np.array(horizons)
    tables = []
    for name, (family, count) in FAMILIES.items():
        clients = family(rng, count)
        theta = contraction(average(clients.client_weights, clients.covariance), PENALTY)[:, None]
        for local in steps:
            update = _grid(clients, h / local, local)
            radius = spectral_radius(update.linearised(newton(update).head)[1])
            tables.append(columns(radius.shape, family=name, instance=np.arange(count)[:, None], steps=local,
                                   h=h, radius=radius, predicted=1 - 2 * h * theta))  # fmt: skip
    return concatenated(tables)


def redraws(seed: int, groups: int) -> Table:
    """Groups of three further instances at both ends of the sweep, for the spread of our own draws."""
    rng = np.random.default_rng(seed)
    clients, heads = generic(rng, 3 * groups), initial_heads(rng, 3 * groups)
    short, long = (_fixed_points(clients, heads, [rate], count) for rate, count in ((0.02, 1), (0.1, 1000)))
    return {
        "group": np.repeat(np.arange(groups), 3),
        "rounds_short": short["rounds"],
        "rounds_long": long["rounds"],
        "to_star": long["to_star"],
        "selection_error": long["selection_error"],
    }


def _fixed_points(clients: Clients, heads: Array, rates: list[float], steps: int) -> Table:
    """One row per instance and rate; distances in units of d(G_within, G_⋆)."""
    within = phi(average(clients.client_weights, clients.covariance), PENALTY)
    star = barycenter(phi(clients.covariance, PENALTY), clients.client_weights).gram
    unit = psd.distance(within, star)[:, None]
    update = _grid(clients, np.array(rates), steps)
    found = iterate(update, heads[:, None])
    errors = return_errors(update, found.head)
    return columns(
        found.rounds.shape,
        instance=np.arange(len(heads))[:, None],
        rate=np.array(rates),
        steps=steps,
        rounds=found.rounds,
        residual=found.residual,
        to_within=psd.distance(found.gram, within[:, None]) / unit,
        to_star=psd.distance(found.gram, star[:, None]) / unit,
        gram_error=errors.gram,
        selection_error=errors.selection,
        head_motion=psd.frobenius(update.next_head(found.head) - found.head),
    )


def _grid(clients: Clients, rates: Array, steps: int) -> ProfiledUpdate:
    """All instances (N, 1) at all rates (R,)."""
    return ProfiledUpdate(clients.covariance[:, None], clients.client_weights[:, None], PENALTY, rates, steps)


EXPERIMENT = Experiment(
    name="ufm-finite",
    title="Finite local steps",
    where="Appendix G.4, Figure 17",
    cost="about 20 s",
    parts=parts,
    measure=measure,
    draw=draw,
)
