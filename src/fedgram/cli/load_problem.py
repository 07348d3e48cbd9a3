"""Load the problem that a command trains on: a named dataset or a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedgram._util.errors import InputError
from fedgram._util.text import quote_list, split_names
from fedgram.cli.app import print_warning
from fedgram.cli.checks import check_exists, field_of, reject_flags
from fedgram.data.datasets import registry
from fedgram.data.datasets.dataset import Options
from fedgram.data.holdout import VALIDATION_FRACTION, check_test_fraction
from fedgram.data.problem import Problem
from fedgram.data.tables.read_rows import TableSpec, read_table
from fedgram.data.tables.read_site_problem import read_site_problem
from fedgram.data.tables.reader import read_column_names


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
        _require_flags(dataset, table)
        problem = read_table(dataset, table, options.seed)
    return problem if validation is None else problem.hold_out_validation(validation, options.seed)


def _is_named_dataset(dataset: str, table_flags: Mapping[str, object]) -> bool:
    """Return whether this names a dataset, not a table; a dataset takes no flags for tables."""
    if dataset not in registry.names():
        check_exists(dataset)
        return False
    reject_flags(table_flags, f"tables, but '{dataset}' is a named dataset")
    return True


def _reject_dataset_flags(table: str, flags: Mapping[str, object]) -> None:
    reject_flags(flags, f"named datasets, but '{table}' is a table")


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
    _require_flags(dataset, spec)
    return read_site_problem(
        dataset, client=str(spec.client), inputs=spec.inputs, targets=spec.targets, time=spec.time,
        impute=spec.impute, categories=spec.categories, test_fraction=spec.held_out,
        validation_fraction=validation, where=spec.where, drop_missing=spec.drop_missing,
        seed=seed, kind=spec.kind or "REAL", on_warning=print_warning,
    )  # fmt: skip


def _require_flags(path: str, spec: TableSpec) -> None:
    """Reject a table without the names of its columns; name those that it has."""
    absent = [flag for flag, value in spec.required_flags.items() if not value]
    if not absent:
        return
    names = " and ".join(filter(None, [", ".join(absent[:-1]), absent[-1]]))
    known = quote_list(read_column_names(path))
    raise InputError(
        f"Training on a table needs {names}. Columns of '{path}': {known}.", field=field_of(absent[0])
    )
