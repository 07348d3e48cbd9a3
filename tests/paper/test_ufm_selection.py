"""Selection by a vanishing regularizer, end to end at quick scale, and with numbers wrong on purpose."""

from functools import partial

import matplotlib
import numpy as np
import pytest

from fedgram.paper.ufm.selection import (
    BOUND_WEIGHTS,
    EXPERIMENT,
    WEIGHTS,
    by_size,
    by_weight,
    near_optimum,
    selection,
)
from fedgram.theory.geometry import psd
from fedgram.ufm.instances import SELECTION_SIZES, UNIT, selection_instances
from fedgram.ufm.joint import Joint, Sample
from fedgram.ufm.solvers import proximal_path
from tests.helpers.experiments import drawn, from_disk, quick_results, verdicts_of

PARTS = EXPERIMENT.parts("quick")
results = quick_results(EXPERIMENT)
verdicts = partial(verdicts_of, EXPERIMENT)
MEDIANS = {"selection-gram-median", "selection-head-median"}


def test_every_claim_is_measured_and_partial(results):
    assert set(verdicts(results).values()) == {"partial"}


def test_claims_that_few_instances_can_show_hold(results):
    found = verdicts(results, complete=True)
    # Medians of four instances are no draws of medians of 128.
    assert {name for name, verdict in found.items() if verdict == "miss"} <= MEDIANS


def test_counts_are_those_of_the_paper(results):
    full = EXPERIMENT.parts("full")
    settings = [EXPERIMENT.settings_of(part) for part in full.values()]
    assert sum(each["instances"] for each in settings if "size" in each) == 768
    assert len({str(each["seed"]) for each in settings}) == len(full) == 14
    assert (settings[1]["sizes"], settings[1]["instances"]) == (SELECTION_SIZES, 16)
    assert len(WEIGHTS) == 24
    assert min(WEIGHTS) == pytest.approx(1.78e-6, rel=2e-3)
    assert tuple(by_size(results)) == tuple(sorted(SELECTION_SIZES))
    for table in by_size(results).values():
        kinds, counts = np.unique(table["kind"], return_counts=True)
        assert dict(zip(kinds, counts, strict=True)) == {"L-BFGS": 4 * 6, "exact": 4 * 6, "proximal": 4 * 24}
        weights, errors = by_weight(table, "gram_error")
        assert errors.shape == (4, 24)
        assert (np.diff(weights) < 0).all()
        assert (np.diff(errors, axis=1) < 0).all()


def test_batches_of_one_size_are_read_in_order():
    tables = {
        str(seed): selection(seed=[2, 2, seed], size=[2, 2], instances=2, weights=[1.0, 0.1], starts=1)
        for seed in (0, 1)
    }
    _, errors = by_weight(by_size(tables)[2, 2], "gram_error")
    first = tables["0"]["gram_error"][tables["0"]["kind"] == "proximal"]
    np.testing.assert_array_equal(errors[:2].ravel(), first)
    assert len(np.unique(errors)) == 8


def test_tables_survive_the_disk(results, tmp_path):
    again = from_disk(EXPERIMENT, results, tmp_path)
    assert EXPERIMENT.measure(again) == EXPERIMENT.measure(results)


@pytest.mark.parametrize(("targets", "width"), [(2, 4), (4, 4)])
def test_newton_steps_reach_the_head_at_the_end_of_the_path(targets, width):
    clients = selection_instances(np.random.default_rng(0), targets, width, 2)
    heads = near_optimum(clients, WEIGHTS[-1])
    for number, head in enumerate(heads):
        loss = Joint(Sample.from_targets(clients.targets[number]).compress(), UNIT, clients.broadcast[number])
        assert psd.relative_error(proximal_path(loss, WEIGHTS)[-1].head, head) < 5e-9


def test_minimizers_approach_the_selected_head_as_the_weight_falls(results):
    """Lemma 1: both sides of eq. (15) become equal, and the excess falls as ρ²."""
    weights, penalized = results["minimizers"].samples_by("weight", "penalized")
    excess = results["minimizers"].samples_by("weight", "excess")[1]
    assert penalized.shape == (len(BOUND_WEIGHTS), 3 * 2 * 2)
    assert (np.diff(penalized, axis=0) < 0).all()
    assert (np.abs(1 - penalized[0]) < 3 * weights[0]).all()
    np.testing.assert_allclose(excess[1] / excess[0], weights[1] / weights[0], rtol=0.05)


LARGEST = "targets8_width16_batch0"


@pytest.mark.parametrize(
    ("part", "column", "wrong", "claim"),
    [
        (LARGEST, "gram_error", lambda x: x**1.2, "selection-gram-slope"),
        (LARGEST, "selection_error", lambda x: x**0.8, "selection-head-slope"),
        (LARGEST, "gram_error", lambda x: x + 1e-12, "selection-exact"),
        (LARGEST, "gram_error", lambda x: x + 1e-2, "selection-unregularised-gram"),
        ("all", "selection_error", lambda x: 1.1 * x, "selection-unregularised-head"),
        ("minimizers", "excess", lambda x: 4 * x, "selection-excess"),
        ("minimizers", "excess", lambda x: -x, "selection-excess"),
        ("minimizers", "penalized", lambda x: 1.001 * x, "selection-penalized"),
        ("minimizers", "bias", lambda x: 100 * x, "selection-bias"),
        ("redraws", "gram_error", lambda x: 3 * x, "selection-gram-median"),
        ("redraws", "selection_error", lambda x: 3 * x, "selection-head-median"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_a_wrong_number_misses_its_claim_also_at_quick_scale(results, part, column, wrong, claim, complete):
    names = [part] if part != "all" else [name for name, table in results.items() if "kind" in table]
    changed = results | {name: results[name] | {column: wrong(results[name][column])} for name in names}
    assert verdicts(results, complete=complete)[claim] != "miss" or (complete and claim in MEDIANS)
    assert verdicts(changed, complete=complete)[claim] == "miss"


def test_figure_has_six_panels_with_a_slot_for_zero(results):
    figure = drawn(EXPERIMENT, results)
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        f"$C={targets}$, $P={width}$" for targets, width in sorted(SELECTION_SIZES)
    ]
    for axis in figure.axes:
        exact = next(line for line in axis.lines if line.get_label().startswith("exact"))
        assert exact.get_xdata()[0] == min(axis.get_xticks()) < min(WEIGHTS)
        assert exact.get_ydata()[0] == axis.get_ylim()[0]
    assert figure.axes[-1].get_xticklabels()[0].get_text() == "0"
    matplotlib.pyplot.close(figure)
