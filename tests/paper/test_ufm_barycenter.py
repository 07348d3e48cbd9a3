"""Convergence to the barycenter, end to end at quick scale, and with numbers that are wrong on purpose."""

from collections import Counter
from functools import partial

import matplotlib
import numpy as np
import pytest

from fedgram.paper.ufm.barycenter import (
    EXPERIMENT,
    WEIGHTS,
    by_size,
    exact_rounds,
    median_curve,
    proximal_rounds,
)
from fedgram.ufm.instances import BARYCENTER_SIZES
from tests.helpers.experiments import drawn, from_disk, quick_results, spoiled, verdicts_of

PARTS = EXPERIMENT.parts("quick")
results = quick_results(EXPERIMENT)
verdicts = partial(verdicts_of, EXPERIMENT)


def test_every_claim_is_measured_and_partial(results):
    assert set(verdicts(results).values()) == {"partial"}


def test_claims_that_few_instances_can_show_hold(results):
    assert set(verdicts(results, complete=True).values()) == {"match"}


def test_counts_are_those_of_the_paper(results):
    full = {name: EXPERIMENT.settings_of(part) for name, part in EXPERIMENT.parts("full").items()}
    starts, biases = full.pop("starts"), full.pop("biases")
    assert (starts["sizes"], starts["instances"]) == (BARYCENTER_SIZES, 16)
    assert (biases["sizes"], biases["instances"]) == (BARYCENTER_SIZES[:4], 16)
    procedures = Counter()
    for each in full.values():
        procedures[each["function"], tuple(each["size"])] += each["instances"]
    for size in BARYCENTER_SIZES:
        assert procedures["exact_rounds", size] == procedures["adam_rounds", size] == 16
        assert procedures["proximal_rounds", size] == 6 * 16
    assert all(each["rounds"] == 18 for each in full.values())
    assert {len(results[name]["error"]) for name in PARTS if name.startswith("targets")} == {2 * 19}
    assert len(results["starts"]["difference"]) == 6 * 2 * 3 * 2
    assert len(results["biases"]["bias"]) == 4 * 2 * 3 * 2


def test_every_procedure_starts_from_the_same_instances(results):
    for table in by_size(results).values():
        first = table["error"][table["round"] == 0].reshape(-1, 2)
        assert (first == first[0]).all()


def test_batches_differ_and_rounds_are_those_of_their_instance():
    size = [2, 3]
    one, two = (exact_rounds(seed=[2, 3, k], size=size, instances=3, rounds=2)["error"] for k in (0, 1))
    assert not np.isin(one, two).any()
    near = proximal_rounds(seed=[2, 3, 0], size=size, instances=3, rounds=2, weight=1e-6)["error"]
    np.testing.assert_allclose(near, one, rtol=1e-2, atol=1e-6)


def test_tables_survive_the_disk(results, tmp_path):
    again = from_disk(EXPERIMENT, results, tmp_path)
    assert EXPERIMENT.measure(again) == EXPERIMENT.measure(results)


@pytest.mark.parametrize(
    ("part", "column", "wrong", "claim"),
    [
        ("starts", "difference", lambda x: x + 1e-13, "barycenter-starts"),
        ("biases", "bias", lambda x: x + 1e-12, "barycenter-bias"),
        ("exact", "commutator", lambda x: 0 * x, "barycenter-noncommuting"),
        ("exact", "error", lambda x: x + 1e-13, "barycenter-exact"),
        ("exact", "error", lambda x: x**0.1, "barycenter-geometric"),
        ("rho1e-06", "error", lambda x: 1e3 * x, "barycenter-plateau-slope"),
        ("adam", "error", lambda x: 100 * x, "barycenter-unregularised"),
        ("adam", "error", lambda x: x / 1e4, "barycenter-ordering"),
        ("adam", "error", lambda x: np.geomspace(1, 0.1, len(x)) * x, "barycenter-adam-levels"),
        ("rho0.001", "error", lambda x: np.geomspace(1, 1e-3, len(x)) * x, "barycenter-proximal-levels"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_a_wrong_number_misses_its_claim_also_at_quick_scale(results, part, column, wrong, claim, complete):
    name = part if part in results else f"targets4_clients3_{part}_batch0"
    changed = spoiled(results, name, column, wrong)
    assert verdicts(changed, complete=complete)[claim] == "miss"


def test_figure_has_panels_of_trained_sizes_and_one_of_exact_curves(results):
    figure = drawn(EXPERIMENT, results)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["$C=2$, $M=3$", "$C=4$, $M=3$", "exact selection, other sizes"]
    assert [len(axis.lines) for axis in figure.axes] == [len(WEIGHTS) + 2] * 2 + [len(BARYCENTER_SIZES) - 2]
    exact = figure.axes[0].lines[-1]
    np.testing.assert_array_equal(exact.get_ydata(), median_curve(by_size(results)[2, 3], "exact"))
    matplotlib.pyplot.close(figure)
