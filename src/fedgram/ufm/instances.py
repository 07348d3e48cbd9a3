"""Fixed and random instances of the checks in Appendix D.

Leading axes index independent instances.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty

# Penalties of the fixed instance and the gap suite, and of the selection, barycenter and correction suites.
WEAK = Penalty(features=0.1, head=0.1)
UNIT = Penalty(features=1.0, head=1.0)

SELECTION_SIZES = tuple((targets, factor * targets) for targets, factor in product((2, 4, 8), (1, 2)))
"""(C, P) of the selection suite."""

BARYCENTER_SIZES = tuple(product((2, 4, 8), (3, 8)))
"""(C, M) of the barycenter and correction suites."""

GAP_SIZES = tuple(product((2, 3, 5, 8), (2, 4, 8)))
"""(C, M) of the 512 gap instances."""


@dataclass(frozen=True, eq=False)
class FederatedInstance:
    """M clients with samples, and the first broadcast head.

    moments of the samples; targets (..., M, C, N); head W_0 (..., C, P); penalty.
    """

    moments: Moments
    targets: Array
    head: Array
    penalty: Penalty


@dataclass(frozen=True, eq=False)
class ClientInstance:
    """One client with its sample, and the broadcast head.

    covariance (..., C, C) of the sample; targets (..., C, N); broadcast (..., C, P); penalty.
    """

    covariance: Array
    targets: Array
    broadcast: Array
    penalty: Penalty


def fixed_instance() -> FederatedInstance:
    """Build the instance of Figure 2: C = P = 2, M = 3, N_m = 256, λ_H = λ_W = 0.1 (Appendix D.1)."""
    covariance = np.stack([_rotate(-40, (3.0, 0.11)), _rotate(10, (1.1, 0.45)), _rotate(55, (2.4, 0.13))])
    mean = np.array([[0.0, -2.2], [0.0, 0.0], [0.0, 2.2]])
    targets = targets_with_moments(np.random.default_rng(0), mean, covariance, 256)
    moments = Moments(count=np.full(3, 256), mean=mean, covariance=covariance)
    return FederatedInstance(moments, targets, psd.sqrt(_rotate(100, (2.5, 0.09))), WEAK)


def selection_instances(rng: np.random.Generator, targets: int, width: int, instances: int) -> ClientInstance:
    """Draw clients of Appendix D.2: C = targets, P = width, N = 64; leading axis (instances,).

    Covariance eigenvalues uniform in [2, 5], singular values of the broadcast uniform in [0.7, 1.5].
    """
    covariance = random_covariances(rng, (instances,), targets, (2.0, 5.0))
    mean = rng.standard_normal((instances, targets))
    left, right = (random_orthogonal(rng, (instances,), size) for size in (targets, width))
    singular = rng.uniform(0.7, 1.5, (instances, 1, targets))
    broadcast = (left * singular) @ right[..., :targets, :]
    return ClientInstance(covariance, targets_with_moments(rng, mean, covariance, 64), broadcast, UNIT)


def barycenter_instances(
    rng: np.random.Generator, targets: int, clients: int, instances: int = 16
) -> FederatedInstance:
    """Draw federations of Appendix D.3, or D.5 with 32 instances: P = N_m = 2C; leading axis (instances,).

    Eigenvalues of G_m are uniform in [0.4, 4], and Σ_m = (G_m + I)², so φ(Σ_m) = G_m; Dirichlet(2) weights.
    """
    shape = (instances, clients)
    shifted = random_covariances(rng, shape, targets, (0.4, 4.0)) + np.eye(targets)
    covariance = psd.symmetric(shifted @ shifted)
    mean = rng.standard_normal((*shape, targets))
    head = rng.standard_normal((instances, targets, 2 * targets))
    moments = Moments(
        count=np.full(clients, 2 * targets),
        mean=mean,
        covariance=covariance,
        client_weights=rng.dirichlet(np.full(clients, 2.0), instances),
    )
    return FederatedInstance(moments, targets_with_moments(rng, mean, covariance, 2 * targets), head, UNIT)


def gap_instances(rng: np.random.Generator, instances: int = 512) -> list[Moments]:
    """Draw the instances of Appendix D.4, panels (f) and (g), stacked by size.

    The twelve sizes of `GAP_SIZES` take turns, so the first ones may get one instance more.
    """
    shares = [len(range(turn, instances, len(GAP_SIZES))) for turn in range(len(GAP_SIZES))]
    return [gap_moments(rng, *size, share) for size, share in zip(GAP_SIZES, shares, strict=True)]


def gap_moments(
    rng: np.random.Generator,
    targets: int,
    clients: int,
    instances: int = 256,
    interval: tuple[float, float] = (0.25, 3.0),
) -> Moments:
    """Draw moments of one size of Appendix D.4 with Dirichlet(2) weights; leading axis (instances,).

    Covariance eigenvalues are uniform in the interval; for the margin sweep it is (κ λ_H λ_W, 3).
    """
    client_weights = rng.dirichlet(np.full(clients, 2.0), instances)
    return _random_moments(rng, targets, clients, client_weights, interval)


def sweep_moments(rng: np.random.Generator) -> Moments:
    """Draw base moments of the controlled sweeps of Appendix D.4, panels (a) and (b): C = 3, M = 4."""
    return _random_moments(rng, 3, 4, rng.uniform(0.5, 1.5, 4), (0.3, 3.0))


def scale_means(moments: Moments, strength: float) -> Moments:
    """Move client means to μ_g + s (μ_m - μ_g); they are equal at s = 0."""
    return replace(moments, mean=moments.pooled.mean[..., None, :] + strength * moments.offset)


def scale_covariances(moments: Moments, strength: float) -> Moments:
    """Move client covariances to Σ_within + s (Σ_m - Σ_within); they are equal at s = 0."""
    within = moments.pooled.within[..., None, :, :]
    return replace(moments, covariance=within + strength * (moments.covariance - within))


def targets_with_moments(rng: np.random.Generator, mean: Array, covariance: Array, count: int) -> Array:
    """Draw targets (..., C, N) with exact mean (..., C) and covariance (1/N) (..., C, C).

    A Gaussian draw is centered and whitened first, so the moments are exact up to rounding.
    """
    size = mean.shape[-1]
    if count < size + 1:
        raise InputError(f"{count} samples cannot have a covariance of rank {size}.", field="count")
    draw = rng.standard_normal((*mean.shape[:-1], count, size))
    white, _ = np.linalg.qr(draw - draw.mean(axis=-2, keepdims=True))
    return mean[..., :, None] + np.sqrt(count) * psd.factor(covariance) @ white.mT


def random_orthogonal(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> Array:
    """Draw Haar-distributed orthogonal matrices (*shape, size, size).

    The signs make the QR factorization unique; without them the distribution is not uniform.
    """
    basis, upper = np.linalg.qr(rng.standard_normal((*shape, size, size)))
    return basis * np.sign(np.einsum("...ii->...i", upper))[..., None, :]


def random_covariances(
    rng: np.random.Generator, shape: tuple[int, ...], size: int, interval: tuple[float, float]
) -> Array:
    """Draw matrices (*shape, size, size) with Haar eigenbases and eigenvalues uniform in the interval."""
    return assemble(random_orthogonal(rng, shape, size), rng.uniform(*interval, (*shape, size)))


def assemble(basis: Array, eigenvalues: Array) -> Array:
    """U diag(λ) Uᵀ: basis (..., C, C), eigenvalues (..., C) -> (..., C, C)."""
    return psd.symmetric((basis * eigenvalues[..., None, :]) @ basis.mT)


def least_commutator(covariance: Array) -> Array:
    """Smallest ‖Σ_m Σ_n - Σ_n Σ_m‖ / ‖Σ_m‖ ‖Σ_n‖ over pairs of clients: (N, M, C, C) -> (N,)."""
    first, second = np.triu_indices(covariance.shape[-3], k=1)
    one, two = covariance[:, first], covariance[:, second]
    size = psd.frobenius(one) * psd.frobenius(two)
    return (psd.frobenius(one @ two - two @ one) / size).min(axis=-1)


def _random_moments(
    rng: np.random.Generator, targets: int, clients: int, client_weights: Array, interval: tuple[float, float]
) -> Moments:
    """Draw standard-normal means and random covariances for client_weights (..., M)."""
    shape = client_weights.shape
    return Moments(
        count=np.full(clients, targets + 1),
        mean=rng.standard_normal((*shape, targets)),
        covariance=random_covariances(rng, shape, targets, interval),
        client_weights=client_weights,
    )


def _rotate(degrees: float, values: tuple[float, float]) -> Array:
    """R_θ diag(values) R_θᵀ for the planar rotation through θ degrees, (2, 2)."""
    angle = np.deg2rad(degrees)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return assemble(rotation, np.array(values))
