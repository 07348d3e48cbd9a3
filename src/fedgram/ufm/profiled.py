"""Profiled local loss as a function of the head alone, eq. (6).

Bias and features are minimized in closed form. Losses here and in `joint` are functions of one flat point
(..., n), so solvers accept both. Leading axes index independent clients or instances.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.derivatives import fit_gradient, fit_hessian, regularized_gram
from fedgram.theory.geometry import psd
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import profiled_objective


@dataclass(frozen=True, eq=False)
class Profiled:
    """F(W; T) + ρ/2 ‖W - W_t‖², eq. (6) with the proximal term; n = C P.

    covariance T (..., C, C): Σ_m, or (1 - γ) Σ_m + γ Σ_cen under the correction γ C_m; broadcast W_t
    (..., C, P); proximal ρ.
    """

    covariance: Array
    penalty: Penalty
    broadcast: Array
    proximal: float = 0.0

    def start(self, head: Array) -> Array:
        """Flatten a head (..., C, P) to a point (..., n)."""
        return head.reshape(*head.shape[:-2], -1)

    def head(self, point: Array) -> Array:
        """Reshape a point (..., n) to a head (..., C, P)."""
        return point.reshape(*point.shape[:-1], *self.broadcast.shape[-2:])

    def value(self, point: Array) -> Array:
        """Loss, (...)."""
        head = self.head(point)
        return profiled_objective(head, self.covariance, self.penalty) + self._proximity(head)

    def excess(self, point: Array) -> Array:
        """Loss minus `floor`: λ_W/2 tr((S - A) A⁻¹ (S - A)) + ρ/2 ‖W - W_t‖² with S = α T^(1/2).

        Near the optimum F differs from its minimum by less than rounding. This form keeps the digits that a
        trust-region method needs: with `value` it stops at gradients of 1e-8.
        """
        head = self.head(point)
        gram = regularized_gram(head, self.penalty)
        short = self._optimal_gram - gram
        fit = psd.trace(short @ np.linalg.solve(gram, short))
        return 0.5 * self.penalty.head * fit + self._proximity(head)

    @cached_property
    def floor(self) -> Array:
        """λ_W tr S - λ_H λ_W C/2, (...): minimum L⋆ of F where T is fully active, else a lower bound."""
        size = self.covariance.shape[-1]
        return self.penalty.head * psd.trace(self._optimal_gram) - 0.5 * self.penalty.threshold * size

    def gradient(self, point: Array) -> Array:
        """-λ_H A⁻¹ T A⁻¹ W + λ_W W + ρ (W - W_t), (..., n)."""
        head = self.head(point)
        fit = fit_gradient(head, self.covariance, self.penalty)
        return self.start(fit + self.penalty.head * head + self.proximal * (head - self.broadcast))

    def hessian(self, point: Array) -> Array:
        """Hessian as a matrix (..., n, n)."""
        fit = fit_hessian(self.head(point), self.covariance, self.penalty)
        return fit + (self.penalty.head + self.proximal) * np.eye(fit.shape[-1])

    @cached_property
    def _optimal_gram(self) -> Array:
        """S = α T^(1/2) = φ(T) + λ_H I: A at the optimum, (..., C, C)."""
        return self.penalty.scale * psd.sqrt(self.covariance)

    def _proximity(self, head: Array) -> Array:
        return 0.5 * self.proximal * psd.frobenius(head - self.broadcast) ** 2
