"""Target moments of clients: row count N_m, mean μ_m and covariance Σ_m (1/N)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util import frames
from fedgram._util.arrays import Array, as_float_array, common_batch
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import InputError, check_type
from fedgram._util.files import write_json
from fedgram._util.text import as_names, number_targets, pluralize
from fedgram.theory import moments_file, validation
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.weights import average, normalize_weights, order_weights
from fedgram.theory.pooled import Pooled
from fedgram.theory.privacy import Privacy
from fedgram.theory.sample_moments import SampleMoments, mean_and_covariance, merge_samples

BUILD_HINT = "Build it with Moments.from_arrays or read_moments"


@dataclass(frozen=True, eq=False)
class Moments(DisplayMethods):
    """Row count, target mean and target covariance (1/N) of M clients with C targets.

    Leading axes index independent problems with the same counts; arrays without them are shared by all
    problems. Moments with leading axes cannot be saved or merged.

    Parameters
    ----------
    count
        Rows of each client, (M,), each at least C + 1.
    mean
        Target means, (..., M, C).
    covariance
        Target covariances, (..., M, C, C), positive semidefinite.
    clients, targets
        Names, M and C of them; "client 1", "target 1" and so on by default.
    client_weights
        Positive weights, (..., M) or a dict by client name, scaled to sum to one; N_m/N by default.
    privacy
        For each client, how its moments were made private, or None.
    scale
        What the targets were divided by, (C,); one by default. `scaled` sets it; effects and files undo it.

    Raises
    ------
    InputError
        If shapes, names, counts or numbers are not valid.

    Examples
    --------
    >>> from fedgram import Moments
    >>> moments = Moments(
    ...     count=[30, 10], mean=[[0.0], [4.0]], covariance=[[[1.0]], [[1.0]]], clients=("oslo", "bergen")
    ... )
    >>> moments.client_weights.tolist(), moments.targets
    ([0.75, 0.25], ('target 1',))
    >>> moments.pooled.mean.tolist()
    [1.0]
    >>> moments
    Moments(2 clients, 1 target, 40 rows)
    >>> print(moments.summary())
    1 target, 40 rows of 2 clients.
    Share of the pooled variance that is due to different client means: target 1 75%.
    >>> moments.to_frame()[["client", "target", "rows", "mean", "offset"]]
       client    target  rows  mean  offset
    0    oslo  target 1  30.0   0.0    -1.0
    1  bergen  target 1  10.0   4.0     3.0
    """

    count: Array
    mean: Array
    covariance: Array
    clients: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    client_weights: Array = None  # type: ignore[assignment]  # set in __post_init__
    privacy: tuple[Privacy | None, ...] = ()
    scale: Array = None  # type: ignore[assignment]  # set in __post_init__

    def __post_init__(self) -> None:
        mean = as_float_array(self.mean, "mean")
        if mean.ndim < 2 or 0 in mean.shape[-2:]:
            message = f"mean must have shape (clients, targets), with at least one of each, not {mean.shape}."
            raise InputError(message, field="mean")
        clients, targets = mean.shape[-2:]
        fill = {
            "count": as_float_array(self.count, "count"),
            "clients": as_names(self.clients) or tuple(f"client {m + 1}" for m in range(clients)),
            "targets": as_names(self.targets) or number_targets(targets),
            "privacy": self.privacy or (None,) * clients,
            "scale": np.ones(targets) if self.scale is None else validation.check_scale(self.scale, targets),
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
        self._broadcast_problems(mean, covariance, normalize_weights(weights, clients))
        with np.errstate(over="ignore", invalid="ignore"):
            validation.check_range(psd.frobenius(self.pooled.covariance), self.targets)

    def _broadcast_problems(self, mean: Array, covariance: Array, client_weights: Array) -> None:
        batch = common_batch(
            mean=mean.shape[:-2], covariance=covariance.shape[:-3], client_weights=client_weights.shape[:-1]
        )
        arrays = {"mean": (mean, 2), "covariance": (covariance, 3), "client_weights": (client_weights, 1)}
        for name, (array, axes) in arrays.items():
            object.__setattr__(self, name, np.broadcast_to(array, (*batch, *array.shape[-axes:])).copy())

    def __repr__(self) -> str:
        return f"Moments({self.dimensions}, {self.count.sum():,.0f} rows)"

    @property
    def dimensions(self) -> str:
        """Numbers of clients and targets, and of problems if there are leading axes, as text."""
        *batch, clients, targets = self.mean.shape
        several = f"{pluralize(math.prod(batch), 'problem')}, " if batch else ""
        return f"{several}{pluralize(clients, 'client')}, {pluralize(targets, 'target')}"

    @classmethod
    def from_arrays(
        cls,
        targets: Mapping[str, Any] | Sequence[Any],
        *,
        target_names: str | Sequence[str] = (),
        client_weights: Any = None,
    ) -> Moments:
        """Compute moments of raw targets.

        Parameters
        ----------
        targets
            One (N_m, C) array or data frame per client, in a list or a dict by client name. Columns of data
            frames are matched by name.
        target_names
            Names of the C targets; those of the first data frame by default.
        client_weights
            As in `Moments`.

        Returns
        -------
        Moments
            Moments of M clients.

        Raises
        ------
        InputError
            If targets are not finite, constant, or too few rows.

        Examples
        --------
        >>> from fedgram import Moments
        >>> moments = Moments.from_arrays({"a": [[0.0], [2.0]], "b": [[1.0], [5.0], [3.0]]})
        >>> moments.count.tolist(), moments.mean.tolist()
        ([2.0, 3.0], [[1.0], [3.0]])
        """
        by_client = validation.key_by_client(targets, "targets")
        values, names = frames.align_columns(by_client, target_names, "targets")
        clients = tuple(values)
        arrays = validation.check_targets(values)
        for client, array in zip(clients, arrays, strict=True):
            validation.check_variation(array, client, names)
        count = np.array([len(array) for array in arrays], dtype=np.float64)
        validation.check_counts(count, clients, arrays[0].shape[1])  # before the means: no rows have none
        mean, covariance = map(np.array, zip(*map(mean_and_covariance, arrays), strict=True))
        validation.check_range(np.abs(covariance).sum(axis=(1, 2)), names)
        validation.check_squares(covariance, names)
        return cls(count, mean, covariance, clients, names, client_weights)

    @classmethod
    def load(cls, path: str | Path) -> Moments:
        """Read a file of format `fedgram-moments/1`."""
        return cls(**moments_file.read_fields(path))

    def save(self, path: str | Path) -> None:
        """Write a file of format `fedgram-moments/1`."""
        write_json(path, self.document())

    def document(self) -> dict[str, Any]:
        """Convert to the JSON document of `save`, in the targets' own units.

        It has weights only if they differ from N_m/N.
        """
        validation.check_one_problem(self.mean.shape[:-2], "saved")
        own = self if (self.scale == 1).all() else self.scaled(1 / self.scale)
        has_weights = not self.is_weighted_by_rows
        clients = []
        for m, (name, privacy) in enumerate(zip(own.clients, own.privacy, strict=True)):
            mean, covariance = own.mean[m].tolist(), own.covariance[m].tolist()
            client = {"name": name, "count": int(own.count[m]), "mean": mean, "covariance": covariance}
            client |= {"weight": float(own.client_weights[m])} if has_weights else {}
            client |= {"privacy": privacy.document()} if privacy else {}
            clients.append(client)
        return {"format": moments_file.FORMAT, "targets": list(self.targets), "clients": clients}

    @cached_property
    def pooled(self) -> Pooled:
        """Moments of the pooled data under the client weights."""
        between = np.einsum("...m,...mi,...mj->...ij", self.client_weights, self.offset, self.offset)
        within = average(self.client_weights, self.covariance)
        return Pooled(self._average(self.mean), within, psd.symmetric(between))

    @cached_property
    def offset(self) -> Array:
        """d_m = μ_m - μ_g, (..., M, C); centered twice to keep precision at large common offsets."""
        away = self.mean - self._average(self.mean)[..., None, :]
        return away - self._average(away)[..., None, :]

    def _average(self, vectors: Array) -> Array:
        """Σ_m p_m x_m: (..., M, C) -> (..., C)."""
        return np.einsum("...m,...mc->...c", self.client_weights, vectors)

    @property
    def is_weighted_by_rows(self) -> bool:
        """Whether the client weights are N_m/N."""
        by_rows = normalize_weights(self.count, len(self.clients))
        return np.allclose(
            self.client_weights, by_rows, rtol=1e-14, atol=0
        )  # scaling to one twice rounds differently

    def weighted(self, client_weights: Any) -> Moments:
        """Replace the client weights, (..., M) or a dict by client name.

        Examples
        --------
        >>> from fedgram import Moments
        >>> moments = Moments.from_arrays({"a": [[0.0], [2.0]], "b": [[4.0], [6.0], [8.0]]})
        >>> moments.client_weights.tolist(), moments.weighted({"a": 1, "b": 1}).client_weights.tolist()
        ([0.4, 0.6], [0.5, 0.5])
        """
        return replace(self, client_weights=client_weights)

    def scaled(self, scale: Any) -> Moments:
        """Divide each target by its scale, (C,); effects keep the targets' own units.

        Examples
        --------
        >>> from fedgram import Moments
        >>> moments = Moments.from_arrays({"a": [[0.0], [4.0]], "b": [[4.0], [8.0]]}).scaled([2.0])
        >>> moments.mean.ravel().tolist(), moments.covariance.ravel().tolist()
        ([1.0, 3.0], [1.0, 1.0])
        """
        unit = validation.check_scale(scale, len(self.targets))
        covariance = self.covariance / (unit[:, None] * unit)
        privacy = tuple(each and each.scaled(unit) for each in self.privacy)
        scale = self.scale * unit
        return replace(self, mean=self.mean / unit, covariance=covariance, privacy=privacy, scale=scale)

    def merged(self, *others: Moments) -> Moments:
        """Combine moments of disjoint samples; clients of the same name become one.

        Parameters
        ----------
        others
            Moments with the same targets, in any order.

        Returns
        -------
        Moments
            Moments of all rows, with client weights N_m/N and the targets in the order of `self`.

        Raises
        ------
        InputError
            If the targets or their scales differ, or moments have leading axes.

        Examples
        --------
        >>> from fedgram import Moments
        >>> first = Moments.from_arrays({"a": [[0.0], [2.0]]})
        >>> merged = first.merged(Moments.from_arrays({"a": [[4.0], [6.0]]}))
        >>> merged.count.tolist(), merged.mean.tolist(), merged.covariance.tolist()
        ([4.0], [[3.0]], [[[5.0]]])
        """
        parts: dict[str, SampleMoments] = {}
        privacy: dict[str, Privacy | None] = {}
        for given in (self, *others):
            check_type(given, Moments, "Moments.merged()", BUILD_HINT)
            moments = given._reorder_targets(self.targets)
            validation.check_one_problem(moments.mean.shape[:-2], "merged")
            if not np.array_equal(moments.scale, self.scale):
                raise InputError(
                    "These moments are scaled differently. Merge first, then scale.", field="scale"
                )
            samples = zip(moments.count, moments.mean, moments.covariance, strict=True)
            for name, part in zip(moments.clients, samples, strict=True):
                parts[name] = merge_samples(parts[name], part) if name in parts else part
            for name, each in zip(moments.clients, moments.privacy, strict=True):
                if name in privacy and (each or privacy[name]):
                    raise _repeated_release_error(name)
                privacy[name] = each
        count, mean, covariance = (np.array(values) for values in zip(*parts.values(), strict=True))
        return Moments(
            count,
            mean,
            covariance,
            tuple(parts),
            self.targets,
            privacy=tuple(privacy[name] for name in parts),
            scale=self.scale,
        )

    def _reorder_targets(self, targets: tuple[str, ...]) -> Moments:
        if self.targets == targets:
            return self
        if sorted(self.targets) != sorted(targets):
            raise InputError(
                f"These moments have different targets: {', '.join(targets)} and {', '.join(self.targets)}. "
                "Compute both from the same targets, under the same names.",
                field="targets",
            )
        order = [self.targets.index(name) for name in targets]
        covariance = self.covariance[..., order, :][..., order]
        privacy = tuple(each and each.reordered(order) for each in self.privacy)
        return replace(
            self,
            mean=self.mean[..., order],
            covariance=covariance,
            targets=targets,
            privacy=privacy,
            scale=self.scale[order],
        )


def check_federation(moments: Moments, caller: str) -> None:
    """Raise InputError unless `moments` are Moments of at least two clients."""
    check_type(moments, Moments, caller, BUILD_HINT)
    if len(moments.clients) < 2:
        (alone,) = moments.clients
        raise InputError(
            f"A federation needs at least two clients, but there is only '{alone}'. Add the moments or the "
            "rows of others.",
            client=alone,
            field="clients",
        )


def _repeated_release_error(client: str) -> InputError:
    return InputError(
        f"Client '{client}' occurs twice, and its moments are private. Release the moments of all its rows "
        "once.",
        client=client,
        field="privacy",
    )
