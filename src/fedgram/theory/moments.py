"""Target moments of clients: all that the prediction needs to know about their data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util import frames
from fedgram._util.arrays import Array, as_float_array, common_batch
from fedgram._util.errors import InputError, check_type
from fedgram._util.files import write_json
from fedgram._util.text import as_names
from fedgram.theory import moments_file, validation
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.weights import average, normalize_weights, order_weights

MADE = "Moments.from_arrays makes it of arrays, read_moments of tables"


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
    """Count, target mean and target covariance (1/N) of each of M clients with C targets; of one, at a site.

    count (M,); mean (..., M, C); covariance (..., M, C, C); client_weights (..., M), or a dict by name,
    scaled to sum to one; N_m/N when left out. Leading axes hold independent problems of one size, with the
    same counts; what is given without them is the same in all. Only moments without them can be saved or
    merged.
    """

    count: Array
    mean: Array
    covariance: Array
    clients: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    client_weights: Array = None  # type: ignore[assignment]  # filled in below

    def __post_init__(self) -> None:
        mean = as_float_array(self.mean, "mean")
        if mean.ndim < 2 or 0 in mean.shape[-2:]:
            raise InputError(
                f"mean must have shape (clients, targets), with one of each at least, not {mean.shape}.",
                field="mean",
            )
        clients, targets = mean.shape[-2:]
        fill = {
            "count": as_float_array(self.count, "count"),
            "clients": as_names(self.clients) or tuple(f"client {m + 1}" for m in range(clients)),
            "targets": as_names(self.targets) or tuple(f"target {c + 1}" for c in range(targets)),
        }
        for name, value in fill.items():
            object.__setattr__(self, name, value)
        validation.check_names(self.clients, clients, "client")
        validation.check_names(self.targets, targets, "target")
        validation.check_counts(self.count, self.clients, targets)
        validation.check_mean(mean, self.clients)
        covariance = validation.check_covariance(self.covariance, self.clients, targets)
        given: Any = self.count if self.client_weights is None else self.client_weights
        weights = order_weights(given, self.clients) if isinstance(given, Mapping) else given
        self._fill_problems(mean, covariance, normalize_weights(weights, clients))
        with np.errstate(over="ignore", invalid="ignore"):
            validation.check_range(psd.frobenius(self.pooled.covariance), self.targets)

    def _fill_problems(self, mean: Array, covariance: Array, client_weights: Array) -> None:
        """Keep the three with the leading axes of all, so that problems can be counted and told apart."""
        batch = common_batch(
            mean=mean.shape[:-2], covariance=covariance.shape[:-3], client_weights=client_weights.shape[:-1]
        )
        arrays = {"mean": (mean, 2), "covariance": (covariance, 3), "client_weights": (client_weights, 1)}
        for name, (array, axes) in arrays.items():
            object.__setattr__(self, name, np.broadcast_to(array, (*batch, *array.shape[-axes:])).copy())

    @classmethod
    def from_arrays(
        cls,
        targets: Mapping[str, Any] | Sequence[Any],
        *,
        target_names: str | Sequence[str] = (),
        client_weights: Any = None,
    ) -> Moments:
        """Moments of raw targets: one (N_m, C) array per client, in a list or a dict by client name.

        Of data frames the columns have names, and are taken in one order.
        """
        if not isinstance(targets, Mapping):
            targets = {f"client {m + 1}": values for m, values in enumerate(_each(targets))}
        clients = tuple(map(str, targets))
        validation.check_names(clients, len(targets), "client")  # 1 and '1' are one name
        values, names = frames.align_columns(
            dict(zip(clients, targets.values(), strict=True)), target_names, "targets"
        )
        arrays = [validation.check_targets(each, client, names) for client, each in values.items()]
        widths = {array.shape[1] for array in arrays}
        if len(widths) > 1:
            raise InputError("All clients must have the same number of targets.", field="targets")
        count = np.array([len(array) for array in arrays], dtype=np.float64)
        validation.check_counts(count, clients, max(widths, default=0))  # no rows have no mean
        pairs = [_mean_and_covariance(array) for array in arrays]
        validation.check_range(np.array([np.abs(covariance).sum() for _, covariance in pairs]), names)
        return cls(
            count=count,
            mean=np.array([mean for mean, _ in pairs]),
            covariance=np.array([covariance for _, covariance in pairs]),
            clients=clients,
            targets=names,
            client_weights=client_weights,
        )

    @classmethod
    def load(cls, path: str | Path) -> Moments:
        """Moments from a file of format `fedgram-moments/1`."""
        return cls(**moments_file.moments_fields(path))

    def save(self, path: str | Path) -> None:
        """Write the moments file that `load` and other programs read."""
        write_json(path, self.document())

    def document(self) -> dict[str, Any]:
        """The moments file as plain lists and numbers; weights stand in it only if they are not N_m/N."""
        validation.check_one_problem(self.mean.shape[:-2], "saved")
        clients = [
            {"name": name, "count": int(count), "mean": mean.tolist(), "covariance": covariance.tolist()}
            | ({} if self.weighed_by_rows else {"weight": float(weight)})
            for name, count, mean, covariance, weight in zip(
                self.clients, self.count, self.mean, self.covariance, self.client_weights, strict=True
            )
        ]
        return {"format": moments_file.FORMAT, "targets": list(self.targets), "clients": clients}

    @cached_property
    def pooled(self) -> Pooled:
        """Moments of all clients' data together, under the client weights."""
        between = np.einsum("...m,...mi,...mj->...ij", self.client_weights, self.offset, self.offset)
        return Pooled(
            self._averaged(self.mean), average(self.client_weights, self.covariance), psd.symmetric(between)
        )

    @cached_property
    def offset(self) -> Array:
        """d_m = μ_m - μ_g, (..., M, C); centered twice, so that a common offset costs no digits."""
        away = self.mean - self._averaged(self.mean)[..., None, :]
        return away - self._averaged(away)[..., None, :]

    def _averaged(self, vectors: Array) -> Array:
        """Σ_m p_m x_m: (..., M, C) -> (..., C)."""
        return np.einsum("...m,...mc->...c", self.client_weights, vectors)

    @property
    def weighed_by_rows(self) -> bool:
        """Whether the client weights are N_m/N."""
        by_rows = normalize_weights(self.count, len(self.clients))
        return np.allclose(self.client_weights, by_rows, rtol=1e-14, atol=0)  # once scaled to one, or twice

    def weighted(self, client_weights: Any) -> Moments:
        """The same moments under other client weights."""
        return replace(self, client_weights=client_weights)

    def merged(self, *others: Moments) -> Moments:
        """Moments of the union of disjoint samples; clients of the same name become one.

        Exact and stable: the means differ by their difference, not by sums of squares. Client weights
        become N_m/N. The others' targets are taken by name, in the order of these.
        """
        parts: dict[str, tuple[float, Array, Array]] = {}
        for given in (self, *others):
            check_type(given, Moments, MADE)
            moments = given._in_order(self.targets)
            validation.check_one_problem(moments.mean.shape[:-2], "merged")
            for name, *part in zip(
                moments.clients, moments.count, moments.mean, moments.covariance, strict=True
            ):
                parts[name] = _merge(parts[name], *part) if name in parts else tuple(part)
        count, mean, covariance = (np.array(values) for values in zip(*parts.values(), strict=True))
        return Moments(count, mean, covariance, tuple(parts), self.targets)

    def _in_order(self, targets: tuple[str, ...]) -> Moments:
        """The same moments with their targets in this order."""
        if self.targets == targets:
            return self
        if sorted(self.targets) != sorted(targets):
            raise InputError(
                f"These moments have different targets: {', '.join(targets)} and {', '.join(self.targets)}; "
                "make both of the same targets, under the same names.",
                field="targets",
            )
        order = [self.targets.index(name) for name in targets]
        covariance = self.covariance[..., order, :][..., order]
        return replace(self, mean=self.mean[..., order], covariance=covariance, targets=targets)


def check_federation(moments: Moments) -> None:
    """Refuse what is not the moments of at least two clients."""
    check_type(moments, Moments, MADE)
    validation.check_federation(moments.clients)


def _merge(
    part: tuple[float, Array, Array], count: float, mean: Array, covariance: Array
) -> tuple[float, Array, Array]:
    """Chan's pairwise update of (N, μ, Σ), from the larger part: a step nearly to the other end rounds."""
    other = (count, mean, covariance)
    (most, large, wide), (least, small, narrow) = (part, other) if part[0] >= count else (other, part)
    total = most + least
    share, rest, step = least / total, most / total, small - large
    return total, large + share * step, rest * wide + share * narrow + share * rest * np.outer(step, step)


def _each(targets: Any) -> Iterator[Any]:
    try:
        return iter(targets)
    except TypeError:
        raise InputError(
            f"Targets are a list or a dict of arrays, one for each client, not {type(targets).__name__}.",
            field="targets",
        ) from None


def _mean_and_covariance(targets: Array) -> tuple[Array, Array]:
    """Mean (C,) and covariance (1/N) (C, C) of rows (N, C); large offsets cost no digits.

    Rows are centered twice: with many of them the first mean is off by more than rounding.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
        first = targets.mean(axis=0)
        centered = targets - first
        rest = centered.mean(axis=0)
        centered -= rest
        return first + rest, centered.T @ centered / len(targets)
