"""Numbers for the claims about networks: of runs with known numbers, those that the paper defines."""

import numpy as np
import pytest

from fedgram.paper.claims import load_claims
from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.studies.registry import STUDIES
from fedgram.paper.registry import GROUPS
from tests.helpers.network_draws import ALL, IMAGES, TABULAR, Runs

ALIGNED = ("beijing", "swimmer", "hopper", "halfcheetah", "3dshapes", "cifar-geo")
BUDGETS = (50, 100, 200, 400, 1000, 2000, 4000)
RHO = {"0": "ordinary", "0.001": "proximal"} | {
    weight: f"proximal={weight}" for weight in ("1e-05", "0.0001", "0.01", "0.1", "1")
}
CORRECTED = {"ordinary": "corrected", "proximal": "proximal+corrected", "aligned": "aligned+corrected"}
PREDICTING = {"ordinary": "ordinary", "proximal": "proximal", "corrected": "proximal+corrected"}


def e_f(reference, at=8):
    return lambda run: run.error[reference][at]


def d(reference, at=8):
    return lambda run: run.direction_error[reference][at]


FREE_COLUMNS = {
    "endpoint": e_f("barycenter"),
    "trajectory": lambda run: np.median(run.trajectory_error[1:9]),
    "delta": lambda run: run.delta[7],  # of the heads returned in the eighth round
}


def gap_ratio(run):
    _, covariance, averaging = run.gap_terms
    return np.trace(run.within - run.grams[8]) / (covariance + averaging)


def main(runs):
    """Table 4, and Appendix E.3."""
    corrected = {
        "direction-1": d("centralized", 1),
        "1": e_f("centralized", 1),
        "endpoint": e_f("centralized"),
    }
    found = {}
    for name in ("ordinary", "proximal"):
        for what, quantity in FREE_COLUMNS.items():
            found[f"main-{name}-{what}"] = runs.median(quantity, name, seeds=5)
        for what, quantity in corrected.items():
            found[f"main-{name}-corrected-{what}"] = runs.median(quantity, CORRECTED[name], seeds=5)
    least = runs.of(lambda run: run.least_variance, "ordinary", seeds=5).min()
    return found | {"main-smallest-variance": least}


def means(runs):
    """Appendix F.2."""
    centered, control = (runs.of(d("barycenter"), words) for words in ("centered", "ordinary"))
    return {
        "means-direction": np.median(centered),
        "means-ratio": runs.median(gap_ratio, "centered"),
        "means-far": np.mean(centered > 0.05),
        "means-moved": np.mean(np.abs(centered - control) > 0.02),
    }


def epochs(runs):
    """Appendix F.3."""
    by_budget = {
        budget: np.median(runs.of(d("barycenter"), "ordinary", epochs=budget), axis=1) for budget in BUDGETS
    }
    first = {
        f"epochs-first-{name}": min((b for b in BUDGETS if by_budget[b][place] < 0.1), default=np.inf)
        for place, name in enumerate(ALL)
    }
    assert len(set(first.values())) > 3  # settings differ
    return first | {f"epochs-{budget}": np.median(by_budget[budget]) for budget in (50, 400, 1000, 4000)}


def rho(runs):
    """Table 5."""
    columns = {
        "delta": FREE_COLUMNS["delta"],
        "objective": lambda run: np.median(run.objective_gap[7]),  # across clients first
        "endpoint": e_f("barycenter"),
    }
    return {
        f"rho-{weight}-{what}": runs.median(quantity, words)
        for weight, words in RHO.items()
        for what, quantity in columns.items()
    }


def alignment(runs):
    """Tables 6 and 7."""
    found = {}
    for name, corrected in CORRECTED.items():
        for what, quantity in FREE_COLUMNS.items():
            found[f"alignment-{name}-{what}"] = runs.median(quantity, name, ALIGNED, seeds=5)
        for at in (1, 2, 3, 8) if name == "proximal" else (1, 8):
            column = f"alignment-{name}-corrected-{at}"
            found[column] = runs.median(e_f("centralized", at), corrected, ALIGNED)
    aligned, near = (runs.of(e_f("barycenter"), words, ALIGNED, seeds=5) for words in ("aligned", "proximal"))
    found["alignment-below-proximal-endpoint"] = np.mean(aligned < near)
    common = removed(runs, "common", "ordinary", "aligned", rounds=8)
    return found | common | removed(runs, "independent", "independent", "aligned+independent", rounds=1)


def removed(runs, start, raw, aligned, rounds):
    """A column of Table 7: (L_raw - L_al) / L_raw after the first round, and its range over settings."""
    first, second = (
        runs.of(lambda run: run.shared_objective[0], words, ALIGNED, 5, rounds=rounds)
        for words in (raw, aligned)
    )
    medians = np.median((first - second) / first, axis=1)
    found = {f"mismatched-{start}-{name}": part for name, part in zip(ALIGNED, medians, strict=True)}
    return found | {f"mismatched-{start}-range": (medians.min(), medians.max())}


def row(runs, name, words, settings, **condition):
    """A row of Table 8."""
    star, centralized = (
        runs.of(d(reference), words, settings, **condition) for reference in ("barycenter", "centralized")
    )
    return {
        f"{name}-to-barycenter": np.median(star),
        f"{name}-to-centralized": np.median(centralized),
        f"{name}-closer": np.mean(star < centralized),
    }


def architecture(runs):
    """Table 8, its first half."""
    return (
        row(runs, "cnn", "ordinary", IMAGES, backbone="residual-cnn")
        | row(runs, "cnn-corrected", "corrected", IMAGES, backbone="residual-cnn")
        | row(runs, "resnet34", "ordinary", IMAGES, backbone="resnet34")
        | row(runs, "larger", "ordinary", ("3dshapes", "cifar-geo"), epochs=1000, larger=True)
    )


def full_model(runs):
    """Table 8, its second half."""
    return (
        row(runs, "full-400", "full-model", TABULAR, epochs=400)
        | row(runs, "full-4000", "full-model", TABULAR)
        | row(runs, "full-corrected", "full-model+corrected", TABULAR)
    )


def prediction(runs):
    """Table 9."""
    found = {}
    for name, words in PREDICTING.items():
        for reference in ("barycenter", "centralized"):
            found[f"prediction-{name}-{reference}"] = runs.median(e_f(reference), words, IMAGES)
    for name in ("proximal", "corrected"):
        train, test = (loss_change(runs, rows, PREDICTING[name]) for rows in ("train", "test"))
        found[f"prediction-{name}-train"] = -np.median(train)
        found[f"prediction-{name}-test"] = -np.median(test)
        found[f"prediction-{name}-test-share"] = np.mean(test < 0)
    return found | changes_of_test_errors(runs)


def changes_of_test_errors(runs):
    """Figure 16, and the largest change of any run."""
    near, corrected = (loss_change(runs, "test", words) for words in ("proximal", "proximal+corrected"))
    assert -near.min() > near.max() > 0  # the largest is a fall, and some rise
    means = dict(zip(IMAGES, corrected.mean(axis=1), strict=True))
    return {
        "prediction-proximal-test-largest": -near.min(),
        "prediction-corrected-test-range": (min(means.values()), max(means.values())),
        "prediction-corrected-test-mpiigaze": means["mpiigaze"],
        "prediction-corrected-test-dsprites": means["dsprites"],
    }


def loss_change(runs, rows, words):
    """MSE / MSE of ordinary training - 1 of the training or test rows, with the shared bias."""
    ours, ordinary = (
        runs.of(lambda run: getattr(run, f"{rows}_mse")[7, 0], each, IMAGES) for each in (words, "ordinary")
    )
    return ours / ordinary - 1


DEFINITIONS = {
    "dnn-main": main, "dnn-means": means, "dnn-epochs": epochs, "dnn-rho": rho, "dnn-alignment": alignment,
    "dnn-architecture": architecture, "dnn-full-model": full_model, "dnn-prediction": prediction,
}  # fmt: skip


@pytest.fixture(scope="module")
def by_definition():
    """Numbers by study, and all runs that they are of."""
    runs = Runs()
    return {name: define(runs) for name, define in DEFINITIONS.items()}, ComparableRuns.from_results(
        runs.values()
    )


@pytest.mark.parametrize("name", GROUPS["dnn"])
def test_every_number_is_the_one_that_the_paper_defines(name, by_definition):
    expected, shown = by_definition
    measured = STUDIES[name].measure(shown)
    assert set(expected[name]) == {claim.id for claim in load_claims(name) if claim.value is not None}
    for claim, value in expected[name].items():
        assert measured[claim].value == pytest.approx(value, rel=1e-12), claim
        assert not measured[claim].partial, claim


def test_the_numbers_are_of_as_many_runs_as_the_paper_has(by_definition):
    # Of the 60 that the paper averages once, 30 begin with a common backbone: the first rounds of others are
    # these. The other 30 are trained once for either way to average.
    assert len(by_definition[1].by_key) == 764
