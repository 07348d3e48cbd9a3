"""New rows predicted on the command line."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedgram.data.tables.read_rows import TableSpec, read_table
from fedgram.runs import Runs
from fedgram.runs.train_config import TrainConfig
from fedgram.training import predict_rows, train
from tests.helpers.command import fedgram
from tests.helpers.small_runs import trained

ROWS = pd.DataFrame(np.random.default_rng(0).standard_normal((40, 3)), columns=["a", "y", "b"])
ROWS["site"] = np.resize(["south", "north"], 40)
NEW = ROWS.drop(columns="y").sample(7, random_state=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("own")
    ROWS.to_csv(made / "own.csv", index=False)
    problem = read_table(str(made / "own.csv"), TableSpec("site", ["b", "a"], ["y"]), seed=0)
    settings = TrainConfig(rounds=1, epochs=2, features=4)
    train(problem, "resmlp-small", ["ordinary"], [0], settings, folder=made / "runs")
    NEW.to_csv(made / "new.csv", index=False)
    return made


@pytest.fixture
def predict(folder):
    """Run `fedgram runs predict` in the folder of the files."""
    return lambda *arguments: fedgram("runs", "predict", *arguments, cwd=folder)


def expected(folder, client):
    (run,) = Runs(folder / "runs").require()
    inputs = NEW.loc[NEW["site"] == client, ["b", "a"]].to_numpy(np.float32)
    return predict_rows(run, {client: inputs})[client]


def test_no_column_of_the_table_is_replaced(predict, folder):
    NEW.assign(y=0.0, **{"y predicted": 1.0}).to_csv(folder / "again.csv", index=False)
    _, out, _ = predict("runs", "again.csv", "--client", "site")
    assert out.splitlines()[0] == "a,b,site,y,y predicted,y predicted 2"


def test_a_table_without_rows_is_refused(predict, folder):
    NEW[:0].to_csv(folder / "none.csv", index=False)
    code, out, err = predict("runs", "none.csv", "--client", "site", "-o", "predicted none.csv")
    assert (code, out, err) == (2, "", "fedgram: No rows in 'none.csv'. Add some.\n")
    assert not (folder / "predicted none.csv").exists()


def test_rows_are_predicted_in_their_order_each_by_its_client(predict, folder):
    code, out, err = predict("runs", "new.csv", "--client", "site", "-o", "predicted.csv")
    assert (code, out, err) == (0, "", "Wrote predicted.csv: 7 rows.\n")
    written = pd.read_csv(folder / "predicted.csv")
    assert written.columns.tolist() == ["a", "b", "site", "y"]
    pd.testing.assert_frame_equal(written[["a", "b", "site"]], NEW.reset_index(drop=True))
    for client in ("north", "south"):
        found = written.loc[written["site"] == client, ["y"]]
        np.testing.assert_allclose(found, expected(folder, client), rtol=1e-6)
    code, out, _ = predict("runs", "new.csv", "--client", "site")
    assert out == (folder / "predicted.csv").read_text()


def test_targets_of_the_table_are_compared_with_the_predictions(predict, folder):
    table = ROWS.loc[NEW.index].assign(site=NEW["site"])
    values = table["y"].astype(str)
    values.iloc[0] = ""
    table.assign(y=values).to_csv(folder / "known.csv", index=False)
    code, _, err = predict("runs", "known.csv", "--client", "site", "-o", "compared.csv")
    written = pd.read_csv(folder / "compared.csv")[1:]
    squares = (written["y"] - written["y predicted"]) ** 2
    r2 = 1 - squares.mean() / written["y"].var(ddof=0)
    found = f"Error on 6 rows with 'y': RMSE {squares.mean() ** 0.5:.3g}, R² {r2:.2f}.\n"
    assert (code, err) == (0, f"Wrote compared.csv: 7 rows.\n{found}")
    table[:5].to_csv(folder / "few.csv", index=False)
    assert "R²" not in predict("runs", "few.csv", "--client", "site")[2]


@pytest.mark.parametrize(("suffix", "index"), [("csv", ""), ("tsv", ""), ("parquet", "row")])
def test_columns_and_index_stay_as_they_are(predict, folder, suffix, index):
    table = NEW.assign(y=1.5, note=["007", "NA", "", 'say "a, b"', "1e3", "true", "ü"])
    table.index = pd.Index([f"row {number}" for number in range(7)], name=index)
    if suffix == "parquet":
        table.to_parquet(folder / "kept.parquet")
        order = [*table.columns, index]  # where pandas puts the index
    else:
        table.to_csv(folder / f"kept.{suffix}", sep="\t" if suffix == "tsv" else ",")
        order = [index, *table.columns]
    code, out, err = predict("runs", f"kept.{suffix}", "--client", "site")
    assert code == 0, err
    header, *lines = csv.reader(io.StringIO(out))
    assert header == [*order, "y predicted"]
    written = pd.DataFrame(lines, columns=header)
    assert written[index].tolist() == table.index.tolist()
    assert written["note"].tolist() == table["note"].tolist()
    np.testing.assert_array_equal(written[["a", "b", "y"]].astype(float), table[["a", "b", "y"]])


@pytest.mark.parametrize("levels", [1, 2])
def test_an_index_without_a_name_is_no_column(predict, folder, levels):
    labels = [range(10, 17), list("abcdefg")][-levels:]
    NEW.set_index([pd.Index(each) for each in labels]).to_parquet(folder / "indexed.parquet")
    assert predict("runs", "indexed.parquet", "--client", "site") == predict(
        "runs", "new.csv", "--client", "site"
    )


def test_blanks_around_names_of_clients_do_not_count(predict, folder):
    NEW.assign(site=NEW["site"] + " ").to_csv(folder / "blanks.csv", index=False)
    NEW[NEW["site"] == "north"].to_csv(folder / "north.csv", index=False)
    for options, padded in (
        (["new.csv", "--client", "site"], ["blanks.csv", "--client", "site"]),
        (["north.csv", "--site", "north"], ["north.csv", "--site", " north "]),
    ):
        code, out, err = predict("runs", *padded, "--json")
        assert (code, out) == (0, predict("runs", *options, "--json").stdout), err


def test_a_client_that_folders_name_is_added(predict, folder):
    for site in ("north", "south"):
        (folder / "parts" / f"site={site}").mkdir(parents=True)
        own = NEW[NEW["site"] == site][["b", "a"]]
        own.to_csv(folder / "parts" / f"site={site}" / "new.csv", index=False)
    code, out, err = predict("runs", "parts", "--client", "site")
    assert code == 0, err
    written = pd.read_csv(io.StringIO(out))
    assert written.columns.tolist() == ["site", "b", "a", "y"]
    assert written["site"].tolist() == sorted(NEW["site"])
    np.testing.assert_allclose(
        written["y"][written["site"] == "north"], expected(folder, "north")[:, 0], rtol=1e-6
    )


def test_files_of_both_kinds_may_have_other_orders_of_columns(predict, folder):
    (folder / "kinds").mkdir()
    NEW[:3][["b", "site", "a"]].to_parquet(folder / "kinds" / "first.parquet")
    NEW[3:].to_csv(folder / "kinds" / "second.csv", index=False)
    code, out, err = predict("runs", "kinds", "--client", "site")
    assert code == 0, err
    whole = pd.read_csv(io.StringIO(predict("runs", "new.csv", "--client", "site").stdout))
    wanted = pd.concat([whole[3:], whole[:3]], ignore_index=True)  # rows of CSV files come first
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(out)), wanted)


def test_inputs_that_overflow_are_an_error(predict, folder):
    (folder / "huge.csv").write_text("a,b\n1,2\n3e38,3e38\n")
    code, out, err = predict("runs", "huge.csv", "--site", "north")
    assert (code, out) == (2, "")
    assert "The prediction for row 2 of client 'north' is not finite: its inputs are too large" in err


def test_rows_of_one_site(predict, folder):
    NEW[NEW["site"] == "north"][["a", "b"]].to_parquet(folder / "north.parquet")
    code, out, _ = predict("runs", "north.parquet", "--site", "north", "--json")
    document = json.loads(out)
    contract = (Path(__file__).parents[2] / "docs" / "interchange.md").read_text(encoding="utf-8")
    keys = re.search(r"\| `runs predict` \| (.*?) \|", contract)[1]
    assert (code, [f"`{key}`" for key in document]) == (0, keys.split(", "))
    np.testing.assert_allclose(document["predictions"], expected(folder, "north"), rtol=1e-6)


def test_a_centralized_run_needs_no_client(predict, folder):
    problem = read_table(str(folder / "own.csv"), TableSpec("site", ["b", "a"], ["y"]), seed=0)
    settings = TrainConfig(rounds=1, epochs=2, features=4)
    (run,) = train(problem, "resmlp-small", ["centralized"], [0], settings, folder=folder / "pooled")
    code, out, _ = predict("pooled", "new.csv", "--json")
    found = predict_rows(run, {"all": NEW[["b", "a"]].to_numpy(np.float32)})["all"]
    document = json.loads(out)
    assert (code, set(document["clients"])) == (0, {"all"})
    np.testing.assert_allclose(document["predictions"], found, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "new.csv"], "Pass either --client, the column with each row's client, or --site."),
        (["runs", "new.csv", "--site", "north", "--client", "a"], "or --site, not both."),
        (
            ["runs", "new.csv", "--site", "west"],
            "no client 'west'. Its clients are 'north', 'south'.",
        ),
        (
            ["runs", "new.csv", "--client", "site", "-o", "new.csv"],
            "Cannot overwrite the input file 'new.csv'",
        ),
        (
            ["runs", "new.csv", "--client", "site", "-o", "p.parquet"],
            "The output must be a CSV file: 'p.parquet'. Use p.csv.",
        ),
        (["runs", "short.csv", "--site", "north"], "No column 'b' in 'short.csv'"),
        (["runs", "gaps.csv", "--site", "north"], "Data row 2 of 'gaps.csv' (client 'north') has no number"),
        (["nowhere", "new.csv", "--site", "north"], "No runs found in 'nowhere'"),
        (["several", "new.csv", "--site", "north"], "'several' has 2 runs. Name the folder of one"),
        (
            ["several/small/net/ordinary/seed-0", "new.csv", "--site", "north"],
            "trained on 'small', which has no input columns",
        ),
    ],
)
def test_what_cannot_be_predicted_is_explained(predict, folder, arguments, words):
    (folder / "short.csv").write_text("a\n1\n")
    (folder / "gaps.csv").write_text("a,b\n1,2\n3,\n")
    if arguments[0].startswith("several"):
        trained(folder / "several", ["ordinary"], [0, 1])
    code, out, err = predict(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "--drop-missing" not in err  # which this command does not have
    assert len(pd.read_csv(folder / "new.csv")) == 7


def test_a_run_without_its_manifest_is_no_private_folder(tmp_path, folder):
    shutil.copytree(folder / "runs", tmp_path / "runs")
    (path,) = (tmp_path / "runs").rglob("manifest.json")
    path.unlink()
    for root in (tmp_path / "runs", path.parent):
        done = fedgram("runs", "predict", root, folder / "new.csv", "--client", "site")
        assert done.returncode == 2
        assert done.stderr == (
            f"fedgram: '{path}' is missing. Restore the file, or delete its folder and train again.\n"
        )
