"""JSON documents of predict, explain and correct (see docs/interchange.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.correct import Correction
from fedgram.theory.explain import Gap
from fedgram.theory.predict import Prediction


def prediction_document(prediction: Prediction, gap: Gap, trajectory: Array | None = None) -> dict[str, Any]:
    """Return `fedgram predict --json`."""
    moments, activity, star = prediction.moments, prediction.activity, prediction.barycenter
    clients = [
        {
            "name": name,
            "weight": float(moments.client_weights[m]),
            "active": bool(activity.active[m]),
            "margin": float(activity.margin[m]),
            "gram": prediction.grams[m].tolist(),
            "loss_optimum": float(prediction.loss_optimum[m]),
        }
        for m, name in enumerate(moments.clients)
    ]
    document = {
        "targets": list(moments.targets),
        "penalty": {"features": prediction.penalty.features, "head": prediction.penalty.head},
        "fully_active": prediction.fully_active,
        "clients": clients,
        "barycenter": {
            "gram": star.gram.tolist(),
            "residual": float(star.residual),
            "iterations": int(star.iterations),
            "converged": bool(star.converged),
        },
        "within": prediction.within.tolist(),
        "centralized": prediction.centralized.tolist(),
        "gap": gap_summary(gap),
        "notes": list(prediction.notes),
    }
    return document if trajectory is None else document | {"trajectory": trajectory.tolist()}


def gap_summary(gap: Gap) -> dict[str, float | None]:
    """Return the relative gap, its traces, and the pairwise dispersion D if there are few clients."""
    mean, covariance, averaging = gap.traces.tolist()
    return {
        "relative": float(gap.relative),
        "trace": float(gap.trace),
        "mean": mean,
        "covariance": covariance,
        "averaging": averaging,
        "pairwise_dispersion": float(gap.dispersion) if gap.few_pairs else None,
    }


def explanation_document(prediction: Prediction, gap: Gap) -> dict[str, Any]:
    """Return `fedgram explain --json`: the terms of the gap, and the share of each client and target."""
    values, basis = gap.directions
    mean, covariance, averaging = gap.by_client.tolist()
    clients = [
        {"name": name, "share": share, "mean": m, "covariance": c, "averaging": a}
        for name, share, m, c, a in zip(
            prediction.moments.clients,
            _nan_to_none(gap.client_shares),
            mean,
            covariance,
            averaging,
            strict=True,
        )
    ]
    return {
        "targets": list(prediction.moments.targets),
        "penalty": {"features": prediction.penalty.features, "head": prediction.penalty.head},
        "fully_active": prediction.fully_active,
        "gap": gap_summary(gap),
        "terms": {
            "mean": gap.mean.tolist(),
            "covariance": gap.covariance.tolist(),
            "averaging": gap.averaging.tolist(),
        },
        "smallest_eigenvalues": gap.smallest_eigenvalue.tolist(),
        "variance": float(gap.variance),
        "chain_holds": bool(gap.chain_holds),
        "bounds_hold": bool(gap.bounds_hold) if gap.few_pairs else None,
        "clients": clients,
        "target_shares": _nan_to_none(gap.target_shares),
        "directions": [
            {"eigenvalue": float(value), "direction": basis[:, i].tolist()} for i, value in enumerate(values)
        ],
        "notes": list(prediction.notes),
    }


def correction_document(correction: Correction, head: Array) -> dict[str, Any]:
    """Return `fedgram correct --json`; head (C, C) is a factor of the Gram before the round."""
    moments = correction.moments
    return {
        "targets": list(moments.targets),
        "penalty": {"features": correction.penalty.features, "head": correction.penalty.head},
        "strength": correction.strength,
        "pooled_mean": moments.pooled.mean.tolist(),
        "pooled_covariance": moments.pooled.covariance.tolist(),
        "clients": [
            {"name": name, "gram": gram.tolist(), "mean_offset": offset.tolist()}
            for name, gram, offset in zip(moments.clients, correction.grams, moments.offset, strict=True)
        ],
        "centralized": correction.centralized.tolist(),
        "after_one_round": correction.after_round(head).tolist(),
        "notes": list(correction.notes),
    }


def _nan_to_none(shares: Array) -> list[float | None]:
    """Replace NaN, the share of a gap with a negative term, by null."""
    return [None if np.isnan(share) else float(share) for share in shares]
