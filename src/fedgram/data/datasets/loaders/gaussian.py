"""Gaussian targets with prescribed client moments: an exact and quick problem for tests and demos.

Training targets of a client are normal draws, whitened and then given the prescribed mean and covariance, so
that their moments are the prescribed ones to rounding. The input hides the target among as many coordinates
of independent noise as make up its width: x = Q [y, z], with one random rotation Q for all clients. So one
linear map predicts every target of every client exactly, and what a trained network misses is its own.

Test rows follow the same law, without the exact moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.datasets.dataset import Dataset, Options, provenance
from fedgram.data.datasets.preprocessing import refuse_larger
from fedgram.data.problem import Problem, Split
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments

NAME = "gaussian"
WIDTH = 8
TEST_ROWS = 250  # of each client


def load(files: Sequence[Path], options: Options) -> Problem:
    """Three clients of unequal size with two targets, whose means and covariances all differ."""
    refuse_larger(NAME, options)
    return generated(prescribed(), options)


def prescribed() -> Moments:
    """One ellipse, turned by 60 degrees from client to client, around means on a circle.

    All three terms of the gap are then of one order.
    """
    angles = np.deg2rad([0.0, 60.0, 120.0])
    turned = np.array([[[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in angles])
    around = np.deg2rad([100.0, 220.0, 340.0])
    return Moments(
        count=np.array([1200, 1000, 800]),
        mean=0.5 * np.stack([np.cos(around), np.sin(around)], axis=1),
        covariance=turned @ np.diag([1.0, 0.1]) @ psd.transpose(turned),
    )


def generated(moments: Moments, options: Options, width: int = WIDTH) -> Problem:
    """A problem whose training targets have these moments: inputs (N, width) float32, targets (N, C)."""
    targets = len(moments.targets)
    if width < targets:
        raise InputError(f"{targets} targets need inputs of width {targets} or more.", field="width")
    rng = np.random.default_rng(options.seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((width, width)))
    train, test = {}, {}
    for m, client in enumerate(moments.clients):
        mean, root = moments.mean[m], psd.factor(moments.covariance[m])
        exact = _whitened(rng.standard_normal((int(moments.count[m]), targets)))
        fresh = rng.standard_normal((TEST_ROWS, targets))
        train[client] = _hidden(mean + exact @ root.T, rotation, rng)
        test[client] = _hidden(mean + fresh @ root.T, rotation, rng)
    settings = {"width": width, "prescribed": moments.document()}
    return Problem(NAME, "GENERATED", train, test, moments.targets, provenance((), options, **settings))


def _whitened(draws: Array) -> Array:
    """Draws (N, C) with mean 0 and covariance I, exactly."""
    centered = draws - draws.mean(axis=0)
    root = np.linalg.cholesky(centered.T @ centered / len(draws))
    return np.linalg.solve(root, centered.T).T


def _hidden(targets: Array, rotation: Array, rng: np.random.Generator) -> Split:
    """Targets (N, C) with the inputs that hold them."""
    noise = rng.standard_normal((len(targets), len(rotation) - targets.shape[1]))
    inputs = np.concatenate([targets, noise], axis=1) @ rotation.T
    return Split(inputs.astype(np.float32), targets)


DATASETS = (
    Dataset(
        name=NAME,
        kind="GENERATED",
        title="Gaussian targets with prescribed client moments",
        licence="part of fedgram",
        citation="none: generated from a seed",
        published="generated on the fly",
        find=lambda folder, options: (),
        load=load,
    ),
)
