"""Errors on test rows of every site and target, in the targets' own units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram.data.target_scale import target_scale
from fedgram.runs import Setup, StoredRun
from fedgram.runs.compare import Comparison, Group
from fedgram.runs.held_out import HeldOutErrors

Tested = Mapping[Setup, HeldOutErrors]


@dataclass(frozen=True, eq=False)
class SiteErrors:
    """RMSE and R² of a procedure on test rows.

    rmse, r2 (seeds, M, C): at each site, NaN without test rows; R² also where a target does not vary.
    total_rmse, total_r2 (seeds, C): of all sites' rows together.
    """

    rmse: Array
    r2: Array
    total_rmse: Array
    total_r2: Array

    @classmethod
    def from_group(cls, group: Group, tested: Tested) -> SiteErrors | None:
        """Collect the errors of all seeds; None without test rows, or if a run has no stored errors."""
        found = [tested[run.setup] for run in group.runs if run.setup in tested]
        if len(found) < len(group.runs) or not any(errors.rows.any() for errors in found):
            return None
        data = group.runs[0].setup.data
        scale = target_scale(data.provenance, data.targets)
        return cls(
            rmse=scale * np.sqrt([errors.mse for errors in found]),
            r2=np.stack([errors.r2 for errors in found]),
            total_rmse=scale * np.sqrt([errors.total_mse for errors in found]),
            total_r2=np.stack([errors.total_r2 for errors in found]),
        )


def read_tested(runs: Iterable[StoredRun]) -> Tested:
    """Read the errors on test rows; runs of early versions have none."""
    return {run.setup: HeldOutErrors.from_document(run.account.tested) for run in runs if run.account.tested}


def has_own_units(setting: Comparison) -> bool:
    """Whether targets were standardized for training, so that errors are converted back."""
    data = setting.setup.data
    return bool((target_scale(data.provenance, data.targets) != 1).any())
