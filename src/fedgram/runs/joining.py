"""What joining changes at the sites of a blended run, where each also trains a model alone.

Both models predict the same test rows, so a site measures the change without the rows of other sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import pluralize
from fedgram.runs.paired_bootstrap import relative_change

ALONE_MSE, CHANGE_LOW, CHANGE_HIGH = JOINING = ("alone_mse", "change_low", "change_high")
"""Test error of the model trained alone, and the 95 % interval of its relative change by joining."""


def measure_joining(
    joined: Sequence[Array], alone: Sequence[Array], targets: Sequence[Array], *, in_time_order: bool = False
) -> dict[str, Array]:
    """Compare predictions (N_m, C) of both models with the targets of each site's test rows.

    Test rows in order of time are resampled in blocks.

    Returns
    -------
    dict of arrays (M,)
        By the names in JOINING. NaN without test rows, if a model diverged and, in the interval, with too few
        test rows.

    Examples
    --------
    >>> import numpy as np
    >>> targets = [np.zeros((8, 1))]
    >>> measured = measure_joining([targets[0] + 1], [targets[0] + 2], targets)
    >>> {name: values.tolist() for name, values in measured.items()}
    {'alone_mse': [4.0], 'change_low': [-0.75], 'change_high': [-0.75]}
    """
    errors = np.full((len(targets), len(JOINING)), np.nan)
    for m, (own, shared, y) in enumerate(zip(alone, joined, targets, strict=True)):
        before, after = (own - y) ** 2, (shared - y) ** 2
        if len(y) and np.isfinite([before, after]).all():
            errors[m] = before.mean(), *relative_change([before], [after], in_time_order=in_time_order)
    return dict(zip(JOINING, errors.T, strict=True))


@dataclass(frozen=True, eq=False)
class Joining:
    """Test errors with the chosen models and with models trained alone, (M,) each.

    rows: test rows; joined and alone: NaN where a site did not report; low and high: 95 % interval of the
    relative change, NaN with too few rows.
    """

    sites: Sequence[str]
    rows: Array
    joined: Array
    alone: Array
    low: Array
    high: Array

    @classmethod
    def from_chosen(
        cls, chosen: Mapping[str, Any], sites: Sequence[str], rows: Sequence[int]
    ) -> Joining | None:
        """Read what a run's account has of its chosen models; None if no site compared both."""
        if ALONE_MSE not in chosen:
            return None
        found = cls(sites, np.array(rows), *(_to_floats(chosen[name]) for name in ("test_mse", *JOINING)))
        return found if found.is_compared.any() else None

    @property
    def is_compared(self) -> Array:
        """Whether each site has both errors, (M,)."""
        return np.isfinite(self.joined) & np.isfinite(self.alone)

    def document(self) -> list[dict[str, Any]]:
        """Convert to JSON values, one dict per site; what is unknown is null."""
        names = ("test_mse", *JOINING)
        columns = zip(self.joined, self.alone, self.low, self.high, strict=True)
        return [
            {"site": site, "test_rows": int(rows)}
            | {name: float(x) if np.isfinite(x) else None for name, x in zip(names, values, strict=True)}
            for site, rows, values in zip(self.sites, self.rows, columns, strict=True)
        ]

    def describe(self) -> str:
        """State the errors over all sites that compared both models, and how many gain or lose clearly."""
        is_compared = self.is_compared
        weights = self.rows[is_compared] / self.rows[is_compared].sum()
        gain, loss = int((self.high < 0).sum()), int((self.low > 0).sum())
        undecided = int((is_compared & np.isfinite(self.low)).sum()) - gain - loss
        untested = len(weights) - gain - loss - undecided
        few = f", too few test rows at {untested}" if untested else ""
        chance = " If joining changes nothing, one of 40 sites shows a clear loss by chance." if loss else ""
        return (
            f"Joining changes the mean squared error over the test rows of {pluralize(len(weights), 'site')} "
            f"from {weights @ self.alone[is_compared]:.3g} to {weights @ self.joined[is_compared]:.3g}: "
            f"clear gain at {gain}, clear loss at {loss}, no clear difference at {undecided}{few}.{chance}"
        )

    def describe_site(self, m: int) -> str:
        """State the errors of a site that compared both models, and the interval of the change."""
        interval = (
            f"95 % interval of the change: {format_change(self.low[m])} to {format_change(self.high[m])}"
            if np.isfinite(self.low[m])
            else "too few rows to tell"
        )
        return (
            f"Joining changes the mean squared error on {pluralize(int(self.rows[m]), 'test row')} of "
            f"'{self.sites[m]}' from {self.alone[m]:.3g} to {self.joined[m]:.3g} ({interval})."
        )


def describe_rmse(rmse: Mapping[str, Mapping[str, float]]) -> str:
    """State both errors of each target.

    Examples
    --------
    >>> describe_rmse({"NO2": {"alone": 21.234, "joined": 19.6}})
    "RMSE in the targets' units: NO2 21.2 alone, 19.6 joined."
    """
    errors = (f"{name} {each['alone']:.3g} alone, {each['joined']:.3g} joined" for name, each in rmse.items())
    return f"RMSE in the targets' units: {'; '.join(errors)}."


def format_change(change: float) -> str:
    """Format a relative change in percent, with its sign.

    Examples
    --------
    >>> format_change(-0.123), format_change(0.004), format_change(1.5)
    ('-12 %', '+0.4 %', '+150 %')
    """
    digits = 1 if abs(change) < 0.0995 else 0
    return f"{100 * change:+.{digits}f} %"


def _to_floats(values: Sequence[float | None]) -> Array:
    return np.array(values, dtype=np.float64)  # None becomes NaN
