"""What is in the data directory: which datasets, and a close look at one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedgram._util.errors import InputError
from fedgram.data.datasets import cache, registry
from fedgram.data.datasets.dataset import Dataset, Options, checksum, data_directory
from fedgram.data.problem import Problem
from fedgram.theory.predict import Prediction, predict


@dataclass(frozen=True)
class Presence:
    """Whether a dataset can be loaded: from which files, or the sentence that says what is missing."""

    dataset: Dataset
    state: Literal["present", "cached", "embedded", "missing"]
    files: tuple[Path, ...] = ()
    missing: str | None = None

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(path.stat().st_size for path in self.files)

    def document(self) -> dict[str, Any]:
        """One dataset of `fedgram data list --json`."""
        entry = self.dataset
        return {
            "name": entry.name,
            "kind": entry.kind,
            "title": entry.title,
            "state": self.state,
            "bytes": self.bytes,
            "missing": self.missing,
            "licence": entry.licence,
            "citation": entry.citation,
            "published": entry.published,
            "can_fetch": bool(entry.downloads),
            "variants": list(entry.variants),
        }


def presence(dataset: Dataset, folder: Path) -> Presence:
    """Look for a dataset, with default options, in a data directory."""
    options = Options()
    try:
        files = tuple(dataset.find(folder, options))
    except InputError as error:
        kept = cache.path_of(dataset.name, folder, options)
        if kept.exists():
            return Presence(dataset, "cached", (kept,))
        return Presence(dataset, "missing", missing=error.message)
    return Presence(dataset, "present" if files else "embedded", files)


@dataclass(frozen=True)
class CheckedFile:
    """A source file that is not another than the published one; None where no checksum is published."""

    path: Path
    bytes: int
    sha256: str
    as_published: Literal[True] | None


@dataclass(frozen=True)
class Inspection:
    """A dataset as its files give it, and where federated averaging on it ends at the paper's penalties."""

    dataset: Dataset
    files: tuple[CheckedFile, ...]
    problem: Problem
    prediction: Prediction

    def document(self) -> dict[str, Any]:
        """What `fedgram data check --json` prints."""
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
    """Open a dataset's files, not its cache; a file that is not the published one is an InputError."""
    dataset = registry.dataset(name)
    registry.check_variant(dataset, options)
    paths = dataset.find(data_directory(data_dir), options)
    files = tuple(_checked(dataset, path) for path in paths)
    problem = dataset.load(paths, options)
    return Inspection(dataset, files, problem, predict(problem.moments))


def _checked(dataset: Dataset, path: Path) -> CheckedFile:
    published = {Path(each.file).name: each.checksum for each in dataset.downloads}.get(path.name)
    sha256 = checksum(path)
    if published is None:
        return CheckedFile(path, path.stat().st_size, sha256, None)
    algorithm, _, expected = published.partition(":")
    if (sha256 if algorithm == "sha256" else checksum(path, algorithm)) != expected:
        raise InputError(
            f"'{path}' is not the published file: its {algorithm} is not {expected}; delete it and fetch it "
            "again.",
            field=str(path),
        )
    return CheckedFile(path, path.stat().st_size, sha256, True)
