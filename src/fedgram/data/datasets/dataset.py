"""Describe datasets, and find and hash their files."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram.data.problem import Kind, Problem


@dataclass(frozen=True)
class Options:
    """Options of a dataset; each loader uses those that apply to it.

    seed: of every random choice (rows, shifts). variant: of the files. larger: use the paper's larger
    training set.
    """

    seed: int = 0
    variant: str = ""
    larger: bool = False

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"The seed of the data must be 0 or more, not {self.seed}.", field="seed")


@dataclass(frozen=True)
class Download:
    """A public file: its URL, local name and published checksum ('sha256:...')."""

    url: str
    file: str
    checksum: str | None = None


@dataclass(frozen=True)
class Dataset:
    """One entry of the registry.

    find(folder, options): source files to read, or an InputError that names the missing ones; an embedded
    dataset has none. load(files, options): the problem. obtain: instructions, if there are no downloads.
    """

    name: str
    kind: Kind
    title: str
    license: str
    citation: str
    published: str
    find: Callable[[Path, Options], Sequence[Path]]
    load: Callable[[Sequence[Path], Options], Problem]
    downloads: tuple[Download, ...] = ()
    obtain: str = ""
    variants: tuple[str, ...] = ()


def data_directory(folder: str | Path | None = None) -> Path:
    """Return the folder of datasets: the given one, else $FEDGRAM_DATA, else the platform's cache."""
    if folder is not None:
        return Path(folder)
    if "FEDGRAM_DATA" in os.environ:
        return Path(os.environ["FEDGRAM_DATA"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedgram"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "fedgram"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedgram"


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    """Return the hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def make_key(name: str, options: Options, sources: Mapping[str, str]) -> str:
    """Return a short key for a dataset with these options and file checksums."""
    content = json.dumps([name, asdict(options), dict(sorted(sources.items()))], sort_keys=True)
    return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def find_files(
    folder: Path, patterns: Sequence[str], name: str, what: str, missing: str | None = None
) -> list[Path]:
    """Find the files of the first pattern that matches in the data directory or one folder below it.

    If none matches, the error names the file `missing`, by default the first pattern.
    """
    for pattern in patterns:
        if found := sorted(folder.glob(pattern)) or sorted(folder.glob(f"*/{pattern}")):
            return found
    path = folder / (missing or patterns[0])
    raise InputError(
        f"The dataset '{name}' needs {what}, but there is no '{path}'. Run 'fedgram data fetch {name}'.",
        field=str(path),
    )


def make_provenance(files: Sequence[Path], options: Options, **more: Any) -> dict[str, Any]:
    """Return the source files with checksums, the options, and the loader's own entries."""
    return {"files": {path.name: hash_file(path) for path in files}, "options": asdict(options), **more}


@contextmanager
def translate_read_errors(path: Path | str, what: str) -> Iterator[None]:
    """Raise one InputError for any error of a library that reads a file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"'{path}' is not {what}: {error.message}", field=error.field) from error
    except Exception as error:  # the libraries share no class of errors
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"Cannot read '{path}' as {what}: {reason.rstrip('.')}. If it is damaged, fetch it again.",
            field=str(path),
        ) from error
