"""Describe the procedures of a setting as JSON, with their errors on test rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.site_errors import SiteErrors, Tested
from fedgram.runs.compare import Comparison, Group, Spread


def setting_document(setting: Comparison, tested: Tested) -> dict[str, Any]:
    """Return one setting of `fedgram runs compare --json`.

    Every procedure has the key `tested`: `rmse` and `r2` by target in the targets' own units, and the same
    for each of its `sites`. It is None without test rows.
    """
    document = setting.document()
    for group, procedure in zip(setting.groups, document["procedures"], strict=True):
        errors = SiteErrors.from_group(group, tested)
        procedure["tested"] = None if errors is None else _describe_errors(group, errors)
    return document


def _describe_errors(group: Group, errors: SiteErrors) -> dict[str, Any]:
    data = group.runs[0].setup.data

    def by_target(values: Array) -> dict[str, Any]:
        """Mean and deviation over seeds of values (seeds, C); None where they are unknown."""
        return {target: _spread(values[:, c]) for c, target in enumerate(data.targets)}

    sites = [
        {"name": name, "rmse": by_target(errors.rmse[:, m]), "r2": by_target(errors.r2[:, m])}
        for m, name in enumerate(data.clients)
    ]
    return {"rmse": by_target(errors.total_rmse), "r2": by_target(errors.total_r2), "sites": sites}


def _spread(values: Array) -> dict[str, float] | None:
    return None if np.isnan(values).any() else vars(Spread.from_values(values))
