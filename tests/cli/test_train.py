"""Commands that train and show runs: tables, JSON, exit codes, bad input."""

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from fedgram._util.errors import InputError
from fedgram.data.tables.read_moments import read_moments
from fedgram.data.tables.read_rows import TableSpec, read_inputs, read_table
from fedgram.display import run_tables
from fedgram.nets.fit import Fit
from fedgram.paper import registry
from fedgram.paper.networks.results import Results, RunKey
from fedgram.runs import Runs
from fedgram.runs.compare import METRICS, compare_runs
from fedgram.runs.expectation import SYMBOLS
from fedgram.runs.measure import measure
from fedgram.runs.procedure import Procedure
from tests.helpers.command import fedgram
from tests.helpers.network_results import result_of
from tests.helpers.small_runs import exact_run
from tests.helpers.toy_experiment import toy

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_sites.csv"
TINY = ["--backbone", "resmlp-small", "--features", "6", "--rounds", "2", "--epochs", "1", "--batch", "1000"]


FEW = ["duckdb", "matplotlib", "pandas", "h5py", "PIL", "pooch"]  # packages that training does without
TRAIN = ["train", "swimmer-mini", "--procedure", "ordinary", "--procedure", "solved+corrected+offset",
         "--seeds", "2", *TINY, "--device", "cpu"]  # fmt: skip


def apart(*arguments, without):
    """Run a command in a process that lacks some packages."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({list(without)!r}))\n"
        "from fedgram.cli import main; main()"
    )
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two procedures with two seeds on the embedded data."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        for package in FEW:
            patch.setitem(sys.modules, package, None)
        done = fedgram(*TRAIN, "--out", folder)
    assert done.returncode == 0, done.stderr
    assert "swimmer-mini, resmlp-small: GENERATED data, E = 1, 2 rounds, 2 seeds" in done.stdout
    assert "from centralized" in done.stdout
    assert f"Files: {folder}" in done.stdout
    assert "round 2/2, epoch 1/1" in done.stderr
    assert "errors to the prediction" in done.stderr
    return folder


@pytest.mark.slow
def test_training_needs_few_packages(tmp_path):
    """In a process that never had the others."""
    done = apart(*TRAIN, "--out", tmp_path, without=FEW)
    assert done.returncode == 0, done.stderr


def test_list(runs):
    code, out, _ = fedgram("runs", "list", runs)
    assert code == 0
    assert out.count("complete") == 4
    assert out.count("swimmer-mini (GENERATED), resmlp-small:") == 1
    document = json.loads(fedgram("runs", "list", runs, "--json")[1])
    assert [run["setup"]["seed"] for run in document["runs"]] == [0, 1, 0, 1]
    assert all(run["complete"] for run in document["runs"])


def test_show(runs):
    one = runs / "swimmer-mini" / "resmlp-small" / "ordinary" / "seed-0"
    code, out, _ = fedgram("runs", "show", one)
    assert code == 0
    assert "ordinary/seed-0 on swimmer-mini (GENERATED), resmlp-small: complete" in out
    assert f"error to {SYMBOLS['barycenter']}" in out
    (document,) = json.loads(fedgram("runs", "show", one, "--json")[1])["runs"]
    assert len(document["error"]["centralized"]) == 3
    assert len(document["test_mse"]["offset"]) == 2


def test_errors_of_some_rounds(tmp_path):
    """Heads are shown for every round, errors for those that were measured."""
    short = [*TINY, "--rounds", "3", "--measure-every", "2", "--out", tmp_path]
    assert fedgram("train", "swimmer-mini", *short)[0] == 0
    (run,) = Runs(tmp_path)
    code, out, _ = fedgram("runs", "show", run.folder)
    assert code == 0
    heads, errors = out.split("objective gap")
    assert re.findall(r"^ *(\d) +\d\.\d+e", heads, re.MULTILINE) == ["0", "1", "2", "3"]
    assert re.findall(r"^ *(\d) +\d\.\d+e", errors, re.MULTILINE) == ["2", "3"]


def test_compare(runs, tmp_path):
    figure = tmp_path / "figure.png"
    code, out, err = fedgram("runs", "compare", runs, "--figure", figure)
    assert (code, err) == (0, f"Wrote {figure}.\n")
    assert "solved+corrected+offset" in out
    assert figure.stat().st_size > 10_000
    document = json.loads(fedgram("runs", "compare", runs, "--json")[1])
    solved = document["settings"][0]["procedures"][1]
    assert solved["target"] == "centralized"
    assert solved["predicted_gap"] == {"mean": 0.0, "deviation": 0.0}
    first = next(run for run in Runs(runs) if run.setup.procedure.name == solved["procedure"])
    assert [site["name"] for site in solved["tested"]["sites"]] == list(first.setup.data.clients)
    for errors in (solved["tested"], *solved["tested"]["sites"]):
        assert list(errors["rmse"]) == list(errors["r2"]) == list(first.setup.data.targets)
        assert all(spread["mean"] > 0 for spread in errors["rmse"].values())
    assert document["unfinished"] == []
    code, _, err = fedgram("runs", "compare", runs, "--figure", tmp_path / "figure.gif")
    assert code == 2
    assert "must end in .png, .svg or .pdf" in err


def documented():
    """The rows of the contract's table of commands: the command, and its keys."""
    text = (Path(__file__).parents[2] / "docs" / "interchange.md").read_text(encoding="utf-8")
    rows = [
        line.split(" | ") for line in text.partition("## The other commands")[2].splitlines() if "| `" in line
    ]
    listed = [(row[0].strip("| `"), re.findall(r"`(\w+)`", row[1])) for row in rows]
    # these need networks, an audit log and a federation
    elsewhere = ("runs predict", "runs audit", "federate")
    return [(command, keys) for command, keys in listed if command not in elsewhere]


@pytest.mark.parametrize(("command", "keys"), documented())  # of predictions: test_cli_predictions
def test_json_has_the_keys_of_the_contract(runs, tmp_path, monkeypatch, command, keys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "load_experiment", lambda name: toy(tmp_path / "log", ["one"]))
    about = {"runs": [runs], "data check": ["swimmer-mini"]}
    more = next((given for start, given in about.items() if command.startswith(start)), [])
    code, out, _ = fedgram(*command.split(), *more, "--json")
    assert code == 0
    assert list(json.loads(out)) == keys


def test_tables_fit_a_terminal(runs, monkeypatch, capsys):
    """Of 80 columns: numbers stay whole, also those with deviations."""
    monkeypatch.setattr(run_tables, "console", Console(width=80, highlight=False, markup=False))
    found = Runs(runs).require()
    run_tables.print_list(found)
    run_tables.print_run(found[0])
    run_tables.print_comparison(found)
    said = capsys.readouterr().out
    measured = measure(found[0])
    numbers = [*measured.target_error, *measured.delta, *measured.test_mse.ravel()]
    (setting,) = compare_runs(found)
    spreads = [str(group.spread(name)) for group in setting.groups for name in METRICS]
    for number in (*(f"{number:.3e}" for number in numbers), *spreads):
        assert number in said
    for heading in ("error to recursion", "test MSE, private", "objective gap", "seconds", "memory"):
        assert heading in said
    assert "…" not in said
    assert said.count("solved+corrected+offset") == 6, "twice in the list, in all tables, in the note"
    assert "local losses exceed their minimum by" in said


def test_nothing_finished_is_nothing_to_draw(tmp_path):
    for seed in (0, 1):
        run = exact_run(tmp_path, rounds=1, seed=seed)
        replace(run, account=replace(run.account, seconds=())).save()
        count = "1 run" if seed == 0 else "2 runs"
        code, _, err = fedgram("runs", "compare", tmp_path, "--figure", tmp_path / "figure.png")
        assert code == 2
        assert f"Nothing to draw: none of the {count} in '{tmp_path}' is finished." in err
    assert "ordinary/seed-1: 0 of 1 round." in fedgram("runs", "compare", tmp_path)[1]


def test_different_seeds_are_shown(tmp_path):
    for procedure, seeds in (("ordinary", 3), ("proximal", 2)):
        for seed in range(seeds):
            exact_run(tmp_path, procedure, rounds=2, seed=seed)
    _, out, _ = fedgram("runs", "compare", tmp_path)
    for words in ("2 rounds, 2 to 3 seeds", "ordinary (seeds 0 to 2)", "proximal (seeds 0, 1)"):
        assert words in out


@pytest.mark.slow
def test_the_report_shows_the_runs(runs, tmp_path):
    key = RunKey("swimmer", "swimmer-mini", "resmlp-small", Procedure.parse("full-model"), 0, 4, 3, False)
    Results([result_of(key, "smoke")]).save(tmp_path / "smoke" / "results")
    page = tmp_path / "report.html"
    report = ["report", "--out", tmp_path, "-o", page]
    assert fedgram(*report).returncode == 0
    assert "Trained runs" not in page.read_text()
    assert fedgram(*report, "--runs", runs).returncode == 0
    html = page.read_text()
    assert html.index("<h1>Trained runs</h1>") < html.index("<h2>Networks")
    assert "solved+corrected+offset" in html
    assert "GENERATED data, E = 1" in html
    assert fedgram(*report, "--runs", tmp_path / "smoke").returncode == 2


def test_the_same_command_again_trains_nothing(runs):
    arguments = ["train", "swimmer-mini", "--procedure", "ordinary", *TINY, "--seeds", "0,1", "--out", runs]
    code, out, err = fedgram(*arguments)
    assert code == 0
    assert "Finished runs: 2 of 2." in err
    code, _, err = fedgram(*arguments, "--learning-rate", "0.01")
    assert code == 2
    assert "settings.learning_rate is 0.001 there and 0.01 here" in err
    code, out, _ = fedgram(*arguments, "--json")
    assert json.loads(out)["settings"][0]["procedures"][0]["seeds"] == [0, 1]


def test_procedures_and_seeds_are_lists(tmp_path):
    named = ["--procedure", "ordinary,aligned", "--procedure", "aligned"]
    code, out, _ = fedgram("train", "gaussian", *named, "--seeds", "3,", *TINY, "--out", tmp_path, "--json")
    assert code == 0
    procedures = json.loads(out)["settings"][0]["procedures"]
    assert [(each["procedure"], each["seeds"]) for each in procedures] == [
        ("ordinary", [3]),
        ("aligned", [3]),
    ]


COLUMNS = ["--client", "site", "--inputs", "a,b", "--targets", "y,z"]


@pytest.fixture
def own():
    """Rows of three clients in turn."""
    a, b = np.random.default_rng(0).standard_normal((2, 90))
    sites = np.resize(np.array(["10", "x", "9"], dtype=object), 90)
    return pd.DataFrame({"site": sites, "a": a, "b": b, "y": a + b, "z": a - b})


def test_a_table_of_ones_own(own, tmp_path):
    table = tmp_path / "own.csv"
    own.to_csv(table, index=False)
    kind = ["--kind", "RE-RENDERED"]
    code, out, err = fedgram("train", table, *COLUMNS, *kind, *TINY, "--out", tmp_path / "runs")
    assert code == 0, err
    (run,) = Runs(tmp_path / "runs").require()
    assert run.setup.data.name == "own"
    assert run.setup.data.clients == ("9", "10", "x")
    assert run.setup.data.targets == ("y", "z")
    assert (run.setup.data.train_rows, run.setup.data.test_rows) == ((24, 24, 24), (6, 6, 6))
    assert "own, resmlp-small: RE-RENDERED data" in out


@pytest.mark.parametrize("options", [[], ["--standardize"], ["--impute", "median"], ["--time", "day"]])
def test_the_validation_fraction_is_that_of_the_option(own, tmp_path, options):
    own.assign(day=range(90)).to_csv(tmp_path / "own.csv", index=False)
    given = ["train", tmp_path / "own.csv", *COLUMNS, *options, *TINY, "--out", tmp_path / "runs"]
    for fraction in (0, 1, 7, "nan"):
        code, _, err = fedgram(*given, "--validation", fraction)
        assert (code, f"must be between 0 and 1, not {fraction}." in err) == (2, True), err
    code, _, err = fedgram(*given, "--validation", 0.4)
    assert code == 0, err
    (run,) = Runs(tmp_path / "runs").require()
    assert (run.setup.data.train_rows, run.setup.data.test_rows) == ((14, 14, 14), (6, 6, 6))


@pytest.mark.parametrize(
    "options",
    [
        ["--standardize"],
        ["--impute", "median"],
        ["--time", "day"],
        ["--where", "a > 0"],
        ["--categories", "a"],
    ],
)
def test_flags_for_tables_and_for_datasets_are_told_apart(own, tmp_path, options):
    own.assign(day=range(90)).to_csv(tmp_path / "own.csv", index=False)
    code, _, err = fedgram("train", "own.csv", *COLUMNS, *options, "--larger", *TINY, cwd=tmp_path)
    assert (code, err) == (2, "fedgram: --larger applies to named datasets, but 'own.csv' is a table.\n")
    code, _, err = fedgram("train", "swimmer-mini", *options, *TINY, cwd=tmp_path)
    said = f"fedgram: {options[0]} applies to tables, but 'swimmer-mini' is a named dataset.\n"
    assert (code, err) == (2, said)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_codes_stay_categories_in_predictions(own, tmp_path, suffix):
    own = own.assign(code=np.arange(90) % 4)
    write = {"csv": lambda table, path: table.to_csv(path, index=False), "parquet": pd.DataFrame.to_parquet}
    write[suffix](own, tmp_path / f"own.{suffix}")
    columns = ["--client", "site", "--inputs", "a,code", "--targets", "y", "--categories", "code"]
    given = [tmp_path / f"own.{suffix}", *columns, *TINY, "--out", tmp_path / "runs"]
    code, _, err = fedgram("train", *given)
    assert code == 0, err
    write[suffix](own[:6].assign(code=[0, 1, 2, 3, 1, 7]), tmp_path / f"new.{suffix}")
    (model,) = (tmp_path / "runs").rglob("model.safetensors")
    code, _, err = fedgram("runs", "predict", model.parent, tmp_path / f"new.{suffix}", "--client", "site")
    assert code == 0, err
    assert "that training did not see count as no level: '7' of 'code'" in err


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_of_a_table_are_chosen(own, tmp_path, suffix):
    own.loc[[4, 5, 60], "b"] = np.nan
    table = tmp_path / f"own.{suffix}"
    own.to_csv(table, index=False) if suffix == "csv" else own.to_parquet(table)
    reading = TableSpec("site", ["a", "b"], ["y"], 0.0, where="a > -1", drop_missing=True)
    problem, kept = read_table(str(table), reading, 0), own[(own["a"] > -1) & own["b"].notna()]
    missing = (own["a"] > -1) & own["b"].isna()
    assert problem.provenance["rows_left_out"] == missing.sum() > 0
    assert problem.test == {}
    for client, split in problem.train.items():
        np.testing.assert_allclose(split.targets[:, 0], kept["y"][kept["site"] == client], rtol=1e-15)
    number = 1 + (own["a"][:5] > -1).sum()
    with pytest.raises(
        InputError, match=rf"^Row {number} that --where keeps of .* no number in 'b'.*--drop-missing"
    ):
        read_table(str(table), replace(reading, drop_missing=False), 0)
    with pytest.raises(InputError, match=r'No rows of .* match the condition "a > 99"'):
        read_table(str(table), replace(reading, where="a > 99"), 0)


@pytest.mark.parametrize(
    ("file", "asked", "name"),
    [
        ("parts/1.csv", "parts/*.csv", "parts"),
        ("parts/a/1.csv", "parts/*/1.csv", "1"),
        ("parts/north-1.csv", "parts/north*.csv", "north*"),
        ("parts/own.csv.gz", "parts/own.csv.gz", "own"),
        ("parts/[1].csv", "parts/[1].csv", "[1]"),
        ("parts/1.csv", "parts", "parts"),
    ],
)
def test_tables_are_called_by_their_file_or_folder(own, tmp_path, file, asked, name):
    (tmp_path / file).parent.mkdir(parents=True)
    own.to_csv(tmp_path / file, index=False)
    assert read_table(str(tmp_path / asked), TableSpec("site", ["a"], ["y"]), 0).name == name


def test_dropping_is_advised_only_where_it_can_be_done(own, tmp_path):
    own.loc[3, "y"] = np.nan
    own.to_parquet(tmp_path / "own.parquet")
    reading = TableSpec("site", ["a"], ["y"])
    with pytest.raises(InputError, match=r"drop the row \(missing values: --drop-missing\)"):
        read_table(str(tmp_path / "own.parquet"), reading, 0)
    own.loc[3, "y"] = np.inf
    own.to_parquet(tmp_path / "own.parquet")
    for other in (replace(reading, drop_missing=True), replace(reading, client=None, site="north")):
        with pytest.raises(InputError, match="drop the row") as caught:
            read_table(str(tmp_path / "own.parquet"), other, 0)
        assert "--drop-missing" not in caught.value.message


def test_rows_for_testing_are_drawn_by_the_seed(own, tmp_path):
    own.to_parquet(tmp_path / "own.parquet")
    reading = TableSpec("site", ["a"], ["y"], 0.3)
    drawn, again, other = (read_table(str(tmp_path / "own.parquet"), reading, seed) for seed in (3, 3, 4))
    assert drawn.digest == again.digest != other.digest
    assert drawn.provenance["seed"] == 3
    for client, split in drawn.train.items():
        rows, tested = own["y"][own["site"] == client], drawn.test[client].targets[:, 0]
        assert sorted([*split.targets[:, 0], *tested]) == sorted(rows)
        assert set(tested) != set(rows[: len(tested)])
        assert split.inputs.dtype == np.float32


def test_too_few_rows_are_not_put_down_to_the_test_fraction(own, tmp_path):
    few = own.drop(own.index[own["site"] == "9"][2:])
    few.to_parquet(tmp_path / "own.parquet")
    problem = read_table(str(tmp_path / "own.parquet"), TableSpec("site", ["a"], ["y", "z"]), 0)
    with pytest.raises(InputError, match="Client '9' has 2 rows, but it needs at least 3"):
        _ = problem.moments


def test_a_value_is_found_in_a_long_table(tmp_path):
    rows = np.arange(200_000.0)
    table = pd.DataFrame({"site": np.char.mod("%d", rows % 3), "a": rows, "y": rows})
    table.loc[150_000, "a"] = np.nan
    table.to_parquet(tmp_path / "long.parquet")
    with pytest.raises(InputError, match=r"^Data row 150,001 of .* has no number in 'a'"):
        read_table(str(tmp_path / "long.parquet"), TableSpec("site", ["a"], ["y"]), 0)


@pytest.mark.parametrize("read", [lambda *given: read_table(*given, 0), read_inputs])
def test_clients_whose_names_look_alike_are_refused(tmp_path, read):
    """Moments within a microsecond are shown as one."""
    moments = pd.to_datetime([0, 1, 3_000_000] * 4, unit="ns")
    table = pd.DataFrame({"site": moments, "a": range(12), "y": np.sqrt(range(12))})
    table.to_parquet(tmp_path / "own.parquet")
    with pytest.raises(InputError, match="The client name '1970-01-01' appears more than once"):
        read(str(tmp_path / "own.parquet"), TableSpec("site", ["a"], ["y"], 0.0))


@pytest.mark.parametrize("missing", [None, " "])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_without_a_client_are_dropped(own, tmp_path, suffix, missing):
    own.loc[[0, 3, 7], "site"] = missing
    own.loc[[3, 8], "b"] = np.nan
    table = tmp_path / f"own.{suffix}"
    own.to_csv(table, index=False) if suffix == "csv" else own.to_parquet(table)
    reading = TableSpec("site", ["a", "b"], ["y"], 0.0, drop_missing=True)
    problem, kept = read_table(str(table), reading, 0), own.drop(index=[0, 3, 7, 8])
    assert problem.provenance["rows_left_out"] == 4
    assert problem.clients == ("9", "10", "x")
    for client, split in problem.train.items():
        np.testing.assert_allclose(split.targets[:, 0], kept["y"][kept["site"] == client], rtol=1e-15)
    moments = read_moments(str(table), client="site", targets=["y", "b"], drop_missing=True)
    assert moments.count.tolist() == [len(split) for split in problem.train.values()]


def test_a_client_that_is_called_what_is_missing_is_told(own, tmp_path):
    own.assign(site=own["site"].replace("x", "None")).to_csv(tmp_path / "own.csv", index=False)
    with pytest.raises(
        InputError, match=r"\(--drop-missing\)\. NA, N/A, nan, null, None and '\.' mean missing"
    ):
        read_table(str(tmp_path / "own.csv"), TableSpec("site", ["a"], ["y"]), 0)


def test_clients_of_any_type_keep_their_rows(own, tmp_path):
    table, rows = tmp_path / "own.parquet", np.arange(90)
    names = np.array([b"a", b"b", b"ccc"], dtype=object)[rows % 3]
    for values in (rows % 3, rows % 3 + 0.0, rows % 3 > 0, np.datetime64("2020-01-01") + rows % 3, names):
        own.assign(site=values).to_parquet(table)
        problem = read_table(str(table), TableSpec("site", ["a"], ["y"], 0.0), 0)
        for client, split in zip(np.unique(values), problem.train.values(), strict=True):
            np.testing.assert_array_equal(split.targets[:, 0], own["y"][values == client])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--client", "site", "--inputs", "a"], "Training on a table needs --targets. Columns of '"),
        ([], "Training on a table needs --client, --inputs and --targets. Columns of '"),
        (["--client", "site", "--inputs", "a", "--targets", "q"], "No column 'q'"),
        (["--client", "site", "--inputs", "twice", "--targets", "y"], "'twice' matches several columns"),
        ([*COLUMNS, "--variant", "new"], "--variant applies to named datasets, but '"),
        ([*COLUMNS, "--larger"], "--larger applies to named datasets, but '"),
        ([*COLUMNS, "--data-dir", "."], "--data-dir applies to named datasets, but '"),
        ([*COLUMNS, "--kind", "INVENTED"], "Unknown kind of data: 'INVENTED'. Use one of REAL, GENERATED"),
        ([*COLUMNS, "--test-fraction", "1"], "The test fraction must be at least 0 and below 1, not 1"),
        (
            [*COLUMNS, "--test-fraction", "0.99"],
            "A test fraction of 0.99 leaves 0 of the 30 rows of client '9' for training, but 3 are needed. "
            "Lower it, or add rows.",
        ),
        (
            ["--client", "site", "--inputs", "a,y", "--targets", "y,z"],
            "The column 'y' appears more than once among client, inputs and targets. Name it once.",
        ),
        (["--client", "site", "--inputs", "a,a", "--targets", "y"], "The column 'a' appears more than once"),
        (["--client", "a", "--inputs", "a", "--targets", "y"], "The column 'a' appears more than once"),
        ([*COLUMNS, "--data-seed", "-4"], "The seed of the data must be 0 or more, not -4."),
    ],
)
def test_columns_and_parts_of_a_table_that_cannot_be(own, tmp_path, given, words):
    own.assign(twice=1.0, TWICE=2.0).to_csv(tmp_path / "own.csv", index=False)
    code, _, err = fedgram("train", tmp_path / "own.csv", *given, "--out", tmp_path / "runs")
    assert (code, words in err) == (2, True), err


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "rows", "value", "words"),
    [
        (
            "b",
            [76],
            None,
            "Data row 77 of 'own' (client 'x') has no number in 'b'. Correct it, or drop the",
        ),
        ("z", [76], np.inf, "Data row 77 of 'own' (client 'x') has inf in 'z', which is too large. Correct"),
        ("a", [5, 76], -1e39, "Data row 6 of 'own' (client '9') has -1e+39 in 'a', which is too large"),
        (
            "b",
            range(90),
            1e-170,
            "All values in 'b' of 'own' are 0 in single precision: the largest is 1e-170.",
        ),
        ("site", range(90), "x", "The column 'site' of 'own' has only the client 'x', but a federation"),
        ("site", [3], None, "Some rows have no client in 'site'"),
        ("z", range(1, 90, 3), 7.0, "Target 'z' is constant at client 'x', so it cannot be predicted"),
    ],
)
def test_values_that_cannot_be_used_are_found_in_the_file(
    own, tmp_path, monkeypatch, suffix, column, rows, value, words
):
    own.loc[list(rows), column] = value
    monkeypatch.chdir(tmp_path)
    own.to_csv("own.csv", index=False)
    own.to_parquet("own.parquet")
    code, _, err = fedgram("train", f"own.{suffix}", *COLUMNS, "--out", "runs")
    assert (code, words.replace("'own'", f"'own.{suffix}'") in err) == (2, True), err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["swimer-mini"], "There is no file, folder or dataset 'swimer-mini'; did you mean"),
        (["nofolder", "--client", "site"], "There is no file, folder or dataset 'nofolder'."),
        (["sub/*", "--client", "site"], "No file matches 'sub/*'. Check the pattern."),
        (["swimmer-mini", "--seeds", "100000000000"], "Pass at most 10,000."),
        (
            ["nowhere.csv", "--client", "a", "--inputs", "b", "--targets", "c"],
            "No such file or folder: 'nowhere.csv'",
        ),
        (["gaussian", "--backbone", "resnet"], "Unknown backbone 'resnet'; did you mean"),
        (
            ["gaussian", "--procedure", "corected"],
            "Unknown procedure 'corected'; did you mean 'corrected'",
        ),
        (
            ["gaussian", "--procedure", "centralized+solved"],
            "'centralized' trains one model on the pooled data. Remove all other words.",
        ),
        (["gaussian", "--device", "tpu"], "Unknown device 'tpu'"),
        (["gaussian", "--precision", "fp8"], "Unknown precision 'fp8'. Choose from tf32"),
        *(
            (
                ["gaussian", "--seeds", seeds],
                f"Invalid --seeds: '{seeds}'. Pass a positive number of seeds, or a list such as 0,3 or 3,.",
            )
            for seeds in ("two", "0", "-1", "0,-2", ",")
        ),
        (["gaussian", "--data-seed", "-4"], "The seed of the data must be 0 or more, not -4."),
        (
            ["gaussian", "--targets", "y"],
            "--targets applies to tables, but 'gaussian' is a named dataset.",
        ),
        (["gaussian", "--test-fraction", "0.2"], "--test-fraction applies to tables"),
        (
            ["gaussian", "--features", "1", "--backbone", "resmlp-small"],
            "features=1 is too small for 2",
        ),
        (["gaussian", "--rounds", "0"], "rounds must be positive"),
        (["gaussian", "--measure-every", "0"], "measure_every must be positive"),
        (["gaussian", "--lambda-h", "-1"], "features (lambda_h) must be a positive number"),
        (["gaussian", "--variant", "big"], "has no variant 'big'"),
    ],
)
def test_bad_calls_exit_with_2(tmp_path, arguments, words):
    code, _, err = fedgram("train", *arguments, "--out", tmp_path / "runs")
    assert code == 2
    assert words in err
    assert not (tmp_path / "runs").exists()


def test_what_is_missing_is_said(tmp_path):
    done = apart("train", "gaussian", "--out", tmp_path, without=["torch"])
    assert done.returncode == 2
    assert done.stderr == 'fedgram: Training needs PyTorch: pip install "fedgram[train]".\n'
    code, _, err = fedgram("runs", "list", tmp_path)
    assert code == 2
    assert "No runs found in" in err


def test_a_full_disk_exits_with_2_and_is_resumed(tmp_path, monkeypatch):
    real = os.replace

    def full(temporary, path):
        if "stack-" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(temporary, path)

    arguments = ["train", "gaussian", *TINY, "--out", tmp_path]
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        code, _, err = fedgram(*arguments)
    assert code == 2
    assert "No space left on device" in err
    assert fedgram(*arguments)[0] == 0


def test_diverged_runs_are_named(tmp_path, monkeypatch):
    real = Fit.round

    def poisoned(self, number, advanced):
        self.stack.parameters["head.weight"][torch.arange(len(self.stack)) % 2 == 0] = float("nan")
        return real(self, number, advanced)

    monkeypatch.setattr(Fit, "round", poisoned)
    code, out, err = fedgram("train", "gaussian", "--seeds", "2", *TINY, "--out", tmp_path / "half")
    assert code == 0
    assert "ordinary/seed-0 stopped: client 'client 1' diverged in round 1." in err
    assert "ordinary/seed-0: stopped: client 'client 1' diverged in round 1." in out
    assert "stopped" in fedgram("runs", "list", tmp_path / "half")[1]
    code, out, _ = fedgram("train", "gaussian", "--seeds", "1", *TINY, "--out", tmp_path / "all")
    assert code == 1


def test_an_interrupt_is_told_how_to_go_on(tmp_path, monkeypatch):
    real = Fit.round

    def interrupted(self, number, advanced):
        if number == 2:
            raise KeyboardInterrupt
        return real(self, number, advanced)

    arguments = ["train", "gaussian", *TINY, "--out", tmp_path]
    with monkeypatch.context() as patch:
        patch.setattr(Fit, "round", interrupted)
        code, _, err = fedgram(*arguments)
    assert code == 130
    assert "Interrupted: finished rounds are kept" in err
    code, _, err = fedgram(*arguments)
    assert code == 0
    assert "Resuming 1 run after round 1." in err


def test_a_client_that_is_not_fully_active(tmp_path):
    penalties = ["--lambda-h", "0.5", "--lambda-w", "0.5"]
    code, out, err = fedgram("train", "gaussian", *TINY, *penalties, "--out", tmp_path)
    assert code == 0
    assert "is not fully active" in err
    assert "Note: Client 'client 1' is not fully active" in out


def test_help_teaches():
    code, out, _ = fedgram("train", "--help")
    assert code == 0
    assert "fedgram train swimmer-mini --procedure ordinary" in out
    assert "solved" in out
    assert fedgram("runs", "--help")[0] == 0


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "manifest.json"), "'manifest.json' (Permission denied)"),
        (OSError(28, "No space left on device"), "Cannot read or write (No space left on device)"),
    ],
)
def test_what_the_system_refuses_is_one_sentence(monkeypatch, error, words):
    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr("fedgram.paper.report.page.write_report", refuse)
    code, out, problem = fedgram("report")
    assert (code, out) == (2, "")
    assert words in problem
    assert problem.count("\n") == 1


@pytest.mark.slow
def test_a_blended_run_says_what_joining_changes(tmp_path):
    options = ["--procedure", "full-model+blended", "--validation", "0.2", *TINY, "--out", tmp_path]
    code, out, err = fedgram("train", "swimmer-mini", *options)
    assert code == 0, err
    said = " ".join(out.split())
    assert "full-model+blended/seed-0: Joining changes the mean squared error over the test rows of 4" in said
