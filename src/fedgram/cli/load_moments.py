"""Load the moments that a command works on: moments files, a dataset or tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os.path import exists, isdir
from typing import TYPE_CHECKING, Any

from fedgram._util.errors import InputError
from fedgram._util.text import split_names
from fedgram.cli.app import print_warning
from fedgram.cli.checks import check_exists, field_of, reject_flags
from fedgram.cli.parsing import parse_weights
from fedgram.data.datasets import registry
from fedgram.data.tables.files import drop_duplicate_paths, expand_paths, is_table, list_files
from fedgram.data.target_scale import target_scale

if TYPE_CHECKING:
    from fedgram.data.tables.read_sample import TableSample
    from fedgram.theory.moments import Moments


@dataclass(frozen=True)
class LoadedMoments:
    """Moments, the paths that the user passed, and the files that they expand to.

    `sample` has rows and outliers if they were read from a table.
    """

    moments: Moments
    paths: list[str]
    files: list[str]
    sample: TableSample | None = None


@dataclass(frozen=True)
class TargetColumns:
    """Options that apply to tables only: which rows and columns the moments are computed from."""

    client: str | None
    site: str | None
    targets: str | None
    where: str | None
    drop_missing: bool
    min_rows: int
    robust: bool = False
    time: str | None = None

    @property
    def flags(self) -> dict[str, object]:
        """Value of each flag."""
        return {f"--{name.replace('_', '-')}": value for name, value in vars(self).items()}


def load_moments(
    paths: list[str], columns: TargetColumns, weights: str | None = None, *, with_rows: bool = False
) -> LoadedMoments:
    """Read moments files or a dataset, or compute the moments of tables; duplicate paths count once.

    `with_rows` also reads rows and outliers of tables.
    """
    paths = drop_duplicate_paths(paths)
    files: list[str] = []
    sample = None
    if len(paths) == 1 and _is_dataset(paths[0]):
        reject_flags(columns.flags, "tables, not to datasets")
        summary = _read_dataset(paths[0])
    else:
        files = _list_input_files(paths)
        if _are_moments_files(files):
            reject_flags(columns.flags, "tables, not to moments files")
            summary = _merge_moments_files(files)
        elif with_rows:
            from fedgram.data.tables.read_sample import read_sample

            given = _reader_arguments(columns)
            sample = read_sample(paths, time=split_names(columns.time or ""), **given)
            summary = sample.moments
        else:
            from fedgram.data.tables.read_moments import read_moments

            summary = read_moments(paths, **_reader_arguments(columns))
    if weights is not None:
        if len(summary.clients) == 1:
            raise InputError(
                "--weights needs several clients. Pass it to the command that combines their files.",
                field="weights",
            )
        summary = summary.weighted(parse_weights(weights, summary.clients))
    return LoadedMoments(summary, paths, files, sample)


def _reader_arguments(columns: TargetColumns) -> dict[str, Any]:
    """Return the arguments that all readers of tables share."""
    names = split_names(columns.targets or "")
    for flag, value in {"--targets": names, "--client (or --site)": columns.client or columns.site}.items():
        if not value:
            raise InputError(f"Reading a table needs {flag}.", field=field_of(flag.split()[0]))
    return {
        "client": columns.client, "site": columns.site, "targets": names, "where": columns.where,
        "drop_missing": columns.drop_missing, "min_rows": columns.min_rows, "robust": columns.robust,
        "on_warning": print_warning,
    }  # fmt: skip


def _is_dataset(path: str) -> bool:
    return path in registry.names() and not exists(path)


def _list_input_files(paths: list[str]) -> list[str]:
    """Expand folders and globs."""
    for path in paths:
        if _is_dataset(path):
            raise InputError(
                f"Cannot combine the dataset '{path}' with other data. Pass it alone.", field="data"
            )
        check_exists(path)
    return drop_duplicate_paths(
        file for path in paths for file in _moments_files_in(path) or expand_paths([path])
    )


def _read_dataset(name: str) -> Moments:
    """Return the moments of a dataset's training rows, with the scale that its targets were divided by."""
    problem = registry.load(name)
    summary = problem.moments
    return replace(summary, scale=target_scale(problem.provenance, summary.targets))


def _is_moments_file(path: str) -> bool:
    """Return whether a path has the suffix of a moments file."""
    return path.lower().endswith(".json")


def _moments_files_in(path: str) -> list[str]:
    """List the moments files in a folder, or none if it also has tables."""
    files = list_files(path) if isdir(path) else []
    return [] if any(map(is_table, files)) else list(filter(_is_moments_file, files))


def _are_moments_files(files: list[str]) -> bool:
    """Return whether these are moments files; reject a mix with tables."""
    kinds = {_is_moments_file(file): file for file in files}
    if len(kinds) == 2:
        raise InputError(
            f"Cannot combine the moments file '{kinds[True]}' with the table '{kinds[False]}'. Run 'fedgram "
            "moments' on the table first.",
            field="data",
        )
    return True in kinds


def _merge_moments_files(files: list[str]) -> Moments:
    """Merge the clients of all files; rows of a client in several files add up."""
    from fedgram.theory.moments import Moments
    from fedgram.theory.moments_file import read_fields

    found = [read_fields(file) for file in files]
    first, *others = (Moments(**fields) for fields in found)
    seen: dict[tuple[bytes, ...], str] = {}
    for file, fields, part in zip(files, found, (first, *others), strict=True):
        _check_no_copy(part, file, seen)
        if others and fields["client_weights"] is not None:
            raise InputError(
                f"'{file}' has client weights, which cannot be merged. Remove them and pass --weights.",
                field="weights",
            )
    return first.merged(*others) if others else first


def _check_no_copy(part: Moments, file: str, seen: dict[tuple[bytes, ...], str]) -> None:
    """Reject a client of another file in `seen` whose rows would count twice; add this file's clients."""
    order = sorted(range(len(part.targets)), key=lambda c: part.targets[c])
    found = {}
    for name, *values in zip(
        part.clients, part.count, part.mean[:, order], part.covariance[:, order][..., order], strict=True
    ):
        key = tuple(value.tobytes() for value in values)
        if key in seen:
            raise InputError(
                f"Client '{name}' in '{file}' has the same count, mean and covariance as {seen[key]}. Remove "
                "the copy.",
                client=name,
                field="data",
            )
        found[key] = f"client '{name}' in '{file}'"
    seen.update(found)
