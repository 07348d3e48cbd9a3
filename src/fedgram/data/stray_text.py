"""Find text in columns of numbers, and numbers in columns of text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedgram.data.columns import Columns, is_missing, parse_column
from fedgram.data.site_summary import ColumnSummary, is_number

# From this fraction of numbers on, text among them is probably a typing error.
MOSTLY_NUMBERS = 0.9

_LEADING_ZERO = re.compile(r"[+-]?0\d")


def find_stray_text(tables: Mapping[str, Columns], names: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each column that is categorical because of a few texts among its numbers.

    Parameters
    ----------
    tables : dict of dict of arrays (N,)
        Site name -> column name -> values.
    names : list of str
        Columns of inputs.

    Examples
    --------
    >>> tables = {"north": {"grade": ["1", "2"] * 10}, "south": {"grade": ["2", "two"]}}
    >>> for sentence in find_stray_text(tables, ["grade"]):
    ...     print(sentence.partition(".")[0])
    Column 'grade' is read as categories because 1 of 22 values is text, such as 'two' at site 'south'
    """
    for name in names:
        summaries = {
            site: ColumnSummary.from_values(name, parse_column(columns, name, site))
            for site, columns in tables.items()
        }
        levels = [(site, *level) for site, each in summaries.items() for level in each.levels.items()]
        texts = [each for each in levels if not is_number(each[1])]
        total, stray = (sum(count for *_, count in each) for each in (levels, texts))
        if texts and total - stray >= MOSTLY_NUMBERS * total:
            site, text, _ = texts[0]
            yield (
                f"Column '{name}' is read as categories because {stray:,} of {total:,} values "
                f"{'is' if stray == 1 else 'are'} text, such as '{text[:40]}' at site '{site}'. If it should "
                "be numbers, correct the text, or leave it empty and use --impute median (in Python "
                "impute='median')."
            )


def find_numbers_as_text(columns: Columns) -> Iterator[str]:
    """Yield a warning for each column (N,) of text that has only numbers; with leading zeros they are codes.

    Columns of text files never have: they are numeric if all their values are numbers.
    """
    for name, values in columns.items():
        texts = values[~is_missing(values)] if values.dtype.kind == "U" else values[:0]
        if len(texts) and is_number(texts[0]) and all(map(_is_amount, np.unique(texts).tolist())):
            yield (
                f"Column '{name}' has numbers as text, such as '{texts[0][:40]}', and is read as categories. "
                "Convert it to numbers; if they are codes, name it as a category (--categories, or the type "
                "category of a data frame)."
            )


def _is_amount(text: str) -> bool:
    return is_number(text) and not _LEADING_ZERO.match(text)
