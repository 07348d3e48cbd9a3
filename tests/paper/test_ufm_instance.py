"""The fixed instance, end to end, and with numbers that are wrong on purpose."""

from functools import partial

import matplotlib
import numpy as np
import pytest

from fedgram.paper.ufm.instance import EXPERIMENT
from tests.helpers.experiments import drawn, from_disk, quick_results, spoiled, verdicts_of

PARTS = EXPERIMENT.parts("quick")
results = quick_results(EXPERIMENT)
verdicts = partial(verdicts_of, EXPERIMENT)
GRADIENT = "instance-gradient"


def test_every_claim_is_measured_and_matches(results):
    found = verdicts(results)
    # The largest gradient is L-BFGS's, and depends on its path: it is compared below, not as a bound.
    assert {verdict for name, verdict in found.items() if name != GRADIENT} == {"match"}
    assert EXPERIMENT.measure(results)[GRADIENT] == pytest.approx(4.14e-9, rel=0.5)


def test_counts_are_those_of_the_paper(results):
    assert PARTS.keys() == EXPERIMENT.parts("full").keys()
    assert [EXPERIMENT.settings_of(part) for part in PARTS.values()] == [
        EXPERIMENT.settings_of(part) for part in EXPERIMENT.parts("full").values()
    ]
    rows = {name: len(next(iter(table.values()))) for name, table in results.items()}
    assert rows == {
        "rounds": 6 * 19, "path": 3 * 11, "adam": 4, "samples": 1, "grams": 6, "gap": 4, "correction": 4 * 19,
    }  # fmt: skip
    solved = results["rounds"]["solves"] > 0
    assert set(results["rounds"]["procedure"][solved]) == {"proximal", "L-BFGS"}
    assert len(results["path"]["gradient"]) + results["rounds"]["solves"].sum() == 303
    np.testing.assert_allclose(np.unique(results["path"]["weight"]), np.logspace(-6, -1, 11))


def test_tables_survive_the_disk(results, tmp_path):
    again = from_disk(EXPERIMENT, results, tmp_path)
    assert EXPERIMENT.measure(again) == EXPERIMENT.measure(results)


@pytest.mark.parametrize(
    ("part", "column", "wrong", "claim"),
    [
        ("samples", "covariance", lambda x: x + 1e-12, "instance-moments"),
        ("samples", "pooled", lambda x: x + 1e-12, "instance-pooled"),
        ("adam", "error", lambda x: x[::-1], "instance-adam"),
        ("path", "gram_error", lambda x: 1.01 * x, "instance-gram-error"),
        ("path", "selection_error", lambda x: 1.01 * x, "instance-selection-error"),
        ("path", "selection_error", lambda x: np.maximum(x, 1e-4), "instance-errors-fall"),
        ("rounds", "error", lambda x: 1.03 * x, "instance-end-rho-1e-1"),
        ("rounds", "error", lambda x: 1.03 * x, "instance-end-rho-1e-3"),
        ("rounds", "error", lambda x: 1.03 * x, "instance-end-none"),
        ("rounds", "error", lambda x: x + 1e-13, "instance-end-exact"),
        ("rounds", "error", lambda x: 1 / x, "instance-proximal-closer"),
        ("rounds", "g11", lambda x: 1.1 * x, "instance-gap-remains"),
        ("rounds", "gradient", lambda x: 100 * x, GRADIENT),
        ("grams", "g12", lambda x: x * np.linspace(1, 1 + 1e-10, 6), "instance-variational"),
        ("gap", "mean", lambda x: 1.01 * x, "instance-trace-mean"),
        ("gap", "covariance", lambda x: 1.01 * x, "instance-trace-covariance"),
        ("gap", "averaging", lambda x: 1.01 * x, "instance-trace-averaging"),
        ("gap", "averaging", lambda x: x * np.linspace(1, 1.1, 4), "instance-equal-means"),
        ("gap", "covariance", lambda x: x + 1e-12, "instance-equal-covariances"),
        ("gap", "relative", lambda x: x + 1e-12, "instance-equal-both"),
        ("gap", "sum_residual", lambda x: x + 1e-12, "instance-three-terms"),
        ("gap", "variance_residual", lambda x: x + 1e-12, "instance-variance"),
        ("gap", "eigenvalue", lambda x: x - 1e-12, "instance-semidefinite"),
        ("correction", "error", lambda x: x + 1e-12, "instance-correction-full"),
        ("correction", "error", lambda x: 1.01 * x, "instance-correction-0.9"),
        ("correction", "error", lambda x: 1.01 * x, "instance-correction-0.99"),
        ("correction", "error", lambda x: 1.01 * x, "instance-gap"),
    ],
)
def test_a_wrong_number_misses_its_claim(results, part, column, wrong, claim):
    changed = spoiled(results, part, column, wrong)
    assert verdicts(changed)[claim] == "miss"


@pytest.mark.parametrize(("number", "verdict"), [(15, "match"), (16, "miss"), (17, "miss"), (18, "miss")])
def test_exact_selection_is_exact_from_round_16_on(results, number, verdict):
    rounds = results["rounds"]
    chosen = (rounds["procedure"] == "exact") & (rounds["round"] == number)
    assert chosen.sum() == 1
    changed = spoiled(results, "rounds", "error", lambda error: np.where(chosen, 1e-13, error))
    assert verdicts(changed)["instance-end-exact"] == verdict


def test_figure_has_six_panels_on_one_scale_with_a_floor(results):
    figure = drawn(EXPERIMENT, results)
    axes = figure.axes
    assert [axis.get_title(loc="left")[:3] for axis in axes] == [f"({letter})" for letter in "abcdef"]
    assert axes[0].get_xlim() == axes[3].get_xlim() == axes[0].get_ylim() == axes[3].get_ylim()
    assert [len(axes[place].lines) for place in (0, 1, 2, 3, 5)] == [5, 3, 4, 6, 4]
    for place in (2, 5):
        assert min(line.get_ydata().min() for line in axes[place].lines) == 1e-14 == axes[place].get_ylim()[0]
    reach = axes[0].get_xlim()[1]
    assert all(np.abs(line.get_xydata()).max() < reach for place in (0, 3) for line in axes[place].lines)
    matplotlib.pyplot.close(figure)
