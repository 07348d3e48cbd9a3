"""The three terms of the gap, end to end at quick scale, and with numbers that are wrong on purpose."""

from functools import partial

import matplotlib
import numpy as np
import pytest

from fedgram.paper.claims import load_claims
from fedgram.paper.ufm import gap
from fedgram.paper.ufm.gap import EXPERIMENT, composition
from fedgram.ufm.instances import GAP_SIZES
from tests.helpers.experiments import drawn, from_disk, quick_results, spoiled, verdicts_of

pytestmark = pytest.mark.slow  # `make run` measures these claims, too

PARTS = EXPERIMENT.parts("quick")
results = quick_results(EXPERIMENT)
verdicts = partial(verdicts_of, EXPERIMENT)


def test_every_claim_is_measured_and_none_missed(results):
    found = verdicts(results)
    drawn_claims = {claim.id for claim in load_claims("ufm-gap") if claim.comparison == "draw"}
    assert {name for name, verdict in found.items() if verdict == "compatible"} == drawn_claims
    assert set(found.values()) == {"match", "compatible"}


def test_counts_are_those_of_the_paper(results):
    full = {name: part.keywords for name, part in EXPERIMENT.parts("full").items()}
    # Only the number of redraws depends on the scale.
    assert {name for name, part in PARTS.items() if part.keywords != full[name]} == {
        "suite_redraws",
        "sweep_redraws",
        "two_client_redraws",
    }
    assert full["suite"]["instances"] == full["equalized"]["instances"] == 512
    assert all(full[name]["instances"] == 256 for name in gap.SWEEPS)
    assert len(results["suite"]["number"]) * 3 == 1536  # three terms each
    assert len(results["controlled"]["seed"]) == 8 * (7 + 6)
    np.testing.assert_array_equal(np.unique(results["controlled"]["seed"]), np.arange(55, 63))
    sizes = list(zip(results["suite"]["targets"].tolist(), results["suite"]["clients"].tolist(), strict=True))
    assert [sizes.count(size) for size in GAP_SIZES] == [43] * 8 + [42] * 4
    np.testing.assert_array_equal(np.sort(results["suite"]["number"]), np.arange(512))


def test_tables_survive_the_disk(results, tmp_path):
    again = from_disk(EXPERIMENT, results, tmp_path)
    assert EXPERIMENT.measure(again) == EXPERIMENT.measure(results)


def test_both_controlled_sweeps_pass_through_the_same_instance(results):
    table = results["controlled"]
    means, covariances = (
        np.array([table[f"trace_{term}"][(table["moved"] == moved) & (table["strength"] == 1.0)]
                  for term in ("mean", "covariance", "averaging")])
        for moved in ("means", "covariances")
    )  # fmt: skip
    np.testing.assert_allclose(means, covariances, rtol=1e-11)


def test_shares_add_up_and_instances_of_a_setting_differ():
    table = composition(seed=3, settings=[(2, 3, 1.2), (2, 3, 1.2)], instances=5)
    np.testing.assert_allclose(sum(table[f"share_{term}"] for term in ("mean", "covariance", "averaging")), 1)
    assert len(np.unique(table["relative"])) == 10


@pytest.mark.parametrize(
    ("part", "column", "wrong", "claim"),
    [
        ("controlled", "trace_mean", lambda x: x + 1e-15, "gap-mean-zero"),
        ("controlled", "trace_averaging", lambda x: x + 1e-13, "gap-covariance-zero"),
        ("controlled", "trace_mean", lambda x: 0.1 * x, "gap-mean-trace"),
        ("controlled", "trace_mean", lambda x: -x, "gap-mean-grows"),
        ("controlled", "trace_averaging", np.ones_like, "gap-covariance-grows"),
        (
            "controlled",
            "trace_covariance",
            lambda x: x * np.linspace(1, 1.1, len(x)),
            "gap-mean-sweep-constant",
        ),
        (
            "controlled",
            "trace_mean",
            lambda x: x * np.linspace(1, 1.1, len(x)),
            "gap-covariance-sweep-constant",
        ),
        ("controlled_redraws", "trace_mean", lambda x: 3 * x, "gap-mean-trace"),
        ("controlled_redraws", "trace_covariance", lambda x: 3 * x, "gap-covariance-trace"),
        ("equalized", "both_averaging", lambda x: x + 1e-12, "gap-removed"),
        ("suite", "eigenvalue_averaging", lambda x: x - 1.0, "gap-smallest-eigenvalue"),
        ("suite", "targets", lambda x: x - 4, "gap-tiny-where"),
        ("suite", "bounds_hold", np.zeros_like, "gap-pairwise-bounds"),
        ("suite", "dispersion", lambda x: x * (1 + 1e-9), "gap-two-clients"),
        ("suite", "first_to_star", lambda x: x * (1 + 1e-9), "gap-geodesic"),
        ("suite", "variance", lambda x: x * (1 + 1e-10), "gap-variance-identity"),
        ("suite", "scatter_residual", lambda x: x + 1e-10, "gap-scatter-identity"),
        ("margin", "eigenvalue_mean", lambda x: x - x.min(), "gap-sweeps-positive"),
        ("targets", "eigenvalue_averaging", lambda x: x - 1.0, "gap-sweeps-minimum-where"),
        ("clients", "share_mean", lambda x: x / 2, "gap-share-mean"),
        ("targets", "relative", lambda x: 2 * x, "gap-relative"),
        ("sweep_redraws", "relative", lambda x: 1.5 * x, "gap-relative"),
        ("two_client_redraws", "eigenvalue_mean", np.ones_like, "gap-sweeps-minimum"),
        ("suite", "eigenvalue_mean", lambda x: x + 1e-15, "gap-floor-count"),
        ("suite_redraws", "dispersion", lambda x: 0.99 * x, "gap-variance-ratio"),
    ],
)
def test_a_wrong_number_misses_its_claim(results, part, column, wrong, claim):
    changed = spoiled(results, part, column, wrong)
    assert verdicts(results)[claim] != "miss"
    assert verdicts(changed)[claim] == "miss"


def test_figure_has_ten_panels_that_show_zeros_and_the_floor(results):
    figure = drawn(EXPERIMENT, results)
    axes = figure.axes
    assert [axis.get_title(loc="left")[:3] for axis in axes] == [f"({letter})" for letter in "abcdefghij"]
    assert {axis.get_yscale() for axis in axes[:2]} == {"symlog"}
    assert {axis.get_yscale() for axis in axes[5:]} == {"log"}
    assert axes[0].get_ylim()[0] < 0 == axes[0].lines[0].get_ydata()[0]
    assert axes[5].lines[0].get_ydata().min() == 1e-16
    matplotlib.pyplot.close(figure)
