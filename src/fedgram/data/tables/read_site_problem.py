"""Read a table of natural sites as a standardized problem."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

from fedgram._util.text import as_names
from fedgram.data.holdout import VALIDATION_FRACTION
from fedgram.data.problem import Kind, Problem
from fedgram.data.site_problem import build_site_problem
from fedgram.data.site_summary import Impute
from fedgram.data.tables.read_rows import TEST_FRACTION, TableSpec, table_name
from fedgram.data.tables.read_site_tables import read_site_tables


def read_site_problem(
    source: Any,
    *,
    client: str,
    inputs: str | Sequence[str],
    targets: str | Sequence[str],
    time: str | None = None,
    impute: Impute = None,
    categories: str | Sequence[str] = (),
    test_fraction: float = TEST_FRACTION,
    where: str | None = None,
    drop_missing: bool = False,
    seed: int = 0,
    kind: Kind = "REAL",
    on_warning: Callable[[str], None] = warnings.warn,
    validation_fraction: float = VALIDATION_FRACTION,
) -> Problem:
    """Read a table as `fedgram advise` does: standardize numbers, one-hot text, hold out rows.

    Parameters
    ----------
    source : path, data frame or Arrow table
        CSV, TSV or Parquet files, folders and globs, or a table in memory.
    client : str
        Column with the site of each row.
    inputs, targets : str or list of str
        Columns. Inputs are numbers, text or booleans; targets are numbers.
    time : str, optional
        Column with times; the latest rows of each site are for testing instead of random ones.
    impute : {"median", None}
        "median" fills missing inputs; None refuses them.
    categories : str or list of str
        Inputs to read as categories although they have numbers, such as codes of machines. Columns of a data
        frame with the type category are categories.
    test_fraction : float
        Fraction of each site's rows for testing.
    where : str, optional
        SQL condition; other rows are ignored.
    drop_missing : bool
        Drop rows that lack a site, time, target or input; with `impute`, rows without an input stay.
    seed : int
        Seed of the random choice of rows.
    kind
        See `Problem`.
    on_warning : function of str
        Receives warnings, such as the number of dropped rows.
    validation_fraction : float
        Fraction of each site's other rows for validation, between 0 and 1.

    Returns
    -------
    Problem
        With standardized inputs and targets, test and validation rows. Its provenance has the encoding.

    Raises
    ------
    InputError
        If columns are absent, values are missing or there are fewer than two sites.

    Examples
    --------
    >>> import pandas as pd
    >>> from fedgram import read_site_problem
    >>> frame = pd.DataFrame({"site": ["a", "b"] * 20, "sex": ["F", "F", "M", "M"] * 10,
    ...                       "dose": range(40), "effect": range(0, 80, 2)})
    >>> read_site_problem(frame, client="site", inputs=["dose", "sex"], targets="effect")
    Problem('own table', REAL, 2 clients, 26 training rows, 8 test rows)
    """
    spec = TableSpec(
        client, list(as_names(inputs)), list(as_names(targets)), test_fraction, where, drop_missing,
        time=time, impute=impute, categories=as_names(categories),
    )  # fmt: skip
    problem, _ = build_site_problem(
        read_site_tables(source, spec, on_warning=on_warning), inputs=spec.inputs, targets=spec.targets,
        impute=impute, time=time, test_fraction=test_fraction, seed=seed, name=_name_source(source),
        kind=kind, on_warning=on_warning, validation_fraction=validation_fraction,
    )  # fmt: skip
    return problem


def _name_source(source: Any) -> str:
    return table_name(str(source)) if isinstance(source, str | PathLike) else "own table"
