"""Predictions, explanations and corrections as sentences and tables.

Every `describe_*` yields what the command line prints. The sentences among it are the summary of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import pluralize
from fedgram.display import caveats, sentences
from fedgram.display.analysis import Analysis
from fedgram.display.console import PlainTable, make_console, plain_table, print_table, print_wrapped
from fedgram.theory.correct import Correction
from fedgram.theory.geometry import psd
from fedgram.theory.intervals import default_resamples
from fedgram.theory.moments import Moments
from fedgram.theory.predict import Prediction

console = make_console()

# What is shown unless `show_all`:
MAX_ROUNDS = 25  # of the first and of the last rounds
MAX_CLIENTS = 10  # in a table, a list or the notes
MAX_CAUSE_CLIENTS = 6  # columns of the table of causes that fit a terminal
MAX_EFFECTS = 12  # rows of the table of effects


@dataclass(frozen=True)
class Listing:
    """A table with the line above it, and the line about rows that it leaves out."""

    title: str
    table: PlainTable
    omitted: str = ""


def print_prediction(
    analysis: Analysis,
    trajectory: Array | None,
    proximal: float | None,
    limit: Array | None,
    *,
    show_all: bool = False,
) -> None:
    """Print the output of `fedgram predict`."""
    _print(describe_prediction(analysis, trajectory, proximal, limit, show_all=show_all))


def print_explanation(analysis: Analysis, *, show_all: bool = False) -> None:
    """Print the output of `fedgram explain`."""
    _print(describe_explanation(analysis, show_all=show_all))
    if analysis.intervals is None and default_resamples(analysis.prediction) == 0:
        _print(["Intervals take long with so many clients and targets; --resamples 200 computes them."])


def print_correction(
    correction: Correction, output: str | None, analysis: Analysis | None, *, show_all: bool = False
) -> None:
    """Print the output of `fedgram correct`."""
    _print(describe_correction(correction, analysis, show_all=show_all))
    if output is not None:
        _print([f"Wrote {output}."])


def describe_prediction(
    analysis: Analysis,
    trajectory: Array | None = None,
    proximal: float | None = None,
    limit: Array | None = None,
    *,
    show_all: bool = False,
) -> Iterator[str | Listing]:
    """Yield the parts of `fedgram predict`; `limit` is that of training with the weight `proximal`."""
    prediction = analysis.prediction
    targets, star = prediction.moments.targets, prediction.barycenter
    yield from _describe_findings(analysis)
    yield _list_effects(analysis, show_all)
    yield _list_clients(prediction, show_all)
    yield _list_matrix("Gram matrix of the shared head after federated averaging, G_⋆:", star.gram, targets)
    yield _list_matrix("Gram matrix after centralized training, G_cen:", prediction.centralized, targets)
    yield sentences.residual(star)
    if proximal is not None and limit is not None:
        yield _list_matrix(f"Gram matrix with the proximal weight {proximal:g}:", limit, targets)
        yield sentences.proximal_limit(prediction, proximal, limit)
    if trajectory is not None:
        yield _list_trajectory(prediction, trajectory, show_all)
    yield from _describe_caveats(analysis, show_all)


def describe_explanation(analysis: Analysis, *, show_all: bool = False) -> Iterator[str | Listing]:
    """Yield the parts of `fedgram explain`."""
    gap, moments = analysis.gap, analysis.moments
    yield from _describe_findings(analysis)
    if not gap.negligible:
        yield _list_effects(analysis, show_all)
        if show_all or len(moments.clients) <= MAX_CAUSE_CLIENTS:
            yield _list_causes(analysis)
        found = analysis.intervals
        shares = found.client_shares if found else None
        contributions = sentences.client_contributions(gap, moments.clients, shares)
        yield f"Contribution of each client to the gap{f' ({found.level:.0%} interval)' if found else ''}:"
        yield from (f"  {line}" for line in contributions[: _count_clients(show_all)])
        if omitted := _omitted_clients(moments, show_all):
            yield omitted
        yield sentences.target_contributions(gap, moments.targets)
    yield sentences.checks(gap)
    yield from _describe_caveats(analysis, show_all)


def describe_correction(
    correction: Correction, analysis: Analysis | None, *, show_all: bool = False
) -> Iterator[str | Listing]:
    """Yield the parts of `fedgram correct`; the analysis of the same moments is None without a limit."""
    yield from sentences.correction_plan(correction)
    if analysis is not None and not analysis.gap.negligible and correction.strength == 1:
        yield _list_effects(analysis, show_all)  # of the full correction
    moments = correction.moments
    yield _list_offsets(moments, show_all)
    yield _list_matrix("Pooled covariance that the server sends:", moments.pooled.covariance, moments.targets)
    yield from _describe_notes(correction.notes, (), show_all)
    if analysis is not None:
        yield from caveats.assumptions(analysis)
        yield from _describe_warnings(analysis)
    elif (moments.scale != 1).any():
        yield caveats.scaling(moments.targets, moments.scale)


def sentences_of(parts: Iterable[str | Listing]) -> list[str]:
    """Return the sentences among the parts."""
    return [part for part in parts if isinstance(part, str)]


def _describe_findings(analysis: Analysis) -> Iterator[str]:
    yield from sentences.findings(analysis)
    yield from _describe_warnings(analysis)
    yield sentences.setting(analysis.prediction)


def _describe_warnings(analysis: Analysis) -> Iterator[str]:
    return (f"Warning: {warning}" for warning in caveats.warnings(analysis))


def _describe_caveats(analysis: Analysis, show_all: bool) -> Iterator[str]:
    prediction = analysis.prediction
    yield from caveats.assumptions(analysis)
    yield from _describe_notes(prediction.client_notes, prediction.common_notes, show_all)


def _describe_notes(by_client: Sequence[str], common: Sequence[str], show_all: bool) -> Iterator[str]:
    notes = list(by_client[: _count_clients(show_all)])
    if len(notes) < len(by_client):
        rest = pluralize(len(by_client) - len(notes), "more client")
        notes.append(f"The same applies to {rest} (--all shows them).")
    return (f"Note: {note}" for note in (*notes, *common))


def _list_effects(analysis: Analysis, show_all: bool) -> Listing:
    """List mean errors and differences from centralized predictions, the largest in deviations first."""
    effects, moments, found = analysis.effects, analysis.moments, analysis.intervals
    interval_heading = [f"{found.level:.0%} interval"] if found else []
    headings = ["mean error", *interval_heading, "corrected error"]
    table = plain_table(
        "Client", "target", *headings, "RMS: shared", "RMS: private", "RMS: corrected", keys=2
    )
    deviation = moments.pooled.deviation * analysis.unit_scale
    size = np.abs(effects.shared.mean_error) / deviation
    for at in np.argsort(-size, axis=None, kind="stable")[: None if show_all else MAX_EFFECTS]:
        m, c = np.unravel_index(at, size.shape)
        interval = [sentences.span(found.mean_error[m, c], deviation[c])] if found else []
        unit = "" if analysis.units[c] == moments.targets[c] else f" [{analysis.units[c]}]"
        errors = effects.shared.mean_error[m, c], effects.corrected.mean_error[m, c]
        differences = (
            effect.rms_difference[m, c] for effect in (effects.shared, effects.private, effects.corrected)
        )
        now, corrected, *rest = (sentences.short(value, deviation[c]) for value in (*errors, *differences))
        table.add_row(moments.clients[m], moments.targets[c] + unit, now, *interval, corrected, *rest)
    title = (
        "Mean error (prediction - target) with a shared bias and with the correction, and RMS difference "
        "from centralized predictions with a shared bias, a private bias and the correction:"
    )
    omitted = size.size - table.row_count
    return Listing(
        title, table, f"  and {pluralize(omitted, 'smaller effect')} (--all shows them)" if omitted else ""
    )


def _list_offsets(moments: Moments, show_all: bool) -> Listing:
    table = plain_table("Client", *(f"offset of {name}" for name in moments.targets))
    largest = np.abs(moments.mean).max(axis=0)
    shown = moments.clients[: _count_clients(show_all)]
    for name, offset in zip(shown, moments.offset, strict=False):
        table.add_row(name, *map(sentences.number, offset, largest))
    return Listing("", table, _omitted_clients(moments, show_all))


def _list_causes(analysis: Analysis) -> Listing:
    gap, found, scale = analysis.gap, analysis.intervals, float(analysis.gap.scale)
    heading = ["trace", *([f"{found.level:.0%} interval"] if found else []), "share"]
    table = plain_table("Cause", *heading, *analysis.moments.clients)
    shares = sentences.parts_of_gap(gap, gap.traces) if gap.one_sided else ["-"] * 3
    for i, (cause, trace, share) in enumerate(zip(sentences.CAUSES, gap.traces, shares, strict=True)):
        interval = [sentences.span(found.traces[i], scale)] if found else []
        by_client = (sentences.number(part, scale) for part in gap.by_client[i])
        table.add_row(cause, sentences.number(trace, scale), *interval, share, *by_client)
    return Listing("", table)


def _list_clients(prediction: Prediction, show_all: bool) -> Listing:
    table = plain_table("Client", "rows", "weight", "smallest variance", "fully active")
    moments, activity = prediction.moments, prediction.activity
    for m, name in enumerate(moments.clients[: _count_clients(show_all)]):
        table.add_row(
            name,
            f"{moments.count[m]:,.0f}",
            f"{moments.client_weights[m]:.3f}",
            f"{activity.eigenvalue[m]:.4g}",
            "yes" if activity.active[m] else "NO",
        )
    return Listing("", table, _omitted_clients(moments, show_all))


def _count_clients(show_all: bool) -> int | None:
    """Return how many clients a list shows; None for all."""
    return None if show_all else MAX_CLIENTS


def _omitted_clients(moments: Moments, show_all: bool) -> str:
    rest = 0 if show_all else len(moments.clients) - MAX_CLIENTS
    return f"  and {rest:,} more clients (--all shows them)" if rest > 0 else ""


def _list_matrix(title: str, matrix: Array, targets: Sequence[str]) -> Listing:
    table = plain_table("", *targets)
    for name, row in zip(targets, matrix, strict=True):
        table.add_row(name, *(f"{value:.5g}" for value in row))
    return Listing(title, table)


def _list_trajectory(prediction: Prediction, trajectory: Array, show_all: bool) -> Listing:
    table = plain_table("Round", "error to G_⋆", "error to G_cen")
    references = np.stack([prediction.barycenter.gram, prediction.centralized])
    rounds = psd.relative_error(trajectory[:, None], references)
    for number, errors in enumerate(rounds):
        if show_all or number < MAX_ROUNDS or number >= len(rounds) - MAX_ROUNDS:
            table.add_row(str(number), *(f"{error:.3e}" for error in errors))
        elif number == MAX_ROUNDS:
            table.add_row("...")
    return Listing("", table)


def _print(parts: Iterable[str | Listing]) -> None:
    for part in parts:
        if isinstance(part, str):
            print_wrapped(console, part)
            continue
        if part.title:
            print_wrapped(console, part.title)
        print_table(console, part.table, indent=2)
        if part.omitted:
            print_wrapped(console, part.omitted)
