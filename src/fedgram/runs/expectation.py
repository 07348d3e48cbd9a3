"""What theory expects of a procedure: what each client selects, and where averaging ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.runs.procedure import Procedure
from fedgram.theory.correct import correction_toward_pooled
from fedgram.theory.geometry.barycenter import barycenter
from fedgram.theory.predict import Prediction, local_optimum

Reference = Literal["barycenter", "centralized", "within", "partly corrected"]

SYMBOLS: dict[Reference, str] = {
    "barycenter": "G_star",
    "centralized": "G_cen",
    "within": "G_within",
    "partly corrected": "G_gamma",
}
"""The symbols of the references."""


@dataclass(frozen=True, eq=False)
class Expectation:
    """The end of a procedure under the selection rule.

    target: what its Gram (C, C) is called. grams (M, C, C) are selected by the clients, weighted by
    client_weights (M,); deficit (M, C, C) is what the correction adds to their covariances, and loss_optimum
    (M,) the least value of each client's eq. (1) with the correction. A centralized run has one client: the
    pooled data.
    """

    target: Reference
    gram: Array
    grams: Array
    client_weights: Array
    deficit: Array
    loss_optimum: Array


def expectation(prediction: Prediction, procedure: Procedure) -> Expectation:
    """What a procedure ends at, from the prediction for its clients' targets as they are.

    Uncorrected procedures end at G_⋆ and corrected ones at G_cen. Targets less their clients' means have the
    same G_⋆, and G_within in the place of G_cen. A correction of strength between 0 and 1 ends at the
    barycenter of the Grams that it moves the clients to. An end of zero is refused: no error is relative to
    it.
    """
    moments, penalty = prediction.moments, prediction.penalty
    if procedure.centralized:
        optimum = local_optimum(moments.pooled.covariance, penalty)
        gram = prediction.centralized
        return Expectation(
            "centralized", gram, gram[None], np.ones(1), np.zeros_like(gram[None]), optimum[None]
        )
    if procedure.centered:
        moments = replace(moments, mean=np.zeros_like(moments.mean))
    # Uncorrected clients may be active where their pooled data are not.
    corrected = correction_toward_pooled(moments, penalty, procedure.corrected)
    target, gram = _end(prediction, procedure, corrected.grams)
    if not gram.any():
        raise InputError(
            f"The procedure '{procedure.name}' ends at a head of zero: it leaves no client a variance above "
            f"lambda_h * lambda_w = {penalty.threshold:.6g}; use smaller penalties.",
            field="procedure",
        )
    return Expectation(
        target=target,
        gram=gram,
        grams=corrected.grams,
        client_weights=moments.client_weights,
        deficit=corrected.strength * corrected.deficit,
        loss_optimum=local_optimum(corrected.covariance, penalty),
    )


def references(prediction: Prediction) -> dict[Reference, Array]:
    """The three Grams (C, C) that every run is compared with."""
    return {
        "barycenter": prediction.barycenter.gram,
        "centralized": prediction.centralized,
        "within": prediction.within,
    }


def _end(prediction: Prediction, procedure: Procedure, grams: Array) -> tuple[Reference, Array]:
    if not procedure.corrected:
        return "barycenter", prediction.barycenter.gram
    if procedure.corrected < 1:
        return "partly corrected", barycenter(grams, prediction.moments.client_weights).gram
    return ("within", prediction.within) if procedure.centered else ("centralized", prediction.centralized)
