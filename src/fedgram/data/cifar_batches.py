"""CIFAR-10 images as published: batches of 10,000, Python pickles or binary records (Krizhevsky 2009).

They are read from the folders `cifar-10-batches-py` and `cifar-10-batches-bin`, from binary batches outside
of these, plain or compressed with xz, or straight from the published tar.gz.
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
from fedgram.data.dataset import Options, readable, require
from fedgram.data.images import check_images, tar_members

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
