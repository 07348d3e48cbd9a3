"""A regression problem as clients hold it: inputs and targets of each, and where they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from fedgram._util.arrays import Array, as_float_array
from fedgram._util.errors import InputError
from fedgram._util.frames import align_columns
from fedgram._util.text import as_names
from fedgram.data.validation import (
    check_columns,
    check_finite,
    check_kind,
    check_named_once,
    check_pairs,
    check_shape,
    client_name,
    named,
    numbers_of,
    plain,
)
from fedgram.theory.moments import Moments
from fedgram.theory.validation import check_names

Kind = Literal["REAL", "GENERATED", "RE-RENDERED"]
"""Published data; data made for this project; an imitation of published data."""


@dataclass(frozen=True, eq=False)
class Split:
    """One client's rows: inputs (N, ...) and targets (N, C), the latter as float64.

    Inputs (N, H, W, channels) of type uint8 are images, which networks see divided by 255.
    """

    inputs: Array
    targets: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", plain(np.asarray(self.inputs)))
        object.__setattr__(self, "targets", plain(as_float_array(self.targets, "targets")))
        if len(self.inputs) != len(self.targets):
            raise InputError(
                f"There are {len(self.inputs):,} inputs but {len(self.targets):,} targets; give one of each "
                "for every row.",
                field="inputs",
            )
        if self.targets.ndim != 2:
            shape = self.targets.shape
            raise InputError(f"Targets must have shape (rows, targets), not {shape}.", field="targets")

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"Split(inputs {np.shape(self.inputs)}, targets {self.targets.shape})"  # and no row of them


@dataclass(frozen=True, eq=False)
class Problem:
    """Training rows of M clients, and test rows where there are any.

    train and test by client name, in one order; test is empty, or has a Split, perhaps of no rows, for
    every client. provenance says what made it: files with checksums, seeds, settings.
    """

    name: str
    kind: Kind
    train: Mapping[str, Split]
    test: Mapping[str, Split] = field(default_factory=dict)
    target_names: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            kinds = ", ".join(get_args(Kind))
            raise InputError(f"There is no kind of data '{self.kind}'; there are {kinds}.", field="kind")
        if len(self.train) < 2:
            raise InputError(
                f"A federation needs at least two clients, not {len(self.train)}; add the rows of others.",
                field="clients",
            )
        check_names(self.clients, len(self.train), "client")
        if self.test and list(self.test) != list(self.train):
            raise InputError("Test rows must name the same clients as training rows.", field="test")
        first = next(iter(self.train.values()))
        width = first.targets.shape[1]
        object.__setattr__(self, "target_names", as_names(self.target_names))
        if self.target_names and len(self.target_names) != width:
            names = len(self.target_names)
            raise InputError(f"There are {width} targets but {names} target names.", field="targets")
        for client, split in [*self.train.items(), *self.test.items()]:
            check_kind(split.inputs, str(first.inputs.dtype), "those of the first client are", client)
            for what in ("inputs", "targets"):
                check_shape(getattr(split, what), getattr(first, what), client, what)
                check_finite(getattr(split, what), client, what)

    @classmethod
    def from_arrays(
        cls,
        inputs: Mapping[str, Any] | Sequence[Any],
        targets: Mapping[str, Any] | Sequence[Any],
        *,
        name: str = "own data",
        kind: Kind = "REAL",
        target_names: str | Sequence[str] = (),
    ) -> Problem:
        """A problem from one input and one target array per client, in lists or dicts by client name.

        Of data frames the columns have names, and are taken in one order.
        """
        given, columns = align_columns(named(inputs), (), "inputs")
        wanted, names = align_columns(named(targets), target_names, "targets")
        check_pairs(given, wanted)
        train = {client: _split(client, given[client], wanted[client]) for client in given}
        made = {"inputs": list(columns)} if columns else {}
        return cls(name, kind, train, target_names=names, provenance=made)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        client: str,
        inputs: Sequence[str],
        targets: Sequence[str],
        name: str = "own table",
        kind: Kind = "REAL",
    ) -> Problem:
        """A problem from a table with one row per sample, split by its column `client`."""
        inputs, targets = ([names] if isinstance(names, str) else list(names) for names in (inputs, targets))
        check_named_once((client, *inputs, *targets))
        check_columns(frame, client, (*inputs, *targets))
        owners = frame[client].map(client_name)  # 1, 1.0 and '1' are one client
        nameless = int(owners.isna().sum())
        if nameless:
            raise InputError(
                f"The client in '{client}' is missing for {nameless:,} of {len(frame):,} rows; name one for "
                "each or drop them.",
                field=client,
            )
        names = dict.fromkeys(str(client_name(key)) for key in frame.groupby(client, observed=True).groups)
        parts = {name: frame[owners == name] for name in names}
        train = {
            name: Split(part[inputs].to_numpy(np.float64), part[targets].to_numpy(np.float64))
            for name, part in parts.items()
        }
        return cls(name, kind, train, target_names=tuple(targets), provenance={"inputs": inputs})

    @classmethod
    def from_datasets(
        cls, datasets: Mapping[str, Any], *, name: str = "own datasets", kind: Kind = "REAL"
    ) -> Problem:
        """A problem from one map-style dataset per client, with items (input, target), as torch has them."""
        for client, dataset in datasets.items():
            if not len(dataset):
                raise InputError(
                    f"The dataset of client '{client}' has no items; add some, or leave the client out.",
                    client=client,
                )
        columns = {client: list(zip(*(dataset[i] for i in range(len(dataset))), strict=True))
                   for client, dataset in datasets.items()}  # fmt: skip
        train = {
            client: _split(client, *(np.stack([np.asarray(item) for item in column]) for column in pair))
            for client, pair in columns.items()
        }
        return cls(name, kind, train)

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of the M clients."""
        return tuple(self.train)

    @property
    def moments(self) -> Moments:
        """Training-target moments of the clients: what the prediction is made from."""
        return Moments.from_arrays(
            {client: split.targets for client, split in self.train.items()}, target_names=self.target_names
        )

    def centered(self) -> Problem:
        """Every client's targets less its own training mean, which removes the mean term of the gap."""
        means = {client: split.targets.mean(axis=0) for client, split in self.train.items()}

        def shifted(splits: Mapping[str, Split]) -> dict[str, Split]:
            return {c: Split(split.inputs, split.targets - means[c]) for c, split in splits.items()}

        settings = {**self.provenance, "targets": "centered at each client's mean"}
        return replace(self, train=shifted(self.train), test=shifted(self.test), provenance=settings)

    def attainable(self) -> Problem:
        """Training rows with equal inputs get the mean of their client's targets: all that networks can fit.

        Training on these rows or on the others ends at the same head: the prediction for them is right for
        both.
        """
        reached = {
            client: Split(split.inputs, attainable_targets(split.inputs, split.targets))
            for client, split in self.train.items()
        }
        settings = {**self.provenance, "targets": "means over rows with equal inputs"}
        return replace(self, train=reached, provenance=settings)

    @property
    def digest(self) -> str:
        """SHA-256 over all rows, in order of clients."""
        content = hashlib.sha256()
        for client, split in [*self.train.items(), *self.test.items()]:
            for array in (split.inputs, split.targets):
                content.update(f"{client} {array.dtype} {array.shape} ".encode())
                content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()


def _split(client: str, inputs: Any, targets: Any) -> Split:
    """The rows of a client, who is named if they do not fit together."""
    arrays = numbers_of(inputs, client, "inputs"), numbers_of(targets, client, "targets")
    try:
        return Split(*arrays)
    except InputError as error:
        raise InputError(f"Client '{client}': {error.message}", client=client, field=error.field) from None


def attainable_targets(inputs: Array, targets: Array) -> Array:
    """Targets (N, C) with those of rows that have equal inputs (N, ...) replaced by their mean.

    Inputs are equal if single precision does not tell them apart, in which networks see them.
    """
    wide = inputs.dtype.kind == "f" or inputs.dtype.itemsize > 2
    rows = inputs.astype(np.float32) + 0 if wide else inputs  # -0 becomes 0
    rows = np.ascontiguousarray(rows.reshape(len(rows), -1))
    _, group, count = np.unique(
        rows.view(f"V{rows.itemsize * rows.shape[1]}"), return_inverse=True, return_counts=True
    )
    group = group.ravel()
    sums = np.zeros((len(count), targets.shape[1]))
    np.add.at(sums, group, targets)
    return sums[group] / count[group, None]


def unattainable_part(inputs: Array, targets: Array) -> float:
    """The part of the variance of targets (N, C) that lies within rows with equal inputs (N, ...)."""
    missed = targets - attainable_targets(inputs, targets)
    return float((missed**2).sum() / ((targets - targets.mean(axis=0)) ** 2).sum())
