"""CIFAR-geo: how far a CIFAR-10 image was shifted and zoomed (images: Krizhevsky 2009, no licence stated).

Each image is zoomed about its center by exp(log scale) and shifted by (dx, dy) pixels, right and down, on a
black canvas of 40 x 40 pixels, with bilinear interpolation. The targets are dx, dy and log scale, scaled.

The paper designs four client groups "to have different distributions of shift and zoom" without stating
these. Ours: with z uniform on the cube [-√3, √3]³, whose coordinates have variance one,

    client   mean dx, dy, log scale    dx - mean   dy - mean            log scale - mean
    1        -3, -3, -0.10             2.0 z₁      0.9 z₁ + 0.8 z₂      0.06 z₃
    2        +3, -3, -0.30             0.8 z₁      2.0 z₂               0.12 z₃
    3        -3, +3, -0.30             1.2 z₁      -1.0 z₁ + 0.6 z₂     0.05 z₁ + 0.05 z₃
    4        +3, +3, -0.10             1.0 z₁      1.0 z₂               -0.06 z₂ + 0.08 z₃

so that the means stand at the corners of a tetrahedron, and every client has variances and correlations of
its own. An image is at most 37 pixels wide, less than the canvas, so that one of its edges along each axis
can always be seen. Also not stated, and what we do:
- Which images: 12,000 for training and 3,000 for tests drawn uniformly without replacement from the training
  batches at hand, from `Options.seed`, which draws the transforms too. The same serve every training seed.
- Each training image goes to a client drawn at random, so that each has about 3,000; each test image is
  transformed by the law of the client that it is dealt to.
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
from fedgram.data.datasets.dataset import Dataset, Download, Options, provenance, readable, require
from fedgram.data.datasets.preprocessing import (
    TEST_ROWS,
    TRAIN_ROWS,
    check_images,
    chosen,
    projected,
    scaled,
    tar_members,
)
from fedgram.data.problem import Problem, Split
from fedgram.data.splits import evenly_at_random

NAME = "cifar-geo"
TARGETS = ("dx", "dy", "log scale")
CANVAS = 40
LARGER_TRAIN_ROWS = 40_000
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


def load(files: Sequence[Path], options: Options, train: int | None = None, test: int = TEST_ROWS) -> Problem:
    """A problem of 4 clients, 8 in the larger variant: images (N, 40, 40, 3), targets (N, 3).

    The targets are dx, dy and log scale. As many training images as in the paper if `train` is left out.
    """
    train = train or (LARGER_TRAIN_ROWS if options.larger else TRAIN_ROWS)
    images = training_images(files)
    rng = np.random.default_rng(options.seed)
    images = images[chosen(rng, len(images), train + test, NAME)]
    made = provenance(files, options)
    if options.larger:
        transforms = rng.uniform(ONE_LAW_LOW, ONE_LAW_HIGH, (len(images), 3))
        return projected(NAME, "REAL", placed(images, transforms), transforms, train, TARGETS, made)
    return _designed(images, train, rng, made)


def _designed(images: Array, train: int, rng: np.random.Generator, made: dict[str, Any]) -> Problem:
    """Four clients with laws of their own, of images (N, 32, 32, 3) of which the first `train` train."""
    clients = len(MEANS)
    client = rng.integers(clients, size=len(images))
    for m, dealt in enumerate(evenly_at_random(rng, len(images) - train, clients)):
        client[train + dealt] = m
    transforms = drawn(rng, client)
    canvases = placed(images, transforms)
    targets, used = scaled(transforms, train, TARGETS)
    trained, tested = (
        {f"client {m + 1}": Split(canvases[part][client[part] == m], targets[part][client[part] == m])
         for m in range(clients)}
        for part in (slice(train), slice(train, None))
    )  # fmt: skip
    laws = {"means": MEANS.tolist(), "spreads": SPREADS.tolist()}
    return Problem(NAME, "REAL", trained, tested, TARGETS, {**made, **used, "laws": laws})


def drawn(rng: np.random.Generator, client: Array) -> Array:
    """dx, dy and log scale by the law of each row's client (N,) -> (N, 3)."""
    noise = rng.uniform(-np.sqrt(3), np.sqrt(3), (len(client), 3))
    return MEANS[client] + np.einsum("nij,nj->ni", SPREADS[client], noise)


def placed(images: Array, transforms: Array) -> Array:
    """Images (N, 32, 32, 3) zoomed and shifted by dx, dy, log scale (N, 3) on canvases (N, 40, 40, 3).

    Both act along the axes, so that a canvas is D I Aᵀ for each color of the image I: the rows of D (40, 32)
    hold the weights of bilinear interpolation downwards, those of A the weights across.
    """
    canvases = np.empty((len(images), CANVAS, CANVAS, 3), dtype=np.uint8)
    for start in range(0, len(images), 500):  # few enough to stay in a processor's cache
        part = slice(start, start + 500)
        zoom = np.exp(transforms[part, 2])
        across, down = (_interpolation(transforms[part, axis], zoom) for axis in (0, 1))
        colors = np.moveaxis(images[part], 3, 1).astype(np.float32)
        result = down[:, None] @ colors @ across[:, None].swapaxes(2, 3)
        canvases[part] = np.moveaxis(np.rint(result), 1, 3)
    return canvases


def _interpolation(shift: Array, zoom: Array) -> Array:
    """Weight of each of 32 pixels in each of 40: shift and zoom (n,) -> (n, 40, 32)."""
    place = np.arange(CANVAS) - (CANVAS - 1) / 2
    source = (place - shift[:, None]) / zoom[:, None] + (SIDE - 1) / 2
    distance = np.abs(source[:, :, None] - np.arange(SIDE))
    return np.maximum(1 - distance, 0).astype(np.float32)


SIDE = 32
ARCHIVE = "cifar-10-python.tar.gz"
# Unpacked files go before archives; each form is looked for in the data directory and a folder in it.
FORMS = (
    "cifar-10-batches-py/data_batch_?",
    "cifar-10-batches-bin/data_batch_?.bin",
    "data_batch_?.bin",
    "data_batch_?.bin.xz",
    "cifar10_data_batch_?.bin",
    "cifar10_data_batch_?.bin.xz",
    ARCHIVE,
    "cifar-10-binary.tar.gz",
)
_BATCH = re.compile(r".*data_batch_\d(\.bin)?")
RECORD = 1 + 3 * SIDE * SIDE  # bytes of a binary record: the label, then planes of red, green and blue


def find(folder: Path, options: Options) -> Sequence[Path]:
    """The batch files in the first form that is there, or an archive of them."""
    for form in FORMS:
        if found := sorted(folder.glob(form)) or sorted(folder.glob(f"*/{form}")):
            return found
    return [require(folder / ARCHIVE, "cifar-geo", "the training batches of CIFAR-10")]


def training_images(files: Sequence[Path]) -> Array:
    """All images of the files, in their order, (N, 32, 32, 3) uint8."""
    return np.concatenate([images for path in files for images in _batches(path)])


def _batches(path: Path) -> Iterator[Array]:
    """Images (n, 32, 32, 3) of the batches in one file."""
    with readable(path, "CIFAR-10 batches"):
        if path.name.endswith(".tar.gz"):
            members = sorted(tar_members(path, _BATCH))
            if not members:
                raise InputError("It holds no data_batch.", field=str(path))
            yield from (_decoded(name, content) for name, content in members)
        elif path.suffix == ".xz":
            yield _decoded(path.stem, lzma.decompress(path.read_bytes()))
        else:
            yield _decoded(path.name, path.read_bytes())


def _decoded(name: str, content: bytes) -> Array:
    """Images (n, 32, 32, 3) of one batch, binary or pickled."""
    planes = _binary_planes(content) if name.endswith(".bin") else _pickled_planes(content)
    check_images(planes, (3 * SIDE * SIDE,))
    return np.moveaxis(planes.reshape(-1, 3, SIDE, SIDE), 1, 3)


def _binary_planes(content: bytes) -> Array:
    if len(content) % RECORD or not content:
        raise InputError(
            f"Its {len(content):,} bytes are not a whole number of records of {RECORD:,} bytes.",
            field="images",
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)[:, 1:]


def _pickled_planes(content: bytes) -> Array:
    batch = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
    if not isinstance(batch, dict) or not isinstance(batch.get(b"data"), np.ndarray):
        raise InputError("It has no array 'data'.", field="data")
    return batch[b"data"]


class _BatchUnpickler(pickle.Unpickler):
    """Reads what a batch is made of and nothing else: a pickle may name any function to be called."""

    def find_class(self, module: str, name: str) -> Any:
        rebuild = np.empty(0).__reduce__()[0]  # under the name that this NumPy has for it
        known = {"_reconstruct": rebuild, "ndarray": np.ndarray, "dtype": np.dtype}
        if module.partition(".")[0] == "numpy" and name in known:
            return known[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch of CIFAR-10 does")


DATASETS = (
    Dataset(
        name=NAME,
        kind="REAL",
        title="CIFAR-geo: CIFAR-10 images, shifted and zoomed",
        licence="CIFAR-10 states none; cite it",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        published="https://www.cs.toronto.edu/~kriz/cifar.html",
        find=find,
        load=load,
        downloads=(
            Download(
                f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",
                ARCHIVE,
                "md5:c58f30108f718f92721af3b95e74349a",
            ),
        ),
    ),
)
