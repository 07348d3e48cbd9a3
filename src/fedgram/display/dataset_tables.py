"""Print the list of datasets and the inspection of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import format_bytes
from fedgram.data.datasets.inspection import CheckedFile, Inspection, Presence
from fedgram.data.target_scale import target_scale
from fedgram.display import caveats, sentences
from fedgram.display.console import PlainTable, make_console, plain_table, print_table, print_wrapped
from fedgram.theory.explain import explain

console = make_console()
MAX_FILES = 12  # with a line each; more files share one line


def print_list(folder: Path, found: Sequence[Presence]) -> None:
    """Print the output of `fedgram data list`."""
    console.print(f"Data directory: {folder}", soft_wrap=True)
    headings = ("name", "kind", "files", "size", "license")
    table = plain_table(*headings, text=headings)
    for each in found:
        entry, on_disk = each.dataset, format_bytes(each.bytes) if each.bytes else ""
        table.add_row(entry.name, entry.kind, each.state, on_disk, entry.license)
    print_table(console, table)
    console.print("Sources and citations:")
    for entry in (each.dataset for each in found if each.dataset.published.startswith("http")):
        console.print(f"  {entry.name}: {entry.published}\n    {entry.citation}", soft_wrap=True)
    console.print("To get a missing dataset, run 'fedgram data fetch NAME'.", soft_wrap=True)


def print_inspection(inspection: Inspection) -> None:
    """Print the output of `fedgram data check`."""
    problem, prediction = inspection.problem, inspection.prediction
    console.print(f"{problem.name}: {inspection.dataset.title} ({problem.kind})", soft_wrap=True)
    for line in _file_lines(inspection.files):
        console.print(f"  {line}", soft_wrap=True)
    console.print(f"{sentences.inputs(problem)} {sentences.setting(prediction)}", soft_wrap=True)
    print_table(console, _client_table(inspection))
    targets = prediction.moments.targets
    scale = target_scale(problem.provenance, targets)
    if (scale != 1).any():
        divided = caveats.list_scales(targets, scale)
        print_wrapped(console, f"Means and deviations are those of targets divided by {divided}.")
    for sentence in (*sentences.outcome(explain(prediction)), *prediction.notes):
        print_wrapped(console, sentence)


def _file_lines(files: Sequence[CheckedFile]) -> list[str]:
    if len(files) > MAX_FILES:
        return [f"{len(files):,} files: {format_bytes(sum(file.bytes for file in files))}"]
    verdicts = {True: "as published", None: "no checksum is published"}
    return [
        f"{file.path}: {format_bytes(file.bytes)}, sha256 {file.sha256[:12]}, {verdicts[file.as_published]}"
        for file in files
    ]


def _client_table(inspection: Inspection) -> PlainTable:
    moments, activity = inspection.prediction.moments, inspection.prediction.activity
    headings = ("client", "train", "test", "smallest variance", "target means", "standard deviations")
    table = plain_table(*headings, text=headings)
    deviations = np.sqrt(np.diagonal(moments.covariance, axis1=1, axis2=2))
    for m, client in enumerate(moments.clients):
        tested = len(inspection.problem.test[client]) if inspection.problem.test else 0
        smallest = f"{activity.eigenvalue[m]:.3g}" + ("" if activity.active[m] else ", NOT ACTIVE")
        table.add_row(
            client, f"{moments.count[m]:,.0f}", f"{tested:,}", smallest,
            _numbers(moments.mean[m]), _numbers(deviations[m]),
        )  # fmt: skip
    return table


def _numbers(values: Array) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
