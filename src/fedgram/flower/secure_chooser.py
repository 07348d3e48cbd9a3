"""Choose strengths and shares from totals over clients.

The choice of strengths (`search_strengths`) uses the errors e_m of trials, (T,), at M clients through their
total Σ e_m and, for the one-standard-error rule, through their scatter Σ e_m e_mᵀ. Both are sums. Any matrix
with the same total and scatter gives the same choice; `errors_with_totals` builds one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.flower.messages import (
    ALONE_METHOD,
    BLENDS,
    METHODS,
    OWN_RATIO,
    PRIOR,
    TRAINING_SUMS,
    TRIAL,
    name_sums,
)
from fedgram.flower.secure_messages import BLENDED, FINISHED, TRIED
from fedgram.runs.advice import Alone
from fedgram.runs.joining import ALONE_MSE
from fedgram.runs.procedure import Procedure
from fedgram.theory.blend import BlendSums
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.own_heads import NOISE_RATIOS, choose_common_ratio
from fedgram.theory.site_effects import Trial, search_strengths
from fedgram.theory.sum_prediction import Total

Sum = Callable[..., Total]
"""Sums a task over clients: `SecureServer.sum_task`."""


class SecureChooser:
    """The last choices of a secure run, on the models of one round."""

    def __init__(self, procedure: Procedure, sum_task: Sum, number: int, best_local: int) -> None:
        """`number` is the round of the shared model, `best_local` that of the models trained alone."""
        self.procedure, self.sum_task, self.number = procedure, sum_task, number
        self.rounds = {"model": number, "best_local": best_local}

    def choose_trial(
        self, shared: Mapping[str, Array], training: FeatureSums, validation: FeatureSums, *, deviations: bool
    ) -> Trial:
        """Choose the strengths of the moment head and of site effects."""

        def compute_errors(trials: Sequence[Trial]) -> Array:
            heads = (training.moment_head(each.ridge, averaged_map(shared)) for each in trials)
            return np.array([[validation.squared_error(head).sum()] for head in heads])

        def ask_errors(trials: Sequence[Trial]) -> Array:
            has_scatter = len({each.strengths.deviation for each in trials}) > 1
            rows = np.stack([to_row(each) for each in trials])
            size = len(trials) * (1 + len(trials) * has_scatter)
            total = self.sum_task(
                TRIED, self.number, {**shared, TRAINING_SUMS: training.to_triangle(), "trials": rows}, size,
                has_scatter=int(has_scatter), **self.rounds,
            )  # fmt: skip
            return errors_with_totals(total.numbers, len(trials), len(total.clients))

        has_effects = self.procedure.site_effects
        errors_of = ask_errors if has_effects else compute_errors
        trial, _ = search_strengths(errors_of, effects=has_effects, deviations=deviations)
        return trial

    def compare_alone(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Choose the ratio of heads of models trained alone, and find the prior of their shares."""
        size = len(BLENDS) * len(NOISE_RATIOS)
        total = self.sum_task(BLENDED, self.number, arrays, 1 + size + len(METHODS), **self.rounds)
        numbers = np.array([[float(each)] for each in total.numbers])
        errors, difference, agreement = numbers[1 : 1 + size].reshape(len(BLENDS), len(NOISE_RATIOS), 1)
        return choose_blend(numbers[0], errors, difference, agreement, alone=numbers[1 + size :])

    def finish(
        self, shared: Mapping[str, Array], sums: tuple[FeatureSums, FeatureSums] | None
    ) -> dict[str, Any]:
        """Let clients keep their models; return what was chosen. `sums`: totals of a moment head."""
        arrays = dict(shared)
        chosen: dict[str, Any] = {} if self.procedure.local else {"round": self.number}
        if sums is not None:
            trial = self.choose_trial(shared, *sums, deviations=True)
            arrays |= name_sums(*sums) | {TRIAL: to_row(trial)}
            chosen |= {"ridge": trial.ridge, **trial.strengths.document()}
        if self.procedure.blended:
            arrays |= self.compare_alone(arrays)
            chosen |= {"local_ridge": read_ratio(arrays), "local_share": float(arrays[PRIOR][0])}
        names = tested_names(self.procedure)
        total = self.sum_task(FINISHED, self.number, arrays, 1 + len(names), **self.rounds)
        rows, *errors = map(float, total.numbers)
        means = [error / rows if rows else None for error in errors]
        chosen |= dict(zip(names, means, strict=True))
        return chosen | ({"alone": read_method(arrays)} if self.procedure.blended else {})


def choose_blend(
    rows: Array, errors: Array, difference: Array, agreement: Array, alone: Array
) -> dict[str, Array]:
    """Choose how models trained alone are used, from totals over clients; return arrays of a request.

    rows (M,): validation rows of clients; errors, difference and agreement (ratios, M); alone (methods, M).
    """
    ratio = choose_common_ratio(errors)
    prior = BlendSums(rows, difference[ratio], agreement[ratio]).prior()
    return {
        OWN_RATIO: np.array(float(ratio)),
        PRIOR: np.array([prior.share, prior.weight]),
        ALONE_METHOD: np.array(float(alone.sum(axis=1).argmin())),
    }


def read_ratio(arrays: Mapping[str, Array]) -> float:
    """Return the ratio of heads of models trained alone, from the arrays of a request."""
    return NOISE_RATIOS[int(arrays[OWN_RATIO])]


def read_method(arrays: Mapping[str, Array]) -> Alone:
    """Return what sites predict with alone, from the arrays of a request."""
    return METHODS[int(arrays[ALONE_METHOD])]


def tested_names(procedure: Procedure) -> tuple[str, ...]:
    """Test errors of a finished run that are averaged, in the order of a sum."""
    return ("test_mse", ALONE_MSE) if procedure.blended else ("test_mse",)


def error_numbers(errors: Array, *, has_scatter: bool) -> list[Fraction]:
    """Return what a client adds to the sum of a search: errors (T,), and their products (T²) if asked for."""
    values = [Fraction(each) for each in errors.tolist()]
    products = [first * second for first in values for second in values] if has_scatter else []
    return values + products


def errors_with_totals(numbers: Sequence[Fraction], trials: int, clients: int) -> Array:
    """Build errors (T, M) with given totals (T,) and scatter (T, T); (T, 1) if there are only totals.

    With the centered scatter S - s sᵀ/M = V Λ Vᵀ, of rank M - 1 at most, they are s/M + V √Λ Qᵀ, where the
    columns of Q are orthonormal and have zero sums.
    """
    totals = np.array([float(each) for each in numbers[:trials]])
    if len(numbers) == trials or clients < 2:
        return totals[:, None]
    scatter = [
        float(numbers[trials + trials * row + column] - numbers[row] * numbers[column] / clients)
        for row in range(trials)
        for column in range(trials)
    ]
    values, basis = np.linalg.eigh(np.reshape(scatter, (trials, trials)))
    rank = min(trials, clients - 1)
    factor = basis[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0.0))
    # The orthogonal complement of the ones: all but the first column of a complete QR decomposition.
    directions = np.linalg.qr(np.ones((clients, 1)), mode="complete")[0][:, 1 : rank + 1]
    return totals[:, None] / clients + factor @ directions.T


def averaged_map(average: Mapping[str, Array]) -> Array:
    """Return the map (C, D) from backbone outputs to predictions of the averaged model."""
    head, layer = (np.asarray(average[name], np.float64) for name in ("head", "layer_weight"))
    return np.asarray(head @ layer)


def to_row(trial: Trial) -> Array:
    """Convert strengths to numbers of a request."""
    return np.array([trial.ridge, trial.strengths.intercept, trial.strengths.deviation])
