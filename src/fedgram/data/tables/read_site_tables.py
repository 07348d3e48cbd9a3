"""Read tables with numbers, categories and times, site by site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import dropped_rows_message, pluralize, quote_list, same_but_for_case, suggest
from fedgram.data.columns import ColumnKind, check_present, is_missing, parse_column, parse_levels
from fedgram.data.site_summary import FILL_TARGETS, check_columns_named
from fedgram.data.stray_text import find_numbers_as_text
from fedgram.data.tables.conversions import NUMBER, NUMERIC_TYPE, TEXT, TIME, TIME_TYPES, convert_level
from fedgram.data.tables.files import sql_name, sql_text
from fedgram.data.tables.read_rows import TableSpec, check_several_clients, fetch_rows
from fedgram.data.tables.reader import (
    check_in_every_file,
    column_types,
    open_table,
    select_rows,
)
from fedgram.data.tables.source import SourceTable
from fedgram.data.tables.times import convert_time, to_times
from fedgram.data.validation import check_unique_columns

# Conversions of the values {0} of a column in SQL; what cannot be converted becomes NULL.
_BOOLEAN = "CASE lower(trim({0})) WHEN 'true' THEN true WHEN 'false' THEN false END"


def read_site_tables(
    source: Any,
    spec: TableSpec,
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> dict[str, dict[str, Array]]:
    """Read the rows of every site, with categories as text.

    Parameters
    ----------
    source : path, list of paths, pandas.DataFrame or pyarrow.Table
        CSV, TSV or Parquet files, folders and globs of them, or a table in memory. A column of a text file
        is numeric if all its values are numbers.
    spec : TableSpec
        Columns and rows. `drop_missing` drops rows without a site, time, target or input; with `impute` rows
        without an input stay. Otherwise a missing site or time is refused, and other missing values are kept.
        Numbers in `categories`, and in columns of a data frame with the type category, become text: '7' for 7
        and 7.0. In a text file '07' is another level than '7'.
    on_warning : function of str
        Receives a sentence if rows are dropped, and one for each text column that has only numbers.

    Returns
    -------
    dict of dict of arrays (N,)
        Site name -> column name -> values in the table's order. Targets and numeric inputs are float64 with
        NaN for missing values. Text is str with "" for missing values. Booleans are bool, or objects where
        some are None. Times are float64 or datetime64[us] in UTC.

    Raises
    ------
    InputError
        If columns are absent or of other types, times do not parse, or there are fewer than two sites.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"site": ["a", "b", "a"], "sex": ["F", "M", "M"], "dose": [1.0, 2.0, 3.0]})
    >>> tables = read_site_tables(frame, TableSpec("site", inputs=["sex"], targets=["dose"]))
    >>> tables["a"]["sex"].tolist(), tables["a"]["dose"].tolist()
    (['F', 'M'], [1.0, 3.0])
    """
    check_columns_named(spec.inputs, spec.targets)
    _check_categories(spec)
    categories = {*spec.categories, *_find_categories(source, spec)}
    sites, site, columns = _read(source, spec, dict.fromkeys(categories, "category"))
    columns |= {name: parse_levels(columns, name, "") for name in categories}
    undeclared = {name: columns[name] for name in spec.inputs if name not in categories}
    for sentence in find_numbers_as_text(undeclared):
        on_warning(sentence)
    tables = {
        name: {column: values[site == number] for column, values in columns.items()}
        for name, number in sites.items()
    }
    if spec.drop_missing:
        tables = _drop_incomplete(tables, spec)
        kept = sum(len(next(iter(table.values()))) for table in tables.values())
        if dropped := len(site) - kept:
            on_warning(dropped_rows_message(dropped))
    if warning := same_but_for_case(tables, "site"):
        on_warning(warning)
    if spec.time:
        for name, table in tables.items():
            check_present(table[spec.time], spec.time, name, FILL_TARGETS)
    return tables


def _check_categories(spec: TableSpec) -> None:
    for name in spec.categories:
        if name not in spec.inputs:
            raise InputError(
                f"Category '{name}' is no input{suggest(name, spec.inputs)} Add it to the inputs.",
                field="categories",
            )
        if name == spec.time:
            message = f"The column '{name}' is both the time and a category. Name it as one of them."
            raise InputError(message, field="categories")


def _find_categories(source: Any, spec: TableSpec) -> set[str]:
    """Return the inputs of a data frame with the type category: DuckDB reads those of numbers as numbers."""
    types = source.dtypes.items() if hasattr(source, "iloc") else []
    found = {str(name) for name, kind in types if str(kind) == "category"}
    return found & ({*spec.inputs} - {spec.time})


def read_columns(
    source: Any, spec: TableSpec, kinds: Mapping[str, ColumnKind] | None = None
) -> tuple[list[str], dict[str, Array]]:
    """Read the site of every row (N,) and the columns (N,), all in the table's order; for predictions.

    `kinds` are those of the inputs in training (`Encoding.kinds`): a category is read as text, also where the
    rows have only numbers, booleans or dates.
    """
    sites, site, columns = _read(source, spec, kinds or {})
    names = {number: name for name, number in sites.items()}
    return [names[number] for number in site], columns


def _drop_incomplete(tables: dict[str, dict[str, Array]], spec: TableSpec) -> dict[str, dict[str, Array]]:
    """Drop rows that lack a value which is not imputed."""
    never_imputed = [*spec.targets, *([spec.time] if spec.time else [])]
    found = {
        site: _find_complete(table, never_imputed if spec.impute else list(table), site, spec)
        for site, table in tables.items()
    }
    if empty := [site for site, is_complete in found.items() if not is_complete.any()]:
        can_impute = all(_find_complete(tables[site], never_imputed, site, spec).any() for site in empty)
        columns = "" if can_impute else f" of {quote_list(never_imputed)}"
        remedy = "Fill inputs (--impute median)" if can_impute else "Fill them"
        one, rows = len(empty) == 1, pluralize(sum(len(found[site]) for site in empty), "row")
        which = f"site '{empty[0]}'" if one else f"{len(empty)} sites ({quote_list(empty)})"
        raise InputError(
            f"No row of {which} has all values{columns}, of {rows}. {remedy}, or drop the "
            f"site{'' if one else 's'} (--where){_condition_without(empty, spec)}.",
            client=empty[0],
            field="source",
        )
    return {
        site: {name: values[found[site]] for name, values in table.items()} for site, table in tables.items()
    }


def _condition_without(sites: Sequence[str], spec: TableSpec) -> str:
    """Return the condition that drops sites, if it is the only one."""
    if spec.where or not spec.client:
        return ""
    column = spec.client if spec.client.isidentifier() else sql_name(spec.client)
    return f": {column} NOT IN ({', '.join(map(sql_text, sites))})"


def _find_complete(table: dict[str, Array], names: Sequence[str], site: str, spec: TableSpec) -> Array:
    """Return which rows (N,) have a value in all of these columns."""
    parsed = (table[name] if name == spec.time else parse_column(table, name, site) for name in names)
    return ~np.any([is_missing(values) for values in parsed], axis=0)


def _read(
    source: Any, spec: TableSpec, kinds: Mapping[str, ColumnKind]
) -> tuple[dict[str, int], Array, dict[str, Array]]:
    """Read a number per site name, the number of each row's site (N,), and the columns (N,) by name."""
    check_unique_columns([*([spec.client] if spec.client else []), *spec.columns])
    others = (*spec.inputs, *([spec.time] if spec.time else []))
    with open_table(source, spec.client, spec.site, spec.targets, spec.where, others) as table:
        check_in_every_file(table, table.columns)
        if spec.where:
            _convert_for_condition(table, kinds)
        select_rows(table, drop_missing=False)
        # What follows reads the rows several times, but parses the files once.
        table.connection.execute("ALTER VIEW data RENAME TO parsed; CREATE TEMP TABLE data AS FROM parsed")
        conversions = _choose_conversions(table, spec, kinds)
        selected = ", ".join(f"{conversion} AS {key}" for key, conversion in conversions.items())
        sites, found = fetch_rows(table, spec, selected)
    if spec.targets:
        check_several_clients(sites, spec, str(table))
    columns = (_to_array(found[key]) for key in conversions)
    return sites, found["client"], dict(zip((*spec.targets, *others), columns, strict=True))


def _to_array(values: Array) -> Array:
    """Convert what DuckDB returns: objects to text, masked values to NaN, NaT or None."""
    if values.dtype == object:
        return values.astype(np.str_)
    if values.dtype == bool and np.ma.is_masked(values):
        booleans = np.ma.getdata(values).astype(object)
        booleans[np.ma.getmaskarray(values)] = None
        return booleans
    if values.dtype == bool:
        return np.ma.getdata(values)
    return to_times(values)


def _convert_for_condition(table: SourceTable, kinds: Mapping[str, ColumnKind]) -> None:
    """Give text columns of numbers or times their type: as text, '3.7' > 3 would compare 4 with 3."""
    if not table.has_text_files:
        return
    names = [sql_name(name) for name in dict.fromkeys(table.others) if kinds.get(name) != "category"]
    fitting = _find_conversions(table, "source", names, [NUMBER, TIME])
    if fitting:
        typed = ", ".join(f"{conversion.format(name)} AS {name}" for name, conversion in fitting.items())
        table.connection.execute("ALTER VIEW source RENAME TO source_text")
        table.connection.execute(f"CREATE TEMP VIEW source AS SELECT * REPLACE ({typed}) FROM source_text")


def _find_conversions(
    table: SourceTable, rows: str, names: Sequence[str], conversions: Sequence[str]
) -> dict[str, str]:
    """Find the first conversion that is defined for every value of each column, if there is one."""
    found: dict[str, str] = {}
    for conversion in conversions:  # one query each, because most columns have numbers and need only one
        rest = [name for name in names if name not in found]
        if rest:
            counts = ", ".join(f"count({name}), count({conversion.format(name)})" for name in rest)
            counted = table.connection.execute(f"SELECT {counts} FROM {rows}").fetchall()[0]
            pairs = zip(rest, counted[::2], counted[1::2], strict=True)
            found |= {name: conversion for name, values, converted in pairs if values == converted > 0}
    return found


def _choose_conversions(
    table: SourceTable, spec: TableSpec, kinds: Mapping[str, ColumnKind]
) -> dict[str, str]:
    """Return the SQL of every column of the view `data`: y0, y1, ... are numbers already."""
    types = column_types(table, "data")
    inputs = {f"x{number}": name for number, name in enumerate(spec.inputs)}
    # A known category stays text: what its values look like depends on the rows.
    unknown = [key for key, name in inputs.items() if kinds.get(name) != "category"]
    texts = [key for key in unknown if types[key] == "VARCHAR"] if table.has_text_files else []
    fitting = _find_conversions(table, "data", texts, [NUMBER, _BOOLEAN, TIME])
    chosen = {f"y{number}": "{0}" for number in range(len(spec.targets))}
    for key, name in inputs.items():
        number = NUMBER if key in unknown else convert_level(types[key])
        chosen[key] = _convert_input(name, types[key], number, fitting.get(key, TEXT))
    if spec.time:
        key = f"x{len(inputs)}"
        chosen[key] = convert_time(table, key, spec.time, types[key])
    return {key: conversion.format(key) for key, conversion in chosen.items()}


def _convert_input(name: str, kind: str, number: str, fitting: str) -> str:
    """Return the conversion of an input: `number` for numbers, `fitting` for a column of a text file."""
    if kind == "BOOLEAN":
        return "{0}"
    if NUMERIC_TYPE.fullmatch(kind):
        return number
    if kind.startswith(TIME_TYPES) or fitting == TIME:
        raise InputError(
            f"Input '{name}' has dates or times. Use numbers made from them, such as the month, or drop it.",
            field=name,
        )
    if kind == "VARCHAR" or kind.startswith("ENUM"):
        return fitting
    raise InputError(
        f"Input '{name}' has type {kind}, which is neither numbers nor text. Convert it, or drop it.",
        field=name,
    )
