"""dSprites: position and scale of a white shape on black (Matthey et al. 2017, Apache 2.0).

The published form is one npz with `imgs` (737,280, 64, 64) of 0 and 1, and `latents_values` (737,280, 6) in
the order color, shape, scale, orientation, posX, posY. `dsprites-rerendered` reads 60,000 imitations with the
same latents, eight pixels to a byte, as `imgs_packed` (60,000, 512): they are RE-RENDERED, not dSprites.

Choices that the paper does not state:
- Rows: 12,000 training and 3,000 test rows drawn without replacement with `Options.seed`. All training seeds
  share them.
- Pixels are 0 or 255, so networks receive 0 or 1.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.datasets.dataset import Dataset, Options, make_provenance, translate_read_errors
from fedgram.data.datasets.loaders.sprites import FACTORS, SIDE, TARGETS
from fedgram.data.datasets.preprocessing import (
    TEST_ROWS,
    TRAIN_ROWS,
    build_image_problem,
    gather_images,
    sample_rows,
)
from fedgram.data.problem import Problem

BLOCK = 8_192  # images read at a time: 32 MB


def load(
    dataset: Dataset, files: Sequence[Path], options: Options, train: int = TRAIN_ROWS, test: int = TEST_ROWS
) -> Problem:
    """Load images (N, 64, 64, 1) of 0 and 255 and targets posX, posY, scale (N, 3) of 8 clients."""
    with translate_read_errors(files[0], "a dSprites npz"):
        latents = _read_latents(files[0])
    rows = sample_rows(dataset, np.random.default_rng(options.seed), len(latents), train + test)
    with translate_read_errors(files[0], "a dSprites npz"):
        white = gather_images(_read_blocks(files[0], len(latents)), rows, (SIDE, SIDE)) > 0
    targets = latents[rows][:, [FACTORS.index(target) for target in TARGETS]]
    images = np.uint8(255) * white[..., None]
    return build_image_problem(dataset, images, targets, train, TARGETS, make_provenance(files, options))


def _read_latents(path: Path) -> Array:
    """Read the values of the six factors, (N, 6)."""
    with path.open("rb") as file, np.load(file) as arrays:
        latents = np.asarray(arrays["latents_values"], dtype=np.float64)
    if latents.ndim != 2 or latents.shape[1] != len(FACTORS):
        message = f"latents_values must have the columns {', '.join(FACTORS)}, but has shape {latents.shape}."
        raise InputError(message, field="latents_values")
    return latents


def _read_blocks(path: Path, count: int) -> Iterator[Array]:
    """Yield all images of a file in blocks (n, 64, 64) of 0 and 1."""
    with zipfile.ZipFile(path) as archive:
        packed = "imgs_packed.npy" in archive.namelist()
        name, width = ("imgs_packed", SIDE * SIDE // 8) if packed else ("imgs", SIDE * SIDE)
        with archive.open(f"{name}.npy") as file:
            # np.load would take 3 GB of memory; this reads blocks from the compressed stream.
            _check_header(file, name, (count, width) if packed else (count, SIDE, SIDE))
            for start in range(0, count, BLOCK):
                content = file.read(min(BLOCK, count - start) * width)
                block = np.frombuffer(content, dtype=np.uint8).reshape(-1, width)
                yield (np.unpackbits(block, axis=1) if packed else block).reshape(-1, SIDE, SIDE)


def _check_header(file: IO[bytes], name: str, expected: tuple[int, ...]) -> None:
    np.lib.format.read_magic(file)
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    if shape != expected or fortran_order or dtype != np.uint8:
        message = f"{name} must be uint8 of shape {expected}, but it is {dtype} of shape {shape}."
        raise InputError(message, field=name)
