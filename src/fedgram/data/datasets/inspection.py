"""Check which datasets are present, and verify the files of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedgram._util.errors import InputError
from fedgram._util.files import hash_file
from fedgram.data.datasets import cache, registry
from fedgram.data.datasets.dataset import Dataset, Options, data_directory
from fedgram.data.problem import Problem
from fedgram.theory.predict import Prediction, predict


@dataclass(frozen=True)
class Presence:
    """State of a dataset: its files, or the sentence that names what is missing."""

    dataset: Dataset
    state: Literal["present", "cached", "embedded", "missing"]
    files: tuple[Path, ...] = ()
    missing: str | None = None

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(path.stat().st_size for path in self.files)

    def document(self) -> dict[str, Any]:
        """Return one entry of `fedgram data list --json`."""
        entry = self.dataset
        return {
            "name": entry.name,
            "kind": entry.kind,
            "title": entry.title,
            "state": self.state,
            "bytes": self.bytes,
            "missing": self.missing,
            "license": entry.license,
            "citation": entry.citation,
            "published": entry.published,
            "can_fetch": bool(entry.downloads),
            "variants": list(entry.variants),
        }


def check_presence(dataset: Dataset, folder: Path) -> Presence:
    """Look for a dataset with default options in a data directory."""
    options = Options()
    try:
        files = tuple(dataset.find(folder, options))
    except InputError as error:
        path = cache.cache_path(dataset.name, folder, options)
        if path.exists():
            return Presence(dataset, "cached", (path,))
        return Presence(dataset, "missing", missing=error.message)
    return Presence(dataset, "present" if files else "embedded", files)


@dataclass(frozen=True)
class CheckedFile:
    """A source file that matches its published checksum; None if no checksum is published."""

    path: Path
    bytes: int
    sha256: str
    as_published: Literal[True] | None


@dataclass(frozen=True)
class Inspection:
    """A dataset's files and problem, and the prediction at the paper's penalties."""

    dataset: Dataset
    files: tuple[CheckedFile, ...]
    problem: Problem
    prediction: Prediction

    def document(self) -> dict[str, Any]:
        """Return what `fedgram data check --json` prints."""
        problem, activity = self.problem, self.prediction.activity
        first = next(iter(problem.train.values()))
        return {
            "name": problem.name,
            "kind": problem.kind,
            "files": [vars(file) | {"path": str(file.path)} for file in self.files],
            "input_shape": list(first.inputs.shape[1:]),
            "train": {client: len(split) for client, split in problem.train.items()},
            "test": {client: len(split) for client, split in problem.test.items()},
            "digest": problem.digest,
            "provenance": dict(problem.provenance),
            "moments": problem.moments.document(),
            "smallest_eigenvalue": float(activity.eigenvalue.min()),
            "fully_active": self.prediction.fully_active,
            "relative_gap": float(self.prediction.relative_gap),
            "notes": list(self.prediction.notes),
        }


def inspect_dataset(name: str, data_dir: str | Path | None, options: Options) -> Inspection:
    """Verify and load a dataset's source files; an unpublished file is an InputError."""
    dataset = registry.dataset(name)
    registry.check_variant(dataset, options)
    paths = dataset.find(data_directory(data_dir), options)
    files = tuple(_check_file(dataset, path) for path in paths)
    problem = dataset.load(paths, options)
    return Inspection(dataset, files, problem, predict(problem.moments))


def _check_file(dataset: Dataset, path: Path) -> CheckedFile:
    published = {Path(each.file).name: each.checksum for each in dataset.downloads}.get(path.name)
    sha256 = hash_file(path)
    algorithm, _, expected = (published or "").partition(":")
    if published and (sha256 if algorithm == "sha256" else hash_file(path, algorithm)) != expected:
        raise InputError(
            f"'{path}' is not the published file: its {algorithm} is not {expected}. Delete it and fetch it "
            "again.",
            field=str(path),
        )
    return CheckedFile(path, path.stat().st_size, sha256, True if published else None)
