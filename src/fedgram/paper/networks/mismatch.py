"""What averaging heads in mismatched coordinates costs if local training is exact (Appendix F.5)."""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.derivatives import regularized_gram
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.psd import closest_factor
from fedgram.theory.predict import Prediction


def averaged_objective(prediction: Prediction, heads: Array) -> float:
    """Objective (2) after the clients' optimal heads (M, C, P) are averaged.

    Features are the clients' optimal ones, h = W_mᵀ (W_m W_mᵀ + λ_H I)⁻¹ (y - μ_m). Biases are averaged, too.
    """
    moments, penalty, weights = prediction.moments, prediction.penalty, prediction.moments.client_weights
    average = np.einsum("m,mcp->cp", weights, heads)
    features = heads.mT @ np.linalg.inv(regularized_gram(heads, penalty))
    residual = average @ features - np.eye(len(average))
    quadratic = residual.mT @ residual + penalty.features * features.mT @ features
    squares = psd.trace(quadratic @ moments.covariance) + (moments.offset**2).sum(axis=1)
    return float(weights @ squares + penalty.head * (average**2).sum()) / 2


def aligned_objective(prediction: Prediction, broadcast: Array) -> float:
    """Objective (2) after the optimal heads closest to the broadcast (C, P) are averaged."""
    return averaged_objective(prediction, closest_factor(broadcast, prediction.grams))


def turned_heads(prediction: Prediction, angle: float) -> Array:
    """Optimal heads (M, C, C (M + 1)) that are turned away from a broadcast I, each in its own direction.

    At angle 0 all are the closest ones to the broadcast, at π/2 their row spaces are orthogonal.
    """
    clients, size = prediction.moments.mean.shape
    roots = psd.sqrt(prediction.grams)
    heads = np.zeros((clients, size, clients + 1, size))
    heads[:, :, 0] = np.cos(angle) * roots
    heads[np.arange(clients), :, np.arange(clients) + 1] = np.sin(angle) * roots
    return heads.reshape(clients, size, -1)
