"""The model that a site of a blended run trains alone: its head, its share, and what it predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedgram._util.arrays import Array
from fedgram.federation.alone import predict_alone, sum_squares
from fedgram.federation.clients import Clients
from fedgram.federation.site_models import (
    SiteModels,
    feature_sums,
    fit_alone_heads,
    predict_part,
    site_limits,
    with_heads,
)
from fedgram.flower.messages import ALONE_ERRORS, BLENDS, METHODS, OWN_RATIO, PRIOR
from fedgram.nets.stack import Tensors
from fedgram.runs.advice import Alone
from fedgram.theory.blend import BlendSums, SharePrior
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.own_heads import NOISE_RATIOS, ratio_errors, solve_for_ratios

Arrays = dict[str, Array]

ALONE = 1
"""Index of the run that a site of a blended run trains alone."""


def sum_features(clients: Clients, models: Tensors, run: int = 0) -> tuple[FeatureSums, FeatureSums]:
    """Sum over training and over validation rows, with a leading axis of one site."""
    return feature_sums(clients, models, "train", run), feature_sums(clients, models, "validation", run)


def solve_alone(clients: Clients, tensors: Tensors) -> Tensors:
    """Return the network that the site trains alone, with its solved head; `tensors` are of all its runs."""
    run = len(clients.runs) - 1
    own = clients.of_run(tensors, run)
    return with_heads(own, fit_alone_heads(clients, own, run, common=False).sites)


def predict_methods(clients: Clients, networks: Tensors) -> dict[Alone, list[Array]]:
    """Predict the test rows without the other sites, by method; images have no ridge regression."""
    predicted = predict_alone(clients, networks, ALONE)
    return {method: predicted.get(method, predicted["network"]) for method in METHODS}


def compare_ratios(clients: Clients, local: Tensors, unseen: Tensors) -> Arrays:
    """Compare the model trained alone with the shared one on validation rows, by ratio of its head."""
    training, validation = sum_features(clients, local, ALONE)
    heads = solve_for_ratios(training)
    sums = _blend_sums(clients, [with_heads(local, heads[each]) for each in range(len(NOISE_RATIOS))], unseen)
    errors = np.maximum(ratio_errors(heads, validation)[:, 0], 0.0)  # rounding
    return dict(zip(BLENDS, (errors, sums.difference, sums.agreement), strict=True))


def sum_errors(clients: Clients, alone: Mapping[Alone, list[Array]]) -> Arrays:
    """Return squared errors on test rows without the other sites, by method."""
    targets = clients.data.target_arrays("test")
    return {ALONE_ERRORS: np.array([sum_squares(alone[method], targets) for method in METHODS])}


def blend(request: Mapping[str, Array], clients: Clients, models: SiteModels, unseen: Tensors) -> SiteModels:
    """Solve the head of the model trained alone with the ratio of a request, and find its share."""
    training, validation = sum_features(clients, models.local, ALONE)
    ratio, prior = int(request[OWN_RATIO]), SharePrior(*request[PRIOR].tolist())
    unseen_local, local = (
        with_heads(models.local, solve_for_ratios(sums)[ratio]) for sums in (training, training + validation)
    )
    shares = _blend_sums(clients, [unseen_local], unseen).shares(prior)
    return replace(models, local=local, shares=shares, limits=site_limits(clients, "train", "validation"))


def _blend_sums(clients: Clients, own: Sequence[Tensors], unseen: Tensors) -> BlendSums:
    """Compare models trained alone with the shared one on validation rows, one after the other."""
    targets = clients.data.target_arrays("validation")
    shared = predict_part(clients, unseen, "validation", 0)
    (limits,) = site_limits(clients, "train")
    alone = [np.clip(predict_part(clients, each, "validation", ALONE)[0], *limits) for each in own]
    return BlendSums.from_rows(alone, shared * len(own), targets * len(own))
