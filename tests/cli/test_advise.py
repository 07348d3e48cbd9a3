"""`fedgram advise`, and what `train` and `runs predict` share with it."""

import json
import shlex
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError
from fedgram import advise as compare
from fedgram._util.text import join_names, split_names
from fedgram.data.problem import Problem
from fedgram.data.splits import hold_out
from fedgram.runs.advice import ALONE, AUTO, FEDAVG, HEAD, Errors
from fedgram.training.advice_notes import (
    _deciding_site_notes,
    _least_error_notes,
    _linear_notes,
    _mean_notes,
    _skill_notes,
)
from fedgram.training.advise import _list_summary
from tests.helpers.command import fedgram as run

TINY = ("--backbone", "resmlp-small", "--rounds", "2", "--epochs", "1")
COLUMNS = ("--client", "school", "--inputs", "age,sex", "--targets", "score,time")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Four schools with levels of their own, one of them with three rows."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("advise") / "schools.csv"
    lines = ["school,age,sex,score,time,day"]
    for m, (school, rows) in enumerate({"north": 40, "south": 30, "east": 25, "tiny": 3}.items()):
        for i in range(rows):
            age, sex = rng.normal(12, 2), rng.choice(["F", "M"])
            score = 50 + 10 * m + 3 * (age - 12) + rng.normal()
            lines.append(
                f"{school},{age:.3f},{sex},{score:.3f},{rng.normal(100, 5):.3f},2024-01-{i % 28 + 1:02d}"
            )
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def advice(table):
    result = run("advise", table, *COLUMNS, *TINY, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_json_has_the_contract(advice):
    assert advice["targets"] == ["score", "time"]
    names = [each["name"] for each in advice["procedures"]]
    assert names == [
        "local",
        "ordinary",
        "full-model",
        "full-model+moment-head+site-effects+blended",
        "centralized",
    ]
    change = advice["total_change"]
    assert change["low"] <= change["mean"] <= change["high"]
    joins = change["mean"] <= 0.1 and change["low"] <= 0
    assert advice["recommended"] == names[3 if joins else 0]
    for each in advice["procedures"]:
        assert each["standardized_mse"] > 0
        assert set(each["rmse"]) == set(each["r2"]) == {"score", "time"}
    assert {site["verdict"] for site in advice["sites"]} <= {"join", "alone", "undecided", "untested"}
    assert advice["alone"] in ("network", "ridge regression", "mean")
    north = next(site for site in advice["sites"] if site["name"] == "north")
    assert (north["rows"], north["test_rows"]) == (32, 8)
    assert north["difference"]["low"] <= north["difference"]["mean"] <= north["difference"]["high"]
    for metric in ("rmse", "r2"):
        assert list(north[metric]) == names
        assert all(set(by_target) == {"score", "time"} for by_target in north[metric].values())


def test_errors_are_in_the_targets_own_units(advice):
    # the spread of 'score' within and between schools is about ten points, far above one
    local = advice["procedures"][0]
    assert 1 < local["rmse"]["score"] < 40
    assert 1 < local["rmse"]["time"] < 40


def test_a_small_site_is_served_by_the_shared_model(advice):
    tiny = next(site for site in advice["sites"] if site["name"] == "tiny")
    assert (tiny["test_rows"], tiny["verdict"]) == (0, "untested")
    assert any("'tiny'" in note for note in advice["notes"])


@pytest.mark.slow
def test_the_printed_command_trains_a_model_that_predicts(table, tmp_path, monkeypatch):
    result = run("advise", table, *COLUMNS, *TINY, "--figure", tmp_path / "gain.svg", "--units", "points,s")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "gain.svg").exists()
    assert "points" in result.stdout
    command = shlex.split(next(line for line in result.stdout.splitlines() if "fedgram train" in line))
    assert command[command.index("--test-fraction") + 1] == "0"
    trained = run(*command[1:], "--out", tmp_path / "runs")
    assert trained.returncode == 0, trained.stderr
    assert "none" not in trained.stdout
    assert f"Predict other rows: fedgram runs predict {tmp_path}/runs/" in trained.stdout
    (model,) = (tmp_path / "runs").rglob("model.safetensors")
    new = tmp_path / "new.csv"
    new.write_text("school,age,sex\nnorth,12,F\neast,12,F\nwest,12,M\n")
    predicted = run("runs", "predict", model.parent, new, "--client", "school", "--json")
    assert predicted.returncode == 0, predicted.stderr
    assert "'west' did not take part" in predicted.stderr
    values = np.array(json.loads(predicted.stdout)["predictions"])
    assert np.isfinite(values).all()
    assert 20 < values[0, 0] < 120  # in points, not standardized


def test_time_holds_out_the_latest_rows(table):
    result = run("advise", table, *COLUMNS, *TINY, "--time", "day", "--json")
    assert result.returncode == 0, result.stderr
    warning, *_ = result.stderr.splitlines()  # before training
    assert warning.endswith("Pass --test-fraction 0.4 or more, or hold out random rows, without --time.")
    assert json.loads(result.stdout)["sites"][0]["test_rows"] > 0


BAD = {
    ("--client", "school", "--targets", "score"): "needs --inputs",
    (*COLUMNS, "--impute", "mean"): "Unknown --impute: 'mean'. Use 'median'.",
    (*COLUMNS, "--categories", "sex,hight"): "Category 'hight' is no input",
    (*COLUMNS, "--time", "sex"): "sex",
    (*COLUMNS, "--test-fraction", "0"): "No site has test rows. A table's site needs 10 rows, or 5 if all",
    (*COLUMNS, "--data-seed", "-1"): "A seed must be a whole number of at least 0, not -1.",
    ("--client", "school", "--inputs", "age,height", "--targets", "score"): "height",
}


@pytest.mark.parametrize(
    "options", [("--units", "a,b,c"), ("--figure", "gain.txt"), ("--figure", "no/such/folder/gain.png")]
)
def test_bad_output_options_are_refused_before_training(table, options):
    result = run("advise", table, *COLUMNS, *TINY, *options)
    assert result.returncode == 2
    assert "trained" not in result.stderr


def test_linear_sites_are_compared_with_linear_regression(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "linear.csv"
    lines = ["site,a,b,level,y"]
    for m in range(3):  # 'level' is constant at each site
        for a, b in rng.normal(size=(40, 2)):
            lines.append(
                f"{m},{a},{b},{0.1 * m},{30000 + 9000 * a - 2000 * b + 20000 * m + 500 * rng.normal()}"
            )
    path.write_text("\n".join(lines))
    options = ("--client", "site", "--inputs", "a,b,level", "--targets", "y", "--data-seed", "3")
    result = run("advise", path, *options, *TINY)
    assert result.returncode == 0, result.stderr
    printed = " ".join(result.stdout.split())
    assert "'Alone' is ridge regression on each site's rows: over all test rows it has less error" in printed
    assert printed.startswith("Stay alone: ")
    less = (
        "The command below trains networks, but ridge regression on each site's rows has less error: fit it"
    )
    assert less in printed
    assert result.stdout.splitlines()[-1].startswith("  fedgram train ")
    assert "e+0" not in result.stdout
    assert "--data-seed 3" in result.stdout  # the same test rows
    assert "Warning" not in result.stderr


def test_sites_whose_mean_predicts_as_well_are_named():
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=(40, 1)) for name in "abc"}
    problem = hold_out(Problem.from_arrays(rows, rows), 0.25).hold_out_validation(0.2)
    errors = {name: split.targets**2 for name, split in problem.test.items()}
    errors["b"] = errors["b"] / 100
    verdicts = {"a": "undecided", "b": "join", "c": "untested"}
    sites = [SimpleNamespace(name=name, verdict=verdict) for name, verdict in verdicts.items()]
    (note,) = _mean_notes(problem, sites, [4 * errors["a"], errors["b"], 4 * errors["c"]])
    assert note == (
        "At 1 of 2 sites with enough test rows the recommended model predicts them no better than the mean "
        "of the site's other rows would: 'a'."
    )
    assert _mean_notes(problem, sites, [each / 100 for each in errors.values()]) == ()


def test_a_site_that_decides_the_total_is_named():
    sites = [SimpleNamespace(name=name) for name in "abc"]
    alone = [np.full((4, 1), 1.0), np.full((4, 1), 1.0), np.full((2, 1), 9.0)]
    joined = [0.5 * alone[0], 0.8 * alone[1], 2.0 * alone[2]]
    (note,) = _deciding_site_notes(sites, alone, joined)
    assert note == "'c' decides the total: without it, joining lowers the mean squared error by 35 %."
    assert _deciding_site_notes(sites, joined, alone)[0].endswith("raises the mean squared error by 54 %.")
    assert _deciding_site_notes(sites, alone, [0.5 * each for each in alone]) == ()
    assert _deciding_site_notes(sites[:2], alone[1:], joined[1:]) == ()  # one of two always does
    gains = [np.full((1, 1), gain) for gain in (-10.0, 9.0, 4.0)]  # the total turns without the second
    ones = [np.full((1, 1), 20.0)] * 3
    (note,) = _deciding_site_notes(sites, ones, [one - gain for one, gain in zip(ones, gains, strict=True)])
    assert note.startswith("'b' decides the total: without it, joining raises the mean squared error by 15 %")
    assert _deciding_site_notes(sites, ones, [ones[0], ones[1], np.full((1, 1), np.inf)]) == ()


def test_targets_that_nothing_predicts_are_named():
    values = np.arange(10.0)[:, None]
    problem = Problem.from_arrays(
        {"a": values, "b": values}, {key: np.hstack([values, values]) for key in "ab"}
    )
    problem = replace(problem, target_names=("x", "y"))
    nothing = np.full((2, 2), np.nan)
    errors = [
        Errors(name, 1.0, np.ones(2), np.array([r2, -1.0]), nothing, nothing)
        for name, r2 in ((ALONE, -0.1), (AUTO, 0.1))
    ]
    by_none = "No procedure predicts 'y' better than a constant would."
    assert _skill_notes(problem, errors, AUTO) == (by_none,)
    by_others = "The recommended model predicts 'x' no better than a constant would."
    assert _skill_notes(problem, errors, ALONE) == (by_none, by_others)
    assert _skill_notes(problem, [replace(errors[1], r2=np.array([0.1, 0.2]))], AUTO) == ()
    nothing = [replace(each, r2=np.array([-0.1, -0.2])) for each in errors]
    assert _skill_notes(problem, nothing, AUTO) == ()  # the answer says so


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"problem": 3}, r"advise\(\) expects Problem, got int"),
        ({"plan": "resmlp-small"}, r"advise\(\) expects Plan, got str"),
        ({"seeds": ()}, "Name at least one procedure and one seed"),
        ({"seeds": 3}, "seeds must be a list, not 3"),
        ({"seeds": [-1]}, "A seed must be an integer of at least 0, not -1"),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments, message):
    values = np.arange(10.0)[:, None]
    problem = Problem.from_arrays({"a": values, "b": values}, {"a": values, "b": values})
    with pytest.raises(InputError, match=message):
        compare(**{"problem": problem, **arguments})


def draw_squares(rng, size=1.0):
    return [(size * rng.normal(size=(40, 1))) ** 2 for _ in range(3)]


def test_a_better_procedure_is_named_only_beyond_chance():
    rng = np.random.default_rng(0)
    squares = {AUTO: draw_squares(rng), HEAD: draw_squares(rng, 3.0)}
    slightly, clearly = ([factor * each for each in draw_squares(rng)] for factor in (0.9, 0.2))
    assert _least_error_notes(squares | {FEDAVG: slightly}, AUTO, False) == ()
    (note,) = _least_error_notes(squares | {FEDAVG: clearly}, AUTO, False)
    assert note.startswith("On these test rows 'FedAvg' has ")
    assert " % less mean squared error than what is recommended." in note


def test_better_linear_regression_of_all_sites_is_named():
    rng = np.random.default_rng(0)
    recommended = draw_squares(rng)
    assert _linear_notes(None, recommended, False) == _linear_notes(recommended, recommended, False) == ()
    (note,) = _linear_notes([0.2 * each for each in draw_squares(rng)], recommended, False)
    assert note.startswith("Linear ridge regression with site effects, from sums over all sites, has ")
    assert note.endswith(" % less mean squared error than the recommended models.")


@pytest.mark.parametrize("options", BAD)
def test_bad_options_get_one_sentence(table, options):
    result = run("advise", table, *options, *TINY)
    assert result.returncode == 2
    assert BAD[options] in result.stderr


def test_missing_inputs_are_refused_with_their_count_or_filled(table, tmp_path):
    lines = table.read_text().splitlines()
    lines[1] = lines[1].replace(lines[1].split(",")[1], "", 1)
    broken = tmp_path / "broken.csv"
    broken.write_text("\n".join(lines))
    refused = run("advise", broken, *COLUMNS, *TINY)
    assert refused.returncode == 2
    assert "1" in refused.stderr
    assert "--impute median" in refused.stderr
    filled = run("advise", broken, *COLUMNS, *TINY, "--impute", "median", "--json")
    assert filled.returncode == 0, filled.stderr


def test_a_table_needs_no_folder_of_datasets(table):
    refused = run("advise", table, *COLUMNS, *TINY, "--data-dir", table.parent)
    said = f"fedgram: --data-dir applies to named datasets, but '{table}' is a table.\n"
    assert (refused.returncode, refused.stderr) == (2, said)


@settings(max_examples=20, deadline=None)
@given(names=st.lists(st.sampled_from(["age", "size, cm", 'a "b"', "x y"]), min_size=1, unique=True))
def test_names_of_columns_survive_the_printed_command(names):
    assert split_names(join_names(names)) == names


def test_what_leaves_a_site_depends_on_its_columns():
    def list_sent(*inputs):
        return list(_list_summary({"encoding": {"inputs": inputs}} if inputs else {}))

    targets, numbers, levels, medians = list_sent(
        {"kind": "number", "median": 3.0}, {"kind": "category", "levels": ("a",)}
    )
    assert (targets, *list_sent()) == (targets, targets)
    assert list_sent({"kind": "number", "median": None}) == [targets, numbers]
    assert list_sent({"kind": "category", "levels": ("a",)}) == [targets, levels]
    assert medians == "medians"
