"""Print predictions, explanations and corrections as sentences and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from rich.padding import Padding
from rich.table import Table

from fedgram._util.arrays import Array
from fedgram._util.text import pluralize
from fedgram.display import sentences
from fedgram.display.console import make_console, plain_table, print_wrapped
from fedgram.theory.correct import Correction
from fedgram.theory.explain import Gap
from fedgram.theory.geometry import psd
from fedgram.theory.predict import Prediction

console = make_console()

MAX_ROUNDS = 25  # shown of the first and of the last rounds; --json has all
MAX_CLIENTS = 10  # shown in a table, a list or the notes; --json has all
MAX_CAUSE_CLIENTS = 6  # columns of the table of causes that fit a terminal


def print_prediction(prediction: Prediction, gap: Gap, trajectory: Array | None) -> None:
    """Print the output of `fedgram predict`."""
    _print_lines([sentences.setting(prediction), *sentences.outcome(gap)])
    _print_clients(prediction)
    targets, star = prediction.moments.targets, prediction.barycenter
    _print_matrix("Gram matrix of the shared head after federated averaging, G_⋆:", star.gram, targets)
    _print_matrix("Gram matrix after centralized training, G_cen:", prediction.centralized, targets)
    iterations = pluralize(int(star.iterations), "iteration")
    _print_lines([f"Relative residual of G_⋆: {star.residual:.1e} after {iterations}."])
    if trajectory is not None:
        _print_trajectory(prediction, trajectory)
    _print_notes(prediction.client_notes, prediction.common_notes)


def print_explanation(prediction: Prediction, gap: Gap) -> None:
    """Print the output of `fedgram explain`."""
    _print_lines([sentences.setting(prediction), *sentences.outcome(gap)])
    if not gap.negligible:
        clients = prediction.moments.clients
        if len(clients) <= MAX_CAUSE_CLIENTS:
            _print_causes(gap, clients)
        contributions = sentences.client_contributions(gap, clients)[:MAX_CLIENTS]
        _print_lines(["Contribution of each client to the gap:", *(f"  {line}" for line in contributions)])
        _print_omitted(len(clients))
        _print_lines([sentences.target_contributions(gap, prediction.moments.targets)])
    _print_lines([sentences.checks(gap)])
    _print_notes(prediction.client_notes, prediction.common_notes)


def print_correction(correction: Correction, output: str | None) -> None:
    """Print the output of `fedgram correct`."""
    _print_lines(sentences.correction_plan(correction))
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


def _print_causes(gap: Gap, clients: Sequence[str]) -> None:
    table, scale = _table("Cause", "trace", "share", *clients), float(gap.scale)
    shares = sentences.parts_of_gap(gap, gap.traces) if gap.one_sided else "---"
    for cause, trace, share, parts in zip(sentences.CAUSES, gap.traces, shares, gap.by_client, strict=True):
        by_client = (sentences.number(part, scale) for part in parts)
        table.add_row(cause, sentences.number(trace, scale), share, *by_client)
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
