"""Print what `fedgram train` trained: errors of every site and target in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rich.console import Console

from fedgram._util.arrays import Array
from fedgram._util.text import escape_text, percent, pluralize
from fedgram.display import run_sentences
from fedgram.display.console import PlainTable, plain_table, print_table, print_wrapped
from fedgram.display.sentences import format_digits
from fedgram.display.site_errors import SiteErrors, Tested, has_own_units, read_tested
from fedgram.runs import StoredRun
from fedgram.runs.compare import Comparison, Group, compare_runs
from fedgram.runs.joining import Joining

MAX_SITES = 10  # shown unless all are asked for


def print_training(console: Console, runs: Sequence[StoredRun], *, all_sites: bool = False) -> None:
    """Print one table per setting: procedures, sites and targets; at most ten sites unless all are asked for.

    Errors are means over seeds, with standard deviations. Percentages are those of `fedgram explain`.
    """
    tested = read_tested(runs)
    for setting in compare_runs(runs):
        print_wrapped(console, run_sentences.title(setting))
        has_errors = any(SiteErrors.from_group(group, tested) for group in setting.groups)
        if has_errors:
            print_wrapped(console, _describe_columns(setting))
        else:
            has_rows = any(setting.setup.data.test_rows)
            reason = "the runs have no errors of single targets" if has_rows else "there are no test rows"
            print_wrapped(console, f"No test errors: {reason}.")
        if has_errors or setting.limited:
            _print_table(console, setting, tested, all_sites)
        for note in run_sentences.notes(setting):
            print_wrapped(console, note)
    for run in runs:
        data = run.setup.data
        if not run.has_result:
            print_wrapped(console, f"{run.setup.run.name}: {run_sentences.state(run)}.")
        elif joining := Joining.from_chosen(run.account.chosen, data.clients, data.test_rows):
            print_wrapped(console, f"{run.setup.run.name}: {joining.describe()}")


def _print_table(console: Console, setting: Comparison, tested: Tested, all_sites: bool) -> None:
    print_table(console, _training_table(setting, tested, all_sites))
    omitted = len(setting.setup.data.clients) - MAX_SITES
    if omitted > 0 and not all_sites:
        print_wrapped(console, f"  and {pluralize(omitted, 'more site')} (--all shows them)")


def _describe_columns(setting: Comparison) -> str:
    units = " in the targets' own units" if has_own_units(setting) else ""
    limits = (
        " The last two columns are relative distances of Gram matrices: from the predicted limit, and from "
        "centralized training, measured (predicted)."
        if setting.limited
        else ""
    )
    return f"Errors on test rows, RMSE{units}.{limits}"


def _training_table(setting: Comparison, tested: Tested, all_sites: bool) -> PlainTable:
    names = ("procedure", "site", "target")
    numbers = ("RMSE", "R²", "from limit", "from centralized")
    table = plain_table(*names, *numbers, text=names, keys=3, collapse_padding=True)
    for group in setting.groups:
        for number, (site, target, rmse, r2) in enumerate(_error_rows(group, tested, all_sites)):
            first = number == 0
            limits = _distances(group) if first else ("", "")
            table.add_row(escape_text(setting.label(group)) if first else "", site, target, rmse, r2, *limits)
    return table


def _distances(group: Group) -> tuple[str, str]:
    if group.without_limit:
        return "-", "-"
    error, gap, predicted = (
        percent(group.spread(metric).mean) for metric in ("error", "measured gap", "predicted gap")
    )
    return error, f"{gap} ({predicted})"


def _error_rows(group: Group, tested: Tested, all_sites: bool) -> Iterator[tuple[str, str, str, str]]:
    """Yield site, target, RMSE and R² of a procedure: of all sites together, then of each."""
    data, errors = group.runs[0].setup.data, SiteErrors.from_group(group, tested)
    if errors is None:
        yield "all", "all", "none", "none"
        return
    yield from _site_rows("all", data.targets, errors.total_rmse, errors.total_r2)
    for m, client in enumerate(data.clients if all_sites else data.clients[:MAX_SITES]):
        yield from _site_rows(escape_text(client), data.targets, errors.rmse[:, m], errors.r2[:, m])


def _site_rows(
    site: str, targets: Sequence[str], rmse: Array, r2: Array
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of a site: rmse and r2 (seeds, C)."""
    for c, target in enumerate(targets):
        shown = site if c == 0 else ""
        yield (
            shown,
            escape_text(target),
            format_spread(rmse[:, c]),
            format_spread(r2[:, c], "{:.2f}".format),
        )


def format_spread(values: Array, form: Callable[[float], str] = format_digits) -> str:
    """Format the mean over seeds, with the standard deviation if there are several."""
    if np.isnan(values).any():
        return "none"
    deviation = f" ± {format_digits(values.std(ddof=1), 1)}" if len(values) > 1 else ""
    return form(float(values.mean())) + deviation
