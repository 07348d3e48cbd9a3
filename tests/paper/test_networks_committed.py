"""The results that come with the project: sound, small, and enough to draw every figure without a GPU."""

import json
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from fedgram.display.plotting import render
from fedgram.paper.launch.collect import LARGER
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.studies.registry import STUDIES, figures_of
from fedgram.runs.expectation import expectation, references
from fedgram.runs.measure import direction_error
from fedgram.runs.procedure import BIAS_RULES
from fedgram.theory.correct import correction_value
from fedgram.theory.explain import explain
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import trajectory
from fedgram.theory.geometry.weights import average
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import predict, profiled_objective

FOLDER = Path(__file__).parents[2] / "results"
SCALES = sorted(path.parent.name for path in FOLDER.glob("*/results"))
MOST = 20 * 2**20
PENALTY = Penalty()


@cache
def load(scale) -> Results:
    return Results.load(FOLDER / scale / "results")


@cache
def predict_dataset(scale, dataset, larger):
    """The prediction for the moments of a dataset, and the traces of the terms of its gap."""
    name = f"moments-{dataset}{LARGER if larger else ''}.json"
    prediction = predict(Moments.load(FOLDER / scale / "results" / name), PENALTY)
    return prediction, explain(prediction).traces


@cache
def expect(scale, dataset, larger, procedure):
    return expectation(predict_dataset(scale, dataset, larger)[0], procedure)


def theory_of(run):
    """The prediction of a run, and the expectation of its procedure."""
    dataset = run.scale, run.dataset, run.larger
    return predict_dataset(*dataset)[0], expect(*dataset, run.procedure)


@pytest.fixture(params=SCALES)
def results(request) -> Results:
    return load(request.param)


def test_there_are_results_and_they_are_small():
    assert "paper" in SCALES
    assert sum(path.stat().st_size for path in FOLDER.glob("*/results/*")) < MOST


def test_errors_are_those_of_the_grams(results):
    assert len(results)
    for result in results:
        for name in ("barycenter", "centralized", "within"):
            expected = psd.relative_error(result.grams, getattr(result, name))
            np.testing.assert_allclose(result.error[name], expected, rtol=1e-12)
            turned = direction_error(result.grams, getattr(result, name))
            np.testing.assert_allclose(result.direction_error[name], turned, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(psd.trace(result.centralized - result.barycenter), result.gap_terms.sum())


def test_predictions_are_those_of_the_moments(results):
    for run in results:
        prediction, expected = theory_of(run)
        for name, gram in references(prediction).items():
            np.testing.assert_allclose(getattr(run, name), gram, atol=1e-10)
        np.testing.assert_allclose(run.client_grams, prediction.grams, atol=1e-10)
        np.testing.assert_allclose(
            run.gap_terms, predict_dataset(run.scale, run.dataset, run.larger)[1], rtol=1e-9
        )
        assert run.least_variance == pytest.approx(prediction.activity.eigenvalue.min(), rel=1e-9)
        assert run.target == expected.target
        assert run.train_rows == prediction.moments.count.sum()


def test_trajectory_errors_are_those_of_the_exact_recursion(results):
    """From the same start under the same procedure; only the Gram of a start counts."""
    for run in results:
        _, expected = theory_of(run)
        exact = trajectory(psd.factor(run.grams[0]), expected.grams, expected.client_weights, run.rounds)
        np.testing.assert_allclose(
            run.trajectory_error, psd.relative_error(run.grams, exact), rtol=1e-6, atol=1e-12
        )


def test_shared_grams_are_those_of_averaged_heads(results):
    """Σ p_m G̃_m - G_{t+1} is the scatter of the returned heads; aligned heads follow from their Grams."""
    for run in results:
        _, expected = theory_of(run)
        mean = average(expected.client_weights, run.returned_grams)
        assert np.linalg.eigvalsh(mean - run.grams[1:]).min() > -1e-12
        if run.procedure.centralized:
            np.testing.assert_allclose(run.grams[1:], mean, atol=1e-12)
        if run.procedure.returned == "aligned":
            aligned = psd.closest_factor(psd.factor(run.grams[:-1])[:, None], run.returned_grams)
            averaged = psd.gram(average(expected.client_weights, aligned))
            np.testing.assert_allclose(run.grams[1:], averaged, atol=1e-8)  # the broadcast is rounded to fp32


def test_distances_to_selected_heads_are_possible(results):
    """Aligned heads follow from their Grams, and so does δ; Grams of other heads bound it."""
    for run in results:
        _, expected = theory_of(run)
        weights, broadcast = expected.client_weights, psd.factor(run.grams[:-1])[:, None]
        selected = psd.closest_factor(broadcast, expected.grams)
        if run.procedure.returned == "aligned":
            aligned = psd.closest_factor(broadcast, run.returned_grams)
            np.testing.assert_allclose(run.delta, psd.frobenius(aligned - selected) @ weights, rtol=1e-5)
        nearest = psd.distance(run.returned_grams, expected.grams)
        farthest = np.sqrt(2 * psd.trace(run.returned_grams + expected.grams) - nearest**2)
        # Averages of returned and of selected heads differ by at most δ.
        moved = psd.distance(run.grams[1:], psd.gram(average(weights, selected)))
        assert (run.delta > np.maximum(nearest @ weights, moved) - 1e-9).all()
        assert (run.delta < farthest @ weights + 1e-9).all()


RATIOS = np.logspace(-3, 3, 24)
"""τ / λ_H at which training errors are bounded; 1 is not among them."""


def least_fit(grams, covariance):
    """min C MSE + τ mean ‖h‖² over biases and features h for heads with Grams (..., C, C): (24, ...).

    It is τ tr((G + τ I)⁻¹ Σ) for each τ of RATIOS.
    """
    values, basis = np.linalg.eigh(grams)
    variance = np.einsum("...ki,...kl,...li->...i", basis, covariance, basis)
    weight = PENALTY.features * RATIOS.reshape(-1, *[1] * values.ndim)
    return (weight / (values + weight) * variance).sum(axis=-1)


def bound_errors(total, grams, covariance):
    """Least and largest C MSE of models with C MSE + λ_H mean ‖h‖² = total: (...) each."""
    ratios = RATIOS.reshape(-1, *[1] * total.ndim)
    bounds = (least_fit(grams, covariance) - ratios * total) / (1 - ratios)
    return bounds[RATIOS < 1].max(axis=0), bounds[RATIOS > 1].min(axis=0)


def test_objectives_and_training_errors_agree(results):
    """Objectives are (C MSE + λ_H mean ‖h‖² + λ_W ‖W‖²) / 2: before and after averaging, h is the same."""
    for run in results:
        prediction, expected = theory_of(run)
        pooled, weights = prediction.moments.pooled, expected.client_weights
        centralized = run.procedure.centralized
        own = pooled.covariance[None] if centralized else prediction.moments.covariance
        mean = pooled.covariance if centralized else pooled.within
        grams, targets = run.grams[1:], run.grams.shape[-1]
        # After averaging: C MSE under each rule, and λ_H mean ‖h‖² of all rows.
        errors = targets * run.train_mse
        total = 2 * run.shared_objective - PENALTY.head * psd.trace(grams)
        least, largest = bound_errors(total, grams, mean)
        assert (errors[:, 0] > least - 1e-9).all()
        assert (errors[:, 0] < largest + 1e-9).all()
        fits = least_fit(grams, mean) - RATIOS[:, None] * (total - errors[:, 0])
        assert (errors > fits.max(axis=0)[:, None] - 1e-9).all()
        # Before averaging, per client.
        added = correction_value(psd.factor(run.returned_grams), expected.deficit, PENALTY)
        objective = (1 + run.objective_gap) * expected.loss_optimum - added
        total_before = 2 * objective - PENALTY.head * psd.trace(run.returned_grams)
        least, largest = bound_errors(total_before, run.returned_grams, own)
        best = profiled_objective(psd.factor(run.returned_grams), own, PENALTY)
        assert (objective > best - 1e-12).all()
        if centralized:
            np.testing.assert_allclose(run.shared_objective, objective[:, 0], rtol=1e-9)
        if not run.procedure.full_model:  # which also averages features
            before = total_before @ weights - (total - errors[:, 0])
            assert (before > least @ weights - 1e-9).all()
            assert (before < largest @ weights + 1e-9).all()


@pytest.mark.parametrize("scale", SCALES)
def test_the_manifest_has_the_checksums_of_all_files(scale, tmp_path):
    folder = FOLDER / scale / "results"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"].keys() == {path.name for path in folder.glob("*.parquet")}
    load(scale).save(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["files"] == manifest["files"]


@pytest.mark.parametrize(
    ("file", "procedure", "seed", "errors", "delta", "seconds", "test_mse"),
    [
        ("paper/results/paper-hopper-hopper-rollouts-resmlp-E4000-rounds8", "proximal", 0,
         [0.3718327178035794, 0.009357388186636135, 0.00034707081616833766], 0.00430929211973912,
         63.839229442999994,
         [0.19899856729791254, 0.030460762907136535, 0.0308426111006519]),
        ("reduced/results/reduced-dsprites-sprites-resnet18-E400-rounds8", "ordinary", 0,
         [0.6536155953401103, 0.29914459995288023, 0.16976321914941378], 0.3245590136412184,
         423.30825764900004,
         [0.14212117684195807, 0.052982532369008045, 0.014148345810373053]),
    ],
)  # fmt: skip
def test_pandas_reads_the_numbers_that_were_measured(file, procedure, seed, errors, delta, seconds, test_mse):
    table = pd.read_parquet(FOLDER / f"{file}.parquet")
    rows = table[(table["procedure"] == procedure) & (table["seed"] == seed)]
    assert rows["round"].tolist() == list(range(9))
    assert rows["error_barycenter"].iloc[[0, 1, 8]].tolist() == errors
    assert (rows["delta"].iloc[8], rows["seconds"].iloc[0]) == (delta, seconds)
    # Nothing else that is stored determines test errors.
    assert rows[[f"test_mse_{rule}" for rule in BIAS_RULES]].iloc[8].tolist() == test_mse
    assert {len(gram) for gram in rows["grams"]} == {9}


SLOW = {("paper", "dnn-main"), ("paper", "beyond-solved"), *(("reduced", name) for name in STUDIES)}


@pytest.mark.parametrize(
    ("scale", "name"),
    [
        pytest.param(*each, marks=pytest.mark.slow if each in SLOW else ())
        for each in product(("paper", "reduced"), STUDIES)
    ],
)
def test_every_figure_is_drawn(scale, name):
    for figure in filter(None, figures_of(name, load(scale)).values()):
        figure.set_layout_engine("none")  # which takes longest, and is tried elsewhere
        assert render(figure, "png", dpi=20).startswith(b"\x89PNG")
    plt.close("all")


def test_proximal_runs_follow_the_exact_rounds_at_their_weight():
    """At weights from 1e-3 on, the distance to the barycenter is that of the exact solution."""
    away = []
    for run in load("paper"):
        procedure = run.procedure
        if run.backbone != "resmlp" or run.epochs != 4000 or procedure.returned != "trained":
            continue
        if procedure.proximal < 1e-3 or procedure.full_model:
            continue
        prediction, expected = theory_of(run)
        moved = predict(replace(prediction.moments, covariance=expected.covariance), PENALTY)
        exact = moved.trajectory(run.grams[0], 8, procedure.proximal)
        away.append(psd.relative_error(run.grams[-1], exact[-1]))
        if procedure.proximal > 1e-3:
            to_limit = run.error[run.target][-1]
            assert to_limit == pytest.approx(psd.relative_error(exact[-1], expected.gram), rel=0.05)
            assert to_limit > 10 * away[-1]
    assert len(away) >= 65
    assert np.median(away) < 2e-4
    assert max(away) < 2e-3
