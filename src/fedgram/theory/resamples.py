"""Statistics of the gap for many resampled moments at once.

`predict` and `explain` compute the same for one federation, with checks and residuals. Here K resamples of M
clients and C targets run along a batch axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.explain import split_by_client
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import solve
from fedgram.theory.geometry.batched_linalg import svd
from fedgram.theory.geometry.weights import average
from fedgram.theory.penalty import Penalty
from fedgram.theory.pooled import Pooled
from fedgram.theory.predict import phi

# Cosine of two columns at which the batched SVD stops; it leaves about its square, less than resampling does.
COSINE = 1e-4
# Nodes for the mean part of each client; their sum is exact, so two suffice for shares.
NODES = 2


@dataclass(frozen=True, eq=False)
class GapStatistics:
    """relative (K,), traces (K, 3), by_client (K, M) parts of the trace, mean_error (K, M, C)."""

    relative: Array
    traces: Array
    by_client: Array
    mean_error: Array


def relative_gaps(mean: Array, root: Array, client_weights: Array, penalty: Penalty) -> Array:
    """‖G_⋆ - G_cen‖_F / ‖G_cen‖_F (K,) of resampled moments, as in `gap_statistics`."""
    _, pooled = _pool(mean, psd.gram(root), client_weights)
    star, *_ = solve(_local_optima(root, penalty)[0], client_weights)
    return psd.relative_error(psd.gram(star), phi(pooled.covariance, penalty))


def gap_statistics(mean: Array, root: Array, client_weights: Array, penalty: Penalty) -> GapStatistics:
    """Compute the gap of resampled moments: mean (K, M, C), root (K, M, C, C) with Σ_m = root rootᵀ."""
    covariance = psd.gram(root)
    offset, pooled = _pool(mean, covariance, client_weights)
    grams, factors = _local_optima(root, penalty)
    star, *_ = solve(grams, client_weights)
    within, centralized, limit = phi(pooled.within, penalty), phi(pooled.covariance, penalty), psd.gram(star)
    arithmetic = average(client_weights, grams)
    terms = (centralized - within, within - arithmetic, arithmetic - limit)
    averaging = client_weights * _squared_distances(star, factors)
    parts = split_by_client(
        offset, covariance, grams, client_weights, pooled, within, centralized, penalty, averaging, NODES
    )
    return GapStatistics(
        relative=psd.relative_error(limit, centralized),
        traces=np.stack([psd.trace(term) for term in terms], axis=-1),
        by_client=parts.sum(axis=-2),
        mean_error=-offset,
    )


def _pool(mean: Array, covariance: Array, client_weights: Array) -> tuple[Array, Pooled]:
    """Offsets d_m (K, M, C) and pooled moments."""
    center = np.einsum("m,kmc->kc", client_weights, mean)
    offset = mean - center[:, None]
    between = np.einsum("m,kmi,kmj->kij", client_weights, offset, offset)
    return offset, Pooled(center, average(client_weights, covariance), between)


def _local_optima(root: Array, penalty: Penalty) -> tuple[Array, Array]:
    """φ(root rootᵀ) and factors of it, (K, M, C, C) each, from the SVD root = U diag(s) Vᵀ."""
    left, singular, _ = _batched_svd(root)
    optimum = np.maximum(penalty.scale * singular - penalty.features, 0.0)
    factor = left * np.sqrt(optimum)[..., None, :]
    return psd.gram(factor), factor


def _squared_distances(star: Array, factors: Array) -> Array:
    """d²(G_⋆, G_m) = tr G_⋆ + tr G_m - 2 ‖B_mᵀA‖_*, (K, M): star A (K, C, C), factors B_m (K, M, C, C)."""
    # Single precision: a distance counts relative to the size of a Gram.
    single = (factors.mT @ star[:, None]).astype(np.float32)
    overlap = _batched_svd(single)[1].sum(axis=-1)
    sizes = psd.frobenius(star)[:, None] ** 2 + psd.frobenius(factors) ** 2
    return np.maximum(sizes - 2 * overlap, 0.0)


def _batched_svd(matrix: Array) -> tuple[Array, Array, Array]:
    """U (K, M, C, C), s (K, M, C) and V of matrices (K, M, C, C)."""
    columns = np.ascontiguousarray(matrix.transpose(2, 3, 1, 0))
    identity = np.eye(matrix.shape[-1], dtype=matrix.dtype)[:, :, None, None]
    left, singular, right = svd(columns, np.broadcast_to(identity, columns.shape), COSINE)
    return left.transpose(3, 2, 0, 1), singular.transpose(2, 1, 0), right.transpose(3, 2, 0, 1)
