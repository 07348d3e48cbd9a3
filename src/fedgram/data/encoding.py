"""Standardize inputs and targets with moments pooled over sites.

A number x becomes (x − μ) / σ, with the mean μ and variance σ² (1/N) of the training rows of all sites:

    n = Σ_m n_m,    n μ = Σ_m Σ_i x_i,    n σ² = Σ_m Σ_i (x_i − μ)²

A category becomes one 0/1 column per level, standardized the same way. Sites exchange `SiteSummary` only: the
inner sums, about a center c_m near the site's mean, so that no digits are lost far from zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize, quote_list
from fedgram.data.columns import (
    ColumnKind,
    Columns,
    check_lengths,
    check_present,
    column_error,
    level_name,
    parse_numbers,
)
from fedgram.data.encoded_columns import CategoryColumn, NumberColumn
from fedgram.data.site_summary import (
    FILL_TARGETS,
    ColumnSummary,
    Impute,
    SiteSummary,
    check_levels,
    check_repeats,
    no_value,
)

# Standardized inputs are cut off here, so that an outlier or a rare level does not dominate the first layer.
CLIP = 6.0

_DESCRIPTION = {"number": "numbers", "category": "text or booleans"}


def describe_clipped_rows(is_clipped: Array, names: str = "") -> str:
    """Count the rows (N,) to predict whose inputs are clipped, in a sentence; names: of the columns."""
    return (
        f"Inputs of {is_clipped.sum():,} of {pluralize(len(is_clipped), 'row')} are more than {CLIP:g} "
        f"standard deviations from the training mean{names}. They are cut off there: values beyond "
        "that predict the same. Check the units."
    )


def describe_unknown_levels(unknown: str, site: str = "") -> str:
    """Say that levels of rows, such as "'X' of 'sex'", are unknown."""
    place = f" at site '{site}'" if site else ""
    return f"Levels{place} that training did not see count as no level: {unknown}."


@dataclass(frozen=True)
class Encoding:
    """Map columns as people have them to standardized arrays, and predictions back to the targets' units.

    Parameters
    ----------
    inputs : tuple of NumberColumn and CategoryColumn
        In the order of the encoded columns.
    targets : tuple of NumberColumn
    """

    inputs: tuple[NumberColumn | CategoryColumn, ...]
    targets: tuple[NumberColumn, ...]

    @classmethod
    def fit(
        cls,
        tables: Mapping[str, Columns],
        *,
        inputs: Sequence[str],
        targets: Sequence[str],
        impute: Impute = None,
    ) -> Encoding:
        """Compute the encoding from every site's training rows.

        Parameters
        ----------
        tables : dict of dict of arrays (N,)
            Training rows: site name -> column name -> values. Numbers are standardized, constant ones only
            centered. Text and booleans are one-hot.
        inputs, targets : list of str
            Columns to encode. Targets are numbers; booleans count as 0 and 1.
        impute : {"median", None}
            "median" fills missing numbers with the row-weighted median of the sites' medians, because the
            median of the pooled rows is not a sum over sites. A missing category then has no level. Means
            and scales of numbers ignore missing values. None refuses missing inputs.

        Returns
        -------
        Encoding
            Independent of how rows are divided over sites, except for imputed medians.

        Raises
        ------
        InputError
            If a site lacks a column, values are missing, a column has numbers at one site and text at
            another, or a target is constant over all sites.

        Examples
        --------
        >>> north = {"dose": [1.0, 3.0], "sex": ["F", "F"], "effect": [0.0, 2.0]}
        >>> south = {"dose": [5.0, 7.0], "sex": ["F", "M"], "effect": [4.0, 6.0]}
        >>> encoding = Encoding.fit({"north": north, "south": south}, inputs=["dose", "sex"],
        ...                         targets=["effect"])
        >>> encoding.input_names
        ('dose', 'sex=F', 'sex=M')
        >>> encoding.encode_inputs(south, "south").round(2)
        array([[ 0.45,  0.58, -0.58],
               [ 1.34, -1.73,  1.73]])
        >>> encoding.decode_targets(encoding.encode_targets(south, "south")).ravel()
        array([4., 6.])
        """
        return cls.from_summaries(
            [
                SiteSummary.from_columns(columns, site, inputs=inputs, targets=targets, impute=impute)
                for site, columns in tables.items()
            ]
        )

    @classmethod
    def from_summaries(cls, summaries: Sequence[SiteSummary]) -> Encoding:
        """Compute the encoding from what sites exchange; `fit` describes it.

        Raises
        ------
        InputError
            If sites summarize different columns, or a column has numbers at one site and text at another.
        """
        _check_same_columns(summaries)
        inputs = zip(*(summary.inputs for summary in summaries), strict=True)
        targets = zip(*(summary.targets for summary in summaries), strict=True)
        return cls(
            tuple(_pool_input(columns, summaries) for columns in inputs),
            tuple(_pool_target(columns) for columns in targets),
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the D encoded inputs; 'sex=F' is the level F of the column 'sex'."""
        return tuple(name for column in self.inputs for name in column.encoded_names)

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the C targets."""
        return tuple(column.name for column in self.targets)

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """Kind of every input column; `read_columns` takes them for further tables."""
        return {
            column.name: "number" if isinstance(column, NumberColumn) else "category"
            for column in self.inputs
        }

    @property
    def target_mean(self) -> Array:
        """Pooled means (C,) of the targets."""
        return np.array([column.mean for column in self.targets])

    @property
    def target_scale(self) -> Array:
        """Pooled standard deviations (C,) of the targets."""
        return np.array([column.scale for column in self.targets])

    def encode_inputs(
        self, columns: Columns, site: str = "", on_warning: Callable[[str], None] = warnings.warn
    ) -> Array:
        """Standardize inputs, and clip them at ±6.

        Parameters
        ----------
        columns : dict of arrays (N,)
            Values by column name; other columns are ignored.
        site : str
            Name of the site, for messages.
        on_warning : function of str
            Receives one sentence if rows have levels that training did not see. They count as no level.

        Returns
        -------
        array (N, D)

        Raises
        ------
        InputError
            If a column is absent, has text instead of numbers, or has missing values without imputation.
        """
        blocks = {column.name: column.encode(columns, site) for column in self.inputs}
        check_lengths(blocks, site)
        unseen = [
            f"{quote_list(levels)} of '{column.name}'"
            for column in self.inputs
            if isinstance(column, CategoryColumn) and (levels := column.unseen_levels(columns, site))
        ]
        if unseen:
            on_warning(describe_unknown_levels(", ".join(unseen), site))
        return np.clip(np.hstack(list(blocks.values())), -CLIP, CLIP)

    @property
    def number_inputs(self) -> tuple[NumberColumn, ...]:
        """Inputs that are numbers."""
        return tuple(column for column in self.inputs if isinstance(column, NumberColumn))

    def find_clipped(self, columns: Columns, site: str = "") -> dict[str, Array]:
        """Find rows (N,) whose numbers `encode_inputs` clips, by column; columns without any are absent."""
        far = {
            column.name: np.abs(column.encode(columns, site)[:, 0]) > CLIP for column in self.number_inputs
        }
        return {name: rows for name, rows in far.items() if rows.any()}

    def encode_new_inputs(self, columns: Columns, on_warning: Callable[[str], None] = warnings.warn) -> Array:
        """Encode the inputs of rows to predict, as `encode_inputs`, and also warn of clipped ones."""
        encoded = self.encode_inputs(columns, on_warning=on_warning)
        if clipped := self.find_clipped(columns):
            names = f" ({quote_list(tuple(clipped))})"
            on_warning(describe_clipped_rows(np.any(list(clipped.values()), axis=0), names))
        return encoded

    def encode_targets(self, columns: Columns, site: str = "") -> Array:
        """Standardize targets (N, C); they are not clipped."""
        values = {name: parse_numbers(columns, name, site) for name in self.target_names}
        check_lengths(values, site)
        for name, numbers in values.items():
            check_present(numbers, name, site, FILL_TARGETS)
        return (np.stack(list(values.values()), axis=1) - self.target_mean) / self.target_scale

    def decode_targets(self, values: Array) -> Array:
        """Return standardized targets or predictions (..., C) in the targets' own units."""
        return np.asarray(values, np.float64) * self.target_scale + self.target_mean

    def document(self) -> dict[str, Any]:
        """Return the encoding as JSON data; `from_document` restores it exactly."""
        return {
            "inputs": [{"kind": self.kinds[column.name], **asdict(column)} for column in self.inputs],
            "targets": [asdict(column) for column in self.targets],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Encoding:
        """Restore an encoding from `document()`.

        Raises
        ------
        InputError
            If the document is not that of an encoding.
        """
        try:
            inputs = tuple(_restore_column(column) for column in document["inputs"])
            return cls(inputs, tuple(NumberColumn(**column) for column in document["targets"]))
        except (KeyError, TypeError):
            raise InputError(
                "Cannot read an encoding: fields are missing or unknown.", field="encoding"
            ) from None


def _restore_column(document: Mapping[str, Any]) -> NumberColumn | CategoryColumn:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in document.items()
    }
    if fields.pop("kind") == "number":
        return NumberColumn(**fields)
    levels = tuple(map(level_name, fields["levels"]))  # version 0.2.0 kept 'True' and '1.0' of text files
    return CategoryColumn(**fields | {"levels": levels})


def _pool_input(
    columns: Sequence[ColumnSummary], summaries: Sequence[SiteSummary]
) -> NumberColumn | CategoryColumn:
    name = columns[0].name
    by_site = {each.site: column for each, column in zip(summaries, columns, strict=True) if column.kind}
    if not by_site:
        raise no_value(name)
    _check_same_kind(name, by_site)
    check_levels(name, by_site)
    check_repeats(name, by_site)
    present = list(by_site.values())
    if present[0].kind == "number":
        return NumberColumn.from_summaries(name, present)
    rows = sum(summary.rows for summary in summaries)
    return CategoryColumn.from_summaries(name, present, rows, summaries[0].impute is not None)


def _pool_target(columns: Sequence[ColumnSummary]) -> NumberColumn:
    name = columns[0].name
    present = [column for column in columns if column.count]
    if all(column.squares == 0 and column.center == present[0].center for column in present):
        raise InputError(
            f"Target '{name}' is constant over all sites, so there is nothing to predict. Drop the target.",
            field=name,
        )
    return NumberColumn.from_summaries(name, present)


def _check_same_columns(summaries: Sequence[SiteSummary]) -> None:
    if not summaries:
        raise InputError("There are no sites. Pass the rows of at least one.", field="sites")
    first = summaries[0]
    for summary in summaries[1:]:
        if _signature(summary) != _signature(first):
            raise InputError(
                f"Sites '{first.site}' and '{summary.site}' have different inputs, targets or imputation. "
                "Use the same at all sites.",
                client=summary.site,
                field="inputs",
            )


def _signature(summary: SiteSummary) -> tuple[list[str], list[str], Impute]:
    inputs, targets = ([column.name for column in part] for part in (summary.inputs, summary.targets))
    return inputs, targets, summary.impute


def _check_same_kind(name: str, by_site: Mapping[str, ColumnSummary]) -> None:
    first, *others = ((site, _DESCRIPTION[column.kind]) for site, column in by_site.items() if column.kind)
    for site, found in others:
        if found != first[1]:
            raise column_error(
                f"Column '{name}' has {first[1]} at site '{first[0]}' but {found} at site '{site}'. "
                "Convert it to one kind.",
                name,
                site,
            )
