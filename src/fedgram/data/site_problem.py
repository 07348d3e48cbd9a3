"""Build a problem from the tables of sites: hold out rows, encode inputs, standardize targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import pluralize
from fedgram.data.column_notes import (
    describe_constants,
    describe_new_values,
    describe_scales,
    describe_units,
)
from fedgram.data.columns import Columns, as_column, parse_numbers
from fedgram.data.encoding import CLIP, Encoding
from fedgram.data.holdout import VALIDATION_FRACTION, RowParts, divide_rows
from fedgram.data.missing_values import check_complete
from fedgram.data.outliers import Outliers, describe_outliers, find_target_outliers
from fedgram.data.problem import Kind, Problem
from fedgram.data.site_summary import FILL_INPUTS, FILL_TARGETS, Impute, check_columns_named
from fedgram.data.split import Split
from fedgram.data.splits import check_training_rows
from fedgram.data.stray_text import find_stray_text


def build_site_problem(
    tables: Mapping[str, Columns],
    *,
    inputs: Sequence[str],
    targets: Sequence[str],
    impute: Impute = None,
    time: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    name: str = "own table",
    kind: Kind = "REAL",
    on_warning: Callable[[str], None] = lambda sentence: None,
    validation_fraction: float = VALIDATION_FRACTION,
) -> tuple[Problem, Encoding]:
    """Divide the rows of every site and encode them.

    Parameters
    ----------
    tables : dict of dict of arrays (N,)
        Site name -> column name -> values, as `read_site_tables` returns them.
    inputs, targets : list of str
        Columns. Numbers are standardized, text and booleans are one-hot.
    impute : {"median", None}
        See `Encoding.fit`.
    time : str, optional
        Column with times; the latest rows are for testing instead of random ones, and all rows are in order
        of time. The column's name is in the provenance, under 'time'.
    test_fraction : float
        Fraction of each site's rows for testing.
    seed : int
        Seed of the random choice of rows.
    name, kind
        See `Problem`.
    on_warning : function of str
        Receives warnings about text among numbers, inputs that are constant or cut off, outliers among
        targets, and categories that training did not see.
    validation_fraction : float
        Fraction of each site's other rows for validation, between 0 and 1.

    Returns
    -------
    Problem
        With standardized inputs and targets, test and validation rows.
    Encoding
        Undoes the standardization; also in the problem's provenance, under 'encoding'.

    Raises
    ------
    InputError
        If columns do not fit, values are missing, or the test rows leave a site too few rows.
    """
    check_columns_named(inputs, targets)
    check_complete(tables, targets, FILL_TARGETS)
    if impute is None:
        check_complete(tables, inputs, FILL_INPUTS)
    counts = {site: len(table[targets[0]]) for site, table in tables.items()}
    order = {site: table[time] for site, table in tables.items()} if time else None
    parts = divide_rows(counts, test_fraction, seed, order, validation_fraction)
    for site, rows in parts.items():
        check_training_rows(site, len(rows.fitted), counts[site], len(targets), test_fraction)
    fitted = {site: _take(table, parts[site].fitted) for site, table in tables.items()}
    encoding = Encoding.fit(fitted, inputs=inputs, targets=targets, impute=impute)
    described = (
        find_stray_text(tables, inputs),
        describe_constants(encoding),
        _describe_clipped(encoding, tables),
        describe_scales(encoding, tables),
        _describe_outliers(encoding, tables),
        describe_units(encoding, tables),
        describe_new_values(encoding, tables, parts) if time else (),
    )
    for sentence in chain(*described):
        on_warning(sentence)

    def encode(part: Callable[[RowParts], Array]) -> dict[str, Split]:
        splits = {}
        for site, table in tables.items():
            rows = _take(table, part(parts[site]))
            splits[site] = Split(
                encoding.encode_inputs(rows, site, on_warning), encoding.encode_targets(rows, site)
            )
        return splits

    problem = Problem(
        name,
        kind,
        encode(lambda rows: rows.train),
        encode(lambda rows: rows.test),
        tuple(targets),
        {"inputs": list(inputs), "encoding": encoding.document(), **({"time": time} if time else {})},
        encode(lambda rows: rows.validation),
    )
    return problem, encoding


def _describe_clipped(encoding: Encoding, tables: Mapping[str, Columns]) -> Iterator[str]:
    """Name the columns of numbers that the encoding clips, in one sentence; the first five of them."""
    clipped = {site: encoding.find_clipped(table, site) for site, table in tables.items()}
    counts = {
        column.name: {
            site: int(found[column.name].sum()) for site, found in clipped.items() if column.name in found
        }
        for column in encoding.inputs
    }
    parts = [
        f"'{column}' ({pluralize(sum(rows.values()), 'row')}, most at '{max(rows, key=rows.__getitem__)}')"
        for column, rows in counts.items()
        if rows
    ]
    if parts:
        more = f" and {pluralize(len(parts) - 5, 'more column')}" if len(parts) > 5 else ""
        yield (
            f"Inputs more than {CLIP:g} standard deviations from their mean are cut off there: "
            f"{', '.join(parts[:5])}{more}. Values beyond that predict the same."
        )


def _describe_outliers(encoding: Encoding, tables: Mapping[str, Columns]) -> Iterator[str]:
    """Name targets that are far from all others at their site, in one sentence."""
    names, found = encoding.target_names, list[Outliers]()
    for site, table in tables.items():
        targets = np.stack([parse_numbers(table, name, site) for name in names], axis=1)
        found += find_target_outliers(site, names, targets)
    if found:
        yield f"{describe_outliers(found)} Errors depend on them: check them, and correct what is wrong."


def _take(table: Columns, rows: Array) -> dict[str, Any]:
    return {column: as_column(values)[rows] for column, values in table.items()}
