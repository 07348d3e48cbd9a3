"""Sample, scale and partition rows; read image archives."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import hash_file
from fedgram.data.datasets.dataset import Dataset
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.data.splits import split_by_projection

TABULAR_CLIENTS = 4  # of the paper's tabular datasets
TRAIN_ROWS, TEST_ROWS, IMAGE_CLIENTS = 12_000, 3_000, 8  # of its image datasets


def sample_rows(dataset: Dataset, rng: np.random.Generator, available: int, wanted: int) -> Array:
    """Draw distinct row numbers in random order, (wanted,)."""
    if available < wanted:
        message = f"The dataset '{dataset.name}' needs {wanted:,} images, but its files have {available:,}."
        raise InputError(message, field="rows")
    return rng.choice(available, wanted, replace=False)


def gather_images(blocks: Iterable[Array], rows: Array, shape: tuple[int, ...]) -> Array:
    """Gather rows of images that arrive in blocks (n, *shape) uint8 -> (len(rows), *shape)."""
    images = np.empty((len(rows), *shape), dtype=np.uint8)
    order = np.argsort(rows)
    start = 0
    for block in blocks:
        check_images(block, shape)
        first, last = np.searchsorted(rows, (start, start + len(block)), sorter=order)
        place = order[first:last]
        images[place] = block[rows[place] - start]
        start += len(block)
    if start <= rows.max():
        raise InputError(f"It ends after {start:,} images.", field="images")
    return images


def check_images(images: Array, shape: tuple[int, ...]) -> None:
    """Reject images (n, ...) that are not uint8 of one shape."""
    if images.dtype != np.uint8 or images.shape[1:] != shape:
        size = " x ".join(str(side) for side in shape)
        found = f"they have shape {images.shape[1:]} and type {images.dtype}"
        raise InputError(f"Images must be {size} bytes, but {found}.", field="images")


def standardize(values: Array, train: int, names: Sequence[str]) -> tuple[Array, dict[str, dict[str, float]]]:
    """Standardize columns (N, D) by mean and deviation (1/N) of the first `train` rows.

    Also return the mean and scale of each column by name.
    """
    rows = values[:train]
    constant = np.flatnonzero((rows == rows[:1]).all(axis=0))
    if constant.size:
        name = names[constant[0]]
        message = f"The column '{name}' is constant over all {len(rows):,} training rows. Drop it."
        raise InputError(message, field=name)
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    statistics = {"mean": mean, "scale": scale}
    by_name = {key: dict(zip(names, each.tolist(), strict=True)) for key, each in statistics.items()}
    return (values - mean) / scale, by_name


def build_image_problem(
    dataset: Dataset,
    images: Array,
    targets: Array,
    train: int,
    names: Sequence[str],
    provenance: Mapping[str, Any],
) -> Problem:
    """Build a problem of eight clients by projection; the first `train` rows train, the others test.

    images (N, H, W, channels) uint8; targets (N, C) in their own units.
    """
    scaled, statistics = standardize(targets, train, names)
    rows = Split(images, scaled)
    splits = split_by_projection(rows.take(slice(train)), rows.take(slice(train, None)), IMAGE_CLIENTS)
    return Problem(dataset.name, dataset.kind, *splits, tuple(names), {**provenance, **statistics})


def combine_checksums(files: Sequence[Path], root: Path) -> dict[str, str]:
    """Combine the SHA-256 of many files into one: a list of all would be too long for a manifest."""
    lines = sorted(f"{hash_file(path)}  {path.relative_to(root).as_posix()}\n" for path in files)
    return {f"{len(files):,} files": hashlib.sha256("".join(lines).encode()).hexdigest()}


def read_tar_members(path: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the matching files in a tar archive, in one pass."""
    with tarfile.open(path, "r|*") as archive:
        for entry in archive:
            content = archive.extractfile(entry) if pattern.fullmatch(entry.name) else None
            if content is not None:
                yield entry.name, content.read()
