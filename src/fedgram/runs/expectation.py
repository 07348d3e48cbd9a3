"""Predicted end of a procedure: selected Grams, their limit, least losses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.runs.procedure import Procedure
from fedgram.theory.correct import build_correction
from fedgram.theory.geometry.barycenter import barycenter
from fedgram.theory.predict import Prediction, local_optimum

Reference = Literal["barycenter", "centralized", "within", "partly corrected"]

SYMBOLS: dict[Reference, str] = {
    "barycenter": "G_⋆",
    "centralized": "G_cen",
    "within": "G_within",
    "partly corrected": "G_γ",
}
"""Symbol of each reference Gram."""


@dataclass(frozen=True, eq=False)
class Expectation:
    """End of a procedure under the selection rule.

    target: name of its limit; gram (C, C): the limit; grams (M, C, C): selected by the clients;
    client_weights (M,); covariance (M, C, C): for which these Grams are optimal; deficit (M, C, C): added to
    the clients' covariances by the correction; loss_optimum (M,): least value of each client's eq. (1) with
    the correction. A centralized run has one client.
    """

    target: Reference
    gram: Array
    grams: Array
    client_weights: Array
    covariance: Array
    deficit: Array
    loss_optimum: Array


def expectation(prediction: Prediction, procedure: Procedure) -> Expectation:
    """Derive the end of a procedure from the prediction for its clients' targets.

    Uncorrected procedures end at the barycenter G_⋆, corrected ones at G_cen, or at G_within for centered
    targets. A correction strength between 0 and 1 ends at the barycenter of the moved Grams. A limit of zero
    is rejected because no error is relative to it.
    """
    moments, penalty = prediction.moments, prediction.penalty
    if procedure.centralized:
        optimum = local_optimum(moments.pooled.covariance, penalty)
        gram = prediction.centralized
        return Expectation(
            "centralized",
            gram,
            gram[None],
            np.ones(1),
            moments.pooled.covariance[None],
            np.zeros_like(gram[None]),
            optimum[None],
        )
    if procedure.centered:
        moments = replace(moments, mean=np.zeros_like(moments.mean))
    # Uncorrected clients may be active in directions where the pooled data are not.
    corrected = build_correction(moments, penalty, procedure.corrected)
    target, gram = _find_limit(prediction, procedure, corrected.grams)
    if not gram.any():
        raise InputError(
            f"The procedure '{procedure.name}' ends at a zero head: no client keeps a variance above "
            f"lambda_h * lambda_w = {penalty.threshold:.6g}. Use smaller penalties.",
            field="procedure",
        )
    return Expectation(
        target=target,
        gram=gram,
        grams=corrected.grams,
        client_weights=moments.client_weights,
        covariance=corrected.covariance,
        deficit=corrected.strength * corrected.deficit,
        loss_optimum=local_optimum(corrected.covariance, penalty),
    )


def references(prediction: Prediction) -> dict[Reference, Array]:
    """Return the three Grams (C, C) that every run is compared with."""
    return {
        "barycenter": prediction.barycenter.gram,
        "centralized": prediction.centralized,
        "within": prediction.within,
    }


def _find_limit(prediction: Prediction, procedure: Procedure, grams: Array) -> tuple[Reference, Array]:
    if not procedure.corrected:
        return "barycenter", prediction.barycenter.gram
    if procedure.corrected < 1:
        return "partly corrected", barycenter(grams, prediction.moments.client_weights).gram
    return ("within", prediction.within) if procedure.centered else ("centralized", prediction.centralized)
