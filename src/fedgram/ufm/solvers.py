"""Solvers for the local losses of the unconstrained feature model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import numpy as np
from scipy.optimize import minimize

from fedgram._util.arrays import Array
from fedgram.ufm.joint import Joint
from fedgram.ufm.profiled import Profiled

# Gradient norm at which the SciPy solvers stop; their defaults are too loose to see errors of 1e-7.
TOLERANCE = 1e-9

Loss = Profiled | Joint
"""A local loss at points (..., n) of all its variables."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Result of local training.

    head (..., C, P); point (..., n), all variables; gradient_norm (...) of the loss at the point.
    """

    head: Array
    point: Array
    gradient_norm: Array

    @classmethod
    def from_point(cls, loss: Loss, point: Array) -> Solution:
        """Evaluate the head and the gradient at a point (..., n)."""
        return cls(loss.head(point), point, np.linalg.norm(loss.gradient(point), axis=-1))


def trust_exact(loss: Loss, start: Array, tolerance: float = TOLERANCE) -> Solution:
    """SciPy's trust-exact with analytic gradient and dense Hessian, from a point (n,)."""
    return _scipy(loss, start, "trust-exact", hess=loss.hessian, options={"gtol": tolerance})


def proximal_path(loss: Loss, weights: Sequence[float]) -> list[Solution]:
    """Minimize at decreasing proximal weights: first from the broadcast, then from the previous minimizer."""
    point, path = loss.start(loss.broadcast), []
    for weight in weights:
        # The loss is only as steep as the weight along the optimal heads: a gradient g leaves the head
        # g / weight away from the minimizer.
        tolerance = min(TOLERANCE, 1e-6 * weight)
        path.append(trust_exact(replace(loss, proximal=weight), point, tolerance))
        point = path[-1].point
    return path


def lbfgs(loss: Loss, start: Array) -> Solution:
    """SciPy's L-BFGS-B with analytic gradient and ten corrections, from a point (n,)."""
    options = {"gtol": TOLERANCE, "ftol": 1e-15, "maxcor": 10}
    return _scipy(loss, start, "L-BFGS-B", options=options)


def adam(loss: Loss, start: Array, steps: int, rate: float = 0.02) -> Solution:
    """Full-batch Adam from points (..., n), each leading index trained by itself."""
    point = next(islice(adam_path(loss, start, rate), steps, None))
    return Solution.from_point(loss, point)


def adam_path(loss: Loss, start: Array, rate: float = 0.02) -> Iterator[Array]:
    """Yield the points (..., n) of full-batch Adam after 0, 1, 2, ... steps."""
    point, first, second = start, np.zeros_like(start), np.zeros_like(start)
    for step in count(1):
        yield point
        gradient = loss.gradient(point)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        size = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        point = point - rate / (1 - 0.9**step) * first / size


def _scipy(loss: Loss, start: Array, method: str, **keywords: Any) -> Solution:
    found = minimize(loss.excess, start, jac=loss.gradient, method=method, **keywords)
    return Solution.from_point(loss, found.x)
