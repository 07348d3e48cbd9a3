"""The two penalties of the local objective, which theory and training share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import as_float
from fedgram._util.errors import InputError, check_type

LEAST = 1e-60
"""Products and roots of ratios of penalties are larger, and smaller than its inverse: powers stay finite."""


@dataclass(frozen=True)
class Penalty:
    """Feature and head penalties of the local objective, eq. (1): λ_H = features, λ_W = head."""

    features: float = 0.01
    head: float = 0.01

    def __post_init__(self) -> None:
        for name, flag in (("features", "lambda_h"), ("head", "lambda_w")):
            value = getattr(self, name)
            if not 0 < as_float(value) < np.inf:
                raise InputError(f"{flag} must be a positive number, not {value}.", field=flag)
            object.__setattr__(self, name, float(value))  # NumPy's would be multiplied in their own type
        if not (LEAST < self.threshold < 1 / LEAST and LEAST < self.scale < 1 / LEAST):
            raise InputError(
                f"lambda_h = {self.features:g} and lambda_w = {self.head:g} are out of range: their product "
                f"and the root of their ratio must lie within {LEAST:g} and {1 / LEAST:g}.",
                field="lambda_h",
            )

    @classmethod
    def or_default(cls, penalty: Penalty | None) -> Penalty:
        """The one that was given, or the default."""
        if penalty is None:
            return cls()
        check_type(penalty, cls, "Penalty(features=0.01, head=0.01) makes one")
        return penalty

    @property
    def threshold(self) -> float:
        """λ_H λ_W: target variance at or below this is not worth a feature."""
        return self.features * self.head

    @property
    def scale(self) -> float:
        """α = sqrt(λ_H / λ_W)."""
        return float(np.sqrt(self.features / self.head))
