"""Sentences that state what a run, or several, measured."""

from __future__ import annotations

import numpy as np

from fedgram._util.text import percent, pluralize
from fedgram.runs import StoredRun
from fedgram.runs.choice import describe_choice
from fedgram.runs.compare import Comparison, Group
from fedgram.runs.expectation import SYMBOLS
from fedgram.runs.measure import RunMeasurement


def setting(run: StoredRun) -> str:
    """State data and backbone."""
    return f"{run.setup.data.name} ({run.setup.data.kind}), {run.setup.backbone}"


def state(run: StoredRun) -> str:
    """State the progress: 'complete', '2 of 8 rounds', what is left to choose, or why it was stopped."""
    account, rounds = run.account, run.setup.settings.rounds
    if account.stopped:
        return f"stopped: {account.stopped}"
    if run.awaits_choice:
        return f"{pluralize(rounds, 'round')}, models not chosen yet"
    return "complete" if run.complete else f"{account.rounds} of {pluralize(rounds, 'round')}"


def heading(run: StoredRun) -> str:
    """State the run, its setting and its progress."""
    return f"{run.setup.run.name} on {setting(run)}: {state(run)}"


def cost(run: StoredRun) -> str:
    """State time, device and folder."""
    return f"{run.account.seconds_per_run:.3g} s on {run.account.hardware}; {run.folder}"


def outcome(measured: RunMeasurement) -> str:
    """State how far the shared head is from its target and from centralized training."""
    if reason := measured.setup.without_limit:
        return f"No limit of averaged heads applies: {reason}."
    rounds = pluralize(len(measured.delta), "round")
    symbol = SYMBOLS[measured.expected.target]
    ends = f"After {rounds}, the shared head's Gram is {percent(measured.endpoint_error)} away from {symbol}"
    if measured.expected.target == "centralized":
        return f"{ends}, the end of centralized training."
    gap, predicted = measured.error["centralized"][-1], measured.predicted_gap
    return f"{ends} and {percent(gap)} from centralized training (predicted: {percent(predicted)})."


def describe_run(run: StoredRun, measured: RunMeasurement | None) -> list[str]:
    """Return the sentences of `fedgram runs show`; nothing is measured before the first round."""
    measurement = describe_measurement(measured, _count_tested(run)) if measured else []
    chosen = [describe_choice(run.account.chosen)] if run.account.chosen else []
    return [heading(run), cost(run), *chosen, *measurement]


def describe_measurement(measured: RunMeasurement, tested: str = "") -> list[str]:
    """State the outcome of a run, and its warnings as notes; `tested`: which sites the test MSE covers."""
    kept, mse = [], measured.chosen_test_mse
    if mse is not None and not np.isnan(mse):  # rounds show the models before this choice
        kept.append(
            f"Validation rows chose the kept models: test MSE {mse:.3g}{tested}, unlike in the rounds."
        )
    return [outcome(measured), *kept, *(f"Note: {warning}" for warning in measured.warnings)]


def _count_tested(run: StoredRun) -> str:
    """Return ' over 2 of 3 sites' if sites with test rows did not report the error of the kept models."""
    rows = run.setup.data.test_rows
    errors = run.account.chosen.get("test_mse", [0.0] * len(rows))
    tested = [error is not None for error, count in zip(errors, rows, strict=True) if count]
    return "" if all(tested) else f" over {sum(tested)} of {pluralize(len(tested), 'site')}"


def describe_comparison(comparison: Comparison) -> list[str]:
    """Return the sentences of one setting of `fedgram runs compare`, and the outcome of each procedure."""
    outcomes = (state_outcome(comparison, group) for group in comparison.groups)
    return [title(comparison), *outcomes, *notes(comparison)]


def state_outcome(comparison: Comparison, group: Group) -> str:
    """State where the heads of a procedure end, as means over seeds."""
    return f"{comparison.label(group)}: {_means(group)}."


def title(comparison: Comparison) -> str:
    """State data, backbone and scale."""
    return f"{comparison.title}: {comparison.scale}"


def notes(comparison: Comparison) -> list[str]:
    """Return the warnings as notes."""
    return [f"Note: {warning}" for warning in comparison.warnings]


def _means(group: Group) -> str:
    if group.without_limit:
        mse = group.spread("test MSE").mean
        tested = "" if np.isnan(mse) else f"test MSE {mse:.3g}; "
        return f"{tested}no limit of averaged heads applies"
    error, gap, predicted = (
        percent(group.spread(metric).mean) for metric in ("error", "measured gap", "predicted gap")
    )
    return f"{error} away from {group.target}, {gap} from centralized training (predicted: {predicted})"
