"""3D Shapes: hue, scale and orientation of an object in a room (Burgess and Kim 2018, Apache 2.0).

The published form is `3dshapes.h5` with `images` (480,000, 64, 64, 3) and `labels` (480,000, 6) in the order
floor hue, wall hue, object hue, scale, shape, orientation.

Choices that the paper does not state:
- Rows: 12,000 training rows (48,000 in the larger variant) and 3,000 test rows, drawn without replacement
  with `Options.seed`. All training seeds share them.
- Hue is the stored number from 0 to 0.9, although hues form a circle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.imports import import_optional
from fedgram.data.datasets.dataset import Dataset, Options, make_provenance, translate_read_errors
from fedgram.data.datasets.preprocessing import (
    TEST_ROWS,
    TRAIN_ROWS,
    build_image_problem,
    check_images,
    sample_rows,
)
from fedgram.data.problem import Problem

FACTORS = ("floor hue", "wall hue", "object hue", "scale", "shape", "orientation")
TARGETS = ("object hue", "scale", "orientation")
SHAPE = (64, 64, 3)
LARGER_TRAIN_ROWS = 48_000


def load(
    dataset: Dataset, files: Sequence[Path], options: Options, train: int | None = None, test: int = TEST_ROWS
) -> Problem:
    """Load images (N, 64, 64, 3) and targets object hue, scale, orientation (N, 3) of 8 clients.

    By default there are as many training rows as in the paper.
    """
    train = train or (LARGER_TRAIN_ROWS if options.larger else TRAIN_ROWS)
    with _open(files[0]) as file:
        labels = _read_labels(file)
    rows = sample_rows(dataset, np.random.default_rng(options.seed), len(labels), train + test)
    with _open(files[0]) as file:
        images = _read_images(file, rows)
    targets = labels[rows][:, [FACTORS.index(target) for target in TARGETS]]
    return build_image_problem(dataset, images, targets, train, TARGETS, make_provenance(files, options))


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    h5py = import_optional("h5py", "Reading 3D Shapes needs h5py: pip install 'fedgram[data]'.", "h5py")
    with translate_read_errors(path, "the file of 3D Shapes"), h5py.File(path, "r") as file:
        yield file


def _read_labels(file: Any) -> Array:
    """Read the values of the six factors, (N, 6)."""
    labels = np.asarray(_member(file, "labels"), dtype=np.float64)
    if labels.ndim != 2 or labels.shape[1] != len(FACTORS):
        message = f"labels must have the columns {', '.join(FACTORS)}, but has shape {labels.shape}."
        raise InputError(message, field="labels")
    if len(labels) != len(_member(file, "images")):
        raise InputError(f"It has {len(labels):,} labels but {len(file['images']):,} images.", field="labels")
    return labels


def _read_images(file: Any, rows: Array) -> Array:
    """Read images (len(rows), 64, 64, 3).

    A published chunk contains a patch of pixels of thousands of images. Reading chunk by chunk decompresses
    each once.
    """
    stored = _member(file, "images")
    check_images(stored, SHAPE)
    images = np.empty((len(rows), *SHAPE), dtype=np.uint8)
    order = np.argsort(rows)
    for chunk in stored.iter_chunks():
        first, last = np.searchsorted(rows, (chunk[0].start, chunk[0].stop), sorter=order)
        if first < last:
            place = order[first:last]
            images[place, *chunk[1:]] = stored[chunk][rows[place] - chunk[0].start]
    return images


def _member(file: Any, name: str) -> Any:
    if name not in file:
        raise InputError(f"It has no '{name}'.", field=name)
    return file[name]
