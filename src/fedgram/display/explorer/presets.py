"""Examples of the explorer, as moments with penalties."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.data.datasets import registry
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.ufm.instances import fixed_instance, scale_covariances, scale_means

TARGETS = ("east", "north")


@cache
def presets() -> tuple[dict[str, Any], ...]:
    """Return the examples: id, name, caption, moments document, penalties, strength, and a start or none."""
    paper = fixed_instance()
    named = _name(paper.moments)
    start = psd.gram(paper.head)
    weak = paper.penalty
    return (
        _preset(
            "paper", "The paper's instance", named, weak, start,
            "GENERATED. Three clients, different means and directions: federated averaging ends too small.",
        ),
        _preset(
            "equal-means", "Equal means", scale_means(named, 0.0), weak, start,
            "GENERATED. The same clients around one mean: the first cause of the gap is gone, two remain.",
        ),
        _preset(
            "equal-covariances", "Equal covariances", scale_covariances(named, 0.0), weak, start,
            "GENERATED. The same means, one covariance: all clients learn the same head; only means differ.",
        ),
        _preset(
            "commuting", "Commuting clients", _commuting(), weak, None,
            "GENERATED. All principal axes are parallel: the barycenter averages square roots per axis.",
        ),
        _preset(
            "threshold", "Near the threshold", _near_threshold(), Penalty(0.3, 0.3), None,
            "GENERATED. The penalties exceed one client's variance to the north. It learns nothing there.",
        ),
        _preset(
            "outlier", "One outlying client", _outlier(), weak, None,
            "GENERATED. Eleven similar clients and one that differs: see whose share of the gap is large.",
        )
        | {"selected": 11},
        _preset(
            "beijing", "Beijing stations", _beijing(), Penalty(), None,
            "REAL. PM2.5 and NO2 in µg/m³ at 12 air-quality stations, 300 hours each (Chen 2017, UCI 501, "
            "CC BY 4.0). Only moments are in this page.",
        ),
    )  # fmt: skip


def _preset(
    key: str, name: str, moments: Moments, penalty: Penalty, start: Array | None, caption: str
) -> dict[str, Any]:
    return {
        "id": key,
        "name": name,
        "caption": caption,
        "document": moments.document(),
        "features": penalty.features,
        "head": penalty.head,
        "strength": 0.0,
        "start": None if start is None else start.ravel().tolist(),
    }


def _name(moments: Moments) -> Moments:
    return Moments(moments.count, moments.mean, moments.covariance, ("A", "B", "C"), TARGETS)


def _commuting() -> Moments:
    variances = np.array([[4.0, 0.3], [0.4, 2.5], [1.5, 1.2], [2.5, 0.2]])
    mean = np.array([[-1.0, 0.5], [1.2, 0.8], [0.4, -1.2], [-0.6, -0.9]])
    covariance = variances[:, :, None] * np.eye(2)
    return Moments(np.full(4, 200), mean, covariance, ("A", "B", "C", "D"), TARGETS)


def _near_threshold() -> Moments:
    """Variances to the north around λ_H λ_W = 0.09: above it, just above it, and below it."""
    covariance = np.array([np.diag([1.4, 0.8]), np.diag([0.9, 0.1]), np.diag([1.6, 0.06])])
    mean = np.array([[-0.8, 0.3], [0.7, 0.5], [0.2, -0.6]])
    return Moments(np.full(3, 300), mean, covariance, ("above", "just above", "below"), TARGETS)


def _outlier() -> Moments:
    rng = np.random.default_rng(7)
    clients = 12
    factor = np.array([[1.1, 0.0], [0.5, 0.7]]) + 0.06 * rng.standard_normal((clients, 2, 2))
    covariance = psd.gram(factor)
    mean = 0.25 * rng.standard_normal((clients, 2))
    covariance[-1], mean[-1] = np.array([[2.2, -1.7], [-1.7, 1.9]]), np.array([3.2, -2.0])
    names = (*(f"site {m + 1}" for m in range(clients - 1)), "outlier")
    return Moments(np.full(clients, 150), mean, covariance, names, TARGETS)


def _beijing() -> Moments:
    """Moments of the embedded stations in µg/m³; the dataset itself is standardized."""
    problem = registry.load("beijing-stations")
    scales = problem.provenance["mean_and_deviation"]
    mean, deviation = np.array([scales[name] for name in problem.target_names]).T
    rows = {name: mean + deviation * split.targets for name, split in problem.train.items()}
    names = [f"{name} (µg/m³)" for name in problem.target_names]
    return Moments.from_arrays(rows, target_names=names)
