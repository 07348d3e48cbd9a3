"""Sentences about constant columns, and values unlike the others: in a few rows, at one site, or in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedgram._util.text import quote_list
from fedgram.data.columns import Columns, parse_numbers
from fedgram.data.encoded_columns import NO_EFFECT
from fedgram.data.encoding import CLIP, Encoding
from fedgram.data.holdout import RowParts

ALMOST_EQUAL = 0.1  # standard deviation of what is not cut off, after standardization
OTHER_UNIT = 100.0  # least factor between the units of two sites
SIMILAR = 2.0  # how far the factors of mean and deviation may differ
# Share of test rows outside the range of all training rows. On five of eight panels the column of times had
# 0.27 or more, and on the others, whose sites end at very different times, 0.09 or less. Other inputs had at
# most 0.2.
NEW = 0.25
FEWEST = 5  # rows of a site whose mean and deviation say something


def describe_constants(encoding: Encoding) -> Iterator[str]:
    """Name inputs that have one value in all training rows."""
    constant = [column.name for column in encoding.inputs if np.all(np.equal(column.scale, NO_EFFECT))]
    if constant:
        yield constants_message([f"'{name}'" for name in constant])


def constants_message(inputs: Sequence[str]) -> str:
    """Say that inputs, by quoted name or by number, have one value in all training rows."""
    has = "has" if len(inputs) == 1 else "have"
    return (
        f"{', '.join(inputs[:5])} {has} only one value in all training rows. Models ignore such inputs, also "
        "where new rows have other values."
    )


def describe_scales(encoding: Encoding, tables: Mapping[str, Columns]) -> Iterator[str]:
    """Name inputs whose clipped rows make all other values almost equal."""
    decided = []
    for column in encoding.number_inputs:
        values = np.concatenate([column.encode(table, site)[:, 0] for site, table in tables.items()])
        is_far = np.abs(values) > CLIP
        rest = values[~is_far]
        is_rare_event = np.median(np.abs(rest - np.median(rest))) == 0  # most values are equal
        if is_far.any() and not is_rare_event and rest.std() < ALMOST_EQUAL:
            decided.append(column.name)
    if decided:
        yield (
            f"The cut-off rows make all other values of {quote_list(decided[:5])} almost equal after "
            "standardization: correct them, or drop them."
        )


def describe_units(encoding: Encoding, tables: Mapping[str, Columns]) -> Iterator[str]:
    """Name columns whose mean and deviation at one site differ from others by the same large factor."""
    columns = {
        name: [parse_numbers(table, name, site) for site, table in tables.items()]
        for name in encoding.target_names
    }
    columns |= {
        column.name: [
            column.encode(table, site)[:, 0] * column.scale + column.mean for site, table in tables.items()
        ]
        for column in encoding.number_inputs
    }
    for name, values in columns.items():
        known = {site: each for site, each in zip(tables, values, strict=True) if len(each) >= FEWEST}
        sizes = np.array([[abs(each.mean()), each.std()] for each in known.values()])
        if len(sizes) < 2 or not (sizes > 0).all():
            continue
        logs = np.log(sizes)
        away = np.array([logs[m] - np.median(np.delete(logs, m, axis=0), axis=0) for m in range(len(logs))])
        m = int(np.abs(away).min(axis=1).argmax())
        if abs(away[m]).min() > np.log(OTHER_UNIT) and abs(away[m, 0] - away[m, 1]) < np.log(SIMILAR):
            factor = float(np.exp(away[m, 1]))
            times = f"{factor:,.0f} times" if factor > 1 else f"1/{1 / factor:,.0f} of"
            yield (
                f"At '{list(known)[m]}' the values of '{name}' are about {times} those at the other sites: "
                "check their unit."
            )


def describe_new_values(
    encoding: Encoding, tables: Mapping[str, Columns], parts: Mapping[str, RowParts]
) -> Iterator[str]:
    """Name inputs with many test rows outside the range of all training rows, such as dates."""
    new = []
    for column in encoding.number_inputs:
        values = {site: column.encode(table, site)[:, 0] for site, table in tables.items()}
        known = np.concatenate([values[site][rows.fitted] for site, rows in parts.items()])
        tested = np.concatenate([values[site][rows.test] for site, rows in parts.items()])
        if len(tested) and ((tested < known.min()) | (tested > known.max())).mean() > NEW:
            new.append(column.name)
    if new:
        yield (
            f"Many test rows have values of {quote_list(new[:5])} that no training row has, as in columns "
            "that grow with time. Models cannot learn there: compare the errors without these inputs."
        )
