"""Print trained runs as tables, and format them as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from fedgram._util.text import format_bytes
from fedgram.display import run_sentences
from fedgram.display.console import PlainTable, make_console, plain_table, print_table, print_wrapped
from fedgram.display.setting_document import setting_document
from fedgram.display.site_errors import read_tested
from fedgram.runs import StoredRun
from fedgram.runs.compare import compare_runs
from fedgram.runs.expectation import SYMBOLS
from fedgram.runs.joining import Joining, format_change
from fedgram.runs.measure import RunMeasurement, measure
from fedgram.runs.procedure import BIAS_RULES

console = make_console()
_table = partial(plain_table, collapse_padding=True)

# The metrics of each table: with deviations it fits 80 columns.
TABLES = (("error", "predicted gap", "measured gap"), ("trajectory", "delta"), ("objective gap", "test MSE"))


def comparison_document(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Return `fedgram runs compare --json`: settings with finished runs, and unfinished runs."""
    tested = read_tested(runs)
    return {
        "settings": [setting_document(setting, tested) for setting in compare_runs(runs)],
        "unfinished": [_state_document(run) for run in runs if not run.has_result],
    }


def list_document(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Return `fedgram runs list --json`."""
    return {"runs": [_state_document(run) for run in runs]}


def print_comparison(runs: Sequence[StoredRun]) -> None:
    """Print `fedgram runs compare`: measured and predicted numbers of each procedure."""
    for setting in compare_runs(runs):
        print_wrapped(console, run_sentences.title(setting))
        has_limit = bool(setting.limited)
        known = ([name for name in names if name in setting.metrics] for names in TABLES)
        for metrics in filter(None, known):
            table = _table("procedure", *(["target"] if has_limit else []), *metrics, keys=1 + has_limit)
            for group in setting.groups:
                target = [group.target] if has_limit else []
                spreads = (str(group.spread(name)) for name in metrics)
                table.add_row(setting.label(group), *target, *spreads)
            print_table(console, table)
        if not setting.metrics:
            print_wrapped(console, "There are no test errors to compare, and no limits of averaged heads.")
        for note in run_sentences.notes(setting):
            print_wrapped(console, note)
    for run in runs:
        if not run.has_result:
            print_wrapped(console, f"{run.setup.run.name}: {run_sentences.state(run)}.")


def print_list(runs: Sequence[StoredRun]) -> None:
    """Print `fedgram runs list`."""
    for setting, group in groupby(runs, key=run_sentences.setting):
        print_wrapped(console, f"{setting}:")
        table = _table("procedure", "seed", "state", "seconds", "memory", keys=2)
        for run in group:
            setup, account = run.setup, run.account
            seconds = f"{account.seconds_per_run:.3g}"
            memory = format_bytes(account.peak_memory) if account.peak_memory else "not recorded"
            table.add_row(setup.procedure.name, str(setup.seed), run_sentences.state(run), seconds, memory)
        print_table(console, table)


def print_run(run: StoredRun) -> None:
    """Print one run of `fedgram runs show`, round by round."""
    measured = measure(run) if run.account.rounds else None
    for line in run_sentences.describe_run(run, measured):
        print_wrapped(console, line)
    if measured:
        if not run.setup.without_limit:
            print_table(console, _error_table(measured))
        if (table := _fit_table(measured)).row_count:  # no round may have been measured yet
            print_table(console, table)
        if measured.joining:
            print_joining(measured.joining)
            print_wrapped(console, measured.joining.describe())


def print_joining(joining: Joining) -> None:
    """Print what joining changes at each site of a blended run."""
    table = _table("site", "test rows", "MSE alone", "joined", "change", "95 % interval")
    for m in np.flatnonzero(joining.is_compared).tolist():
        alone, joined, *ends = (
            float(each[m]) for each in (joining.alone, joining.joined, joining.low, joining.high)
        )
        change = format_change(joined / alone - 1) if alone else "none"
        interval = "too few rows" if np.isnan(ends).any() else " to ".join(map(format_change, ends))
        table.add_row(
            joining.sites[m], f"{joining.rows[m]:,}", f"{alone:.3g}", f"{joined:.3g}", change, interval
        )
    print_table(console, table)


def _error_table(measured: RunMeasurement) -> PlainTable:
    name = measured.expected.target
    errors = {
        f"error to {SYMBOLS[name]}": measured.target_error,
        "direction": measured.direction_error[name],
        "error to recursion": measured.trajectory_error,
    }
    if measured.proximal_error is not None:
        errors["at this weight"] = measured.proximal_error
    table = _table("round", *errors, "delta")
    for t, row in enumerate(zip(*errors.values(), strict=True)):
        table.add_row(str(t), *_scientific([*row, *measured.delta[t - 1 : t]]))
    return table


def _fit_table(measured: RunMeasurement) -> PlainTable:
    """Objective gaps and test errors of the measured rounds, as far as there are any."""
    values = np.column_stack([measured.median_objective_gaps, measured.test_mse])
    if measured.setup.without_limit:  # its objective is not that of the theory
        values[:, 0] = np.nan
    is_known = np.isfinite(values).any(axis=0)
    names = np.array(["objective gap", *(f"test MSE, {rule}" for rule in BIAS_RULES)])
    table = _table("round", *names[is_known].tolist())
    for number, row in enumerate(values[:, is_known], start=1):
        if row.size and measured.setup.settings.is_measured(number):
            table.add_row(str(number), *_scientific(row))
    return table


def _scientific(values: Iterable[float]) -> list[str]:
    return ["none" if np.isnan(value) else f"{value:.3e}" for value in values]


def _state_document(run: StoredRun) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "complete": run.has_result,
        "setup": run.setup.document(),
        "account": run.account.document(),
    }
