"""Tables that cannot be trained on: one sentence each, before anything is trained."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedgram.runs.train_config import TrainConfig
from fedgram.training import train
from tests.helpers.command import fedgram
from tests.helpers.small_runs import small_problem

COLUMNS = ["--client", "site", "--inputs", "a,b", "--targets", "y", "--device", "cpu"]
TINY = ["--backbone", "resmlp-small", "--features", "6", "--rounds", "1", "--epochs", "1"]


def table():
    a, b = np.random.default_rng(0).standard_normal((2, 90))
    site = np.resize(np.array(["east", "north", "west"], dtype=object), 90)
    days = pd.date_range("2020-01-01", periods=90).astype(str)
    return pd.DataFrame({"site": site, "day": days, "a": a, "b": b, "y": a + b})


def refusal(folder, *options):
    """Return the sentence that refuses to train on the tables in a folder."""
    done = fedgram("train", folder, *COLUMNS, *TINY, *options, "--out", folder.parent / "runs")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (sentence,) = done.stderr.splitlines()
    assert not (folder.parent / "runs").exists()
    return sentence.removeprefix("fedgram: ")


@pytest.fixture
def folder(tmp_path):
    """An empty folder for tables."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("options", [["--standardize"], pytest.param([], marks=pytest.mark.slow)])
def test_each_bad_table_has_one_sentence(folder, options):
    rows, path = table(), folder / "rows.csv"
    rows.assign(site=np.where(np.arange(90) == 4, "alone", rows["site"])).to_csv(path, index=False)
    assert refusal(folder, *options).startswith("Client 'alone' has 1 row, but it needs at least 2")

    rows.assign(y=rows["y"].where(rows["site"] != "west", 2.5)).to_csv(path, index=False)
    assert refusal(folder, *options).startswith("Target 'y' is constant at client 'west'")

    rows.to_csv(path, index=False)
    said = refusal(folder, *options, "--test-fraction", "0.98")
    assert "of the 30 rows of client 'east' for training, but 2 are needed. Lower it, or add rows." in said

    rows[rows["site"] == "north"].to_csv(path, index=False)
    rows[rows["site"] != "north"].drop(columns="b").to_csv(folder / "zothers.csv", index=False)
    assert "zothers.csv' has no column 'b', but other files do. Add it, or drop" in refusal(folder, *options)


PRIVATE = ["--epsilon", "1", "--delta", "1e-6", "--bounds", "0:1"]


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("moments", ["--epsilon", "1"], "Private moments need --epsilon, --delta and --bounds."),
        ("moments", [*PRIVATE, "--epsilon", "-1"], "epsilon must be a positive number, not -1.0."),
        ("moments", [*PRIVATE, "--delta", "2"], "delta must be between 0 and 1, not 2.0."),
        ("moments", [*PRIVATE, "--bounds", "1:0"], "Every low bound must be below its high bound."),
        ("moments", [*PRIVATE, "--bounds", "0:1,0:1"], "--bounds has 2 pairs for 1 target"),
        ("moments", [*PRIVATE, "--robust"], "--robust clips at values that come from the rows."),
        ("moments", ["-o", "moments.txt"], "A moments file must end in .json"),
        ("predict", ["--lambda-h", "0"], "features (lambda_h) must be a positive number"),
        ("predict", ["--rounds", "-1"], "--rounds must be 0 or more, not -1."),
        ("predict", ["--proximal", "-1"], "The proximal weight must be positive, not -1.0."),
        ("predict", ["--figure", "gap.txt"], "The figure 'gap.txt' must end in .png"),
        ("explain", ["--lambda-w", "0"], "head (lambda_w) must be a positive number"),
        ("explain", ["--figure", "no/gap.png"], "Cannot write 'no/gap.png': its folder does not exist"),
        ("correct", ["--strength", "2"], "strength must be a number between 0 and 1, not 2.0."),
        ("explore", ["--lambda-h", "0"], "features (lambda_h) must be a positive number"),
        ("advise", ["--seeds", "0"], "Invalid --seeds: '0'."),
        ("advise", ["--rounds", "0"], "rounds must be positive, not 0."),
        ("advise", ["--engine", "flower"], "Unknown engine: 'flower'."),
        ("advise", ["--test-fraction", "1"], "The test fraction must be at least 0 and below 1"),
        ("train", ["--seeds", "0"], "Invalid --seeds: '0'."),
        ("train", ["--validation", "2"], "The validation fraction must be between 0 and 1, not 2.0."),
    ],
)
def test_options_are_checked_before_a_table_is_read(command, options, said, tmp_path):
    """A table that does not exist would be reported instead."""
    inputs = ["--inputs", "a"] if command in ("advise", "train") else []
    table = [tmp_path / "missing.csv", "--client", "site", "--targets", "y", *inputs]
    done = fedgram(command, *table, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_times_that_do_not_parse(folder):
    rows = table()
    rows.loc[5, "day"] = "soon"
    rows.to_csv(folder / "rows.csv", index=False)
    said = refusal(folder, "--time", "day")
    assert said.startswith("Column 'day' has 1 invalid time, first 'soon' at site 'west'. Write numbers, or")


@pytest.mark.slow
def test_sites_with_other_levels_share_one_encoding(folder):
    rows = table()
    rows.assign(b=np.where(rows["site"] == "west", "wet", "dry")).to_csv(folder / "rows.csv", index=False)
    done = fedgram("train", folder, *COLUMNS, *TINY, "--standardize", "--out", folder.parent / "runs")
    assert done.returncode == 0, done.stderr


def test_an_unknown_site_gets_the_shared_model_and_one_line(tmp_path):
    problem = replace(small_problem(), provenance={"inputs": ["a", "b", "c", "d"]})
    config = TrainConfig(rounds=1, epochs=1, features=6)
    train(problem, "resmlp-small", ["full-model"], [0], config, folder=tmp_path / "runs")
    rows = pd.DataFrame(np.ones((3, 4)), columns=list("abcd")).assign(site=["new", "site 0", "new"])
    rows.to_csv(tmp_path / "new.csv", index=False)
    done = fedgram("runs", "predict", tmp_path / "runs", tmp_path / "new.csv", "--client", "site")
    assert done.returncode == 0
    assert done.stderr == "Client 'new' did not take part in training; the shared network predicts for it.\n"
    assert len(done.stdout.splitlines()) == 4
