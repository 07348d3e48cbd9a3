"""A stored run beside what theory expects of it (Appendix E, Evaluation)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.runs import Setup, StoredRun
from fedgram.runs.expectation import Expectation, Reference, expectation, references
from fedgram.runs.procedure import BIAS_RULES
from fedgram.theory.correct import correction_value
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import trajectory
from fedgram.theory.geometry.psd import closest_factor
from fedgram.theory.predict import Prediction, predict


@dataclass(frozen=True, eq=False)
class RunMeasurement:
    """The geometry, fit and errors of one run over rounds 0..T.

    grams G_t (T + 1, C, C) of the shared head, local_grams (T, M, C, C) of the returned ones, and exact_grams
    (T + 1, C, C) of the recursion from the same G_0; error e_F and direction_error d of G_t (T + 1,) to each
    reference and to the target of the procedure, NaN to a G_within of zero; delta δ_t (T,), the mean distance
    of returned heads from those that the clients select at the broadcast W_t; objective_gap (T, M),
    (L_m - L⋆_m) / L⋆_m of eq. (1) with the correction that the procedure adds to it, NaN where a client did
    not answer; train_mse and test_mse (T, 3) over all rows of those that did, under each of the BIAS_RULES,
    NaN without test rows. absent (T, M): who did not answer, or did not measure errors. prediction is for
    the clients' targets as they are.
    """

    setup: Setup
    prediction: Prediction
    expected: Expectation
    grams: Array
    local_grams: Array
    exact_grams: Array
    error: Mapping[Reference, Array]
    direction_error: Mapping[Reference, Array]
    delta: Array
    objective_gap: Array
    train_mse: Array
    test_mse: Array
    absent: Array

    @property
    def target_error(self) -> Array:
        """e_F to the target of the procedure, (T + 1,)."""
        return self.error[self.expected.target]

    @property
    def endpoint_error(self) -> float:
        """e_F of the last Gram to the target of the procedure."""
        return float(self.target_error[-1])

    @property
    def trajectory_error(self) -> Array:
        """e_F to the exact recursion from the same start, (T + 1,)."""
        return psd.relative_error(self.grams, self.exact_grams)

    @property
    def median_trajectory_error(self) -> float:
        """Median of the trajectory error over rounds 1..T."""
        return float(np.median(self.trajectory_error[1:]))

    @property
    def last_delta(self) -> float:
        """δ of the last round."""
        return float(self.delta[-1])

    @property
    def median_objective_gaps(self) -> Array:
        """Median over the clients that answered of the relative objective gap, (T,)."""
        return np.nanmedian(self.objective_gap, axis=1)

    @property
    def median_objective_gap(self) -> float:
        """The same in the last round."""
        return float(self.median_objective_gaps[-1])

    @property
    def last_mse(self) -> tuple[float, float]:
        """Train and test MSE after the last round, under the procedure's own bias rule."""
        rule = BIAS_RULES.index(self.setup.procedure.bias)
        return float(self.train_mse[-1, rule]), float(self.test_mse[-1, rule])

    @property
    def lasting_mse(self) -> tuple[float, float]:
        """Least test MSE of all rounds, and that of the last, under a private bias.

        Under the shared one it grows as heads near their limit, whatever networks do.
        """
        errors = self.test_mse[:, BIAS_RULES.index("private")]
        whole = np.where(self.absent.any(axis=1), np.nan, errors)  # of other clients they are other errors
        return float(np.fmin.reduce(whole)), float(whole[-1])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the numbers do not say by themselves; empty in the fully active regime, with all clients."""
        return *self.prediction.notes, *self._absences()

    def _absences(self) -> list[str]:
        """Which clients did not answer, and when."""
        return [
            f"Client '{client}' did not answer or measure in {_rounds(rounds)}; fit and errors there are of "
            "those that did."
            for client, rounds in zip(self.setup.data.clients, self.absent.T, strict=False)
            if rounds.any()
        ]

    def document(self) -> dict[str, Any]:
        """What `fedgram runs show --json` prints for one run; NaN becomes null."""
        return {
            "procedure": self.setup.procedure.name,
            "seed": self.setup.seed,
            "data": {"name": self.setup.data.name, "kind": self.setup.data.kind},
            "backbone": self.setup.backbone,
            "target": self.expected.target,
            "target_gram": self.expected.gram.tolist(),
            "grams": self.grams.tolist(),
            "error": {name: _without_nan(values) for name, values in self.error.items()},
            "direction_error": {name: _without_nan(values) for name, values in self.direction_error.items()},
            "delta": self.delta.tolist(),
            "trajectory_error": self.trajectory_error.tolist(),
            "objective_gap": _without_nan(self.objective_gap),
            "train_mse": dict(zip(BIAS_RULES, _without_nan(self.train_mse.T), strict=True)),
            "test_mse": dict(zip(BIAS_RULES, _without_nan(self.test_mse.T), strict=True)),
            "warnings": list(self.warnings),
        }


def measure(run: StoredRun) -> RunMeasurement:
    """Measure the finished rounds of a run; needs neither its data nor the networks."""
    rounds = run.rounds()
    if not rounds:
        stopped = run.account.stopped
        why = f"was given up: {stopped}" if stopped else "has no finished round yet"
        raise InputError(f"The run in '{run.folder}' {why}.", field=str(run.folder))
    prediction = predict(run.moments, run.setup.settings.penalty)
    expected = expectation(prediction, run.setup.procedure)
    heads = np.stack([run.initial[0], *(each.head for each in rounds)])
    returned = np.stack([each.returned_heads for each in rounds])
    compared = references(prediction) | {expected.target: expected.gram}
    grams = psd.gram(heads)
    objective = np.stack([each.local_objective for each in rounds])
    added = correction_value(returned, expected.deficit, prediction.penalty)
    train_rows, test_rows = _rows(run.setup)
    train_mse = np.stack([each.train_mse for each in rounds])
    return RunMeasurement(
        setup=run.setup,
        prediction=prediction,
        expected=expected,
        grams=grams,
        local_grams=psd.gram(returned),
        exact_grams=trajectory(heads[0], expected.grams, expected.client_weights, len(rounds)),
        error={name: psd.relative_error(grams, gram) for name, gram in compared.items()},
        direction_error={name: direction_error(grams, gram) for name, gram in compared.items()},
        delta=selection_distance(heads[:-1], returned, expected),
        objective_gap=(objective + added) / expected.loss_optimum - 1,
        train_mse=over_clients(train_mse, train_rows),
        test_mse=over_clients(np.stack([each.test_mse for each in rounds]), test_rows),
        absent=np.isnan(objective) | np.isnan(train_mse).any(axis=-1),
    )


def direction_error(gram: Array, reference: Array) -> Array:
    """d(G, G') = ‖G/‖G‖_F - G'/‖G'‖_F‖_F over the last two axes; NaN where one is zero."""

    def unit(matrix: Array) -> Array:
        size = psd.frobenius(matrix)[..., None, None]
        return matrix / np.where(size > 0, size, np.nan)

    return psd.frobenius(unit(gram) - unit(reference))


def selection_distance(broadcast: Array, returned: Array, expected: Expectation) -> Array:
    """δ_t = Σ p_m ‖W̃_{m,t} - Π_m(W_t)‖_F: broadcast (T, C, P), returned (T, M, C, P) -> (T,)."""
    selected = closest_factor(broadcast[:, None], expected.grams)
    return _averaged(psd.frobenius(returned - selected), expected.client_weights)


def over_clients(mse: Array, rows: Array) -> Array:
    """Mean over all rows of errors (T, M, 3) of clients with so many rows (M,): (T, 3), NaN without rows."""
    return _averaged(mse.swapaxes(1, 2), rows)


def _averaged(values: Array, client_weights: Array) -> Array:
    """Average (..., M) over the clients that have a value and a weight: (...), NaN without any."""
    counted = np.where(np.isnan(values), 0.0, client_weights)
    total = counted.sum(axis=-1)
    sums = (counted * np.nan_to_num(values)).sum(axis=-1)
    return np.divide(sums, total, out=np.full_like(sums, np.nan), where=total > 0)


def _rows(setup: Setup) -> tuple[Array, Array]:
    """How many rows each client trains and tests with, (M,) each."""
    rows = np.array([setup.data.train_rows, setup.data.test_rows], dtype=np.float64)
    if setup.procedure.centralized:
        rows = rows.sum(axis=1, keepdims=True)
    return rows[0], rows[1]


def _rounds(chosen: Array) -> str:
    """The rounds that are chosen (T,), in words."""
    numbers = [str(number + 1) for number in np.flatnonzero(chosen)]
    return f"{'round' if len(numbers) == 1 else 'rounds'} {', '.join(numbers)}"


def _without_nan(values: Array) -> list[Any]:
    """Numbers as nested lists, with null where there is none."""
    return np.where(np.isnan(values), np.array(None), values).tolist()
