"""300W-LP: head pose from a face image (Zhu et al. 2016, for research only).

The published form is the folder `300W_LP` with the sets AFW, HELEN, IBUG and LFPW. Each `.jpg` has a `.mat`
with `Pose_Para` (1, 7), which starts with pitch, yaw and roll in radians, and `pt2d` (2, 68), the landmarks
in pixels (-1 if unknown).

Choices that the paper does not state:
- Images: 12,000 for training and 3,000 for tests, drawn without replacement from the 61,225 of the four sets
  with `Options.seed`. All training seeds share them. The mirrored images in the `_Flip` folders are not used.
  One photograph yields many images, so it may be in both sets.
- Crop: the smallest square around all landmarks, a quarter of its side wider on every side, black outside the
  image, resized to 64 x 64 with antialiasing. A square keeps the proportions that show the pose.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
    combine_checksums,
    sample_rows,
)
from fedgram.data.problem import Problem

TARGETS = ("pitch", "yaw", "roll")
SETS = ("AFW", "HELEN", "IBUG", "LFPW")
FOLDERS = ("300W_LP", "300W-LP", "300W-LP/300W_LP", ".")
SIDE = 64
MARGIN = 0.25  # of the landmarks' square, on each side


def find(dataset: Dataset, folder: Path, options: Options) -> Sequence[Path]:
    """Find all images of the four sets, each followed by its `.mat`."""
    for place in FOLDERS:
        images = sorted(image for name in SETS for image in (folder / place / name).glob("*.jpg"))
        if images:
            mats = {mat for name in SETS for mat in (folder / place / name).glob("*.mat")}
            return [path for image in images for path in (image, _find_mat(image, mats))]
    raise dataset.missing(folder / FOLDERS[0] / SETS[0] / "*.jpg")


def _find_mat(image: Path, mats: set[Path]) -> Path:
    mat = image.with_suffix(".mat")
    if mat not in mats:
        raise InputError(f"The image '{image}' of 300W-LP has no '{mat.name}'.", field=str(mat))
    return mat


def load(
    dataset: Dataset, files: Sequence[Path], options: Options, train: int = TRAIN_ROWS, test: int = TEST_ROWS
) -> Problem:
    """Load images (N, 64, 64, 3) and targets pitch, yaw and roll (N, 3) of 8 clients."""
    message = "Reading 300W-LP needs Pillow: pip install 'fedgram[data]'."
    pillow = import_optional("PIL.Image", message, "Pillow").Image
    rows = sample_rows(dataset, np.random.default_rng(options.seed), len(files) // 2, train + test)
    pairs = [(files[2 * row], files[2 * row + 1]) for row in rows]
    with ThreadPoolExecutor() as pool:  # decoding releases Python's lock
        images, poses = zip(*pool.map(partial(_read_face, pillow), pairs), strict=True)
    checksums = combine_checksums([path for pair in pairs for path in pair], files[0].parent.parent)
    provenance = make_provenance(checksums, options)
    return build_image_problem(dataset, np.stack(images), np.stack(poses), train, TARGETS, provenance)


def _read_face(pillow: Any, pair: tuple[Path, Path]) -> tuple[Array, Array]:
    """Read the crop (64, 64, 3) and the pose (3,) of one image."""
    image, mat = pair
    with translate_read_errors(mat, "a .mat of 300W-LP"):
        pose, box = _read_annotation(mat)
    with translate_read_errors(image, "an image of 300W-LP"), pillow.open(image) as picture:
        face = picture.convert("RGB").crop(box).resize((SIDE, SIDE), pillow.Resampling.BILINEAR)
    return np.asarray(face), pose


def _read_annotation(mat: Path) -> tuple[Array, tuple[int, int, int, int]]:
    """Read pitch, yaw and roll, and the box to crop (left, upper, right, lower)."""
    from scipy.io import loadmat

    annotation = loadmat(mat, variable_names=["Pose_Para", "pt2d"])
    for name, rows, columns in (("Pose_Para", 1, 7), ("pt2d", 2, 68)):
        shape = np.shape(annotation.get(name))
        if len(shape) != 2 or shape[0] != rows or shape[1] < 3:
            raise InputError(f"It has no {name} of shape ({rows}, {columns}).", field=name)
    return annotation["Pose_Para"][0, :3].astype(np.float64), compute_face_box(annotation["pt2d"])


def compute_face_box(landmarks: Array) -> tuple[int, int, int, int]:
    """Compute the square to crop (left, upper, right, lower) from landmarks (2, K) in pixels."""
    known = landmarks[:, (landmarks >= 0).all(axis=0)]
    if known.size == 0:
        raise InputError("It has no landmark in the image.", field="pt2d")
    low, high = known.min(axis=1), known.max(axis=1)
    half = (0.5 + MARGIN) * (high - low).max()
    left, upper = np.rint((low + high) / 2 - half).astype(int)
    side = max(int(np.rint(2 * half)), 1)
    return int(left), int(upper), int(left) + side, int(upper) + side
