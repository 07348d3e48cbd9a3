"""Checks of command-line arguments that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import has_magic
from os.path import exists, realpath
from pathlib import Path

from fedgram._util.errors import InputError
from fedgram._util.files import check_folder_of
from fedgram._util.text import suggest
from fedgram.data.datasets import registry
from fedgram.data.tables.files import expand_paths


def check_not_overwritten(output: str | Path | None, paths: Sequence[str]) -> None:
    """Reject an output file that is one of the input files."""
    if output is not None and realpath(output) in map(realpath, expand_paths(paths)):
        raise InputError(
            f"Cannot overwrite the input file '{output}'. Choose another output file.", field="output"
        )


def check_suffix(output: str | Path | None, what: str, *suffixes: str) -> None:
    """Reject an output file that does not end in one of the suffixes, as data files do."""
    if output is not None and Path(output).suffix.lower() not in suffixes:
        raise InputError(f"{what} must end in {suffixes[0]}: '{output}'.", field="output")


def check_figure(path: str | Path | None) -> None:
    """Reject a figure that cannot be written, before anything is computed for it."""
    if path is not None:
        from fedgram.display.plotting import figure_suffix

        figure_suffix(path)
        check_folder_of(path)


def check_exists(path: str) -> None:
    """Reject what looks like the name of a dataset but is none; others report missing tables."""
    if not (Path(path).suffix or exists(path) or has_magic(path)):
        raise InputError(
            f"There is no file, folder or dataset '{path}'{suggest(path, registry.names())} Run "
            "'fedgram data list' for the names of datasets.",
            field="data",
        )


def reject_flags(flags: Mapping[str, object], reason: str) -> None:
    """Reject flags that are set but do not apply."""
    for flag, value in flags.items():
        if value:
            raise InputError(f"{flag} applies to {reason}.", field=field_of(flag))


def field_of(flag: str) -> str:
    """Return the Python argument that a flag sets."""
    return flag.removeprefix("--").replace("-", "_")
