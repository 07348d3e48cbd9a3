"""Feature and head penalties of the local objective, eq. (1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import as_float
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import InputError, check_type

# λ_H λ_W and sqrt(λ_H / λ_W) are above this and below its inverse, so that their powers stay finite.
LEAST = 1e-60


@dataclass(frozen=True)
class Penalty(DisplayMethods):
    """Feature and head penalties of the local objective, eq. (1).

    Parameters
    ----------
    features
        λ_H, positive.
    head
        λ_W, positive.

    Raises
    ------
    InputError
        If a penalty is not a positive number, or too large or small to compute with.

    Examples
    --------
    >>> from fedgram import Penalty
    >>> penalty = Penalty(features=0.04, head=0.01)
    >>> penalty.scale, penalty.threshold
    (2.0, 0.0004)
    >>> print(penalty.summary())
    Penalties: lambda_h = 0.04, lambda_w = 0.01.
    Directions with a target variance of at most lambda_h * lambda_w = 0.0004 are inactive.
    """

    features: float = 0.01
    head: float = 0.01

    def __post_init__(self) -> None:
        for name, flag in (("features", "lambda_h"), ("head", "lambda_w")):
            value = getattr(self, name)
            if not 0 < as_float(value) < np.inf:
                raise InputError(f"{name} ({flag}) must be a positive number, not {value}.", field=flag)
            object.__setattr__(self, name, float(value))  # NumPy would multiply float32 in float32
        if not (LEAST < self.threshold < 1 / LEAST and LEAST < self.scale < 1 / LEAST):
            raise InputError(
                f"lambda_h = {self.features:g} and lambda_w = {self.head:g} are out of range. Their product "
                f"and the root of their ratio must be between {LEAST:g} and {1 / LEAST:g}.",
                field="lambda_h",
            )

    @classmethod
    def or_default(cls, penalty: Penalty | None) -> Penalty:
        """Return `penalty`, or the default for None."""
        if penalty is None:
            return cls()
        check_type(penalty, cls, "penalty=", "Build it with Penalty(features=0.01, head=0.01)")
        return penalty

    @property
    def threshold(self) -> float:
        """λ_H λ_W: directions with at most this target variance are inactive."""
        return self.features * self.head

    @property
    def scale(self) -> float:
        """α = sqrt(λ_H / λ_W)."""
        return float(np.sqrt(self.features / self.head))
