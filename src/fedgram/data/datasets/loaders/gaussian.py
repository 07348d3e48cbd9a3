"""Gaussian targets with prescribed client moments, for tests and demos.

A client's training targets are normal draws, whitened and transformed, so that their moments are the
prescribed ones up to rounding. Inputs are x = Q [y, z], with noise z and one random rotation Q for all
clients: one linear map predicts every target exactly. Test rows follow the same law without exact moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.datasets.dataset import Dataset, Options, make_provenance
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments

WIDTH = 8
TEST_ROWS = 250  # of each client


def load(dataset: Dataset, files: Sequence[Path], options: Options) -> Problem:
    """Load three clients of unequal size with two targets; their means and covariances differ."""
    return generate(prescribe_moments(), options)


def prescribe_moments() -> Moments:
    """Return an ellipse that turns by 60 degrees from client to client, around means on a circle.

    This makes the three terms of the gap similar in size.
    """
    angles = np.deg2rad([0.0, 60.0, 120.0])
    turned = np.array([[[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in angles])
    around = np.deg2rad([100.0, 220.0, 340.0])
    return Moments(
        count=np.array([1200, 1000, 800]),
        mean=0.5 * np.stack([np.cos(around), np.sin(around)], axis=1),
        covariance=turned @ np.diag([1.0, 0.1]) @ turned.mT,
    )


def generate(moments: Moments, options: Options, width: int = WIDTH) -> Problem:
    """Generate rows with these moments of the targets: inputs (N, width) float32, targets (N, C)."""
    targets = len(moments.targets)
    if width < targets:
        raise InputError(f"{targets} targets need inputs of width {targets} or more.", field="width")
    rng = np.random.default_rng(options.seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((width, width)))
    train, test = {}, {}
    for m, client in enumerate(moments.clients):
        mean, root = moments.mean[m], psd.factor(moments.covariance[m])
        exact = _whiten(rng.standard_normal((int(moments.count[m]), targets)))
        fresh = rng.standard_normal((TEST_ROWS, targets))
        train[client] = _add_inputs(mean + exact @ root.T, rotation, rng)
        test[client] = _add_inputs(mean + fresh @ root.T, rotation, rng)
    provenance = make_provenance((), options, width=width, prescribed=moments.document())
    return Problem("gaussian", "GENERATED", train, test, moments.targets, provenance)


def _whiten(draws: Array) -> Array:
    """Transform draws (N, C) to mean 0 and covariance I, exactly."""
    centered = draws - draws.mean(axis=0)
    root = np.linalg.cholesky(centered.T @ centered / len(draws))
    return np.linalg.solve(root, centered.T).T


def _add_inputs(targets: Array, rotation: Array, rng: np.random.Generator) -> Split:
    """Compute inputs that determine the targets (N, C)."""
    noise = rng.standard_normal((len(targets), len(rotation) - targets.shape[1]))
    inputs = np.concatenate([targets, noise], axis=1) @ rotation.T
    return Split(inputs.astype(np.float32), targets)
