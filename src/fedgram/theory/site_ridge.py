"""Ridge regression on the rows of one site: the linear way to work alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.moment_head import FeatureSums, LinearHead
from fedgram.theory.ridge import STRENGTHS

Rows = tuple[Any, Any]
"""Inputs (N, D) and targets (N, C)."""


@dataclass(frozen=True, eq=False)
class SiteRidge:
    """Linear head on inputs minus `origin` (D,); error: squared, of all validation rows before they count."""

    head: LinearHead
    origin: Array
    validation_error: float

    def predict(self, inputs: Any) -> Array:
        """Predict targets (N, C) of inputs (N, D)."""
        return self.head.predict(np.asarray(inputs, float) - self.origin)


def fit_site_ridge(train: Rows, validation: Rows) -> SiteRidge:
    """Fit a site's training rows, choose the strength on its validation rows, and fit both again with it.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(12.0)[:, None]
    >>> ridge = fit_site_ridge((x[:9], 2 * x[:9] + 1), (x[9:], 2 * x[9:] + 1))
    >>> ridge.predict([[100.0]]).round(3).tolist()
    [[201.0]]
    """
    origin = np.asarray(train[0][0], float)  # a column that is constant at the site becomes exactly 0
    fitted, held_out = (
        FeatureSums.from_rows(np.asarray(inputs, float) - origin, targets)
        for inputs, targets in (train, validation)
    )
    strongest_first = sorted(STRENGTHS, reverse=True)  # which counts without validation rows
    errors = {each: float(held_out.squared_error(fitted.ridge(each)).sum()) for each in strongest_first}
    strength = min(errors, key=lambda each: errors[each])
    return SiteRidge((fitted + held_out).ridge(strength), origin, errors[strength])
