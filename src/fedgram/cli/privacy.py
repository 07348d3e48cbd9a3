"""Options of private moments, and their release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np

from fedgram._util.errors import InputError
from fedgram._util.text import pluralize, split_names
from fedgram.cli.options import table_option

if TYPE_CHECKING:
    from fedgram.cli.load_moments import LoadedMoments
    from fedgram.theory.moments import Moments

Epsilon = Annotated[
    float | None, table_option(help="Release private moments once, with this epsilon for every row.")
]
Delta = Annotated[float | None, table_option(help="Delta of private moments, such as 1e-6.")]
Bounds = Annotated[
    str | None,
    table_option(
        help="Bounds LOW:HIGH of all targets, or of each, separated by commas. Do not compute them from "
        "the rows; 'private' estimates them with a fifth of epsilon."
    ),
]


def check_release(
    epsilon: float | None, delta: float | None, bounds: str | None, targets: int, *, is_robust: bool
) -> bool:
    """Return whether the options of private moments are given; reject those that are not valid.

    targets: how many the command line names, 0 for none.
    """
    from fedgram.data.private_moments import PRIVATE
    from fedgram.theory.privacy import Privacy

    if epsilon is None and delta is None and bounds is None:
        return False
    if epsilon is None or delta is None or bounds is None:
        raise InputError("Private moments need --epsilon, --delta and --bounds.", field="epsilon")
    if is_robust:
        raise InputError(
            "--robust clips at values that come from the rows. Use --bounds alone for private moments.",
            field="robust",
        )
    pairs = [[-1.0, 1.0]]
    if bounds != PRIVATE:
        pairs = check_pairs(bounds, targets) if targets else parse_bounds(bounds)
    Privacy(epsilon, delta, np.array(pairs), 0.0)
    return True


def release_moments(loaded: LoadedMoments, epsilon: float, delta: float, bounds: str) -> Moments:
    """Compute private moments of the rows of a table."""
    from fedgram.data.private_moments import PRIVATE, private_moments
    from fedgram.data.tables.read_sample import MAX_ROWS

    sample, summary = loaded.sample, loaded.moments
    if sample is None:
        raise InputError("Private moments need a table, not moments files. Pass the rows.", field="data")
    rows = {client: sample.rows[client] for client in summary.clients}
    if sum(map(len, rows.values())) < summary.count.sum():
        raise InputError(
            f"Private moments read at most {MAX_ROWS:,} rows. Release one client at a time, or select rows "
            "with --where.",
            field="data",
        )
    given = bounds if bounds == PRIVATE else check_pairs(bounds, len(summary.targets))
    released = private_moments(rows, bounds=given, epsilon=epsilon, delta=delta, target_names=summary.targets)
    return released if summary.is_weighted_by_rows else released.weighted(summary.client_weights)


def check_pairs(bounds: str, targets: int) -> list[list[float]]:
    """Parse one pair of bounds for all targets, or one for each."""
    pairs = parse_bounds(bounds)
    if len(pairs) not in (1, targets):
        raise InputError(
            f"--bounds has {len(pairs)} pairs for {pluralize(targets, 'target')}: '{bounds}'. Pass one pair "
            "for all targets, or one for each.",
            field="bounds",
        )
    return pairs


def parse_bounds(text: str) -> list[list[float]]:
    """Return the bounds of '0:10' or '0:10,-1:1'."""
    try:
        pairs = [[float(end) for end in part.split(":")] for part in split_names(text)]
    except ValueError:
        pairs = []
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise InputError(
            f"Invalid --bounds: '{text}'. Pass LOW:HIGH, for all targets or for each, or 'private'.",
            field="bounds",
        )
    return pairs
