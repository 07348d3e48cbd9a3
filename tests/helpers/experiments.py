"""What the tests of all experiments on the exact model do with their results."""

from __future__ import annotations

from dataclasses import replace

import matplotlib
import pytest

from fedgram.paper.claims import as_measurement, judge_all, load_claims
from fedgram.paper.plots import SETTINGS
from fedgram.paper.storage import Table, read_table, write_table


def quick_results(experiment):
    """A fixture: the tables of an experiment at quick scale, made once for a file of tests."""

    @pytest.fixture(scope="module")
    def results():
        return {name: part() for name, part in experiment.parts("quick").items()}

    return results


def verdicts_of(experiment, results, complete=False):
    """Verdicts by the name of their claim, or as they were if the counts of the quick scale were complete."""
    measured = experiment.measure(results)
    if complete:
        measured = {name: replace(as_measurement(each), run=1, needed=1) for name, each in measured.items()}
    judged = judge_all(load_claims(experiment.name), measured)
    return {each.claim.id: each.verdict for each in judged}


def spoiled(results, part, column, wrong):
    """The same tables with one column of a part changed."""
    return results | {part: Table(results[part] | {column: wrong(results[part][column])})}


def drawn(experiment, results):
    """The figure of an experiment, drawn in the look of the report."""
    with matplotlib.rc_context(SETTINGS | {"backend": "Agg"}):
        figure = experiment.draw(results)
        figure.set_layout_engine("none")  # which takes longest, and is tried by the command
        figure.draw_without_rendering()
    return figure


def from_disk(experiment, results, folder):
    """The tables of an experiment at quick scale, written to a folder and read again."""
    settings = {name: experiment.settings_of(part) for name, part in experiment.parts("quick").items()}
    for name, each in settings.items():
        write_table(folder / name, results[name], each)
    return {name: read_table(folder / name, each) for name, each in settings.items()}
