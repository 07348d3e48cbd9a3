"""A client's targets as the joint loss sees them: in the basis of the samples, or in a smaller one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.psd import transpose


@dataclass(frozen=True, eq=False)
class Sample:
    """A client's targets, written in K orthonormal directions of its N samples.

    targets Y (..., C, K); ones (..., K), the all-ones vector in the same directions; count N. In the
    samples' own basis K = N and ones = 1.
    """

    targets: Array
    ones: Array
    count: int

    @classmethod
    def of(cls, targets: Array) -> Sample:
        """The sample of raw targets (..., C, N)."""
        return cls(targets, np.ones((*targets.shape[:-2], targets.shape[-1])), targets.shape[-1])

    @cached_property
    def mean(self) -> Array:
        """μ = Y 1 / N, (..., C)."""
        return (self.targets @ self.ones[..., None])[..., 0] / self.count

    @cached_property
    def centered(self) -> Array:
        """Y - μ 1ᵀ, (..., C, K)."""
        return self.targets - outer(self.mean, self.ones)

    @cached_property
    def covariance(self) -> Array:
        """Σ = (Y - μ 1ᵀ)(Y - μ 1ᵀ)ᵀ / N, (..., C, C)."""
        return psd.symmetric(self.centered @ transpose(self.centered)) / self.count

    def rotated(self) -> Sample:
        """The same sample in the C + 1 directions that 1 and the targets span.

        With Q orthogonal, eq. (1) at (W, b, H) for targets Y is eq. (1) at (W, b, H Q) for Y Q and 1ᵀ Q. The
        directions left out hold no targets: there ridge-optimal features are zero, and so are the gradient
        and the mixed second derivatives, so that no gradient or Newton step ever leaves zero.
        """
        span = np.concatenate([self.ones[..., :, None], transpose(self.centered)], axis=-1)
        basis, _ = np.linalg.qr(span)
        return Sample(self.targets @ basis, (self.ones[..., None, :] @ basis)[..., 0, :], self.count)


def outer(column: Array, row: Array) -> Array:
    """column rowᵀ: (..., C), (..., K) -> (..., C, K)."""
    return column[..., :, None] * row[..., None, :]
