"""What the tests of all experiments on the exact model do with their results."""

from __future__ import annotations

from fedgram.paper.claims import judge_all
from fedgram.paper.experiment import settings_of
from fedgram.paper.tables import read_table, write_table


def verdicts_of(claims, measured):
    """Verdicts by the name of their claim."""
    return {judged.claim.id: judged.verdict for judged in judge_all(claims, measured)}


def from_disk(parts, results, folder):
    """The tables of all parts, written to a folder and read again."""
    for name, part in parts.items():
        write_table(folder / name, results[name], settings_of(part))
    return {name: read_table(folder / name, settings_of(part)) for name, part in parts.items()}
