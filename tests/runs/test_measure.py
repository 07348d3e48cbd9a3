"""Measuring stored runs: against theory that they follow exactly, and against plain recomputation."""

import json
from dataclasses import replace
from shutil import copytree

import numpy as np
import pytest
from scipy.linalg import sqrtm

from fedgram import InputError, Penalty, phi, predict
from fedgram._util.text import describe_seeds, format_bytes, pluralize, split_names
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.display.run_figure import draw_comparison
from fedgram.runs import Runs
from fedgram.runs.compare import METRICS, Spread, compare_runs
from fedgram.runs.expectation import expectation
from fedgram.runs.measure import average_over_clients, measure
from fedgram.runs.procedure import BIAS_RULES, Procedure
from fedgram.runs.record import Round
from fedgram.theory.geometry import psd
from tests.helpers.small_runs import SETTINGS, exact_run, small_problem, trained


@pytest.mark.parametrize("targets", [2, 3])
@pytest.mark.parametrize(
    ("procedure", "target"),
    [
        ("ordinary", "barycenter"),
        ("proximal=0.1+private", "barycenter"),
        ("solved+offset", "barycenter"),
        ("full-model", "barycenter"),
        ("centered", "barycenter"),
        ("corrected", "centralized"),
        ("solved+corrected+offset", "centralized"),
        ("corrected+centered", "within"),
        ("corrected=0.5", "partly corrected"),
        ("centralized", "centralized"),
    ],
)
def test_a_run_that_follows_theory_has_no_error(tmp_path, procedure, target, targets):
    run = exact_run(tmp_path, procedure, rounds=40, targets=targets)
    found = measure(run)
    assert found.expected.target == target
    assert found.trajectory_error.max() < 1e-12
    assert found.median_trajectory_error < 1e-12
    assert found.delta.max() < 1e-12
    assert found.endpoint_error < 1e-12
    assert found.direction_error[target][-1] < 1e-12
    assert found.target_error[0] > 0.1
    assert np.abs(found.objective_gap).max() < 1e-13
    assert found.warnings == ()
    if target in ("centralized", "within"):
        assert found.target_error[1] < 1e-12, "one round is enough"
    if procedure != "centralized":
        np.testing.assert_allclose(found.local_grams[-1], found.expected.grams, atol=1e-12)


@pytest.mark.parametrize("words", ["proximal=0.1", "proximal=0.1+corrected=0.5", "proximal+aligned"])
def test_proximal_runs_are_compared_with_exact_rounds_at_their_weight(tmp_path, words):
    run = exact_run(tmp_path, words, rounds=3)
    found, weight = measure(run), run.setup.procedure.proximal
    moments = found.prediction.moments
    moved = replace(moments, covariance=found.expected.covariance)
    exact = predict(moved, run.setup.settings.penalty).trajectory(found.grams[0], 3, weight)
    assert found.proximal_error.shape == (4,)
    assert found.proximal_error[0] < 1e-13
    np.testing.assert_allclose(found.proximal_error, psd.relative_error(found.grams, exact), atol=1e-12)
    assert found.proximal_error[1] > found.trajectory_error[1]  # its heads are those of a zero weight
    assert found.document()["proximal_error"] == found.proximal_error.tolist()


@pytest.mark.parametrize("words", ["ordinary", "solved+proximal", "proximal+full-model"])
def test_other_runs_have_no_rounds_at_a_weight(tmp_path, words):
    found = measure(exact_run(tmp_path, words, rounds=1))
    assert found.proximal_error is None
    assert found.document()["proximal_error"] is None


def test_targets_are_those_of_the_moments():
    moments, penalty = small_problem().moments, Penalty()
    prediction = predict(moments, penalty)
    pooled = np.concatenate([split.targets for split in small_problem().train.values()])
    gram = expectation(prediction, Procedure.parse("corrected")).gram
    np.testing.assert_allclose(gram, phi(np.cov(pooled.T, bias=True), penalty), rtol=1e-12)
    centered = predict(small_problem().centered().moments, penalty)
    for words in ("centered", "centered+corrected", "centered+corrected=0.3"):
        plain = Procedure.parse(words.removeprefix("centered+").replace("centered", "ordinary"))
        ours, theirs = expectation(prediction, Procedure.parse(words)), expectation(centered, plain)
        np.testing.assert_allclose(ours.gram, theirs.gram, rtol=1e-11)
        np.testing.assert_allclose(ours.grams, theirs.grams, rtol=1e-11)
    np.testing.assert_allclose(
        expectation(prediction, Procedure.parse("centered+corrected")).gram, prediction.within, rtol=1e-12
    )


def root(matrix):
    return np.real(sqrtm(matrix))


def selected(head, gram):
    """Π_m(W) as the paper writes it: T(G) W with T(G) = G^(-1/2) (G^(1/2) G_m G^(1/2))^(1/2) G^(-1/2)."""
    half = root(head @ head.T)
    inverse = np.linalg.inv(half)
    return inverse @ root(half @ gram @ half) @ inverse @ head


def test_against_plain_recomputation(tmp_path):
    run = trained(tmp_path, ["ordinary"], [0])[0]
    found, rounds = measure(run), run.rounds()
    problem, penalty = small_problem(), run.setup.settings.penalty
    covariances = [np.cov(split.targets.T, bias=True) for split in problem.train.values()]
    weights = np.array([24, 20, 16]) / 60
    grams = [root(covariance) - 0.01 * np.eye(2) for covariance in covariances]  # λ_H = λ_W = 0.01
    heads = [run.initial[0], *(each.head for each in rounds)]
    recursion, apart_from_it = [heads[0]], []
    for t, round in enumerate(rounds):
        gram, star = heads[t + 1] @ heads[t + 1].T, found.prediction.barycenter.gram
        apart = np.linalg.norm(gram - star) / np.linalg.norm(star)
        assert found.error["barycenter"][t + 1] == pytest.approx(apart, rel=1e-12)
        unit = gram / np.linalg.norm(gram) - star / np.linalg.norm(star)
        assert found.direction_error["barycenter"][t + 1] == pytest.approx(np.linalg.norm(unit), rel=1e-12)
        away = [np.linalg.norm(round.returned_heads[m] - selected(heads[t], grams[m])) for m in range(3)]
        assert found.delta[t] == pytest.approx(weights @ away, rel=1e-10)
        recursion.append(sum(w * selected(recursion[-1], g) for w, g in zip(weights, grams, strict=True)))
        exact = recursion[-1] @ recursion[-1].T
        apart = np.linalg.norm(gram - exact) / np.linalg.norm(exact)
        assert found.trajectory_error[t + 1] == pytest.approx(apart, rel=1e-10)
        apart_from_it.append(apart)
        for m, covariance in enumerate(covariances):
            variances = np.linalg.eigvalsh(covariance)
            least = (np.sqrt(penalty.threshold * variances) - penalty.threshold / 2).sum()
            gap = (round.local_objective[m] - least) / least
            assert found.objective_gap[t, m] == pytest.approx(gap, rel=1e-10)
        assert found.train_mse[t] == pytest.approx(weights @ round.train_mse, rel=1e-12)
        assert found.test_mse[t] == pytest.approx(
            (5 * round.test_mse[0] + 3 * round.test_mse[1]) / 8, rel=1e-12
        )
    assert found.last_delta == found.delta[2]
    assert found.median_trajectory_error == pytest.approx(np.median(apart_from_it), rel=1e-10)
    assert found.median_objective_gap == np.median(found.objective_gap[2])
    assert found.last_mse == (found.train_mse[2, 0], found.test_mse[2, 0])


def test_shared_predictions_are_measured_on_all_rows(tmp_path):
    """The stored models and head give the stored errors, without the trainer."""
    run = trained(tmp_path, ["ordinary"], [0])[0]
    model, last = run.model(), run.rounds()[-1]
    squares = []
    for m, split in enumerate(small_problem().test.values()):
        hidden = np.tanh(split.inputs @ model["backbone.0.weight"][m].T + model["backbone.0.bias"][m])
        features = hidden @ model["feature.weight"][m].T + model["feature.bias"][m]
        squares.append((features @ last.head.T + last.bias - split.targets) ** 2)
    assert measure(run).last_mse[1] == pytest.approx(np.concatenate(squares).mean(), rel=1e-10)


def test_the_private_and_offset_rules_use_their_own_column(tmp_path):
    for rule, procedure in enumerate(("ordinary", "private", "offset")):
        found = measure(exact_run(tmp_path / procedure, procedure, rounds=1))
        assert found.last_mse[1] == pytest.approx((rule + 1) * (1 * 5 + 2 * 3) / 8)


def test_a_client_that_is_not_fully_active_is_flagged(tmp_path):
    rng = np.random.default_rng(0)
    scales = {"narrow": (1.0, 0.005), "wide": (0.5, 0.7)}
    train = {name: Split(np.zeros((50, 1)), rng.standard_normal((50, 2)) * s) for name, s in scales.items()}
    moments = Problem("narrow", "GENERATED", train).moments
    run = exact_run(tmp_path, rounds=2)
    run.begin(moments, *run.initial)
    first = run.rounds()[0]
    for number in (1, 2):
        shortened = {
            name: value[:2] if value.shape[:1] == (3,) else value
            for name, value in vars(first).items()
            if name != "number"
        }
        run.record(Round(number, **shortened))
    rows = replace(run.setup.data, train_rows=(50, 50), test_rows=(0, 0))
    found = measure(replace(run, setup=replace(run.setup, data=rows)))
    assert "Client 'narrow' is not fully active" in found.warnings[0]
    assert np.isfinite(found.trajectory_error).all()


def test_clients_that_did_not_answer_are_named(tmp_path):
    found = measure(exact_run(tmp_path, rounds=3))
    assert found.warnings == ()
    found.absent[1:, 0] = found.absent[1, 2] = True
    assert found.warnings == (
        "Client 'site 0' did not reply or measure in rounds 2, 3. Fit and errors of these rounds exclude it.",
        "Client 'site 2' did not reply or measure in round 2. Fit and errors of these rounds exclude it.",
    )


@pytest.mark.parametrize("part", ["local_objective", "train_mse"])
def test_clients_that_did_not_train_or_did_not_measure_are_absent(tmp_path, part):
    run = exact_run(tmp_path, rounds=3)
    second = run.rounds()[1]
    getattr(second, part)[2] = np.nan
    run.record(second)
    assert measure(run).absent.tolist() == [[False] * 3, [False, False, True], [False] * 3]


def test_rounds_that_are_not_measured_are_the_same_otherwise(tmp_path):
    """With measure_every=2, rounds 2 and 3 of three are measured, and no client counts as absent."""
    procedures = ("full-model", "solved+corrected+offset")
    every = trained(tmp_path / "every", procedures, (0,))
    some = trained(tmp_path / "some", procedures, (0,), replace(SETTINGS, measure_every=2))
    for one, other in zip(every, some, strict=True):
        expected, found = measure(one), measure(other)
        np.testing.assert_allclose(found.grams, expected.grams, rtol=1e-12)
        for name in ("objective_gap", "train_mse", "test_mse"):
            np.testing.assert_allclose(getattr(found, name)[1:], getattr(expected, name)[1:], rtol=1e-12)
            assert np.isnan(getattr(found, name)[0]).all()
        assert np.isnan(found.median_objective_gaps).tolist() == [True, False, False]
        assert not found.absent.any()
        assert found.warnings == expected.warnings


def test_a_document_has_every_number_and_null_where_there_is_none(tmp_path):
    found = measure(exact_run(tmp_path, rounds=2))
    found.objective_gap[0, 1] = found.test_mse[1, 2] = np.nan
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    assert document["objective_gap"][0][1] is None
    assert document["test_mse"]["offset"][1] is None
    read = np.array(document["objective_gap"], dtype=float)
    np.testing.assert_array_equal(read, found.objective_gap)
    for part in ("train_mse", "test_mse"):
        read = np.array([document[part][rule] for rule in ("shared", "private", "offset")], dtype=float)
        np.testing.assert_array_equal(read.T, getattr(found, part))


def test_errors_without_test_rows():
    assert np.isnan(average_over_clients(np.full((2, 3, 3), np.nan), np.zeros(3))).all()


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    for seed in (0, 1, 2):
        exact_run(folder, "ordinary", rounds=4, seed=seed)
    exact_run(folder, "corrected", rounds=4)
    unfinished = exact_run(folder, "proximal", rounds=4)
    replace(unfinished, account=replace(unfinished.account, seconds=(1.0, 1.0))).save()
    return folder


@pytest.fixture(scope="module")
def figures(several, tmp_path_factory):
    """Figures of all runs, by suffix."""
    folder = tmp_path_factory.mktemp("figures")
    for suffix in ("png", "svg", "pdf"):
        draw_comparison(compare_runs(Runs(several)), folder / f"figure.{suffix}")
    return {suffix: folder / f"figure.{suffix}" for suffix in ("png", "svg", "pdf")}


def test_runs_are_compared_over_seeds(several):
    (setting,) = compare_runs(Runs(several))
    assert [group.name for group in setting.groups] == ["corrected", "ordinary"]
    ordinary = setting.groups[1]
    assert ordinary.target == "G_⋆"
    errors = [measure(run).endpoint_error for run in Runs(several) if run.setup.procedure.name == "ordinary"]
    assert ordinary.spread("error") == Spread(np.mean(errors), np.std(errors, ddof=1))
    assert ordinary.spread("predicted gap").mean == setting.groups[0].runs[0].prediction.relative_gap
    assert setting.groups[0].spread("error").deviation == 0
    np.testing.assert_array_equal(ordinary.errors, [run.target_error for run in ordinary.runs])
    assert ordinary.predicted_errors.shape == (3, 5)
    document = setting.document()
    assert document["procedures"][1]["seeds"] == [0, 1, 2]
    assert {name.replace(" ", "_").lower() for name in METRICS} <= set(document["procedures"][0])
    assert ordinary.spread("predicted gap").deviation == 0, "the seeds share it"
    assert document["warnings"] == [], "exact clients are trained to their end"


def test_clients_far_from_their_least_objectives_are_named(several, monkeypatch):
    monkeypatch.setattr("fedgram.runs.compare.UNFINISHED", -1.0)
    (setting,) = compare_runs(Runs(several))
    (unfinished,) = setting.warnings
    assert setting.document()["warnings"] == [unfinished]
    assert unfinished.startswith("The prediction assumes that local training converges")
    for group in setting.groups:
        assert f"{100 * group.spread('objective gap').mean:,.0f} % ({setting.label(group)})" in unfinished


def test_other_networks_of_one_name_are_another_setting(several, tmp_path):
    copytree(several, tmp_path / "one")
    for run in Runs(several):
        other = replace(run.setup, network="another")
        copytree(run.folder, tmp_path / "other" / run.folder.relative_to(several))
        replace(run, folder=tmp_path / "other" / run.folder.relative_to(several), setup=other).save()
    assert [len(setting.groups) for setting in compare_runs(Runs(tmp_path))] == [2, 2]


def test_copies_of_a_run_count_once(several, tmp_path):
    for place in ("one", "other"):
        copytree(several, tmp_path / place)
    (setting,) = compare_runs(Runs(tmp_path))
    assert [group.seeds for group in setting.groups] == [(0,), (0, 1, 2)]


def test_gaps_beyond_reason_are_times(several):
    (setting,) = compare_runs(Runs(several))
    setting.groups[1].runs[0].objective_gap[-1] = 3e7
    assert "exceed their minimum by 1e+07 times (ordinary (seeds 0 to 2))." in setting.warnings[-1]


def test_test_errors_that_grew_are_named(several):
    """Under a private bias alone: under the shared one they grow as the paper's heads near their limit."""
    (setting,) = compare_runs(Runs(several))
    run = setting.groups[1].runs[1]
    run.test_mse[:] = np.array([[0.5], [0.25], [np.nan], [0.75]])
    run.test_mse[-1, BIAS_RULES.index("shared")] = 9.0
    assert run.lasting_mse == (0.25, 0.75)
    assert setting.warnings == ()
    run.test_mse[-1] = 0.76
    run.absent[1, 0] = True  # whose errors would have made the others of that round larger
    assert run.lasting_mse == (0.5, 0.76)
    assert ["did not reply or measure in round 2" in each for each in setting.warnings] == [True]
    run.absent[1, 0] = False
    (lost,) = setting.warnings
    assert lost.startswith("Test errors grew")
    assert "from 0.25 to 0.76 (ordinary (seeds 0 to 2))." in lost
    chosen = replace(run, chosen_test_mse=0.25)  # validation rows chose the models of another round
    runs = tuple(chosen if each is run else each for each in setting.groups[1].runs)
    assert replace(setting, groups=(replace(setting.groups[1], runs=runs),)).warnings == ()


def test_seeds_are_shown_where_they_differ(several, figures, tmp_path):
    (setting,) = compare_runs(Runs(several))
    assert "GENERATED data, E = 1, 4 rounds, 1 to 3 seeds, P = 5" in setting.scale
    labels = [setting.label(group) for group in setting.groups]
    assert labels == ["corrected (seed 0)", "ordinary (seeds 0 to 2)"]
    text = figures["svg"].read_text()
    for words in (*labels, "Grams after round 4, seed 0"):
        assert words in text
    for seed in (0, 3):
        exact_run(tmp_path, "ordinary", rounds=1, seed=seed)
        exact_run(tmp_path, "corrected", rounds=1, seed=seed)
    (setting,) = compare_runs(Runs(tmp_path))
    assert "1 round, 2 seeds, P = 5" in setting.scale
    assert [setting.label(group) for group in setting.groups] == ["corrected", "ordinary"]


def test_counts_and_seeds_in_words():
    assert [format_bytes(count) for count in (999, 999_499, 999_600)] == ["999 B", "999 kB", "1 MB"]
    assert [pluralize(number, "run") for number in (0, 1, 2000)] == ["0 runs", "1 run", "2,000 runs"]
    assert [describe_seeds(seeds) for seeds in ([4], (0, 1), {3, 0}, (1, 2, 3), (0, 1, 3))] == [
        "seed 4", "seeds 0, 1", "seeds 0, 3", "seeds 1 to 3", "seeds 0, 1, 3",
    ]  # fmt: skip


def test_lists_have_commas_and_quotes_around_others():
    listed = {
        "a,b ,": ["a", "b"],
        '"a, b", c': ["a, b", "c"],
        "a\nb": ["a", "b"],
        'it\'s "odd",y': ['it\'s "odd"', "y"],
    }
    assert {text: split_names(text) for text in ("", ",", *listed)} == {"": [], ",": [], **listed}


def test_the_figure_is_drawn(figures):
    assert all(path.stat().st_size > 5000 for path in figures.values())
    text = figures["svg"].read_text()
    assert "GENERATED data" in text
    assert "predicted G_⋆" in text


def little_within():
    """A light client that is active, a heavy one far from it that is not: G_within is zero, G_cen is not."""
    rng = np.random.default_rng(0)

    def split(rows, scale, mean):
        targets = rng.standard_normal((rows, 1))
        return Split(rng.standard_normal((rows, 4)), mean + scale * (targets - targets.mean()))

    train = {"light": split(10, 2e-2, 9.0), "heavy": split(990, 1e-3, 0.0)}
    return Problem("apart", "GENERATED", train, target_names=("x",))


def test_no_error_is_relative_to_a_within_gram_of_zero(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.helpers.small_runs.small_problem", lambda targets: little_within())
    found = measure(exact_run(tmp_path, targets=1, features=2))
    assert not found.prediction.within.any()
    assert np.isnan(found.error["within"]).all()
    assert np.isnan(found.direction_error["within"]).all()
    assert found.endpoint_error < 1e-12
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    assert document["error"]["within"] == [None] * 13
    assert document["error"]["barycenter"] == found.error["barycenter"].tolist()


def test_a_procedure_that_ends_at_zero_is_refused():
    prediction = predict(little_within().moments)
    for reaches in ("corrected", "ordinary+centered"):
        assert expectation(prediction, Procedure.parse(reaches)).gram.any()
    with pytest.raises(
        InputError, match=r"'corrected\+centered' ends at a zero head: no client keeps"
    ) as caught:
        expectation(prediction, Procedure.parse("corrected+centered"))
    assert caught.value.field == "procedure"
