"""The two penalties of the local objective, which theory and training share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram.errors import InputError


@dataclass(frozen=True)
class Penalty:
    """Feature and head penalties of the local objective, eq. (1): λ_H = features, λ_W = head."""

    features: float = 0.01
    head: float = 0.01

    def __post_init__(self) -> None:
        for name, flag in (("features", "lambda_h"), ("head", "lambda_w")):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise InputError(f"{flag} must be a positive number, not {value:g}.", field=flag)

    @property
    def threshold(self) -> float:
        """λ_H λ_W: target variance at or below this is not worth a feature."""
        return self.features * self.head

    @property
    def scale(self) -> float:
        """α = sqrt(λ_H / λ_W)."""
        return float(np.sqrt(self.features / self.head))
