"""Local loss of the unconstrained feature model over head, bias and features, eq. (1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgram._util.arrays import Array, outer
from fedgram.theory.derivatives import regularized_gram, two_sided, two_sided_transposed
from fedgram.theory.geometry import psd
from fedgram.theory.penalty import Penalty
from fedgram.ufm.profiled import Profiled


@dataclass(frozen=True, eq=False)
class Joint:
    """L_m(W, b, H) + ρ/2 ‖W - W_t‖², eq. (1) with the proximal term, at the point (W, b, H).

    W (..., C, P), b (..., C) and H (..., P, K), flattened and joined: n = C P + C + P K. broadcast W_t
    (..., C, P); proximal ρ.
    """

    sample: Sample
    penalty: Penalty
    broadcast: Array
    proximal: float = 0.0

    def join(self, head: Array, bias: Array, features: Array) -> Array:
        """Join W (..., C, P), b (..., C) and H (..., P, K) to one point (..., n)."""
        batch = bias.shape[:-1]
        return np.concatenate([head.reshape(*batch, -1), bias, features.reshape(*batch, -1)], axis=-1)

    def split(self, point: Array) -> tuple[Array, Array, Array]:
        """Split a point (..., n) into W (..., C, P), b (..., C) and H (..., P, K)."""
        w, b, h = (point[..., block] for block in self._blocks)
        targets, width = self.broadcast.shape[-2:]
        return w.reshape(*b.shape[:-1], targets, width), b, h.reshape(*b.shape[:-1], width, -1)

    def start(self, head: Array) -> Array:
        """Optimal points for a head: b = μ and H = Wᵀ A⁻¹ (Y - μ 1ᵀ), Section 4.1.

        head (..., C, P) with leading axes that broadcast to the sample's -> (..., n).
        """
        mean = self.sample.mean
        solved = np.linalg.solve(regularized_gram(head, self.penalty), self.sample.centered)
        return self.join(np.broadcast_to(head, (*mean.shape, head.shape[-1])), mean, head.mT @ solved)

    def head(self, point: Array) -> Array:
        """W (..., C, P) of a point (..., n)."""
        return self.split(point)[0]

    @cached_property
    def profile(self) -> Profiled:
        """This loss minimized over bias and features, eq. (6)."""
        return Profiled(self.sample.covariance, self.penalty, self.broadcast, self.proximal)

    def value(self, point: Array) -> Array:
        """Loss, (...)."""
        head, bias, features = self.split(point)
        error = psd.frobenius(self._residual(head, bias, features)) ** 2
        size = self.penalty.features * psd.frobenius(features) ** 2
        ridge = self.penalty.head * psd.frobenius(head) ** 2
        proximity = self.proximal * psd.frobenius(head - self.broadcast) ** 2
        return 0.5 * ((error + size) / self.sample.count + ridge + proximity)

    def excess(self, point: Array) -> Array:
        """Loss minus `profile.floor`, as a sum of nonnegative terms that lose no digits, (...).

        The terms are the profile's excess, λ_H/2 (b - μ)ᵀ A⁻¹ (b - μ), and the distance of H from the
        ridge-optimal features at (W, b) in the metric (WᵀW + λ_H I)/2N.
        """
        head, bias, features = self.split(point)
        inverse = np.linalg.inv(regularized_gram(head, self.penalty))
        shift = bias - self.sample.mean
        offset = np.einsum("...i,...ij,...j->...", shift, inverse, shift)
        off = features - head.mT @ inverse @ self._remaining(bias)
        spread = psd.frobenius(head @ off) ** 2 + self.penalty.features * psd.frobenius(off) ** 2
        profile = self.profile.excess(self.profile.start(head))
        return profile + 0.5 * (self.penalty.features * offset + spread / self.sample.count)

    def gradient(self, point: Array) -> Array:
        """(R Hᵀ/N + λ_W W + ρ (W - W_t), R 1/N, (Wᵀ R + λ_H H)/N), R the residual, (..., n)."""
        head, bias, features = self.split(point)
        residual = self._residual(head, bias, features) / self.sample.count
        pull = self.penalty.head * head + self.proximal * (head - self.broadcast)
        shrink = (self.penalty.features / self.sample.count) * features
        return self.join(
            residual @ features.mT + pull,
            (residual @ self.sample.ones[..., None])[..., 0],
            head.mT @ residual + shrink,
        )

    def hessian(self, point: Array) -> Array:
        """Hessian as a matrix (..., n, n)."""
        head, bias, features = self.split(point)
        count, ones = self.sample.count, self.sample.ones
        eye_c, eye_p, eye_k = (np.eye(size) for size in (*head.shape[-2:], features.shape[-1]))
        ridge = (self.penalty.head + self.proximal) * eye_p
        hessian = np.zeros((*point.shape, point.shape[-1]))
        w, b, h = self._blocks
        hessian[..., w, w] = two_sided(eye_c, features @ features.mT / count + ridge)
        hessian[..., w, b] = two_sided(eye_c, features @ ones[..., None] / count)
        hessian[..., b, b] = eye_c
        residual = self._residual(head, bias, features) / count
        hessian[..., w, h] = two_sided(head / count, features) + two_sided_transposed(residual, eye_p)
        hessian[..., b, h] = two_sided(head / count, ones[..., None, :])
        metric = head.mT @ head + self.penalty.features * eye_p
        hessian[..., h, h] = two_sided(metric / count, eye_k)
        hessian[..., b, w] = hessian[..., w, b].mT
        hessian[..., h, w] = hessian[..., w, h].mT
        hessian[..., h, b] = hessian[..., b, h].mT
        return hessian

    @cached_property
    def _blocks(self) -> tuple[slice, slice, slice]:
        """Slices of W, b and H in a point."""
        targets, width = self.broadcast.shape[-2:]
        middle, end = targets * width, targets * (width + 1)
        return slice(middle), slice(middle, end), slice(end, None)

    def _remaining(self, bias: Array) -> Array:
        """Y - b 1ᵀ, (..., C, K)."""
        return self.sample.targets - outer(bias, self.sample.ones)

    def _residual(self, head: Array, bias: Array, features: Array) -> Array:
        """R = W H + b 1ᵀ - Y, (..., C, K)."""
        return head @ features - self._remaining(bias)


@dataclass(frozen=True, eq=False)
class Sample:
    """A client's targets in K orthonormal directions of its N samples.

    targets Y (..., C, K); ones (..., K), the all-ones vector in the same directions; count N. In the standard
    basis K = N and ones = 1.
    """

    targets: Array
    ones: Array
    count: int

    @classmethod
    def from_targets(cls, targets: Array) -> Sample:
        """Build the sample of raw targets (..., C, N)."""
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
        return psd.symmetric(self.centered @ self.centered.mT) / self.count

    def compress(self) -> Sample:
        """Express the sample in the C + 1 directions that 1 and the targets span.

        With Q orthogonal, eq. (1) at (W, b, H) for targets Y is eq. (1) at (W, b, H Q) for Y Q and 1ᵀ Q. The
        other directions have no targets: their optimal features, gradient and mixed second derivatives are
        zero, so no gradient or Newton step leaves zero.
        """
        span = np.concatenate([self.ones[..., :, None], self.centered.mT], axis=-1)
        basis, _ = np.linalg.qr(span)
        return Sample(self.targets @ basis, (self.ones[..., None, :] @ basis)[..., 0, :], self.count)
