"""Refuse missing values, counted over all sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedgram._util.errors import InputError
from fedgram._util.text import pluralize, quote_list
from fedgram.data.columns import Columns, is_missing, parse_column

MAX_SITES = 5  # named in a message; the others are counted


def check_complete(tables: Mapping[str, Columns], names: Sequence[str], remedy: str) -> None:
    """Reject rows that lack a value, and name their columns and the sites with most of them.

    Parameters
    ----------
    tables : dict of dict of arrays (N,)
        Site name -> column name -> values.
    names : list of str
        Columns that must be complete.
    remedy : str
        Sentence that says what to do.

    Raises
    ------
    InputError
        If a value is missing or a column is absent.

    Examples
    --------
    >>> from fedgram.data.missing_values import check_complete
    >>> check_complete({"north": {"dose": [1.0, 2.0]}, "south": {"dose": [3.0]}}, ["dose"], "Fill them.")
    """
    is_lacking = {
        site: np.stack([is_missing(parse_column(columns, name, site)) for name in names])
        for site, columns in tables.items()
    }
    counts = {site: int(lacking.any(axis=0).sum()) for site, lacking in is_lacking.items()}
    worst = sorted((site for site in counts if counts[site]), key=lambda site: -counts[site])
    if not worst:
        return
    in_column = np.any([lacking.any(axis=1) for lacking in is_lacking.values()], axis=0)
    columns = [name for name, is_found in zip(names, in_column, strict=True) if is_found]
    total, rows = sum(counts.values()), sum(lacking.shape[1] for lacking in is_lacking.values())
    places = [f"site '{site}': {counts[site]:,}" for site in worst[:MAX_SITES]]
    if others := len(worst) - len(places):
        places.append(f"and {pluralize(others, 'more site')}")
    raise InputError(
        f"{total:,} of {pluralize(rows, 'row')} {'has' if total == 1 else 'have'} a missing value in "
        f"{quote_list(columns)} ({', '.join(places)}). {remedy}",
        client=worst[0],
        field=columns[0],
    )
