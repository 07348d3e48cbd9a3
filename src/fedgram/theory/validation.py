"""Check client moments; errors name the client and the field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgram._util.arrays import ONE_TARGET, SMALLEST_SQUARE, Array, as_float_array
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize, quote_first, quote_list, tiny_column_message
from fedgram.theory.geometry import psd

MAX_COUNT = 2**53
"""Rows of a client; float64 does not have all larger whole numbers."""


def constant_target_error(clients: Sequence[str], target: str) -> InputError:
    """Build the error about a target that does not vary at one client or more."""
    which, them = ("client", "the client") if len(clients) == 1 else ("clients", "these clients")
    return InputError(
        f"Target '{target}' is constant at {which} {quote_list(clients)}, so it cannot be predicted. Drop "
        f"the target or {them}.",
        client=clients[0],
        field=target,
    )


def key_by_client(values: Any, what: str) -> dict[str, Any]:
    """Key arrays of clients by name as text; number the clients of a list."""
    if isinstance(values, Mapping):
        check_names(tuple(map(str, values)), len(values), "client")  # 1 and '1' are one name
        return {str(name): value for name, value in values.items()}
    try:
        return {f"client {m + 1}": value for m, value in enumerate(values)}
    except TypeError:
        kind = type(values).__name__
        message = f"{what} must be a list or dict of arrays, one per client, not {kind}."
        raise InputError(message, field=what) from None


def check_targets(values: Mapping[str, Any]) -> list[Array]:
    """Return the targets of clients as finite float64 (N_m, C)."""
    if not values:
        raise InputError("There are no clients. Pass the targets of at least one.", field="targets")
    arrays = [_check_client_targets(each, client) for client, each in values.items()]
    if len({array.shape[1] for array in arrays}) > 1:
        raise InputError("All clients must have the same number of targets.", field="targets")
    return arrays


def _check_client_targets(values: Any, client: str) -> Array:
    array = as_float_array(values, f"The target array of client '{client}'", client=client, field="targets")
    if array.ndim != 2:
        raise InputError(
            f"Targets of client '{client}' must have shape (rows, targets), not {array.shape}. {ONE_TARGET}.",
            client=client,
            field="targets",
        )
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise InputError(
            f"Client '{client}' has a target that is not finite, in row {row + 1}, column {column + 1}. "
            "Drop or fill it first.",
            client=client,
            field="targets",
        )
    return array


def check_variation(targets: Array, client: str, names: Sequence[str]) -> None:
    """Reject a target of a client's rows (N, C) that is constant; `names` may be empty."""
    constant = np.flatnonzero((targets == targets[:1]).all(axis=0)) if len(targets) > 1 else np.array([])
    if constant.size:
        raise constant_target_error(
            [client], dict(enumerate(names)).get(constant[0], f"target {constant[0] + 1}")
        )


def check_names(names: tuple[str, ...], expected: int, kind: str, place: str = "") -> None:
    """Check the number of names, and that they differ by more than blanks; messages name the place."""
    if len(names) != expected:
        raise InputError(f"There are {expected} {kind}s but {len(names)} {kind} names.", field=f"{kind}s")
    times = Counter(str(name).strip() for name in names)
    if "" in times:
        raise InputError(f"A {kind} has no name{place}. Name every {kind}.", field=f"{kind}s")
    repeated = next((name for name in times if times[name] > 1), None)
    if repeated is not None:
        variants = list(dict.fromkeys(str(name) for name in names if str(name).strip() == repeated))
        own = f"Give each {kind} its own name."
        raise InputError(
            f"The {kind} names {quote_list(variants)}{place} differ only in blanks. Remove the blanks."
            if len(variants) > 1
            else f"The {kind} name '{repeated}' appears more than once{place}. {own}",
            client=repeated if kind == "client" else None,
            field=f"{kind}s",
        )


def check_counts(count: Array, clients: tuple[str, ...], targets: int) -> None:
    """Check counts (M,): whole, at most 2^53, and at least C + 1, as a covariance of full rank needs."""
    if count.shape != (len(clients),):
        raise InputError(f"There are {len(clients)} clients but {count.size} counts.", field="count")
    for client, rows in zip(clients, count, strict=True):
        if not (np.isfinite(rows) and rows == int(rows)):
            raise InputError(
                f"The count of client '{client}' is {rows:.15g}, but it must be a whole number.",
                client=client,
                field="count",
            )
        if abs(rows) > MAX_COUNT:
            raise InputError(
                f"The count of client '{client}' is {rows:.6g}, but it must be from {targets + 1} to "
                f"{MAX_COUNT:,}.",
                client=client,
                field="count",
            )
    small = [client for client, rows in zip(clients, count, strict=True) if rows < targets + 1]
    if small:
        needed = f"needs at least {targets + 1}, one more than targets. Add rows, use fewer targets, or drop"
        rows = pluralize(int(count[clients.index(small[0])]), "row")
        raise InputError(
            f"Client '{small[0]}' has {rows}, but it {needed} the client."
            if len(small) == 1
            else f"Clients {quote_first(small)} have too few rows: each {needed} them.",
            client=small[0],
            field="count",
        )


def check_mean(mean: Array, clients: tuple[str, ...]) -> None:
    """Check that means (..., M, C) are finite."""
    bad = np.argwhere(~np.isfinite(mean))
    if bad.size:
        client = clients[bad[0][-2]]
        raise InputError(
            f"The mean of client '{client}' has a value that is not finite.", client=client, field="mean"
        )


def check_range(norm: Array, targets: tuple[str, ...]) -> None:
    """Check that the norms (...) of pooled covariances did not overflow."""
    if not np.isfinite(norm).all():
        of = f" ({', '.join(targets)})" if targets else ""
        raise InputError(
            f"The means or covariances of the targets{of} are too large to compute with. Rescale the "
            "targets.",
            field="mean",
        )


def check_squares(covariance: Array, targets: Sequence[str]) -> None:
    """Reject a target that varies at every client, but so little that all its variances lose digits.

    `covariance` (M, C, C) is that of values that vary; `targets` may be empty.
    """
    is_tiny = np.diagonal(covariance, axis1=1, axis2=2) < SMALLEST_SQUARE
    for number in np.flatnonzero(is_tiny.all(axis=0)).tolist() if len(is_tiny) else ():
        name = dict(enumerate(targets)).get(number, f"target {number + 1}")
        raise InputError(tiny_column_message(f"Target '{name}'"), field=name)


def check_scale(scale: Any, targets: int) -> Array:
    """Return one positive scale per target, (C,)."""
    unit = as_float_array(scale, "scale")
    if unit.shape != (targets,) or not (np.isfinite(unit).all() and (unit > 0).all()):
        raise InputError(f"scale must have {targets} positive numbers, one per target.", field="scale")
    return unit


def check_one_problem(batch: tuple[int, ...], action: str) -> None:
    """Check that there are no leading axes."""
    if batch:
        raise InputError(
            f"Moments of several problems, with leading axes {batch}, cannot be {action}. Pass those of one "
            "problem.",
            field="mean",
        )


def check_covariance(covariance: Any, clients: tuple[str, ...], targets: int) -> Array:
    """Return symmetric semidefinite covariances (..., M, C, C)."""
    array = as_float_array(covariance, "covariance")
    if array.shape[-3:] != (len(clients), targets, targets):
        raise InputError(
            f"covariance must have shape (..., {len(clients)}, {targets}, {targets}), not {array.shape}.",
            field="covariance",
        )
    return np.stack(
        [_check_client_covariance(array[..., m, :, :], name) for m, name in enumerate(clients)], axis=-3
    )


def _check_client_covariance(covariance: Array, client: str) -> Array:
    try:
        return psd.check_psd(covariance, f"The covariance of client '{client}'")
    except InputError as error:
        raise InputError(error.message, client=client, field="covariance") from None
