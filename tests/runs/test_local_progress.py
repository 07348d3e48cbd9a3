"""How far the first round has come: closed forms, invariance, and what training says."""

from dataclasses import replace

import numpy as np
import pytest

from fedgram.runs.expectation import expectation
from fedgram.runs.local_progress import LocalProgress, describe_progress, measure_progress
from fedgram.runs.procedure import Procedure
from fedgram.theory.geometry.psd import closest_factor
from fedgram.theory.predict import predict
from tests.helpers.small_runs import SETTINGS, small_problem, trained


@pytest.fixture(scope="module")
def heads():
    """A broadcast head (2, 5), the Grams of three clients' optima, and the heads that they select."""
    grams = expectation(predict(small_problem().moments, SETTINGS.penalty), Procedure()).grams
    broadcast = np.random.default_rng(0).standard_normal((2, 5))
    return broadcast, grams, closest_factor(broadcast, grams)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9, 1.0])
def test_a_point_on_the_way_has_its_share(heads, share):
    broadcast, grams, selected = heads
    found = measure_progress(broadcast, broadcast + share * (selected - broadcast), grams)
    np.testing.assert_allclose(found.to_selected, share, atol=1e-12)
    np.testing.assert_allclose(found.to_optimum, share, atol=1e-12)  # the way is a geodesic


def test_a_rotated_optimum_is_an_optimum_but_not_the_selected_one(heads):
    broadcast, grams, selected = heads
    rotation, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((5, 5)))
    found = measure_progress(broadcast, selected @ rotation, grams)
    np.testing.assert_allclose(found.to_optimum, 1, atol=1e-7)
    assert (found.to_selected < 0.5).all()
    same = measure_progress(broadcast @ rotation, selected @ rotation, grams)
    np.testing.assert_allclose(same.to_selected, 1, atol=1e-12)


def test_sites_are_named_with_the_slowest_first():
    shares = np.linspace(0.005, 0.999, 12)
    said = describe_progress("proximal", [f"s{m}" for m in range(12)], [LocalProgress(shares, shares)] * 2)
    assert said.startswith("proximal: progress of local training in round 1")
    assert "selected one: s0 0 %, s1 9 %, " in said
    assert said.endswith("s9 81 %, 2 more up to 99 %. The prediction assumes 100 %.")


def test_a_rotation_is_said():
    said = describe_progress("ordinary", ["\x1b[1m"], [LocalProgress(np.array([-0.4]), np.array([0.8]))])
    assert "selected one: \\x1b[1m 0 %. The prediction" in said
    assert "Returned heads came 80 % of the way to a local optimum (median), but not to the" in said


def test_training_says_it_once_for_each_procedure_with_selected_heads(tmp_path):
    said, procedures = [], ["ordinary", "solved+offset", "full-model", "local"]
    settings = replace(SETTINGS, rounds=2, epochs=1)
    runs = trained(tmp_path, procedures, settings=settings, on_warning=said.append)
    told = [sentence for sentence in said if "progress of local training in round 1" in sentence]
    assert [sentence.partition(":")[0] for sentence in told] == ["ordinary", "solved+offset"]
    prediction = predict(runs[2].moments, SETTINGS.penalty)
    grams = expectation(prediction, runs[2].setup.procedure).grams
    found = [measure_progress(run.initial[0], run.rounds()[0].returned_heads, grams) for run in runs[2:4]]
    assert told[1] == describe_progress("solved+offset", runs[2].setup.data.clients, found)
