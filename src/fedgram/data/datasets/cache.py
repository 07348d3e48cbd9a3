"""Cache loaded problems on disk, one .npz file per name and options.

A cache file is valid while its key matches: the checksums of the source files and the version of the loaders.
Without source files it is used as it is, and the provenance says so: a training machine needs only the cache.
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
from fedgram._util.files import atomic_write, hash_file
from fedgram.data.datasets.dataset import Dataset, Options, make_key
from fedgram.data.problem import Problem
from fedgram.data.split import Split

LOG = logging.getLogger(__name__)

# Compress an array if a sample of it shrinks by this fraction.
SAVING, SAMPLE_BYTES = 0.25, 1 << 20
# Raise when a loader returns other rows than before, so that cached rows are loaded again.
LOADERS_VERSION = "1"
DAMAGED = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error)


Sources = Mapping[str, Mapping[str, Any]]
"""Size, modification time and SHA-256 of source files by name; valid while the first two are the same."""


@dataclass(frozen=True)
class CachedProblem:
    """A problem with its key and source files."""

    problem: Problem
    key: str
    sources: Sources


def load(dataset: Dataset, folder: Path, options: Options) -> Problem:
    """Load a problem from its cache if that is valid, else from its source files."""
    path = cache_path(dataset.name, folder, options)
    try:
        files = dataset.find(folder, options)
    except InputError:
        cached = _read(path)
        if cached is None:
            raise
        note = f"source files absent: rows are those kept in '{path.name}'"
        return replace(cached.problem, provenance={**cached.problem.provenance, "cache": note})
    if not files:  # embedded or generated: nothing to save
        return dataset.load(files, options)
    cached = _read(path)
    sources = _hash_sources(files, folder, cached.sources if cached else {})
    checksums = {file: source["sha256"] for file, source in sources.items()}
    key = make_key(dataset.name, options, {**checksums, "loaders": LOADERS_VERSION})
    if cached and cached.key == key:
        return cached.problem
    problem = dataset.load(files, options)
    _write(path, CachedProblem(problem, key, sources))
    return problem


def cache_path(name: str, folder: Path, options: Options) -> Path:
    """Return the path of a dataset's cache file."""
    return folder / "cache" / f"{make_key(name, options, {})}.npz"


def _hash_sources(files: Sequence[Path], folder: Path, known: Sources) -> Sources:
    """Hash the files, except those whose size and modification time are known."""
    sources = {}
    for path in files:
        name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
        status, before = path.stat(), known.get(name, {})
        state = {"bytes": status.st_size, "changed_ns": status.st_mtime_ns}
        sources[name] = before if state.items() <= before.items() else state | {"sha256": hash_file(path)}
    return sources


def _read(path: Path) -> CachedProblem | None:
    """Read a cache file; return None if it is missing or damaged."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            train, test = (
                {
                    client: Split(arrays[f"{part}/{m}/inputs"], arrays[f"{part}/{m}/targets"])
                    for m, client in enumerate(about[part])
                }
                for part in ("train", "test")
            )
        problem = Problem(train=train, test=test, **about["problem"])
        return CachedProblem(problem, about["key"], about["sources"])
    except DAMAGED as error:
        LOG.warning("The cache '%s' is damaged (%s). Loading the source files again.", path, error)
        return None


def _write(path: Path, cached: CachedProblem) -> None:
    """Write a cache file; a folder without write permission has no cache."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            for name, array in _to_arrays(cached).items():
                _write_array(archive, name, array)
    except OSError as error:
        LOG.info("Cannot write the cache '%s': %s.", path, error.strerror)


def _to_arrays(cached: CachedProblem) -> dict[str, Array]:
    """Convert to arrays; `about` is a JSON document as bytes."""
    problem = cached.problem
    parts = {"train": problem.train, "test": problem.test}
    identity = {name: getattr(problem, name) for name in ("name", "kind", "target_names", "provenance")}
    about = {"key": cached.key, "sources": cached.sources, "problem": identity}
    about |= {part: list(splits) for part, splits in parts.items()}
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
