"""JSON documents of predict, explain and correct (see docs/interchange.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display import caveats
from fedgram.display.analysis import Analysis
from fedgram.theory.correct import Correction
from fedgram.theory.effects import Effect, Effects
from fedgram.theory.explain import TERMS, Gap
from fedgram.theory.intervals import Intervals
from fedgram.theory.moments import Moments


def prediction_document(
    analysis: Analysis,
    trajectory: Array | None = None,
    proximal: float | None = None,
    limit: Array | None = None,
) -> dict[str, Any]:
    """Return `fedgram predict --json`; `limit` is that of training with the weight `proximal`."""
    prediction, gap = analysis.prediction, analysis.gap
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
        "penalty": asdict(prediction.penalty),
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
        **_answers(analysis),
    }
    if limit is not None:
        document |= {"proximal": {"weight": proximal, "gram": limit.tolist()}}
    return document if trajectory is None else document | {"trajectory": trajectory.tolist()}


def gap_summary(gap: Gap) -> dict[str, float | None]:
    """Return the relative gap, its traces, and the pairwise dispersion D if there are few clients."""
    return {
        "relative": float(gap.relative),
        "trace": float(gap.trace),
        **_by_term(gap.traces),
        "pairwise_dispersion": float(gap.dispersion) if gap.few_pairs else None,
    }


def explanation_document(analysis: Analysis) -> dict[str, Any]:
    """Return `fedgram explain --json`: the terms of the gap, and the share of each client and target."""
    prediction, gap = analysis.prediction, analysis.gap
    values, basis = gap.directions
    shares = zip(prediction.moments.clients, _nan_to_none(gap.client_shares), gap.by_client.T, strict=True)
    return {
        "targets": list(prediction.moments.targets),
        "penalty": asdict(prediction.penalty),
        "fully_active": prediction.fully_active,
        "gap": gap_summary(gap),
        "terms": {term: getattr(gap, term).tolist() for term in TERMS},
        "smallest_eigenvalues": gap.smallest_eigenvalue.tolist(),
        "variance": float(gap.variance),
        "chain_holds": bool(gap.chain_holds),
        "bounds_hold": bool(gap.bounds_hold) if gap.few_pairs else None,
        "clients": [{"name": name, "share": share, **_by_term(parts)} for name, share, parts in shares],
        "target_shares": _nan_to_none(gap.target_shares),
        "directions": [
            {"eigenvalue": float(value), "direction": basis[:, i].tolist()} for i, value in enumerate(values)
        ],
        "notes": list(prediction.notes),
        "intervals": _intervals(analysis.intervals, prediction.moments, analysis.sampled),
        "chance": _chance(analysis.intervals),
        **_answers(analysis),
    }


def _answers(analysis: Analysis) -> dict[str, Any]:
    """Return what predict and explain say in the targets' units, with warnings."""
    return {
        **_scaling(analysis.moments.targets, analysis.units, analysis.scale),
        "effects": effect_list(analysis.effects),
        "noise": _noise(analysis.noise),
        "outliers": list(map(asdict, analysis.outliers)),
        "relative_without_outliers": analysis.relative_without_outliers,
        "warnings": caveats.warnings(analysis),
    }


def _scaling(targets: Sequence[str], units: Sequence[str], scale: Array | None) -> dict[str, Any]:
    return {
        "units": dict(zip(targets, units, strict=True)),
        "standardized_by": None if scale is None else scale.tolist(),
    }


def effect_list(effects: Effects) -> list[dict[str, Any]]:
    """Return one object per client and target."""
    moments = effects.prediction.moments

    def numbers(effect: Effect, m: int, c: int) -> dict[str, float]:
        return {
            "mean_error": float(effect.mean_error[m, c]),
            "rms_difference": float(effect.rms_difference[m, c]),
        }

    return [
        {
            "client": client,
            "target": target,
            **numbers(effects.shared, m, c),
            "with_private_bias": numbers(effects.private, m, c),
            "with_correction": numbers(effects.corrected, m, c),
        }
        for m, client in enumerate(moments.clients)
        for c, target in enumerate(moments.targets)
    ]


def _noise(found: Intervals | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"level": found.level, "relative": found.relative.tolist(), **_by_term(found.traces)}


def _intervals(found: Intervals | None, moments: Moments, sampled: str) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "level": found.level,
        "relative": None if found.undefined else found.relative.tolist(),
        **_by_term(found.traces),
        "client_shares": [None if np.isnan(pair).any() else pair.tolist() for pair in found.client_shares],
        "mean_errors": [
            {"client": client, "target": target, "interval": found.mean_error[m, c].tolist()}
            for m, client in enumerate(moments.clients)
            for c, target in enumerate(moments.targets)
        ],
        "resamples": found.resamples,
        "resampled": sampled,
    }


def _chance(found: Intervals | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    median = None if np.isnan(found.chance_median) else found.chance_median
    return {"median": median, "p_value": found.p_value}


def correction_document(
    correction: Correction,
    head: Array,
    effects: Effects | None,
    *,
    units: Sequence[str],
    scale: Array | None,
) -> dict[str, Any]:
    """Return `fedgram correct --json`.

    head (C, C): factor of the Gram before the round. scale (C,): what targets were divided by, or None.
    """
    moments = correction.moments
    return {
        "targets": list(moments.targets),
        "penalty": asdict(correction.penalty),
        **_scaling(moments.targets, units, scale),
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
        "effects": None if effects is None else effect_list(effects),
    }


def _by_term(values: Array) -> dict[str, Any]:
    """Name the values (3, ...) of the three terms."""
    return dict(zip(TERMS, values.tolist(), strict=True))


def _nan_to_none(shares: Array) -> list[float | None]:
    """Replace NaN, the share of a gap with a negative term, by null."""
    return [None if np.isnan(share) else float(share) for share in shares]
