"""Linear regression at natural sites, to compare networks with.

A site alone fits a ridge regression on its rows. All sites together fit the ridge regression of their pooled
inputs with shrunk site effects, eqs. (B6) and (B7) with the inputs as features; they exchange sums once.
Validation rows choose all strengths.
"""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.data.problem import Problem, Split
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.site_effects import fit_site_heads
from fedgram.theory.site_ridge import fit_site_ridge

# Entries of the sums of all sites together: 200 MB in double precision.
MAX_ENTRIES = 25_000_000

LINEAR_ALONE, LINEAR_TOGETHER = "at each site alone", "with site effects, from sums over all sites,"
"""Kinds of linear regression, as sentences name them."""


def linear_errors(problem: Problem) -> dict[str, list[Array]]:
    """Return squared errors (N_m, C) of each site's test rows by kind of regression; none for images."""
    inputs = next(iter(problem.train.values())).inputs
    if inputs.ndim != 2:
        return {}
    errors = {
        LINEAR_ALONE: [
            _errors_alone(problem.train[name], problem.validation[name], problem.test[name])
            for name in problem.clients
        ]
    }
    if len(problem.clients) * inputs.shape[1] ** 2 <= MAX_ENTRIES:
        errors[LINEAR_TOGETHER] = _errors_together(problem)
    return errors


def _errors_alone(train: Split, validation: Split, test: Split) -> Array:
    ridge = fit_site_ridge((train.inputs, train.targets), (validation.inputs, validation.targets))
    return (ridge.predict(test.inputs) - test.targets) ** 2


def _errors_together(problem: Problem) -> list[Array]:
    training, validation = (
        FeatureSums.stack([FeatureSums.from_rows(split.inputs, split.targets) for split in part.values()])
        for part in (problem.train, problem.validation)
    )
    heads = fit_site_heads(training, validation, effects=True).sites
    return [
        (heads[m].predict(np.asarray(split.inputs, float)) - split.targets) ** 2
        for m, split in enumerate(problem.test.values())
    ]
