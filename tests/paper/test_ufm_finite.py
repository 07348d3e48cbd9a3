"""Finite profiled steps, end to end at quick scale, and with numbers wrong on purpose."""

from functools import partial

import matplotlib
import numpy as np
import pytest

from fedgram.paper.claims import load_claims
from fedgram.paper.ufm.finite import EXPERIMENT, FLOOR, RATES, STEPS
from fedgram.ufm.finite import RESIDUAL
from fedgram.ufm.finite_instances import FAMILIES
from tests.helpers.experiments import drawn, from_disk, quick_results, spoiled, verdicts_of

pytestmark = pytest.mark.slow  # `make run` measures these claims, too

PARTS = EXPERIMENT.parts("quick")
CLAIMS = load_claims("ufm-finite")
results = quick_results(EXPERIMENT)
verdicts = partial(verdicts_of, EXPERIMENT)


def test_every_claim_is_measured_and_holds(results):
    assert EXPERIMENT.measure(results).keys() == {claim.id for claim in CLAIMS}
    found = verdicts(results)
    assert set(found.values()) == {"match", "compatible"}
    drawn_claims = {claim.id for claim in CLAIMS if claim.comparison == "draw"}
    assert {name for name, verdict in found.items() if verdict == "compatible"} == drawn_claims


def test_counts_are_those_of_the_paper(results):
    full = {name: part.keywords for name, part in EXPERIMENT.parts("full").items()}
    # Only the number of redrawn groups depends on the scale.
    assert {name for name, part in PARTS.items() if part.keywords != full[name]} == {
        "redraws",
        "displacement_redraws",
    }
    assert (len(RATES), len(STEPS), STEPS[0], STEPS[-1]) == (5, 10, 1, 2000)
    assert len(results["sweep"]["rounds"]) == 3 * 5 * 10
    assert len(results["displacement"]["measured"]) == 24 * 3
    assert len(results["stability"]["radius"]) == 52 * 3 * 5 == 780
    assert len(results["contraction"]["rate"]) == 3 * 2 * 8 * 2 * 3


def test_every_fixed_point_is_reached(results):
    assert (results["sweep"]["residual"] < RESIDUAL).all()
    assert (results["commuting"]["residual"] < RESIDUAL).all()


def test_small_steps_contract_four_times_as_fast_as_guaranteed(results):
    """Appendix G.2: the slowest rate is 2 h θ_min up to O(h) and the distance of the start."""
    table = results["contraction"].select(h=1e-3)
    slowest = table["rate"] / table["guaranteed"]
    assert (slowest > 2).all()
    assert (slowest < 4.1).all()


def test_displacements_have_the_sign_of_the_weak_direction(results):
    """Eq. (24): the first eigenvalue lies below 16 λ_H λ_W / 9, the others above."""
    for name in ("displacement", "displacement_redraws"):
        signs = np.sign(results[name]["predicted"]).reshape(-1, 3)
        np.testing.assert_array_equal(signs, np.tile([1, -1, -1], (len(signs), 1)))


def test_tables_survive_the_disk(results, tmp_path):
    again = from_disk(EXPERIMENT, results, tmp_path)
    assert EXPERIMENT.measure(again) == EXPERIMENT.measure(results)


@pytest.mark.parametrize(
    ("part", "column", "wrong", "claim"),
    [
        ("sweep", "to_within", lambda x: x + 1e-5, "finite-one-step"),
        ("sweep", "to_within", lambda x: x**1.2, "finite-linear"),
        ("sweep", "to_within", np.cos, "finite-approach"),
        ("sweep", "to_star", np.cos, "finite-approach"),
        ("sweep", "to_within", lambda x: x / 100, "finite-crossing"),
        ("redraws", "to_star", lambda x: 1e4 * x, "finite-plateau"),
        ("sweep", "to_star", lambda x: 0.01 * x, "finite-plateau"),
        ("sweep", "rounds", lambda x: 1.2 * x, "finite-rounds-small"),
        ("redraws", "rounds_short", lambda x: 2 * x, "finite-rounds-small"),
        ("sweep", "rounds", lambda x: x**1.2, "finite-rounds-slope"),
        ("redraws", "rounds_long", lambda x: 2 * x, "finite-rounds-large"),
        ("sweep", "gram_error", lambda x: x + 1e-12, "finite-local-gram"),
        ("redraws", "selection_error", lambda x: 1e4 * x, "finite-local-selection"),
        ("sweep", "head_motion", lambda x: 0 * x, "finite-head-motion"),
        ("commuting", "selection_error", lambda x: x + 1e-12, "finite-commuting-selection"),
        ("commuting", "to_star", lambda x: x + 1e-5, "finite-commuting-distance"),
        ("displacement", "measured", np.abs, "finite-signs"),
        ("displacement_redraws", "measured", lambda x: 1.1 * x, "finite-ratios"),
        ("contraction", "rate", lambda x: x / 3, "finite-contraction"),
        ("contraction", "rate", lambda x: -x, "finite-contraction"),
        ("contraction", "guaranteed", lambda x: 3 * x, "finite-contraction"),
        ("stability", "radius", lambda x: x + 1e-2, "finite-stable"),
        ("stability", "radius", lambda x: x + 1e-6, "finite-slope"),
    ],
)
def test_a_wrong_number_misses_its_claim(results, part, column, wrong, claim):
    changed = spoiled(results, part, column, wrong)
    assert verdicts(changed)[claim] == "miss"


def test_figure_has_five_panels(results):
    figure = drawn(EXPERIMENT, results)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert [title[:3] for title in titles] == ["(a)", "(b)", "(c)", "(d)", "(e)", ""]
    # Two distances for each rate in panel a; the same and a guide in panel b.
    assert [len(axis.lines) for axis in figure.axes[:3]] == [2 * 5, 2 * 5 + 1, 5 + 1]
    curves = [line for line in figure.axes[4].lines if line.get_marker() not in ("None", None)]
    assert [line.get_label().replace(" ", "_") for line in curves] == list(FAMILIES)
    assert len({line.get_marker() for line in curves}) == 3
    # One step ends at G_within: its points are at the floor, inside the axis.
    assert {line.get_ydata()[0] for line in figure.axes[0].lines[::2]} == {FLOOR}
    assert figure.axes[0].get_ylim()[0] == FLOOR
    legend = {each.get_marker(): each.get_label() for each in figure.axes[5].get_legend().legend_handles}
    assert "within" in legend["o"]
    assert "bigstar" in legend["s"]
    # Two of the medians are nearly equal: the one drawn first shows because it is broader.
    assert curves[0].get_linewidth() > 2 * curves[1].get_linewidth()
    matplotlib.pyplot.close(figure)
