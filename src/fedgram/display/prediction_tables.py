"""Print predictions, explanations and corrections as sentences and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from rich.padding import Padding
from rich.table import Table

from fedgram._util.arrays import Array
from fedgram._util.text import pluralize
from fedgram.display import sentences
from fedgram.display.analysis import Analysis
from fedgram.display.console import make_console, plain_table, print_wrapped
from fedgram.theory.correct import Correction
from fedgram.theory.geometry import psd
from fedgram.theory.intervals import default_resamples
from fedgram.theory.predict import Prediction

console = make_console()

MAX_ROUNDS = 25  # shown of the first and of the last rounds; --json has all
MAX_CLIENTS = 10  # shown in a table, a list or the notes; --json has all
MAX_CAUSE_CLIENTS = 6  # columns of the table of causes that fit a terminal
MAX_EFFECTS = 12  # rows of the table of effects; --json has all


def print_prediction(analysis: Analysis, trajectory: Array | None) -> None:
    """Print the output of `fedgram predict`."""
    prediction = analysis.prediction
    _print_findings(analysis)
    _print_effects(analysis)
    _print_clients(prediction)
    targets, star = prediction.moments.targets, prediction.barycenter
    _print_matrix("Gram matrix of the shared head after federated averaging, G_⋆:", star.gram, targets)
    _print_matrix("Gram matrix after centralized training, G_cen:", prediction.centralized, targets)
    iterations = pluralize(int(star.iterations), "iteration")
    _print_lines([f"Relative residual of G_⋆: {star.residual:.1e} after {iterations}."])
    if trajectory is not None:
        _print_trajectory(prediction, trajectory)
    _print_caveats(analysis)


def print_explanation(analysis: Analysis) -> None:
    """Print the output of `fedgram explain`."""
    prediction, gap = analysis.prediction, analysis.gap
    _print_findings(analysis)
    if not gap.negligible:
        _print_effects(analysis)
        clients = prediction.moments.clients
        if len(clients) <= MAX_CAUSE_CLIENTS:
            _print_causes(analysis)
        found = analysis.intervals
        shares = found.client_shares if found else None
        contributions = sentences.client_contributions(gap, clients, shares)[:MAX_CLIENTS]
        title = f"Contribution of each client to the gap{f' ({found.level:.0%} interval)' if found else ''}:"
        _print_lines([title, *(f"  {line}" for line in contributions)])
        _print_omitted(len(clients))
        _print_lines([sentences.target_contributions(gap, prediction.moments.targets)])
    _print_lines([sentences.checks(gap)])
    if analysis.intervals is None and default_resamples(prediction) == 0:
        _print_lines(["Intervals take long with so many clients and targets; --resamples 200 computes them."])
    _print_caveats(analysis)


def _print_findings(analysis: Analysis) -> None:
    _print_lines(sentences.findings(analysis))
    _print_warnings(analysis)
    _print_lines([sentences.setting(analysis.prediction)])


def _print_warnings(analysis: Analysis) -> None:
    _print_lines(f"Warning: {warning}" for warning in sentences.warnings(analysis))


def _print_caveats(analysis: Analysis) -> None:
    prediction = analysis.prediction
    _print_lines(sentences.assumptions(analysis))
    _print_notes(prediction.client_notes, prediction.common_notes)


def _print_effects(analysis: Analysis) -> None:
    """Print mean errors and differences from centralized predictions, the largest in deviations first."""
    effects, moments, found = analysis.effects, analysis.moments, analysis.intervals
    heading = ["mean error", *([f"{found.level:.0%} interval"] if found else []), "corrected"]
    table = _table("Client", "target", *heading, "RMS difference", "private bias", "corrected")
    deviation = moments.pooled.deviation * analysis.unit_scale
    size = np.abs(effects.shared.mean_error) / deviation
    for at in np.argsort(-size, axis=None, kind="stable")[:MAX_EFFECTS]:
        m, c = np.unravel_index(at, size.shape)
        interval = [sentences.span(found.mean_error[m, c], deviation[c])] if found else []
        unit = "" if analysis.units[c] == moments.targets[c] else f" [{analysis.units[c]}]"
        errors = effects.shared.mean_error[m, c], effects.corrected.mean_error[m, c]
        differences = (
            effect.rms_difference[m, c] for effect in (effects.shared, effects.private, effects.corrected)
        )
        now, corrected, *rest = (sentences.short(value, deviation[c]) for value in (*errors, *differences))
        table.add_row(moments.clients[m], moments.targets[c] + unit, now, *interval, corrected, *rest)
    _print_lines(
        [
            "Mean error (prediction - target) with a shared bias and with the correction, and RMS difference "
            "from centralized predictions with a shared bias, a private bias and the correction:"
        ]
    )
    _print_table(table)
    if size.size > MAX_EFFECTS:
        _print_lines([f"  and {size.size - MAX_EFFECTS:,} smaller effects (--json lists all)"])


def print_correction(correction: Correction, output: str | None, analysis: Analysis | None) -> None:
    """Print the output of `fedgram correct`."""
    _print_lines(sentences.correction_plan(correction))
    if analysis is not None and not analysis.gap.negligible:
        _print_effects(analysis)
    moments = correction.moments
    table = _table("Client", *(f"offset of {name}" for name in moments.targets))
    largest = float(np.abs(moments.mean).max())
    for name, offset in zip(moments.clients[:MAX_CLIENTS], moments.offset, strict=False):
        table.add_row(name, *(sentences.number(value, largest) for value in offset))
    _print_table(table)
    _print_omitted(len(moments.clients))
    _print_matrix("Pooled covariance that the server sends:", moments.pooled.covariance, moments.targets)
    if output is not None:
        _print_lines([f"Wrote {output}."])
    _print_notes(correction.notes)
    if analysis is not None:
        _print_lines(sentences.assumptions(analysis))
        _print_warnings(analysis)


def _print_causes(analysis: Analysis) -> None:
    gap, found, scale = analysis.gap, analysis.intervals, float(analysis.gap.scale)
    heading = ["trace", *([f"{found.level:.0%} interval"] if found else []), "share"]
    table = _table("Cause", *heading, *analysis.moments.clients)
    shares = sentences.parts_of_gap(gap, gap.traces) if gap.one_sided else "---"
    for i, (cause, trace, share) in enumerate(zip(sentences.CAUSES, gap.traces, shares, strict=True)):
        interval = [sentences.span(found.traces[i], scale)] if found else []
        by_client = (sentences.number(part, scale) for part in gap.by_client[i])
        table.add_row(cause, sentences.number(trace, scale), *interval, share, *by_client)
    _print_table(table)


def _print_clients(prediction: Prediction) -> None:
    table = _table("Client", "rows", "weight", "smallest variance", "fully active")
    moments, activity = prediction.moments, prediction.activity
    for m, name in enumerate(moments.clients[:MAX_CLIENTS]):
        table.add_row(
            name,
            f"{moments.count[m]:,.0f}",
            f"{moments.client_weights[m]:.3f}",
            f"{activity.eigenvalue[m]:.4g}",
            "yes" if activity.active[m] else "NO",
        )
    _print_table(table)
    _print_omitted(len(moments.clients))


def _print_notes(by_client: Sequence[str], common: Sequence[str] = ()) -> None:
    notes = list(by_client[:MAX_CLIENTS])
    if len(by_client) > MAX_CLIENTS:
        rest = pluralize(len(by_client) - MAX_CLIENTS, "more client")
        notes.append(f"The same applies to {rest} (--json lists all).")
    _print_lines(f"Note: {note}" for note in (*notes, *common))


def _print_omitted(clients: int) -> None:
    if clients > MAX_CLIENTS:
        _print_lines([f"  and {clients - MAX_CLIENTS:,} more clients (--json lists all)"])


def _print_matrix(title: str, matrix: Array, targets: Sequence[str]) -> None:
    table = _table("", *targets)
    for name, row in zip(targets, matrix, strict=True):
        table.add_row(name, *(f"{value:.5g}" for value in row))
    _print_lines([title])
    _print_table(table)


def _print_trajectory(prediction: Prediction, trajectory: Array) -> None:
    table = _table("Round", "error to G_⋆", "error to G_cen")
    references = np.stack([prediction.barycenter.gram, prediction.centralized])
    rounds = psd.relative_error(trajectory[:, None], references)
    for number, errors in enumerate(rounds):
        if number < MAX_ROUNDS or number >= len(rounds) - MAX_ROUNDS:
            table.add_row(str(number), *(f"{error:.3e}" for error in errors))
        elif number == MAX_ROUNDS:
            table.add_row("...")
    _print_table(table)


def _table(*headings: str) -> Table:
    table = plain_table()
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right")
    return table


def _print_table(table: Table) -> None:
    console.print(Padding(table, (0, 0, 0, 2)))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print_wrapped(console, line)
