"""What a dataset is: how it is loaded, what it may be used for, and where it is published."""

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
    """What a person may choose about a dataset; each loader uses what applies to it.

    seed of every random choice (which rows, which shifts); variant of the files; larger, the paper's larger
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
    """A public file: its address, the name it is kept under, its published checksum ('sha256:...')."""

    url: str
    file: str
    checksum: str | None = None


@dataclass(frozen=True)
class Dataset:
    """One entry of the registry.

    find(folder, options) names the source files that the loader reads, or raises an InputError that says
    exactly what is missing; an embedded dataset has none. load(files, options) makes the problem. Where
    there are no downloads, `obtain` says what a person must do.
    """

    name: str
    kind: Kind
    title: str
    licence: str
    citation: str
    published: str
    find: Callable[[Path, Options], Sequence[Path]]
    load: Callable[[Sequence[Path], Options], Problem]
    downloads: tuple[Download, ...] = ()
    obtain: str = ""
    variants: tuple[str, ...] = ()


def data_directory(given: str | Path | None = None) -> Path:
    """Where datasets lie: the given folder, else $FEDGRAM_DATA, else the platform's cache folder."""
    if given is not None:
        return Path(given)
    if "FEDGRAM_DATA" in os.environ:
        return Path(os.environ["FEDGRAM_DATA"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedgram"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "fedgram"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedgram"


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def settings_key(name: str, options: Options, sources: Mapping[str, str]) -> str:
    """A short name for a dataset made with these options from files with these checksums."""
    content = json.dumps([name, asdict(options), dict(sorted(sources.items()))], sort_keys=True)
    return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def require(path: Path, name: str, what: str) -> Path:
    """The path if it exists, else a sentence that says what is missing and where it was looked for."""
    if path.exists():
        return path
    raise InputError(
        f"The dataset '{name}' needs {what}, but there is no '{path}'; 'fedgram data fetch {name}' gets it "
        "or says how to.",
        field=str(path),
    )


def provenance(files: Sequence[Path], options: Options, **more: Any) -> dict[str, Any]:
    """What made a problem, for manifests: files with checksums, options, and whatever the loader adds."""
    return {"files": {path.name: checksum(path) for path in files}, "options": asdict(options), **more}


@contextmanager
def readable(path: Path | str, what: str) -> Iterator[None]:
    """Say in one sentence what a library says about a file that is damaged, cut short or another one."""
    try:
        yield
    except InputError as error:
        raise InputError(f"'{path}' is not {what}: {error.message}", field=error.field) from error
    except Exception as error:  # the libraries share no class of errors
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"'{path}' cannot be read as {what} ({reason}); if it is damaged or cut short, get it again.",
            field=str(path),
        ) from error
