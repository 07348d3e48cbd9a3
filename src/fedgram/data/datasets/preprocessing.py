"""What image datasets share: which rows, targets on one scale, clients by projection, unreadable files."""

from __future__ import annotations

import hashlib
import importlib
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.datasets.dataset import Options, checksum
from fedgram.data.problem import Kind, Problem, Split
from fedgram.data.splits import by_projection

TRAIN_ROWS, TEST_ROWS, IMAGE_CLIENTS = 12_000, 3_000, 8


def chosen(rng: np.random.Generator, available: int, wanted: int, name: str) -> Array:
    """Distinct row numbers in random order, (wanted,)."""
    if available < wanted:
        raise InputError(
            f"The dataset '{name}' needs {wanted:,} images, but its files have {available:,}.", field="rows"
        )
    return rng.choice(available, wanted, replace=False)


def picked(blocks: Iterable[Array], rows: Array, shape: tuple[int, ...]) -> Array:
    """Rows of an array of images of one shape that comes in blocks, so that it need not be held as a whole.

    blocks of (n, *shape) uint8 -> (len(rows), *shape).
    """
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
    """Refuse images (n, ...) that are not bytes of one shape."""
    if images.dtype != np.uint8 or images.shape[1:] != shape:
        size = " x ".join(str(side) for side in shape)
        raise InputError(
            f"Images must be {size} bytes, but they have shape {images.shape[1:]} and type {images.dtype}.",
            field="images",
        )


def scaled(targets: Array, train: int, names: Sequence[str]) -> tuple[Array, dict[str, dict[str, float]]]:
    """Targets (N, C), centered and scaled by the statistics of the first `train` rows, and these by name."""
    mean, scale = statistics(targets[:train], names)
    by_name = {
        what: dict(zip(names, values.tolist(), strict=True))
        for what, values in (("mean", mean), ("scale", scale))
    }
    return (targets - mean) / scale, by_name


def projected(
    name: str,
    kind: Kind,
    images: Array,
    targets: Array,
    train: int,
    target_names: tuple[str, ...],
    provenance: Mapping[str, Any],
) -> Problem:
    """A problem of eight clients by target projection: the first `train` rows train, the others test.

    images (N, H, W, channels) uint8; targets (N, C) in their own units, which are scaled here.
    """
    standard, used = scaled(targets, train, target_names)
    rows = Split(images[:train], standard[:train]), Split(images[train:], standard[train:])
    return Problem(
        name, kind, *split_by_projection(*rows, IMAGE_CLIENTS), target_names, {**provenance, **used}
    )


def combined_checksum(files: Sequence[Path], root: Path) -> dict[str, str]:
    """One SHA-256 over the checksums of many files, for datasets whose list would drown a manifest."""
    lines = sorted(f"{checksum(path)}  {path.relative_to(root).as_posix()}\n" for path in files)
    return {f"{len(files):,} files": hashlib.sha256("".join(lines).encode()).hexdigest()}


def tar_members(path: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files of a tar archive whose name matches, read once from front to back."""
    with tarfile.open(path, "r|*") as archive:
        for entry in archive:
            content = archive.extractfile(entry) if wanted.fullmatch(entry.name) else None
            if content is not None:
                yield entry.name, content.read()


def needed(module: str, package: str, title: str) -> Any:
    """An optional library, or a sentence that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"Reading {title} needs {package}: pip install 'fedgram[data]'.", field=package
        ) from None


TABULAR_CLIENTS = 4  # of every tabular dataset of the paper


def statistics(values: Array, names: Sequence[str]) -> tuple[Array, Array]:
    """Mean and standard deviation (1/N) of the columns of training rows (N, D) -> (D,), (D,)."""
    constant = np.flatnonzero((values == values[:1]).all(axis=0))
    if constant.size:
        name = names[constant[0]]
        raise InputError(
            f"The column '{name}' is constant over all {len(values):,} training rows, so it has no scale.",
            field=name,
        )
    return values.mean(axis=0), values.std(axis=0)


def split_by_projection(
    train: Split, test: Split, clients: int = TABULAR_CLIENTS
) -> tuple[dict[str, Split], dict[str, Split]]:
    """Training rows in equal groups along the leading target direction, test rows to the nearest group.

    Without test rows the second is empty.
    """
    projection = by_projection(train.targets, clients)
    assigned = projection.assigned(test.targets)
    names = [f"client {m + 1}" for m in range(clients)]
    trained = {name: _rows(train, rows) for name, rows in zip(names, projection.rows, strict=True)}
    tested = {name: _rows(test, np.flatnonzero(assigned == m)) for m, name in enumerate(names)}
    return trained, tested if len(test) else {}


def refuse_larger(name: str, options: Options) -> None:
    """The paper enlarges two image datasets only: asking that of another one is a mistake."""
    if options.larger:
        raise InputError(
            f"The dataset '{name}' has no larger training set; leave out --larger.", field="larger"
        )


def _rows(split: Split, rows: Array) -> Split:
    return Split(split.inputs[rows], split.targets[rows])
