"""Check whether clients are active in every target direction: λ_min(Σ_m) > λ_H λ_W."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.penalty import Penalty


@dataclass(frozen=True, eq=False)
class Activity:
    """Smallest eigenvalue of each client covariance, compared with λ_H λ_W (Section 3).

    eigenvalue (..., M), the smallest of each covariance; direction (..., M, C), its eigenvector;
    threshold λ_H λ_W.
    """

    eigenvalue: Array
    direction: Array
    threshold: float

    @classmethod
    def from_covariance(cls, covariance: Array, penalty: Penalty) -> Activity:
        """Compare client covariances (..., M, C, C) with the threshold."""
        eigenvalues, basis = np.linalg.eigh(covariance)
        return cls(eigenvalues[..., 0], basis[..., :, 0], penalty.threshold)

    def __repr__(self) -> str:
        return f"Activity({np.count_nonzero(self.active)} of {self.active.size} clients fully active)"

    @property
    def margin(self) -> Array:
        """λ_min(Σ_m) - λ_H λ_W, (..., M): positive where the client is fully active."""
        return self.eigenvalue - self.threshold

    @property
    def active(self) -> Array:
        """Whether the optimal Gram of each client is positive definite, (..., M)."""
        return self.margin > 0

    def notes(self, subjects: Sequence[str], targets: tuple[str, ...]) -> tuple[str, ...]:
        """Format a note on each of M subjects ("Client 'a' is") that is not fully active."""
        eigenvalue = self.eigenvalue.reshape(-1, len(subjects))
        direction = self.direction.reshape(*eigenvalue.shape, -1)
        worst = eigenvalue.argmin(axis=0)  # over leading axes
        return tuple(
            self._note(subject, eigenvalue[at, m], describe_direction(direction[at, m], targets))
            for m, (subject, at) in enumerate(zip(subjects, worst, strict=True))
            if eigenvalue[at, m] <= self.threshold
        )

    def _note(self, subject: str, eigenvalue: float, where: str) -> str:
        smallest = float(self.eigenvalue.min())
        remedy = f"A product below {smallest:.6g}" if smallest > 0 else "No positive product"
        whom = "every client" if self.eigenvalue.shape[-1] > 1 else "them"
        return (
            f"{subject} not fully active: along {where} the target variance {max(eigenvalue, 0.0):.6g} does "
            f"not exceed lambda_h * lambda_w = {self.threshold:.6g}. {remedy} would make {whom} active."
        )


def describe_direction(direction: Array, targets: tuple[str, ...]) -> str:
    """Format a target direction (C,) as its leading targets with their loadings."""
    order = np.argsort(-np.abs(direction))
    if abs(direction[order[0]]) > 0.99:
        return f"target '{targets[order[0]]}'"
    sign = np.sign(direction[order[0]])
    parts = [f"{sign * direction[i]:+.2f} {targets[i]}" for i in order[:3] if abs(direction[i]) > 0.05]
    return "direction (" + ", ".join(parts) + ")"
