"""Linear regression of all sites, to compare networks with.

It is the ridge regression of the pooled inputs with shrunk site effects, eqs. (B6) and (B7) with the inputs
as features. Sites exchange sums once; validation rows choose all strengths.
"""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.data.problem import Problem
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.site_effects import fit_site_heads

# Entries of the sums of all sites together: 200 MB in double precision.
MAX_ENTRIES = 25_000_000


def linear_errors(problem: Problem) -> list[Array] | None:
    """Return squared errors (N_m, C) of each site's test rows; None for images and for too many inputs."""
    inputs = next(iter(problem.train.values())).inputs
    if inputs.ndim != 2 or len(problem.clients) * inputs.shape[1] ** 2 > MAX_ENTRIES:
        return None
    training, validation = (
        FeatureSums.stack([FeatureSums.from_rows(split.inputs, split.targets) for split in part.values()])
        for part in (problem.train, problem.validation)
    )
    heads = fit_site_heads(training, validation, effects=True).sites
    return [
        (heads[m].predict(np.asarray(split.inputs, float)) - split.targets) ** 2
        for m, split in enumerate(problem.test.values())
    ]
