"""Loaded problems kept on disk, so that the next load takes no longer than reading their arrays.

A problem lies in one file for its name and options. It is used while the key in it fits: the checksums of
the source files, and of the code that loads them. Where the source files are absent, it is used as it is,
and the provenance says so: a machine for training needs the cache only.
"""

from __future__ import annotations

import io
import json
import logging
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import atomic_write
from fedgram.data.datasets.dataset import Dataset, Options, checksum, settings_key
from fedgram.data.problem import Problem, Split

LOG = logging.getLogger(__name__)

# Compression must save this part of an array to be worth its time; it is tried on a sample.
SAVING, SAMPLE_BYTES = 0.25, 1 << 20
# Raise when a loader returns other rows than before, so that cached rows are loaded again.
LOADERS_VERSION = "1"
DAMAGED = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Source:
    """A source file as it was: its checksum holds while size and time of change are the same."""

    bytes: int
    changed_ns: int
    sha256: str


@dataclass(frozen=True)
class Stored:
    """A problem with the key and the source files that it was made from."""

    problem: Problem
    key: str
    sources: Mapping[str, Source]


def load(dataset: Dataset, folder: Path, options: Options) -> Problem:
    """The problem from its source files, or from the cache if that was made from the same ones."""
    path = path_of(dataset.name, folder, options)
    try:
        files = dataset.find(folder, options)
    except InputError as missing:
        return _without_sources(path, missing)
    if not files:  # embedded or generated: nothing to save
        return dataset.load(files, options)
    stored = _read(path)
    sources = _sources(files, folder, stored.sources if stored else {})
    key = _key(dataset.name, options, sources)
    if stored and stored.key == key:
        return stored.problem
    problem = dataset.load(files, options)
    _write(path, Stored(problem, key, sources))
    return problem


def path_of(name: str, folder: Path, options: Options) -> Path:
    """Where the cache of a dataset with these options lies."""
    return folder / "cache" / f"{settings_key(name, options, {})}.npz"


def _without_sources(path: Path, missing: InputError) -> Problem:
    stored = _read(path)
    if stored is None:
        raise missing
    sentence = f"source files absent: rows are those kept in '{path.name}'"
    provenance = {**stored.problem.provenance, "cache": sentence}
    return replace(stored.problem, provenance=provenance)


def _key(name: str, options: Options, sources: Mapping[str, Source]) -> str:
    checksums = {file: source.sha256 for file, source in sources.items()}
    return settings_key(name, options, {**checksums, "loaders": LOADERS_VERSION})


def _sources(files: Sequence[Path], folder: Path, known: Mapping[str, Source]) -> dict[str, Source]:
    """The files as they are now; those that look unchanged are not read again."""
    sources = {}
    for path in files:
        name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
        status, before = path.stat(), known.get(name)
        if before and (before.bytes, before.changed_ns) == (status.st_size, status.st_mtime_ns):
            sources[name] = before
        else:
            sources[name] = Source(status.st_size, status.st_mtime_ns, checksum(path))
    return sources


def _read(path: Path) -> Stored | None:
    """What a cache file holds, or None if there is none or it is damaged."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            train, test = (
                {client: _split(arrays, part, m) for m, client in enumerate(about[part])}
                for part in ("train", "test")
            )
        made = about["problem"]
        problem = Problem(
            made["name"], made["kind"], train, test, tuple(made["target_names"]), made["provenance"]
        )
        sources = {name: Source(**source) for name, source in about["sources"].items()}
        return Stored(problem, about["key"], sources)
    except DAMAGED as error:
        LOG.warning("The cache '%s' is damaged (%s) and will be made again.", path, error)
        return None


def _split(arrays: Mapping[str, Array], part: str, number: int) -> Split:
    return Split(arrays[f"{part}/{number}/inputs"], arrays[f"{part}/{number}/targets"])


def _write(path: Path, stored: Stored) -> None:
    """Write a cache file, whole or not at all; where that is not allowed, the data stays without."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft, zipfile.ZipFile(draft, "w") as archive:
            for name, array in _arrays(stored).items():
                _write_array(archive, name, array)
    except OSError as error:
        LOG.info("The cache '%s' could not be written: %s.", path, error.strerror)


def _arrays(stored: Stored) -> dict[str, Array]:
    """Everything as arrays, the words as the bytes of a JSON document."""
    problem = stored.problem
    parts = {"train": problem.train, "test": problem.test}
    about = {
        "key": stored.key,
        "sources": {name: vars(source) for name, source in stored.sources.items()},
        "problem": {
            "name": problem.name,
            "kind": problem.kind,
            "target_names": problem.target_names,
            "provenance": problem.provenance,
        },
    } | {part: list(splits) for part, splits in parts.items()}
    arrays = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    for part, splits in parts.items():
        for number, split in enumerate(splits.values()):
            arrays[f"{part}/{number}/inputs"] = split.inputs
            arrays[f"{part}/{number}/targets"] = split.targets
    return arrays


def _write_array(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    content = io.BytesIO()
    np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
    data = content.getbuffer()
    pays = len(zlib.compress(data[:SAMPLE_BYTES], 1)) < (1 - SAVING) * min(len(data), SAMPLE_BYTES)
    method: dict[str, Any] = {"compress_type": zipfile.ZIP_DEFLATED, "compresslevel": 1} if pays else {}
    archive.writestr(zipfile.ZipInfo(f"{name}.npy"), bytes(data), **method)
