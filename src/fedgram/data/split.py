"""Rows of one client: inputs and targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import ONE_TARGET, Array, as_float_array
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import InputError
from fedgram.data.validation import to_native_array


@dataclass(frozen=True, eq=False)
class Split(DisplayMethods):
    """Rows of one client.

    Parameters
    ----------
    inputs : array (N, ...)
        Inputs of type uint8 and shape (N, H, W, channels) are images; networks receive them divided by 255.
    targets : array (N, C)
        Converted to float64.

    Raises
    ------
    InputError
        If the targets are not a real matrix, or if the numbers of rows differ.
    """

    inputs: Array
    targets: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", to_native_array(np.asarray(self.inputs)))
        object.__setattr__(self, "targets", to_native_array(as_float_array(self.targets, "targets")))
        if len(self.inputs) != len(self.targets):
            raise InputError(
                f"There are {len(self.inputs):,} inputs but {len(self.targets):,} targets. Pass one target "
                "row per input row.",
                field="inputs",
            )
        if self.targets.ndim != 2:
            shape = self.targets.shape
            raise InputError(
                f"Targets must have shape (rows, targets), not {shape}. {ONE_TARGET}.",
                field="targets",
            )

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:  # without values: rows may be private
        return f"Split(inputs {np.shape(self.inputs)}, targets {self.targets.shape})"

    @classmethod
    def concatenate(cls, parts: Iterable[Split]) -> Split:
        """Join the rows of several clients."""
        inputs, targets = zip(*((part.inputs, part.targets) for part in parts), strict=True)
        return cls(np.concatenate(inputs), np.concatenate(targets))

    def take(self, rows: Any) -> Split:
        """Select rows by index, slice or mask."""
        return Split(self.inputs[rows], self.targets[rows])
