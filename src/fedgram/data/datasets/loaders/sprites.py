"""Sprites: our own renderer of the dSprites factors.

A white square, ellipse or heart on black, 64 x 64 pixels, with the 6 scales, 40 orientations and 32 x 32
positions of dSprites. A pixel is white if its center is inside the shape. The constants below were fitted to
the 320 frames of dSprites' animation: 316 agree in every pixel, and the others differ in two pixels each.

`Options.seed` draws 12,000 training and 3,000 test rows without replacement from the 737,280 combinations of
factors. Target projection splits them over eight clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedgram._util.arrays import Array
from fedgram.data.datasets.dataset import Dataset, Options, make_provenance
from fedgram.data.datasets.preprocessing import (
    TEST_ROWS,
    TRAIN_ROWS,
    build_image_problem,
    sample_rows,
)
from fedgram.data.problem import Problem

SIDE = 64
FACTORS = ("color", "shape", "scale", "orientation", "posX", "posY")
TARGETS = ("posX", "posY", "scale")
VALUES = (
    np.array([1.0]),
    np.array([1.0, 2.0, 3.0]),
    np.linspace(0.5, 1.0, 6),
    np.linspace(0.0, 2 * np.pi, 40),
    np.linspace(0.0, 1.0, 32),
    np.linspace(0.0, 1.0, 32),
)
"""Values of each factor; a row number counts through all combinations, the last factor fastest."""

# In pixels, at scale 1. Positions cover the middle half of the image; pixel centers are integers.
CORNER, EXTENT = 15.5, 32.0
SQUARE = 9.5975
ELLIPSE = (12.766, 7.2135)
HEART = (0.5996, 0.6622)
HEART_RISE = 1.4363
REACH = 13  # pixels rendered below the center, and one more above it; no shape reaches 14


def is_in_square(x: Array, y: Array) -> Array:
    """Whether points are inside the square of scale 1."""
    return np.maximum(np.abs(x), np.abs(y)) <= SQUARE


def is_in_ellipse(x: Array, y: Array) -> Array:
    """Whether points are inside the ellipse of scale 1."""
    return (x / ELLIPSE[0]) ** 2 + (y / ELLIPSE[1]) ** 2 <= 1


def is_in_heart(x: Array, y: Array) -> Array:
    """Whether points are inside the heart of scale 1, upright if y points down.

    The curve is x = 16 sin³t, y = 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t. At each x it has two points,
    with cos t = ±c, and the points between them are inside.
    """
    sine = np.cbrt(np.abs(x) / (16 * HEART[0]))
    cosine = np.sqrt(np.maximum(1 - sine**2, 0))
    height = -(y + HEART_RISE) / HEART[1]
    return (sine <= 1) & (_heart_height(-cosine) <= height) & (height <= _heart_height(cosine))


def _heart_height(cosine: Array) -> Array:
    """Compute the curve's y as a polynomial in cos t."""
    return 4 + cosine * (19 + cosine * (-2 + cosine * (-8 - 8 * cosine)))


SHAPES: dict[int, Callable[[Array, Array], Array]] = {1: is_in_square, 2: is_in_ellipse, 3: is_in_heart}
"""Test of each shape, by the value of its factor."""


def render(latents: Array) -> Array:
    """Render images (N, 64, 64) of 0 and 255 from the values of the six factors (N, 6)."""
    images = np.zeros((len(latents), SIDE, SIDE), dtype=np.uint8)
    for value, is_inside in SHAPES.items():
        rows = np.flatnonzero(latents[:, 1] == value)
        _, _, scale, angle, x, y = latents[rows].T[..., None, None]
        # Only the pixels around the center can be white: a fifth of the image.
        across, down = _window(x, axis=2), _window(y, axis=1)
        right, below = (across - CORNER - EXTENT * x) / scale, (down - CORNER - EXTENT * y) / scale
        cos, sin = np.cos(angle), np.sin(angle)
        white = is_inside(cos * right - sin * below, sin * right + cos * below)
        images[rows[:, None, None], down, across] = np.uint8(255) * white
    return images


def _window(position: Array, axis: int) -> Array:
    """Return the integer coordinates around a center: (n, 1, 1) -> (n, 1, w) or (n, w, 1)."""
    first = np.floor(CORNER + EXTENT * position).astype(int) - REACH
    return first + np.expand_dims(np.arange(2 * REACH + 2), axis=(0, 3 - axis))


def load(
    dataset: Dataset, files: Sequence[Path], options: Options, train: int = TRAIN_ROWS, test: int = TEST_ROWS
) -> Problem:
    """Load images (N, 64, 64, 1) of 0 and 255 and targets posX, posY, scale (N, 3) of 8 clients."""
    sizes = [len(values) for values in VALUES]
    rows = sample_rows(dataset, np.random.default_rng(options.seed), int(np.prod(sizes)), train + test)
    classes = np.unravel_index(rows, sizes)
    latents = np.stack([values[c] for values, c in zip(VALUES, classes, strict=True)], axis=1)
    targets = latents[:, [FACTORS.index(target) for target in TARGETS]]
    images = render(latents)[..., None]
    return build_image_problem(dataset, images, targets, train, TARGETS, make_provenance((), options))
