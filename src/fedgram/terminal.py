"""Predictions set for a terminal: sentences first, then the tables behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from rich.padding import Padding
from rich.table import Table

from fedgram import psd, words
from fedgram.correct import Correction
from fedgram.explain import Gap
from fedgram.phrases import counted
from fedgram.predict import Prediction
from fedgram.psd import Array
from fedgram.screen import ruled, say, screen

console = screen()

SHOWN = 25
"""How many of the first and of the last rounds are shown; --json has all."""


def print_prediction(prediction: Prediction, gap: Gap, trajectory: Array | None) -> None:
    """`fedgram predict` for people."""
    _say([words.setting(prediction)])
    _say(words.outcome(gap))
    _print_clients(prediction)
    targets = prediction.moments.targets
    _print_matrix(
        "Federated limit, Gram matrix G_star of the shared head:", prediction.barycenter.gram, targets
    )
    _print_matrix("Centralized training, G_cen:", prediction.centralized, targets)
    star = prediction.barycenter
    played = counted(int(star.iterations), "iteration")
    _say([f"The limit solves its equation to {star.residual:.1e}, in {played}."])
    if trajectory is not None:
        _print_trajectory(prediction, trajectory)
    _say(f"Note: {note}" for note in prediction.notes)


def print_explanation(prediction: Prediction, gap: Gap) -> None:
    """`fedgram explain` for people."""
    _say([words.setting(prediction)])
    _say(words.outcome(gap))
    table = _table("Cause", "trace", "share", *prediction.moments.clients)
    scale = float(gap.scale)
    for cause, trace, parts in zip(words.CAUSES, gap.traces, gap.by_client, strict=True):
        shown = (words.number(part, scale) for part in parts)
        share = words.share(trace, gap) if gap.one_sided else "-"
        table.add_row(cause, words.number(trace, scale), share, *shown)
    if len(prediction.moments.clients) <= 6:
        _show(table)
    if gap.relative > words.NO_GAP:
        _say(["Clients behind it, by their part of the gap's trace:"])
        listed = words.clients_behind(gap, prediction.moments.clients)
        _say(f"  {line}" for line in listed[:10])
        if len(listed) > 10:
            _say([f"  and {len(listed) - 10} more"])
        _say([words.directions_behind(gap, prediction.moments.targets)])
    _say([words.checks(gap)])
    _say(f"Note: {note}" for note in prediction.notes)


def print_correction(correction: Correction, output: str | None) -> None:
    """`fedgram correct` for people."""
    _say(words.correction_plan(correction))
    table = _table("Client", *(f"offset of {name}" for name in correction.moments.targets))
    largest = np.abs(correction.moments.mean).max()
    for name, offset in zip(correction.moments.clients, correction.moments.offset, strict=True):
        table.add_row(name, *(words.number(value, float(largest)) for value in offset))
    _show(table)
    pooled = correction.moments.pooled.covariance
    _print_matrix("Pooled covariance to send:", pooled, correction.moments.targets)
    if output is not None:
        _say([f"Wrote {output}."])
    _say(f"Note: {note}" for note in correction.notes)


def _print_clients(prediction: Prediction) -> None:
    table = _table("Client", "rows", "weight", "smallest variance", "fully active")
    moments, activity = prediction.moments, prediction.activity
    for m, name in enumerate(moments.clients):
        table.add_row(
            name,
            f"{moments.count[m]:,.0f}",
            f"{moments.client_weights[m]:.3f}",
            f"{activity.eigenvalue[m]:.4g}",
            "yes" if activity.active[m] else "NO",
        )
    _show(table)


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
    table = ruled()
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right")
    return table


def _show(table: Table) -> None:
    console.print(Padding(table, (0, 0, 0, 2)))


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        say(console, line)
