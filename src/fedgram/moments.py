"""Target moments of clients: all that the prediction needs to know about their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedgram import psd
from fedgram.averaging import average, normalised
from fedgram.errors import InputError
from fedgram.psd import Array


@dataclass(frozen=True, eq=False)
class Pooled:
    """Moments of the pooled data, eqs. (3)-(5).

    mean μ_g (..., C); within Σ_within, between Σ_μ and covariance Σ_cen = within + between, (..., C, C).
    """

    mean: Array
    within: Array
    between: Array

    @property
    def covariance(self) -> Array:
        """Σ_cen = Σ_within + Σ_μ, eq. (5)."""
        return self.within + self.between


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, target mean and target covariance (1/N) of each of M clients with C targets.

    count (M,); mean (..., M, C); covariance (..., M, C, C); client_weights (..., M), scaled to sum to one,
    N_m/N when left out. Leading axes hold independent problems of one size; only moments without them
    can be saved.
    """

    count: Array
    mean: Array
    covariance: Array
    clients: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    client_weights: Array = None  # type: ignore[assignment]  # filled in below

    def __post_init__(self) -> None:
        mean = np.asarray(self.mean, dtype=np.float64)
        if mean.ndim < 2:
            raise InputError(f"mean must have shape (clients, targets), not {mean.shape}.", field="mean")
        clients, targets = mean.shape[-2:]
        fill = {
            "mean": mean,
            "count": np.asarray(self.count, dtype=np.float64),
            "clients": tuple(self.clients) or tuple(f"client {m + 1}" for m in range(clients)),
            "targets": tuple(self.targets) or tuple(f"target {c + 1}" for c in range(targets)),
        }
        for name, value in fill.items():
            object.__setattr__(self, name, value)
        _check_names(self.clients, clients, "client")
        _check_names(self.targets, targets, "target")
        if clients < 2:
            raise InputError(f"A federation needs at least two clients, but there is {clients}.", field="clients")
        _check_counts(self.count, self.clients, targets)
        _check_finite(mean, self.clients, "mean")
        object.__setattr__(self, "covariance", _checked_covariance(self.covariance, self.clients, targets))
        weights = self.count if self.client_weights is None else self.client_weights
        object.__setattr__(self, "client_weights", normalised(weights, clients))

    @classmethod
    def from_arrays(
        cls,
        targets: Mapping[str, Any] | Sequence[Any],
        *,
        target_names: Sequence[str] = (),
        client_weights: Any = None,
    ) -> Moments:
        """Moments of raw targets: one (N_m, C) array per client, in a list or a dict by client name."""
        named = targets if isinstance(targets, Mapping) else dict(_numbered(targets))
        arrays = {str(name): _checked_targets(values, str(name)) for name, values in named.items()}
        if len({array.shape[1] for array in arrays.values()}) > 1:
            raise InputError("All clients must have the same number of targets.", field="targets")
        return cls(
            count=np.array([len(array) for array in arrays.values()], dtype=np.float64),
            mean=np.array([array.mean(axis=0) for array in arrays.values()]),
            covariance=np.array([_scatter(array) for array in arrays.values()]),
            clients=tuple(arrays),
            targets=tuple(target_names),
            client_weights=client_weights,
        )

    @cached_property
    def pooled(self) -> Pooled:
        """Moments of all clients' data together, under the client weights."""
        mean = np.einsum("...m,...mc->...c", self.client_weights, self.mean)
        offset = self.offset
        between = np.einsum("...m,...mi,...mj->...ij", self.client_weights, offset, offset)
        return Pooled(mean, average(self.client_weights, self.covariance), psd.symmetric(between))

    @cached_property
    def offset(self) -> Array:
        """d_m = μ_m - μ_g, (..., M, C)."""
        mean = np.einsum("...m,...mc->...c", self.client_weights, self.mean)
        return self.mean - mean[..., None, :]

    def weighted(self, client_weights: Any) -> Moments:
        """The same moments under other client weights."""
        return replace(self, client_weights=client_weights)

    def merged(self, other: Moments) -> Moments:
        """Moments of the union of two disjoint samples; clients of the same name become one.

        Exact and stable: the means differ by their difference, not by sums of squares. Client weights
        become N_m/N.
        """
        if self.targets != other.targets:
            raise InputError(
                f"These moments have different targets: {', '.join(self.targets)} and "
                f"{', '.join(other.targets)}.",
                field="targets",
            )
        parts: dict[str, tuple[float, Array, Array]] = {}
        for moments in (self, other):
            for name, *part in zip(
                moments.clients, moments.count, moments.mean, moments.covariance, strict=True
            ):
                parts[name] = _merge(parts[name], *part) if name in parts else tuple(part)  # type: ignore[assignment]
        count, mean, covariance = (np.array(values) for values in zip(*parts.values(), strict=True))
        return Moments(count, mean, covariance, tuple(parts), self.targets)


def _merge(
    part: tuple[float, Array, Array], count: float, mean: Array, covariance: Array
) -> tuple[float, Array, Array]:
    """Chan's pairwise update of (N, μ, Σ)."""
    total = part[0] + count
    share, step = count / total, mean - part[1]
    scatter = (1 - share) * part[2] + share * covariance + share * (1 - share) * np.outer(step, step)
    return total, part[1] + share * step, scatter


def _scatter(targets: Array) -> Array:
    """Covariance (1/N) of rows (N, C) -> (C, C), centered first so that large offsets cost no digits."""
    centered = targets - targets.mean(axis=0)
    return centered.T @ centered / len(targets)


def _numbered(targets: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(f"client {m + 1}", values) for m, values in enumerate(targets)]


def _checked_targets(values: Any, client: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2:
        raise InputError(
            f"Targets of client '{client}' must have shape (rows, targets), not {array.shape}.",
            client=client,
            field="targets",
        )
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise InputError(
            f"Client '{client}' has a target that is not finite, in row {row + 1}, column {column + 1}; "
            "drop or fill it first.",
            client=client,
            field="targets",
        )
    constant = np.flatnonzero(np.ptp(array, axis=0) == 0) if len(array) else []
    if len(constant):
        raise InputError(
            f"Target column {constant[0] + 1} of client '{client}' is constant, so it cannot be predicted; "
            "leave out the target or the client.",
            client=client,
            field="targets",
        )
    return array


def _check_names(names: tuple[str, ...], expected: int, kind: str) -> None:
    if len(names) != expected:
        raise InputError(f"There are {expected} {kind}s but {len(names)} {kind} names.", field=f"{kind}s")
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InputError(
            f"The {kind} name '{repeated}' appears more than once; give each {kind} its own name.",
            client=repeated if kind == "client" else None,
            field=f"{kind}s",
        )


def _check_counts(count: Array, clients: tuple[str, ...], targets: int) -> None:
    if count.shape != (len(clients),):
        raise InputError(f"There are {len(clients)} clients but {count.size} counts.", field="count")
    for client, rows in zip(clients, count, strict=True):
        if not (np.isfinite(rows) and rows >= targets + 1 and rows == int(rows)):
            raise InputError(
                f"Client '{client}' has {rows:g} rows, but {targets} targets need at least {targets + 1}; "
                "add rows, use fewer targets, or leave the client out.",
                client=client,
                field="count",
            )


def _check_finite(mean: Array, clients: tuple[str, ...], field: str) -> None:
    bad = np.argwhere(~np.isfinite(mean))
    if bad.size:
        client = clients[bad[0][-2]]
        raise InputError(
            f"The {field} of client '{client}' has a value that is not finite.", client=client, field=field
        )


def _checked_covariance(covariance: Any, clients: tuple[str, ...], targets: int) -> Array:
    array = np.asarray(covariance, dtype=np.float64)
    if array.shape[-3:] != (len(clients), targets, targets):
        raise InputError(
            f"covariance must have shape (..., {len(clients)}, {targets}, {targets}), not {array.shape}.",
            field="covariance",
        )
    return np.stack([_checked_client(array[..., m, :, :], name) for m, name in enumerate(clients)], axis=-3)


def _checked_client(covariance: Array, client: str) -> Array:
    try:
        return psd.checked(covariance, f"The covariance of client '{client}'")
    except InputError as error:
        raise InputError(error.message, client=client, field="covariance") from None
