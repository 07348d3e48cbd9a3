"""Measure a stored run against its prediction (Appendix E, Evaluation)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import InputError, check_type
from fedgram._util.text import escape_text, pluralize
from fedgram.runs import Setup, StoredRun
from fedgram.runs.expectation import Expectation, Reference, expectation, references
from fedgram.runs.joining import Joining
from fedgram.runs.local_progress import has_selected_heads
from fedgram.runs.procedure import BIAS_RULES
from fedgram.theory.correct import correction_value
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import trajectory
from fedgram.theory.geometry.psd import closest_factor
from fedgram.theory.predict import Prediction, predict
from fedgram.theory.proximal import proximal_trajectory


@dataclass(frozen=True, eq=False)
class RunMeasurement(DisplayMethods):
    """Geometry, fit and errors of one run over rounds 0..T.

    prediction: for the clients' targets; expected: end of the procedure.
    grams G_t (T + 1, C, C) of the shared head; local_grams (T, M, C, C) of returned heads; exact_grams
    (T + 1, C, C) of the recursion from the same G_0.
    error e_F and direction_error d (T + 1,): of G_t to each reference and to the procedure's target; NaN if
    G_within is zero.
    delta δ_t (T,): mean distance of returned heads from those that clients select at the broadcast W_t.
    objective_gap (T, M): (L_m - L⋆_m) / L⋆_m of eq. (1) with the correction; NaN for absent clients.
    train_mse and test_mse (T, 3): over all rows and targets of present clients, under each of BIAS_RULES; NaN
    without test rows, and in rounds that were not measured, like the objective gap.
    absent (T, M): clients that did not reply, or did not measure errors when others did.
    chosen_test_mse: of the models that were chosen on validation rows, over all test rows; None without.
    joining: what joining changes at the sites of a blended run; None for others.
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
    chosen_test_mse: float | None = None
    joining: Joining | None = None

    def __repr__(self) -> str:
        name, rounds = escape_text(self.setup.run.name, 80), pluralize(len(self.delta), "round")
        error = "no limit" if self.setup.without_limit else f"error {self.endpoint_error:.2e}"
        return f"RunMeasurement('{name}', {rounds}, {error})"

    @property
    def target_error(self) -> Array:
        """e_F to the procedure's target, (T + 1,)."""
        return self.error[self.expected.target]

    @property
    def endpoint_error(self) -> float:
        """e_F of the last Gram to the procedure's target."""
        return float(self.target_error[-1])

    @property
    def predicted_gap(self) -> float:
        """e_F of the procedure's target to G_cen."""
        return float(psd.relative_error(self.expected.gram, self.prediction.centralized))

    @property
    def trajectory_error(self) -> Array:
        """e_F to the exact recursion from the same start, (T + 1,)."""
        return psd.relative_error(self.grams, self.exact_grams)

    @property
    def median_trajectory_error(self) -> float:
        """Median of the trajectory error over rounds 1..T."""
        return float(np.median(self.trajectory_error[1:]))

    @cached_property
    def proximal_error(self) -> Array | None:
        """e_F to the exact rounds with the procedure's own proximal weight, (T + 1,); None without one."""
        procedure, expected = self.setup.procedure, self.expected
        if not procedure.proximal or procedure.returned == "solved" or not has_selected_heads(procedure):
            return None
        exact = proximal_trajectory(
            psd.factor(self.grams[0]), expected.covariance, expected.client_weights,
            self.prediction.penalty, procedure.proximal, len(self.delta),
        )  # fmt: skip
        return psd.relative_error(self.grams, exact)

    @property
    def last_delta(self) -> float:
        """δ of the last round."""
        return float(self.delta[-1])

    @property
    def median_objective_gaps(self) -> Array:
        """Median relative objective gap of present clients, (T,); NaN in rounds that were not measured."""
        gaps = np.full(len(self.objective_gap), np.nan)
        is_known = np.isfinite(self.objective_gap).any(axis=1)
        gaps[is_known] = np.nanmedian(self.objective_gap[is_known], axis=1)
        return gaps

    @property
    def median_objective_gap(self) -> float:
        """Median relative objective gap in the last round."""
        return float(self.median_objective_gaps[-1])

    @property
    def last_mse(self) -> tuple[float, float]:
        """Train and test MSE after the last round, under the procedure's bias rule.

        With validation rows, the test MSE is that of the chosen models.
        """
        rule = BIAS_RULES.index(self.setup.procedure.bias)
        test = float(self.test_mse[-1, rule]) if self.chosen_test_mse is None else self.chosen_test_mse
        return float(self.train_mse[-1, rule]), test

    @property
    def lasting_mse(self) -> tuple[float, float]:
        """Least test MSE of all rounds and that of the last, under a private bias.

        Under the shared bias the error also grows because heads approach their limit.
        """
        errors = self.test_mse[:, BIAS_RULES.index("private")]
        comparable = np.where(self.absent.any(axis=1), np.nan, errors)  # absent clients change the average
        return float(np.fmin.reduce(comparable)), float(comparable[-1])

    @property
    def warnings(self) -> tuple[str, ...]:
        """Notes of the prediction, and absent clients."""
        absences = (
            f"Client '{client}' did not reply or measure in {_list_rounds(rounds)}. Fit and errors of these "
            "rounds exclude it."
            for client, rounds in zip(self.setup.data.clients, self.absent.T, strict=False)
            if rounds.any()
        )
        return *self.prediction.notes, *absences

    def document(self) -> dict[str, Any]:
        """Convert to the JSON of `fedgram runs show --json`; NaN becomes null."""
        return {
            "procedure": self.setup.procedure.name,
            "seed": self.setup.seed,
            "data": {"name": self.setup.data.name, "kind": self.setup.data.kind},
            "backbone": self.setup.backbone,
            "target": self.expected.target,
            "target_gram": self.expected.gram.tolist(),
            "grams": self.grams.tolist(),
            "error": {name: _to_lists(values) for name, values in self.error.items()},
            "direction_error": {name: _to_lists(values) for name, values in self.direction_error.items()},
            "delta": _to_lists(self.delta),
            "trajectory_error": self.trajectory_error.tolist(),
            "proximal_error": None if self.proximal_error is None else self.proximal_error.tolist(),
            "objective_gap": _to_lists(self.objective_gap),
            "train_mse": dict(zip(BIAS_RULES, _to_lists(self.train_mse.T), strict=True)),
            "test_mse": dict(zip(BIAS_RULES, _to_lists(self.test_mse.T), strict=True)),
            "joining": self.joining.document() if self.joining else None,
            "warnings": list(self.warnings),
        }


def measure(run: StoredRun) -> RunMeasurement:
    """Measure the finished rounds of a run; needs neither its rows nor its networks.

    Parameters
    ----------
    run : StoredRun
        From `train` or `Runs`.

    Returns
    -------
    RunMeasurement
        Arrays over rounds: grams (T + 1, C, C), error and direction_error by reference (T + 1,), delta (T,),
        objective_gap (T, M), train_mse and test_mse (T, 3), and more.

    Raises
    ------
    InputError
        If no round is finished.

    Examples
    --------
    >>> import tempfile, numpy as np, fedgram
    >>> x = np.random.default_rng(0).standard_normal((2, 20, 3))
    >>> problem = fedgram.Problem.from_arrays(list(x), [x[0, :, :2], 2 * x[1, :, :2]])
    >>> config = fedgram.TrainConfig(rounds=2, epochs=1, features=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (run,) = fedgram.train(problem, "resmlp-small", "corrected", [0], config, folder=folder)
    ...     measured = fedgram.measure(run)
    >>> measured.grams.shape, measured.expected.target, measured.error["centralized"].shape
    ((3, 2, 2), 'centralized', (3,))
    >>> measured.to_frame()[["procedure", "seed", "round"]].values.tolist()
    [['corrected', 0, 0], ['corrected', 0, 1], ['corrected', 0, 2]]
    """
    check_type(run, StoredRun, "measure()", "Take one from Runs(folder)")
    rounds = run.rounds()
    if not rounds:
        stopped = run.account.stopped
        reason = f"was stopped because {stopped}" if stopped else "has no finished round"
        raise InputError(f"The run in '{run.folder}' {reason}.", field=str(run.folder))
    prediction = predict(run.moments, run.setup.settings.penalty)
    expected = expectation(prediction, run.setup.procedure)
    heads = np.stack([run.initial[0], *(each.head for each in rounds)])
    returned = np.stack([each.returned_heads for each in rounds])
    compared = references(prediction) | {expected.target: expected.gram}
    grams = psd.gram(heads)
    objective = np.stack([each.local_objective for each in rounds])
    # Without a head there is no objective to correct, or the correction is zero: clients that train alone.
    added = correction_value(np.nan_to_num(returned), expected.deficit, prediction.penalty)
    train_rows, test_rows = _count_rows(run.setup)
    is_measured = np.array([run.setup.settings.is_measured(each.number) for each in rounds])
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
        train_mse=average_over_clients(train_mse, train_rows),
        test_mse=average_over_clients(np.stack([each.test_mse for each in rounds]), test_rows),
        absent=is_measured[:, None] & (np.isnan(objective) | np.isnan(train_mse).any(axis=-1)),
        chosen_test_mse=_chosen_test_mse(run, test_rows),
        joining=Joining.from_chosen(run.account.chosen, run.setup.data.clients, run.setup.data.test_rows),
    )


def _chosen_test_mse(run: StoredRun, test_rows: Array) -> float | None:
    if "test_mse" not in run.account.chosen:
        return None
    errors = np.array(run.account.chosen["test_mse"], dtype=np.float64)  # None becomes NaN
    return float(_weighted_mean(errors, test_rows))


def direction_error(gram: Array, reference: Array) -> Array:
    """Compute d(G, G') = ‖G/‖G‖_F - G'/‖G'‖_F‖_F over the last two axes; NaN if one is zero."""

    def normalize(matrix: Array) -> Array:
        size = psd.frobenius(matrix)[..., None, None]
        return matrix / np.where(size > 0, size, np.nan)

    return psd.frobenius(normalize(gram) - normalize(reference))


def selection_distance(broadcast: Array, returned: Array, expected: Expectation) -> Array:
    """Compute δ_t = Σ p_m ‖W̃_{m,t} - Π_m(W_t)‖_F: broadcast (T, C, P), returned (T, M, C, P) -> (T,)."""
    selected = closest_factor(broadcast[:, None], expected.grams)
    return _weighted_mean(psd.frobenius(returned - selected), expected.client_weights)


def average_over_clients(mse: Array, rows: Array) -> Array:
    """Average errors (T, M, 3) of clients over their rows (M,): (T, 3); NaN without rows."""
    return _weighted_mean(mse.swapaxes(1, 2), rows)


def _weighted_mean(values: Array, client_weights: Array) -> Array:
    """Average (..., M) over clients with a value and a weight: (...); NaN without any."""
    counted = np.where(np.isnan(values), 0.0, client_weights)
    total = counted.sum(axis=-1)
    sums = (counted * np.nan_to_num(values)).sum(axis=-1)
    return np.divide(sums, total, out=np.full_like(sums, np.nan), where=total > 0)


def _count_rows(setup: Setup) -> tuple[Array, Array]:
    """Return the number of training and of test rows of each client, (M,) each."""
    rows = np.array([setup.data.train_rows, setup.data.test_rows], dtype=np.float64)
    if setup.procedure.centralized:
        rows = rows.sum(axis=1, keepdims=True)
    return rows[0], rows[1]


def _list_rounds(mask: Array) -> str:
    """Format the rounds of a mask (T,)."""
    numbers = [str(number + 1) for number in np.flatnonzero(mask)]
    return f"{'round' if len(numbers) == 1 else 'rounds'} {', '.join(numbers)}"


def _to_lists(values: Array) -> list[Any]:
    """Convert to nested lists; NaN becomes None."""
    return np.where(np.isnan(values), np.array(None), values).tolist()
