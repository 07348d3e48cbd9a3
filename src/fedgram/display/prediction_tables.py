"""Predictions set for a terminal: sentences first, then the tables behind them."""

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

SHOWN = 25
"""How many of the first and of the last rounds are shown; --json has all."""

SHOWN_CLIENTS = 10
"""How many clients a table, a list or the notes show; --json has all."""


def print_prediction(prediction: Prediction, gap: Gap, trajectory: Array | None) -> None:
    """`fedgram predict` for people."""
    _say([sentences.setting(prediction)])
    _say(sentences.outcome(gap))
    _print_clients(prediction)
    targets = prediction.moments.targets
    _print_matrix(
        "Federated limit, Gram matrix G_star of the shared head:", prediction.barycenter.gram, targets
    )
    _print_matrix("Centralized training, G_cen:", prediction.centralized, targets)
    star = prediction.barycenter
    played = pluralize(int(star.iterations), "iteration")
    _say([f"The limit solves its equation to {star.residual:.1e}, in {played}."])
    if trajectory is not None:
        _print_trajectory(prediction, trajectory)
    _print_notes(prediction.client_notes, prediction.common_notes)


def print_explanation(prediction: Prediction, gap: Gap) -> None:
    """`fedgram explain` for people."""
    _say([sentences.setting(prediction)])
    _say(sentences.outcome(gap))
    if not sentences.no_gap(gap):
        _print_causes(prediction, gap)
    _say([sentences.checks(gap)])
    _print_notes(prediction.client_notes, prediction.common_notes)


def print_correction(correction: Correction, output: str | None) -> None:
    """`fedgram correct` for people."""
    _say(sentences.correction_plan(correction))
    table = _table("Client", *(f"offset of {name}" for name in correction.moments.targets))
    largest = np.abs(correction.moments.mean).max()
    clients = correction.moments.clients
    for name, offset in zip(clients[:SHOWN_CLIENTS], correction.moments.offset, strict=False):
        table.add_row(name, *(sentences.number(value, float(largest)) for value in offset))
    _show(table)
    _say_rest(len(clients))
    pooled = correction.moments.pooled.covariance
    _print_matrix("Pooled covariance to send:", pooled, correction.moments.targets)
    if output is not None:
        _say([f"Wrote {output}."])
    _print_notes(correction.notes)


def _print_causes(prediction: Prediction, gap: Gap) -> None:
    clients = prediction.moments.clients
    if len(clients) <= 6:
        _print_terms(prediction, gap)
    _say(["Clients behind it, by their part of the gap's trace:"])
    _say(f"  {line}" for line in sentences.clients_behind(gap, clients)[:SHOWN_CLIENTS])
    _say_rest(len(clients))
    _say([sentences.directions_behind(gap, prediction.moments.targets)])


def _print_terms(prediction: Prediction, gap: Gap) -> None:
    table = _table("Cause", "trace", "share", *prediction.moments.clients)
    scale = float(gap.scale)
    for cause, trace, parts in zip(sentences.CAUSES, gap.traces, gap.by_client, strict=True):
        shown = (sentences.number(part, scale) for part in parts)
        share = sentences.share(trace, gap) if gap.one_sided else "-"
        table.add_row(cause, sentences.number(trace, scale), share, *shown)
    _show(table)


def _print_clients(prediction: Prediction) -> None:
    table = _table("Client", "rows", "weight", "smallest variance", "fully active")
    moments, activity = prediction.moments, prediction.activity
    for m, name in enumerate(moments.clients[:SHOWN_CLIENTS]):
        table.add_row(
            name,
            f"{moments.count[m]:,.0f}",
            f"{moments.client_weights[m]:.3f}",
            f"{activity.eigenvalue[m]:.4g}",
            "yes" if activity.active[m] else "NO",
        )
    _show(table)
    _say_rest(len(moments.clients))


def _print_notes(by_client: Sequence[str], common: Sequence[str] = ()) -> None:
    """Notes of clients, cut where they are many, and then those of all."""
    _say(f"Note: {note}" for note in by_client[:SHOWN_CLIENTS])
    if len(by_client) > SHOWN_CLIENTS:
        rest = pluralize(len(by_client) - SHOWN_CLIENTS, "more client")
        _say([f"Note: The same is true of {rest}; --json names all."])
    _say(f"Note: {note}" for note in common)


def _say_rest(clients: int) -> None:
    """How many clients were not shown."""
    if clients > SHOWN_CLIENTS:
        _say([f"  and {clients - SHOWN_CLIENTS:,} more; --json has all"])


def _print_matrix(title: str, matrix: Array, targets: Sequence[str]) -> None:
    _say([title])
    table = _table("", *targets)
    for name, row in zip(targets, matrix, strict=True):
        table.add_row(name, *(f"{value:.5g}" for value in row))
    _show(table)


def _print_trajectory(prediction: Prediction, trajectory: Array) -> None:
    table = _table("Round", "away from the limit", "away from centralized")
    references = np.stack([prediction.barycenter.gram, prediction.centralized])
    away = psd.relative_error(trajectory[:, None], references)
    last = len(trajectory) - 1
    for number, errors in enumerate(away):
        if number < SHOWN or number > last - SHOWN:
            table.add_row(str(number), *(f"{error:.3e}" for error in errors))
        elif number == SHOWN:
            table.add_row("...")
    _show(table)


def _table(*headings: str) -> Table:
    table = plain_table()
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right")
    return table


def _show(table: Table) -> None:
    console.print(Padding(table, (0, 0, 0, 2)))


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print_wrapped(console, line)
