"""Results as columns of a tidy table: one row per client and target, Gram entry, round or run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import number_targets
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.runs import Runs, StoredRun
from fedgram.runs.advice import ALONE, AUTO, LABELS, Advice
from fedgram.runs.compare import METRICS, Comparison
from fedgram.runs.measure import RunMeasurement, measure
from fedgram.runs.procedure import BIAS_RULES
from fedgram.theory.correct import Correction
from fedgram.theory.effects import Effects
from fedgram.theory.explain import TERMS, Gap
from fedgram.theory.geometry import psd
from fedgram.theory.intervals import Intervals
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.theory.pooled import Pooled
from fedgram.theory.predict import Prediction

Columns = dict[str, Sequence[Any] | Array]
"""Columns of equal length by name."""

RUN_COLUMNS = ("data", "kind", "backbone", "procedure", "seed", "rounds", "is_complete", "seconds")
METRIC_COLUMNS = tuple(name.replace(" ", "_").lower() for name in METRICS)


def stack(tables: Iterable[Columns]) -> Columns:
    """Put tables with the same columns below each other."""
    tables = list(tables)
    return {name: np.concatenate([np.asarray(each[name]) for each in tables]) for name in tables[0]}


def moments_columns(moments: Moments) -> Columns:
    """One row per client and target."""
    return _grid(
        moments,
        rows=moments.count[:, None],
        weight=moments.client_weights[:, None],
        mean=moments.mean,
        deviation=np.sqrt(np.einsum("mcc->mc", moments.covariance)),
        offset=moments.offset,
    )


def pooled_columns(pooled: Pooled) -> Columns:
    """One row per target."""
    return {
        "target": number_targets(len(pooled.mean)),
        "mean": pooled.mean,
        "deviation": pooled.deviation,
        "within": np.diag(pooled.within),
        "between": np.diag(pooled.between),
    }


def penalty_columns(penalty: Penalty) -> Columns:
    """One row."""
    return {name: [getattr(penalty, name)] for name in ("features", "head", "threshold", "scale")}


def prediction_columns(prediction: Prediction) -> Columns:
    """One row per entry of a Gram; the column client is empty for those of all clients."""
    moments = prediction.moments
    grams = [("client", name, gram) for name, gram in zip(moments.clients, prediction.grams, strict=True)]
    grams += [
        ("barycenter", "", prediction.barycenter.gram),
        ("within", "", prediction.within),
        ("centralized", "", prediction.centralized),
    ]
    return stack(
        {"gram": [kind] * gram.size, "client": [client] * gram.size, **_entries(moments.targets, value=gram)}
        for kind, client, gram in grams
    )


def gram_columns(gram: Array) -> Columns:
    """One row per entry of a Gram without names of targets."""
    return _entries(number_targets(len(gram)), value=gram)


def gap_columns(gap: Gap) -> Columns:
    """One row per cause and client: its part of the trace, and that part's share."""
    clients = gap.prediction.moments.clients
    return {
        "cause": np.repeat(TERMS, len(clients)),
        "client": np.tile(clients, len(TERMS)),
        "part": gap.by_client.ravel(),
        "share": gap.shares_by_client.ravel(),
    }


def effects_columns(effects: Effects) -> Columns:
    """One row per way to predict, client and target."""
    moments = effects.prediction.moments
    return stack(
        {
            "bias": [name] * moments.mean.size,
            **_grid(moments, mean_error=effect.mean_error, rms_difference=effect.rms_difference),
        }
        for name, effect in (
            ("shared", effects.shared), ("private", effects.private), ("corrected", effects.corrected)
        )
    )  # fmt: skip


def intervals_columns(found: Intervals) -> Columns:
    """One row per quantity: the estimate from the given rows, and the ends of its interval."""
    gap, moments = found.gap, found.gap.prediction.moments

    def rows(quantity: Sequence[str], estimate: Array, ends: Array, **names: Any) -> Columns:
        nobody = {"client": [""] * estimate.size, "target": [""] * estimate.size}
        low, high = ends.reshape(-1, 2).T
        return {
            "quantity": quantity,
            **nobody,
            **names,
            "estimate": estimate.ravel(),
            "low": low,
            "high": high,
        }

    grid = _grid(moments)
    return stack(
        [
            rows(["relative gap"], np.asarray(gap.relative), found.relative),
            rows([f"{term} term" for term in TERMS], gap.traces, found.traces),
            rows(
                ["share"] * len(moments.clients),
                gap.client_shares,
                found.client_shares,
                client=moments.clients,
            ),
            rows(["mean error"] * moments.mean.size, -moments.offset * found.scale, found.mean_error, **grid),
        ]
    )


def correction_columns(correction: Correction) -> Columns:
    """One row per client and entry of its matrices."""
    targets = correction.moments.targets
    matrices = zip(correction.deficit, correction.covariance, correction.grams, strict=True)
    return stack(
        {
            "client": [client] * deficit.size,
            **_entries(targets, deficit=deficit, covariance=covariance, gram=gram),
        }
        for client, (deficit, covariance, gram) in zip(correction.moments.clients, matrices, strict=True)
    )


def head_columns(head: Array) -> Columns:
    """One row per entry of a head (C, P)."""
    targets, features = head.shape
    return {
        "target": np.repeat(number_targets(targets), features),
        "feature": np.tile(np.arange(features), targets),
        "value": head.ravel(),
    }


def problem_columns(problem: Problem) -> Columns:
    """One row per part (training, validation, test), client and target; no values of rows."""
    parts = {"training": problem.train, "validation": problem.validation, "test": problem.test}
    width = next(iter(problem.train.values())).targets.shape[1]
    targets = problem.target_names or number_targets(width)
    return stack(
        {"part": [name] * width, "client": [client] * width, **_target_columns(split, targets)}
        for name, part in parts.items()
        for client, split in part.items()
    )


def split_columns(split: Split) -> Columns:
    """One row per target; no values of rows."""
    return _target_columns(split, number_targets(split.targets.shape[1]))


def measurement_columns(measured: RunMeasurement) -> Columns:
    """One row per round; round 0 is the start, where nothing was trained.

    What compares heads with the prediction is NaN for procedures without a limit.
    """
    setup, rounds, start = measured.setup, len(measured.grams), np.full(1, np.nan)
    heads = {
        "error": measured.target_error,
        "predicted_error": psd.relative_error(measured.exact_grams, measured.expected.gram),
        "centralized_error": measured.error["centralized"],
        "trajectory_error": measured.trajectory_error,
        "delta": np.concatenate([start, measured.delta]),
        "objective_gap": np.concatenate([start, measured.median_objective_gaps]),
    }
    if setup.without_limit:
        heads = dict.fromkeys(heads, np.full(rounds, np.nan))
    errors = {
        f"{part}_mse_{rule}": np.concatenate([start, values[:, i]])
        for part, values in (("train", measured.train_mse), ("test", measured.test_mse))
        for i, rule in enumerate(BIAS_RULES)
    }
    return {
        "data": [setup.data.name] * rounds,
        "backbone": [setup.backbone] * rounds,
        "procedure": [setup.procedure.name] * rounds,
        "seed": [setup.seed] * rounds,
        "round": np.arange(rounds),
        **heads,
        **errors,
    }


def comparison_columns(comparison: Comparison) -> Columns:
    """One row per procedure, seed and round."""
    return stack(measurement_columns(run) for group in comparison.groups for run in group.runs)


def runs_columns(runs: Runs) -> Columns:
    """One row per run, with the metrics after its last round; NaN before the first."""
    rows = [_run_row(run) for run in runs]
    return {name: [row[name] for row in rows] for name in (*RUN_COLUMNS, *METRIC_COLUMNS)}


def advice_columns(advice: Advice) -> Columns:
    """One row per site, target and procedure; gain: RMSE alone minus RMSE of the procedure.

    The interval of the gain is known for the recommended way to federate only.
    """
    alone = next(each for each in advice.procedures if each.name == ALONE)
    unknown = np.full(len(advice.targets), np.nan)
    return stack(
        {
            "site": [site.name] * len(advice.targets),
            "target": advice.targets,
            "procedure": [LABELS[each.name]] * len(advice.targets),
            "rmse": each.site_rmse[m],
            "r2": each.site_r2[m],
            "gain": alone.site_rmse[m] - each.site_rmse[m],
            "gain_low": site.low if each.name == AUTO else unknown,
            "gain_high": site.high if each.name == AUTO else unknown,
            "rows": [site.rows] * len(advice.targets),
            "test_rows": [site.test_rows] * len(advice.targets),
            "verdict": [site.verdict] * len(advice.targets),
        }
        for m, site in enumerate(advice.sites)
        for each in advice.procedures
    )


def _run_row(run: StoredRun) -> dict[str, Any]:
    setup, account = run.setup, run.account
    about = (
        setup.data.name, setup.data.kind, setup.backbone, setup.procedure.name, setup.seed,
        account.rounds, run.has_result, account.seconds_per_run,
    )  # fmt: skip
    measured = measure(run) if account.rounds else None
    metrics = (metric(measured) if measured else np.nan for metric in METRICS.values())
    return dict(zip((*RUN_COLUMNS, *METRIC_COLUMNS), (*about, *metrics), strict=True))


def _target_columns(split: Split, targets: Sequence[str]) -> Columns:
    has_rows, nothing = len(split) > 0, np.full(len(targets), np.nan)
    return {
        "target": targets,
        "rows": [len(split)] * len(targets),
        "mean": split.targets.mean(axis=0) if has_rows else nothing,
        "deviation": split.targets.std(axis=0) if has_rows else nothing,
    }


def _grid(moments: Moments, **values: Array) -> Columns:
    """Name the client and target of values (M, C)."""
    clients, targets = moments.clients, moments.targets
    shape = len(clients), len(targets)
    return {
        "client": np.repeat(clients, len(targets)),
        "target": np.tile(targets, len(clients)),
        **{name: np.broadcast_to(each, shape).ravel() for name, each in values.items()},
    }


def _entries(targets: Sequence[str], **matrices: Array) -> Columns:
    """Name the row and column of the entries of matrices (C, C)."""
    return {
        "target": np.repeat(targets, len(targets)),
        "other_target": np.tile(targets, len(targets)),
        **{name: matrix.ravel() for name, matrix in matrices.items()},
    }
