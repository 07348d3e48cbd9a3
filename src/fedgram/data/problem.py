"""Regression problems split over clients: inputs (N, ...) and targets (N, C) of each."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import InputError
from fedgram._util.frames import align_columns
from fedgram._util.text import as_names, escape_text, pluralize, quote_list
from fedgram.data.equal_inputs import average_equal_inputs
from fedgram.data.holdout import check_validation_fraction, draw_validation_rows
from fedgram.data.split import Split
from fedgram.data.validation import (
    check_columns,
    check_finite,
    check_image_dtype,
    check_pairs,
    check_shape,
    check_unique_columns,
    client_name,
    to_numeric_array,
    to_written_numbers,
)
from fedgram.theory.moments import Moments
from fedgram.theory.validation import check_names, key_by_client

Kind = Literal["REAL", "GENERATED", "RE-RENDERED"]
"""Published data; data made for this project; an imitation of published data."""


@dataclass(frozen=True, eq=False)
class Problem(DisplayMethods):
    """Training rows of M clients, and optional test rows.

    Parameters
    ----------
    name : str
        Name shown in reports.
    kind : {"REAL", "GENERATED", "RE-RENDERED"}
        Origin of the rows.
    train : dict of Split
        Training rows by client name. All clients share the shapes of a row.
    test : dict of Split
        Empty, or a Split for every client in the same order. A test Split may have no rows.
    target_names : tuple of str
        Names of the C targets, or empty.
    provenance : dict
        Source files with checksums, seeds and options.
    validation : dict of Split
        Like `test`: rows that choose the round and all strengths, and are not trained on.

    Raises
    ------
    InputError
        If there are fewer than two clients, if shapes differ, or if a value is not finite.

    Examples
    --------
    >>> from fedgram import Problem
    >>> inputs = {"north": [[1.0], [2.0]], "south": [[3.0], [4.0]]}
    >>> targets = {"north": [[0.0], [2.0]], "south": [[5.0], [9.0]]}
    >>> problem = Problem.from_arrays(inputs, targets)
    >>> problem.clients, problem.moments.mean.ravel().tolist()
    (('north', 'south'), [1.0, 7.0])
    >>> problem.centered().moments.mean.ravel().tolist()
    [0.0, 0.0]
    """

    name: str
    kind: Kind
    train: Mapping[str, Split]
    test: Mapping[str, Split] = field(default_factory=dict)
    target_names: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    validation: Mapping[str, Split] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            kinds = ", ".join(get_args(Kind))
            raise InputError(f"Unknown kind of data: '{self.kind}'. Use one of {kinds}.", field="kind")
        if len(self.train) < 2:
            raise InputError(
                f"A federation needs at least two clients, not {len(self.train)}. Add rows of other clients.",
                field="clients",
            )
        check_names(self.clients, len(self.train), "client")
        for part in ("test", "validation"):
            given = tuple(getattr(self, part))
            if given and given != self.clients:
                raise InputError(
                    f"{part.capitalize()} rows have clients {quote_list(given)}, but training rows have "
                    f"{quote_list(self.clients)}. Pass the same clients in the same order.",
                    field=part,
                )
        first = next(iter(self.train.values()))
        for what in ("inputs", "targets"):
            if 0 in getattr(first, what).shape[1:]:
                raise InputError(f"The rows have no {what}. Pass at least one column.", field=what)
        width = first.targets.shape[1]
        object.__setattr__(self, "target_names", as_names(self.target_names))
        if self.target_names and len(self.target_names) != width:
            names = len(self.target_names)
            raise InputError(
                f"There are {width} targets but {names} target names. Pass one name per target.",
                field="targets",
            )
        for client, split in self._all_splits():
            check_image_dtype(split.inputs, str(first.inputs.dtype), "the first client has", client)
            for what in ("inputs", "targets"):
                check_shape(getattr(split, what), getattr(first, what), client, what)
                check_finite(getattr(split, what), client, what)

    def __repr__(self) -> str:  # without values: rows may be private
        clients = pluralize(len(self.train), "client")
        train, test = (sum(map(len, part.values())) for part in (self.train, self.test))
        rows = f"{pluralize(train, 'training row')}, {pluralize(test, 'test row')}"
        return f"Problem('{escape_text(self.name, 80)}', {self.kind}, {clients}, {rows})"

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
        """Build a problem from one input and one target array per client.

        Parameters
        ----------
        inputs : dict or list of arrays (N, ...)
            A dict is keyed by client name. Clients of a list become "client 1", "client 2", ...
            Columns of data frames are matched by name.
        targets : dict or list of arrays (N, C)
            In the same form as `inputs`.
        name, kind
            See `Problem`.
        target_names : str or list of str
            Names of the targets. Default: the columns of a data frame, else none.

        Returns
        -------
        Problem

        Raises
        ------
        InputError
            If a client lacks inputs or targets, or if its values are not finite numbers.

        Examples
        --------
        >>> from fedgram import Problem
        >>> problem = Problem.from_arrays({"a": [[1.0], [2.0]], "b": [[3.0], [5.0]]},
        ...                               {"a": [[0.0], [2.0]], "b": [[4.0], [8.0]]})
        >>> problem
        Problem('own data', REAL, 2 clients, 4 training rows, 0 test rows)
        >>> problem.clients
        ('a', 'b')
        >>> problem.moments.mean
        array([[1.],
               [6.]])
        """
        inputs_by_client, columns = align_columns(key_by_client(inputs, "inputs"), (), "inputs")
        by_client = key_by_client(targets, "targets")
        targets_by_client, names = align_columns(by_client, target_names, "targets")
        check_pairs(inputs_by_client, targets_by_client)
        train = {
            client: _build_split(client, rows, targets_by_client[client])
            for client, rows in inputs_by_client.items()
        }
        provenance = {"inputs": list(columns)} if columns else {}
        return cls(name, kind, train, target_names=names, provenance=provenance)

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
        """Build a problem from a data frame with one row per sample.

        Parameters
        ----------
        frame : pandas.DataFrame
        client : str
            Column with the client of each row. The values 1, 1.0 and "1" are the same client.
        inputs, targets : list of str
            Numeric columns, D inputs and C targets.
        name, kind
            See `Problem`.

        Returns
        -------
        Problem
            With inputs (N, D) and targets (N, C) in float64.

        Raises
        ------
        InputError
            If a column is missing, not numeric or named twice, or if a row has no client.

        Examples
        --------
        >>> import pandas as pd
        >>> from fedgram import Problem
        >>> frame = pd.DataFrame({"site": ["a", "a", "b", "b"], "dose": [1, 2, 3, 4], "effect": [5, 7, 6, 8]})
        >>> problem = Problem.from_frame(frame, client="site", inputs=["dose"], targets=["effect"])
        >>> problem.clients, problem.train["b"].targets.ravel().tolist()
        (('a', 'b'), [6.0, 8.0])
        """
        inputs, targets = ([names] if isinstance(names, str) else list(names) for names in (inputs, targets))
        check_unique_columns((client, *inputs, *targets))
        check_columns(frame, client, (*inputs, *targets))
        clients = to_written_numbers(frame[client])
        owners = clients.map(client_name)
        if missing := int(owners.isna().sum()):
            raise InputError(
                f"{missing:,} of {len(frame):,} rows have no client in '{client}'. Name it, or drop them.",
                field=client,
            )
        names = dict.fromkeys(str(client_name(key)) for key in frame.groupby(clients, observed=True).groups)
        parts = {name: frame[owners == name] for name in names}
        train = {
            name: Split(part[inputs].to_numpy(np.float64), part[targets].to_numpy(np.float64))
            for name, part in parts.items()
        }
        return cls(name, kind, train, target_names=tuple(targets), provenance={"inputs": inputs})

    @classmethod
    def from_datasets(
        cls, datasets: Mapping[str, Any] | Sequence[Any], *, name: str = "own datasets", kind: Kind = "REAL"
    ) -> Problem:
        """Build a problem from one map-style dataset (such as PyTorch's) per client.

        Parameters
        ----------
        datasets : dict or list
            Datasets by client name. Each supports len() and returns pairs (input, target) by index. Clients
            of a list become "client 1", "client 2", ...
        name, kind
            See `Problem`.

        Returns
        -------
        Problem

        Raises
        ------
        InputError
            If a dataset is empty, or its items are not pairs of numbers of the same shapes.

        Examples
        --------
        >>> from fedgram import Problem
        >>> north, south = [([1.0], [2.0]), ([3.0], [4.0])], [([5.0], [6.0]), ([7.0], [8.0])]
        >>> Problem.from_datasets([north, south]).clients
        ('client 1', 'client 2')
        """
        train = {}
        for client, dataset in key_by_client(datasets, "datasets").items():
            if not len(dataset):
                raise InputError(
                    f"The dataset of client '{client}' is empty. Add items, or drop the client.",
                    client=client,
                )
            items = [dataset[i] for i in range(len(dataset))]
            try:
                inputs, targets = (np.stack(column) for column in zip(*items, strict=True))
            except (TypeError, ValueError):
                raise InputError(
                    f"Items of client '{client}' are not pairs (input, target) of the same shapes. Return "
                    "such pairs from its dataset.",
                    client=client,
                    field="datasets",
                ) from None
            train[client] = _build_split(client, inputs, targets)
        return cls(name, kind, train)

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of the M clients."""
        return tuple(self.train)

    @property
    def is_in_time_order(self) -> bool:
        """Whether the test rows of every client are consecutive in time."""
        return "time" in self.provenance

    @property
    def moments(self) -> Moments:
        """Moments of each client's training targets."""
        return Moments.from_arrays(
            {client: split.targets for client, split in self.train.items()}, target_names=self.target_names
        )

    @property
    def digest(self) -> str:
        """SHA-256 of all rows, client by client."""
        content = hashlib.sha256()
        for client, split in self._all_splits():
            for array in (split.inputs, split.targets):
                content.update(f"{client} {array.dtype} {array.shape} ".encode(errors="replace"))
                content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()

    def _all_splits(self) -> Iterator[tuple[str, Split]]:
        for part in (self.train, self.test, self.validation):
            yield from part.items()

    def without_clients(self, names: Collection[str]) -> Problem:
        """Return the problem of the other clients."""

        def drop(splits: Mapping[str, Split]) -> dict[str, Split]:
            return {client: split for client, split in splits.items() if client not in names}

        return replace(self, train=drop(self.train), test=drop(self.test), validation=drop(self.validation))

    def hold_out_validation(self, fraction: float, seed: int = 0) -> Problem:
        """Move a random fraction of each client's training rows to `validation`.

        A client keeps enough training rows for a covariance of full rank. Which rows it moves does not depend
        on other clients.

        Raises
        ------
        InputError
            If the fraction is not between 0 and 1, or if the problem has validation rows already.

        Examples
        --------
        >>> import numpy as np
        >>> from fedgram import Problem
        >>> rows = np.arange(20.0).reshape(20, 1)
        >>> problem = Problem.from_arrays([rows, rows], [rows, rows]).hold_out_validation(0.2)
        >>> [len(split.targets) for split in (problem.train["client 1"], problem.validation["client 1"])]
        [16, 4]
        """
        check_validation_fraction(fraction)
        if self.validation:
            raise InputError(
                "The problem has validation rows already. Call with_validation_in_training() first.",
                field="validation",
            )
        train, validation = {}, {}
        for client, split in self.train.items():
            rows, targets = split.targets.shape
            parts = draw_validation_rows(client, rows, targets, fraction, seed)
            train[client], validation[client] = map(split.take, parts)
        provenance = {**self.provenance, "validation": fraction}
        return replace(self, train=train, validation=validation, provenance=provenance)

    def with_validation_in_training(self) -> Problem:
        """Move all validation rows to the training rows."""
        if not self.validation:
            return self
        train = {
            client: Split.concatenate([split, self.validation[client]])
            for client, split in self.train.items()
        }
        return replace(self, train=train, validation={})

    def centered(self) -> Problem:
        """Subtract each client's training mean from its targets; this removes the mean term of the gap."""
        means = {client: split.targets.mean(axis=0) for client, split in self.train.items()}
        train, test, validation = (
            {client: Split(split.inputs, split.targets - means[client]) for client, split in part.items()}
            for part in (self.train, self.test, self.validation)
        )
        provenance = {**self.provenance, "targets": "centered at each client's mean"}
        return replace(self, train=train, test=test, validation=validation, provenance=provenance)

    def attainable(self) -> Problem:
        """Replace training targets by what networks can fit: the mean over rows with equal inputs.

        Training on either set of rows converges to the same head, so this problem's prediction applies to
        both.

        Examples
        --------
        >>> from fedgram import Problem
        >>> inputs, targets = [[1.0], [1.0], [2.0]], [[0.0], [4.0], [5.0]]
        >>> problem = Problem.from_arrays([inputs] * 2, [targets] * 2)
        >>> problem.attainable().train["client 1"].targets.ravel().tolist()
        [2.0, 2.0, 5.0]
        """
        train = {
            client: Split(split.inputs, average_equal_inputs(split.inputs, split.targets))
            for client, split in self.train.items()
        }
        provenance = {**self.provenance, "targets": "means over rows with equal inputs"}
        return replace(self, train=train, provenance=provenance)


def _build_split(client: str, inputs: Any, targets: Any) -> Split:
    arrays = to_numeric_array(inputs, client, "inputs"), to_numeric_array(targets, client, "targets")
    try:
        return Split(*arrays)
    except InputError as error:
        raise InputError(f"Client '{client}': {error.message}", client=client, field=error.field) from None
