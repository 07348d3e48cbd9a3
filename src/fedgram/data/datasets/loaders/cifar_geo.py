"""CIFAR-geo: shift and zoom of CIFAR-10 images (Krizhevsky 2009, no license stated).

Each image is zoomed about its center by exp(log scale) and shifted by (dx, dy) pixels, right and down, on a
black canvas of 40 x 40 pixels, with bilinear interpolation. The targets are dx, dy and log scale, scaled.

The paper designs four client groups "to have different distributions of shift and zoom" without stating them.
Ours, with z uniform on the cube [-√3, √3]³, so that its coordinates have variance one:

    client   mean dx, dy, log scale    dx - mean   dy - mean            log scale - mean
    1        -3, -3, -0.10             2.0 z₁      0.9 z₁ + 0.8 z₂      0.06 z₃
    2        +3, -3, -0.30             0.8 z₁      2.0 z₂               0.12 z₃
    3        -3, +3, -0.30             1.2 z₁      -1.0 z₁ + 0.6 z₂     0.05 z₁ + 0.05 z₃
    4        +3, +3, -0.10             1.0 z₁      1.0 z₂               -0.06 z₂ + 0.08 z₃

The means are the corners of a tetrahedron; variances and correlations differ between clients. An image is at
most 37 pixels wide, so one of its edges along each axis is always visible. The paper does not state either:
- Images: 12,000 for training and 3,000 for tests, drawn without replacement from the available training
  batches with `Options.seed`, which also draws the transforms. All training seeds share them.
- Each training image goes to a random client, so each has about 3,000. Each test image is dealt to a client
  and transformed by its law.
- The larger variant, 40,000 + 3,000 images of eight clients by target projection, has one law: dx and dy
  uniform on [-6, 6], log scale uniform on [-0.5, 0.1].
"""

from __future__ import annotations

import io
import lzma
import pickle
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.datasets.dataset import Dataset, Options, make_provenance, translate_read_errors
from fedgram.data.datasets.preprocessing import (
    TEST_ROWS,
    TRAIN_ROWS,
    build_image_problem,
    check_images,
    read_tar_members,
    sample_rows,
    standardize,
)
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.data.splits import partition_at_random

TARGETS = ("dx", "dy", "log scale")
LARGER_TRAIN_ROWS = 40_000
SIDE, CANVAS = 32, 40  # pixels
_BATCH = re.compile(r".*data_batch_\d(\.bin)?")
RECORD = 1 + 3 * SIDE * SIDE  # bytes of a binary record: the label, then planes of red, green and blue
MEANS = np.array([[-3.0, -3.0, -0.1], [3.0, -3.0, -0.3], [-3.0, 3.0, -0.3], [3.0, 3.0, -0.1]])
SPREADS = np.array(
    [
        [[2.0, 0.0, 0.0], [0.9, 0.8, 0.0], [0.0, 0.0, 0.06]],
        [[0.8, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.12]],
        [[1.2, 0.0, 0.0], [-1.0, 0.6, 0.0], [0.05, 0.0, 0.05]],
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -0.06, 0.08]],
    ]
)
ONE_LAW_LOW, ONE_LAW_HIGH = (-6.0, -6.0, -0.5), (6.0, 6.0, 0.1)


def load(
    dataset: Dataset, files: Sequence[Path], options: Options, train: int | None = None, test: int = TEST_ROWS
) -> Problem:
    """Load images (N, 40, 40, 3) and targets (N, 3) of 4 clients, or 8 in the larger variant.

    By default there are as many training images as in the paper.
    """
    train = train or (LARGER_TRAIN_ROWS if options.larger else TRAIN_ROWS)
    images = read_images(files)
    rng = np.random.default_rng(options.seed)
    images = images[sample_rows(dataset, rng, len(images), train + test)]
    provenance = make_provenance(files, options)
    if options.larger:
        transforms = rng.uniform(ONE_LAW_LOW, ONE_LAW_HIGH, (len(images), 3))
        canvases = transform_images(images, transforms)
        return build_image_problem(dataset, canvases, transforms, train, TARGETS, provenance)
    return _build_designed(dataset, images, train, rng, provenance)


def _build_designed(
    dataset: Dataset, images: Array, train: int, rng: np.random.Generator, provenance: dict[str, Any]
) -> Problem:
    """Build four clients with their own laws; the first `train` of the images (N, 32, 32, 3) train."""
    clients = len(MEANS)
    client = rng.integers(clients, size=len(images))
    for m, dealt in enumerate(partition_at_random(rng, len(images) - train, clients)):
        client[train + dealt] = m
    transforms = draw_transforms(rng, client)
    targets, statistics = standardize(transforms, train, TARGETS)
    rows, is_train = Split(transform_images(images, transforms), targets), np.arange(len(images)) < train
    train_rows, test_rows = (
        {f"client {m + 1}": rows.take((client == m) & part) for m in range(clients)}
        for part in (is_train, ~is_train)
    )
    provenance |= {**statistics, "laws": {"means": MEANS.tolist(), "spreads": SPREADS.tolist()}}
    return Problem(dataset.name, dataset.kind, train_rows, test_rows, TARGETS, provenance)


def draw_transforms(rng: np.random.Generator, client: Array) -> Array:
    """Draw dx, dy and log scale by the law of each row's client, (N,) -> (N, 3)."""
    noise = rng.uniform(-np.sqrt(3), np.sqrt(3), (len(client), 3))
    return MEANS[client] + np.einsum("nij,nj->ni", SPREADS[client], noise)


def transform_images(images: Array, transforms: Array) -> Array:
    """Zoom and shift images (N, 32, 32, 3) by dx, dy, log scale (N, 3) on canvases (N, 40, 40, 3).

    Both act along the axes: a canvas is D I Aᵀ for each color I of the image, with the weights of bilinear
    interpolation down in D (40, 32) and across in A (40, 32).
    """
    canvases = np.empty((len(images), CANVAS, CANVAS, 3), dtype=np.uint8)
    for start in range(0, len(images), 500):  # few enough for a processor's cache
        part = slice(start, start + 500)
        zoom = np.exp(transforms[part, 2])
        across, down = (_interpolate(transforms[part, axis], zoom) for axis in (0, 1))
        colors = np.moveaxis(images[part], 3, 1).astype(np.float32)
        result = down[:, None] @ colors @ across[:, None].swapaxes(2, 3)
        canvases[part] = np.moveaxis(np.rint(result), 1, 3)
    return canvases


def _interpolate(shift: Array, zoom: Array) -> Array:
    """Compute the weight of each of 32 pixels in each of 40: shift and zoom (n,) -> (n, 40, 32)."""
    place = np.arange(CANVAS) - (CANVAS - 1) / 2
    source = (place - shift[:, None]) / zoom[:, None] + (SIDE - 1) / 2
    distance = np.abs(source[:, :, None] - np.arange(SIDE))
    return np.maximum(1 - distance, 0).astype(np.float32)


def read_images(files: Sequence[Path]) -> Array:
    """Read all images of the files in order, (N, 32, 32, 3) uint8."""
    return np.concatenate([images for path in files for images in _read_batches(path)])


def _read_batches(path: Path) -> Iterator[Array]:
    """Yield the images (n, 32, 32, 3) of each batch in one file."""
    with translate_read_errors(path, "CIFAR-10 batches"):
        if path.name.endswith(".tar.gz"):
            members = sorted(read_tar_members(path, _BATCH))
            if not members:
                raise InputError("It has no data_batch.", field=str(path))
            yield from (_decode(name, content) for name, content in members)
        elif path.suffix == ".xz":
            yield _decode(path.stem, lzma.decompress(path.read_bytes()))
        else:
            yield _decode(path.name, path.read_bytes())


def _decode(name: str, content: bytes) -> Array:
    """Decode one batch, binary or pickled, to images (n, 32, 32, 3)."""
    planes = _decode_binary(content) if name.endswith(".bin") else _unpickle(content)
    check_images(planes, (3 * SIDE * SIDE,))
    return np.moveaxis(planes.reshape(-1, 3, SIDE, SIDE), 1, 3)


def _decode_binary(content: bytes) -> Array:
    if len(content) % RECORD or not content:
        message = f"Its {len(content):,} bytes are not a whole number of records of {RECORD:,} bytes."
        raise InputError(message, field="images")
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)[:, 1:]


def _unpickle(content: bytes) -> Array:
    batch = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
    if not isinstance(batch, dict) or not isinstance(batch.get(b"data"), np.ndarray):
        raise InputError("It has no array 'data'.", field="data")
    return batch[b"data"]


class _BatchUnpickler(pickle.Unpickler):
    """Unpickles NumPy arrays only: a pickle can call any function."""

    def find_class(self, module: str, name: str) -> Any:
        rebuild = np.empty(0).__reduce__()[0]  # its module differs between NumPy versions
        known = {"_reconstruct": rebuild, "ndarray": np.ndarray, "dtype": np.dtype}
        if module.partition(".")[0] == "numpy" and name in known:
            return known[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch of CIFAR-10 does")
