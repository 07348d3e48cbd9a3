"""Random clients for the checks of finite profiled steps (Appendix G.4).

All use λ_H = λ_W = 0.1, four clients and three targets. The paper gives no weights; ours are Dirichlet(2).
The leading axis N indexes independent instances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.weights import average
from fedgram.ufm.instances import WEAK, assemble, random_covariances, random_orthogonal

PENALTY = WEAK
CLIENTS, TARGETS = 4, 3
VARIANCES = (0.3, 3.0)


@dataclass(frozen=True, eq=False)
class RandomClients:
    """covariance Σ_m (N, M, C, C) and client_weights p_m (N, M)."""

    covariance: Array
    client_weights: Array


@dataclass(frozen=True, eq=False)
class CommutingClients(RandomClients):
    """Clients with a common eigenbasis (N, C, C), its columns, and eigenvalues λ_mi (N, M, C)."""

    basis: Array
    eigenvalues: Array

    def in_basis(self, matrix: Array) -> Array:
        """Diagonal of symmetric matrices (N, C, C) in the common eigenbasis: (N, C)."""
        return np.einsum("...ji,...jk,...ki->...i", self.basis, matrix, self.basis)


def draw_initial_heads(rng: np.random.Generator, instances: int, features: int = TARGETS) -> Array:
    """Standard-normal W_0: (N, C, P)."""
    return rng.standard_normal((instances, TARGETS, features))


def draw_generic(rng: np.random.Generator, instances: int) -> RandomClients:
    """Draw clients with independent Haar eigenbases and eigenvalues uniform in [0.3, 3]."""
    covariance = random_covariances(rng, (instances, CLIENTS), TARGETS, VARIANCES)
    return RandomClients(covariance, _client_weights(rng, instances))


def draw_repeated(rng: np.random.Generator, instances: int) -> RandomClients:
    """Draw generic clients, moved by a congruence to a Σ_within with a double eigenvalue."""
    clients = draw_generic(rng, instances)
    spectrum = rng.uniform(*VARIANCES, (instances, TARGETS))
    spectrum[:, 1] = spectrum[:, 0]
    within = average(clients.client_weights, clients.covariance)
    # L L_within⁻¹ maps L_within L_withinᵀ = Σ_within to the wanted Σ_within, L Lᵀ.
    wanted = random_orthogonal(rng, (instances,), TARGETS) * np.sqrt(spectrum)[:, None, :]
    move = (wanted @ np.linalg.inv(np.linalg.cholesky(within)))[:, None]
    return RandomClients(psd.symmetric(move @ clients.covariance @ move.mT), clients.client_weights)


def draw_near_threshold(rng: np.random.Generator, instances: int) -> RandomClients:
    """Draw clients with a variance 1 to 20 % above λ_H λ_W, along nearly equal directions.

    Independent directions would leave Σ_within without a weak direction; equal ones would decouple it.
    """
    spectrum = rng.uniform(*VARIANCES, (instances, CLIENTS, TARGETS))
    spectrum[..., 0] = PENALTY.threshold * rng.uniform(1.01, 1.2, (instances, CLIENTS))
    frame = rng.standard_normal((instances, CLIENTS, TARGETS, TARGETS))
    frame[..., 0] = random_orthogonal(rng, (instances, 1), TARGETS)[..., 0] + 0.03 * frame[..., 0]
    return RandomClients(assemble(np.linalg.qr(frame).Q, spectrum), _client_weights(rng, instances))


def draw_commuting(rng: np.random.Generator, instances: int) -> CommutingClients:
    """Draw clients with one Haar eigenbasis and eigenvalues uniform in [0.3, 3]; every Δ_i is negative."""
    return _draw_commuting(rng, rng.uniform(*VARIANCES, (instances, CLIENTS, TARGETS)))


def draw_commuting_both_signs(rng: np.random.Generator, instances: int) -> CommutingClients:
    """Draw commuting clients whose first eigenvalues are between 1.1 and 1.7 λ_H λ_W.

    Their mean is below 16/9 λ_H λ_W, so Δ_1 > 0 in eq. (24), while the other Δ_i are negative.
    """
    eigenvalues = rng.uniform(*VARIANCES, (instances, CLIENTS, TARGETS))
    eigenvalues[..., 0] = PENALTY.threshold * rng.uniform(1.1, 1.7, (instances, CLIENTS))
    return _draw_commuting(rng, eigenvalues)


# Families of the stability check, and the number of instances of each: 52 in total.
FAMILIES: dict[str, tuple[Callable[[np.random.Generator, int], RandomClients], int]] = {
    "generic": (draw_generic, 20),
    "repeated": (draw_repeated, 16),
    "near_threshold": (draw_near_threshold, 16),
}


def _draw_commuting(rng: np.random.Generator, eigenvalues: Array) -> CommutingClients:
    instances = len(eigenvalues)
    basis = random_orthogonal(rng, (instances,), TARGETS)
    covariance = assemble(basis[:, None], eigenvalues)
    return CommutingClients(covariance, _client_weights(rng, instances), basis, eigenvalues)


def _client_weights(rng: np.random.Generator, instances: int) -> Array:
    return rng.dirichlet(np.full(CLIENTS, 2.0), instances)
