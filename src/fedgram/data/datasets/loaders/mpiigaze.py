"""MPIIGaze: gaze direction from an eye image (Zhang et al. 2015, CC BY-NC-SA 4.0).

The published form is one `.mat` file for each day of 15 persons, `Data/Normalized/pXX/dayYY.mat`, with the
struct `data`: for the eyes `left` and `right`, `image` (n, 36, 60) and `gaze` (n, 3), a unit vector in the
normalized camera. It is read from the folder or from `MPIIGaze.tar.gz`.

The targets are the dataset's own angles, pitch = asin(-y) and yaw = atan2(-x, -z), scaled. Choices that the
paper does not state:
- Images: 12,000 for training and 3,000 for tests, drawn without replacement from both eyes of all persons and
  days with `Options.seed`. All training seeds share them. A person's images are in both sets.
- Right eyes are mirrored, image and gaze, as is usual for one model of both eyes.
"""

from __future__ import annotations

import io
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
    combine_checksums,
    gather_images,
    read_tar_members,
    sample_rows,
)
from fedgram.data.problem import Problem

TARGETS = ("pitch", "yaw")
SHAPE = (36, 60)
ARCHIVE = "MPIIGaze.tar.gz"
_DAY_FILE = re.compile(r".*/Normalized/(p\d\d/day\d\d)\.mat")


def load(
    dataset: Dataset, files: Sequence[Path], options: Options, train: int = TRAIN_ROWS, test: int = TEST_ROWS
) -> Problem:
    """Load images (N, 36, 60, 1) and targets pitch and yaw (N, 2) of 8 clients."""
    days = [eyes for _, eyes in sorted(_read_days(files), key=lambda day: day[0])]
    if not days:
        raise InputError(f"'{files[0]}' has no Normalized/pXX/dayYY.mat.", field=str(files[0]))
    gaze = np.concatenate([directions for _, directions in days])
    rows = sample_rows(dataset, np.random.default_rng(options.seed), len(gaze), train + test)
    images = gather_images((block for block, _ in days), rows, SHAPE)[..., None]
    is_archive = files[0].name == ARCHIVE
    sources = files if is_archive else combine_checksums(files, files[0].parent.parent)
    provenance = make_provenance(sources, options)
    return build_image_problem(dataset, images, gaze_angles(gaze[rows]), train, TARGETS, provenance)


def gaze_angles(gaze: Array) -> Array:
    """Compute pitch and yaw in radians of unit vectors, (N, 3) -> (N, 2)."""
    x, y, z = gaze.T
    return np.stack([np.arcsin(-y), np.arctan2(-x, -z)], axis=1)


def _read_days(files: Sequence[Path]) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Yield name, images (n, 36, 60) and gaze (n, 3) of each day, in any order."""
    for path in files:
        with translate_read_errors(path, "MPIIGaze"):
            if path.name != ARCHIVE:
                yield f"{path.parent.name}/{path.stem}", _read_eyes(path.read_bytes())
                continue
            for name, content in read_tar_members(path, _DAY_FILE):
                with translate_read_errors(name, "a day of MPIIGaze"):
                    yield _DAY_FILE.sub(r"\1", name), _read_eyes(content)


def _read_eyes(content: bytes) -> tuple[Array, Array]:
    """Read images and gaze of all left eyes, then of all right eyes, mirrored."""
    from scipy.io import loadmat

    day = loadmat(io.BytesIO(content), variable_names=["data"])
    left_images, left_gaze = _read_eye(day, "left")
    right_images, right_gaze = _read_eye(day, "right")
    images = np.concatenate([left_images, right_images[:, :, ::-1]])
    return images, np.concatenate([left_gaze, right_gaze * [-1, 1, 1]])


def _read_eye(day: dict[str, Any], eye: str) -> tuple[Array, Array]:
    """Read images (n, 36, 60) and gaze (n, 3) of one eye."""
    try:
        struct = day["data"][eye][0, 0]
        images, gaze = struct["image"][0, 0], struct["gaze"][0, 0].astype(np.float64)
    except (KeyError, ValueError, IndexError):
        raise InputError(f"It has no data.{eye}.image or no data.{eye}.gaze.", field=f"data.{eye}") from None
    check_images(images, SHAPE)
    if gaze.shape != (len(images), 3):
        raise InputError(f"data.{eye}.gaze must have 3 columns and a row for each image.", field="gaze")
    return images, gaze
