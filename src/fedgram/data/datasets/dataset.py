"""Describe datasets, and find, read and hash their files."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.files import hash_file
from fedgram.data.datasets.archives import check_archive
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
    """One entry of `datasets.toml`, which explains the fields.

    loader: a module with load(dataset, files, options) -> Problem, and with find(dataset, folder, options) if
    `forms` cannot describe its files.
    """

    name: str
    kind: Kind
    title: str
    license: str
    citation: str
    published: str
    loader: Any
    forms: tuple[str, ...] = ()
    needs: str = ""
    downloads: tuple[Download, ...] = ()
    obtain: str = ""
    variants: tuple[str, ...] = ()
    has_larger: bool = False

    def find(self, folder: Path, options: Options) -> Sequence[Path]:
        """Find the source files, none if it is embedded; an InputError names the missing file."""
        if hasattr(self.loader, "find"):
            return self.loader.find(self, folder, options)
        variant = options.variant or next(iter(self.variants), "")
        for form in (form.format(variant=variant) for form in self.forms):
            if found := sorted(folder.glob(form)) or sorted(folder.glob(f"*/{form}")):
                return found if "?" in form else found[:1]
        if self.forms:
            named = self.downloads[0].file if self.downloads else self.forms[0].format(variant=variant)
            raise self.missing(folder / named)
        return ()

    def missing(self, path: Path) -> InputError:
        """Describe that this file is missing."""
        message = f"The dataset '{self.name}' needs {self.needs}, but there is no '{path}'. "
        return InputError(f"{message}Run 'fedgram data fetch {self.name}'.", field=str(path))

    def load(self, files: Sequence[Path], options: Options, **rows: int) -> Problem:
        """Load the problem from its source files; rows: `train` and `test` images, by default the paper's."""
        if options.larger and not self.has_larger:
            message = f"The dataset '{self.name}' has no larger training set. Remove --larger."
            raise InputError(message, field="larger")
        for path in files:
            check_archive(path)
        return self.loader.load(self, files, options, **rows)


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


def make_key(name: str, options: Options, sources: Mapping[str, str]) -> str:
    """Return a short key for a dataset with these options and file checksums."""
    content = json.dumps([name, asdict(options), dict(sorted(sources.items()))], sort_keys=True)
    return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def make_provenance(
    files: Sequence[Path] | Mapping[str, str], options: Options, **more: Any
) -> dict[str, Any]:
    """Return the source files (or their checksums) with checksums, the options, and more entries."""
    checksums = files if isinstance(files, Mapping) else {path.name: hash_file(path) for path in files}
    return {"files": checksums, "options": asdict(options), **more}


@contextmanager
def translate_read_errors(path: Path | str, what: str) -> Iterator[None]:
    """Raise one InputError for any error of a library that reads a file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"'{path}' is not {what}: {error.message}", field=error.field) from error
    except Exception as error:  # the libraries share no class of errors
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        message = f"Cannot read '{path}' as {what}: {reason.rstrip('.')}. If it is damaged, fetch it again."
        raise InputError(message, field=str(path)) from error
