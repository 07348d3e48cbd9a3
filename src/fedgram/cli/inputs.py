"""Load the data that a command works on: moments, or a problem to train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from glob import has_magic
from os.path import exists, isdir, realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgram._util.errors import InputError
from fedgram._util.files import check_folder_of
from fedgram._util.text import split_names, suggest
from fedgram.cli.app import print_line
from fedgram.cli.parsing import parse_weights
from fedgram.data.datasets import registry
from fedgram.data.datasets.dataset import Options
from fedgram.data.holdout import VALIDATION_FRACTION, check_test_fraction
from fedgram.data.problem import Problem
from fedgram.data.tables.files import drop_duplicate_paths, expand_paths, is_table, list_files
from fedgram.data.tables.read_rows import TableSpec, read_table
from fedgram.data.tables.read_site_problem import read_site_problem
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


def load_moments(
    paths: list[str],
    client: str | None,
    site: str | None,
    targets: str | None,
    where: str | None,
    drop_missing: bool,
    min_rows: int,
    weights: str | None,
    robust: bool = False,
    time: str | None = None,
    *,
    with_rows: bool = False,
) -> LoadedMoments:
    """Read moments files or a dataset, or compute the moments of tables; duplicate paths count once.

    `with_rows` also reads rows and outliers of tables.
    """
    paths = drop_duplicate_paths(paths)
    is_dataset = len(paths) == 1 and paths[0] in registry.names() and not exists(paths[0])
    for path in () if is_dataset else paths:
        if path in registry.names() and not exists(path):
            raise InputError(
                f"Cannot combine the dataset '{path}' with other data. Pass it alone.", field="data"
            )
        _check_exists(path)
    files = [] if is_dataset else drop_duplicate_paths(
        file for path in paths for file in _moments_files_in(path) or expand_paths([path])
    )  # fmt: skip
    sample = None
    if is_dataset or _are_moments_files(files):
        flags: dict[str, object] = {
            "--client": client,
            "--site": site,
            "--targets": targets,
            "--where": where,
            "--time": time,
        }
        flags |= {"--drop-missing": drop_missing, "--min-rows": min_rows, "--robust": robust}
        reject_flags(flags, f"tables, not to {'datasets' if is_dataset else 'moments files'}")
        summary = _read_dataset(paths[0]) if is_dataset else _merge_moments_files(files)
    else:
        names = split_names(targets or "")
        for flag, value in {"--targets": names, "--client (or --site)": client or site}.items():
            if not value:
                raise InputError(f"Reading a table needs {flag}.", field=_field(flag.split()[0]))
        given: dict[str, Any] = {
            "client": client, "site": site, "targets": names, "where": where, "drop_missing": drop_missing,
            "min_rows": min_rows, "robust": robust, "on_warning": _print_warning,
        }  # fmt: skip
        if with_rows:
            from fedgram.data.tables.read_sample import read_sample

            sample = read_sample(paths, time=split_names(time or ""), **given)
            summary = sample.moments
        else:
            from fedgram.data.tables.read_moments import read_moments

            summary = read_moments(paths, **given)
    if weights is not None:
        if len(summary.clients) == 1:
            raise InputError(
                "--weights needs several clients. Pass it to the command that combines their files.",
                field="weights",
            )
        summary = summary.weighted(parse_weights(weights, summary.clients))
    return LoadedMoments(summary, paths, files, sample)


def _read_dataset(name: str) -> Moments:
    """Return the moments of a dataset's training rows, with the scale that its targets were divided by."""
    problem = registry.load(name)
    summary = problem.moments
    return replace(summary, scale=target_scale(problem.provenance, summary.targets))


def _print_warning(message: str) -> None:
    print_line(message, err=True)


def is_moments_file(path: str) -> bool:
    """Return whether a path has the suffix of a moments file."""
    return path.lower().endswith(".json")


def _moments_files_in(path: str) -> list[str]:
    """List the moments files in a folder, or none if it also has tables."""
    files = list_files(path) if isdir(path) else []
    return [] if any(map(is_table, files)) else list(filter(is_moments_file, files))


def _are_moments_files(files: list[str]) -> bool:
    """Return whether these are moments files; reject a mix with tables."""
    kinds = {is_moments_file(file): file for file in files}
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


def load_problem(
    dataset: str,
    data_dir: Path | None,
    options: Options,
    table: TableSpec,
    *,
    standardize: bool = False,
    validation: float | None = None,
) -> Problem:
    """Load a named dataset or a table file, with a fraction of the training rows for validation."""
    if _is_named_dataset(dataset, {"--standardize": standardize, **table.flags}):
        problem = registry.load(dataset, data_dir, options)
    else:
        _reject_dataset_flags(
            dataset, {"--data-dir": data_dir, "--variant": options.variant, "--larger": options.larger}
        )
        if standardize or table.time or table.impute or table.categories:
            if validation is None:  # all rows but those for testing are for training
                return _read_site_table(dataset, table, options.seed).with_validation_in_training()
            return _read_site_table(dataset, table, options.seed, validation)
        _require_flags(table)
        problem = read_table(dataset, table, options.seed)
    return problem if validation is None else problem.hold_out_validation(validation, options.seed)


def _is_named_dataset(dataset: str, table_flags: Mapping[str, object]) -> bool:
    """Return whether this names a dataset, not a table; a dataset takes no flags for tables."""
    if dataset not in registry.names():
        _check_exists(dataset)
        return False
    reject_flags(table_flags, f"tables, but '{dataset}' is a named dataset")
    return True


def _reject_dataset_flags(table: str, flags: Mapping[str, object]) -> None:
    reject_flags(flags, f"named datasets, but '{table}' is a table")


def _check_exists(path: str) -> None:
    """Reject what looks like the name of a dataset but is none; others report missing tables."""
    if not (Path(path).suffix or exists(path) or has_magic(path)):
        raise InputError(
            f"There is no file, folder or dataset '{path}'{suggest(path, registry.names())} Run "
            "'fedgram data list' for the names of datasets.",
            field="data",
        )


def parse_table_spec(
    client: str | None,
    inputs: str | None,
    targets: str | None,
    test_fraction: float | None,
    where: str | None,
    drop_missing: bool,
    time: str | None,
    impute: str | None,
    categories: str | None,
    kind: str | None = None,
) -> TableSpec:
    """Collect the options for tables; lists are separated by commas."""
    if test_fraction is not None:
        check_test_fraction(test_fraction)
    if impute not in (None, "median"):
        raise InputError(f"Unknown --impute: '{impute}'. Use 'median'.", field="impute")
    return TableSpec(
        client, split_names(inputs or ""), split_names(targets or ""), test_fraction, where, drop_missing,
        kind=kind, time=time, impute=impute,  # type: ignore[arg-type]  # Problem checks the kind
        categories=split_names(categories or ""),
    )  # fmt: skip


def load_site_problem(dataset: str, data_dir: Path | None, spec: TableSpec, seed: int) -> Problem:
    """Load a named dataset or a table with standardized columns, test rows and validation rows."""
    if _is_named_dataset(dataset, spec.flags):
        problem = registry.load(dataset, data_dir, Options(seed))
        return problem.hold_out_validation(VALIDATION_FRACTION, seed)
    _reject_dataset_flags(dataset, {"--data-dir": data_dir})
    return _read_site_table(dataset, spec, seed)


def _read_site_table(
    dataset: str, spec: TableSpec, seed: int, validation: float = VALIDATION_FRACTION
) -> Problem:
    """Read a table with standardized numbers and one-hot categories."""
    _require_flags(spec)
    return read_site_problem(
        dataset, client=str(spec.client), inputs=spec.inputs, targets=spec.targets, time=spec.time,
        impute=spec.impute, categories=spec.categories, test_fraction=spec.held_out,
        validation_fraction=validation, where=spec.where, drop_missing=spec.drop_missing,
        seed=seed, kind=spec.kind or "REAL", on_warning=_print_warning,
    )  # fmt: skip


def _require_flags(spec: TableSpec) -> None:
    for flag, value in spec.required_flags.items():
        if not value:
            raise InputError(f"Training on a table needs {flag}.", field=_field(flag))


def reject_flags(flags: Mapping[str, object], reason: str) -> None:
    """Reject flags that are set but do not apply."""
    for flag, value in flags.items():
        if value:
            raise InputError(f"{flag} applies to {reason}.", field=_field(flag))


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
