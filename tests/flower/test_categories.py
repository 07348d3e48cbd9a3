"""Federations with text columns: levels that all sites know, encoded as `fedgram advise` encodes them."""

import io
import json
import shlex
import warnings
from decimal import Decimal
from functools import partialmethod

import numpy as np
import pandas as pd
import pytest
import torch

from fedgram._util.errors import InputError
from fedgram.data.encoding import Encoding
from fedgram.data.tables.read_rows import TableSpec
from fedgram.data.tables.read_site_tables import read_site_tables
from fedgram.flower import Site, client_state, deployment, predict_at_site
from fedgram.flower.config import FederationConfig
from fedgram.flower.predict_at_site import predict_site_table
from fedgram.flower.scaling import Scaling, measure_columns
from fedgram.flower.sites_file import SitesConfig, read_site
from fedgram.nets.model import draw
from fedgram.runs.tensor_files import write_arrays
from tests.helpers.command import fedgram
from tests.helpers.federations import run_sites, write_sites

INPUTS = ["age", "sex", "ward"]
SITES_FILE = """inputs = ["age", "sex", "ward"]
targets = ["dose"]
categories = ["sex", "ward"]
table = "all.csv"
column = "town"
"""


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Draw visits: 'ward' is a code, and 'C' is a ward of one town only."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "town": np.repeat(["bergen", "new york", "oslo"], [40, 30, 25]),
            "age": rng.normal(50, 10, 95).round(1),
            "sex": rng.choice(["F", "M"], 95),
            "ward": rng.choice(["07", "11"], 95),
        }
    )
    frame.loc[frame.index[:3], "ward"] = "C"
    frame["dose"] = 2.0 * (frame.sex == "M") + 0.1 * frame.age + (frame.ward == "11")
    return frame


@pytest.fixture
def table(tmp_path, rows):
    return write_sites(tmp_path, rows, SITES_FILE)


def read(table, site="oslo", **others):
    given = {"inputs": INPUTS, "targets": "dose", "column": "town", "input_type": np.float64}
    return Site.from_table(str(table), site, **given | others)


def test_codes_of_many_digits_stay_distinct_at_a_site(tmp_path):
    codes = [Decimal(2**53 + number % 3) for number in range(30)]
    path = tmp_path / "codes.parquet"
    pd.DataFrame({"code": codes, "dose": np.arange(30.0) % 7}).to_parquet(path)
    levels = tuple(str(2**53 + number) for number in range(3))
    found = Site.summarize_inputs({"site": "oslo", "table": str(path)}, [], ["code"], None)
    assert found["code"].levels == dict.fromkeys(levels, 10)
    site = Site.from_table(str(path), "oslo", inputs=["code"], targets="dose", categories={"code": levels})
    np.testing.assert_array_equal(np.vstack([site.train.inputs, site.test.inputs]).sum(axis=0), [10, 10, 10])


def test_sites_encode_levels_as_one_process_does(table, rows):
    sites = SitesConfig.read(table.with_name("sites.toml")).with_summaries()
    assert json.loads(sites.run_config["categories"]) == {"sex": ["F", "M"], "ward": ["07", "11", "C"]}
    found = {
        name: read_site(sites.node_config(name), {**sites.run_config, "test-fraction": 0.0})
        for name in sites.nodes
    }
    spec = TableSpec("town", INPUTS, ["dose"], categories=["ward"])
    tables = read_site_tables(table, spec)
    assert list(found) == list(tables) == ["bergen", "new york", "oslo"]
    encoding = Encoding.fit(tables, inputs=INPUTS, targets=["dose"])
    assert encoding.input_names == ("age", "sex=F", "sex=M", "ward=07", "ward=11", "ward=C")
    scaling = Scaling.pool([measure_columns(site) for site in found.values()], 6)
    for name, site in found.items():
        encoded = scaling.encode_site(site).train
        np.testing.assert_allclose(encoded.inputs, encoding.encode_inputs(tables[name], name), atol=1e-13)
        np.testing.assert_allclose(encoded.targets, encoding.encode_targets(tables[name], name), atol=1e-13)


@pytest.mark.parametrize("levels", [["7", "11"], [7, 11.0], ["11", "7"], ["7.0", "11.0"]])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_codes_may_have_decimals(tmp_path, levels, suffix):
    frame = pd.DataFrame({"ward": [7.0, 11.0, 11.0, 7.0], "y": [1.0, 2.0, 3.0, 5.0]})
    table = tmp_path / f"t.{suffix}"
    frame.to_parquet(table) if suffix == "parquet" else frame.to_csv(table, index=False)
    node = {"table": str(table), "site": "oslo"}
    run = {"inputs": "ward", "targets": "y", "test-fraction": 0.0, "categories": json.dumps({"ward": levels})}
    site = Site.from_config(node, run)
    expected = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_array_equal(site.train.inputs, expected[:, :: -1 if levels[0] == "11" else 1])


def test_booleans_are_one_level_however_a_file_spells_them(tmp_path):
    frame = pd.DataFrame({"smoker": [True, False, True], "y": [1.0, 2.0, 4.0]})
    frame.to_csv(tmp_path / "oslo.csv", index=False)
    frame.to_parquet(tmp_path / "bergen.parquet")
    nodes = {file.stem: {"table": str(file), "site": file.stem} for file in tmp_path.iterdir()}
    run = {"inputs": "smoker", "targets": "y", "test-fraction": 0.0, "categories": "smoker"}
    sites = SitesConfig(run, nodes).with_summaries()
    assert json.loads(sites.run_config["categories"]) == {"smoker": ["false", "true"]}
    expected = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    for levels in (["false", "true"], ["False", "True"], [False, True]):
        run["categories"] = json.dumps({"smoker": levels})
        for node in nodes.values():
            np.testing.assert_array_equal(Site.from_config(node, run).train.inputs, expected)
    site = read(tmp_path / "oslo.csv", inputs="smoker", targets="y", column=None, test_fraction=0.0,
                categories={"smoker": ["False", "True"]})  # fmt: skip
    np.testing.assert_array_equal(site.train.inputs, expected)


@pytest.mark.parametrize("levels", [["false", "true"], ["False", "True"]])
def test_rows_to_predict_have_the_booleans_of_training(tmp_path, levels):
    model = draw("resmlp-small", torch.zeros(2, 2), 8, 1, 0, None)
    arrays = {name: each.numpy() for name, each in model.state_dict().items()}
    names = {
        client_state.INPUTS: ["smoker"], client_state.LEVELS: {"smoker": levels}, client_state.TARGETS: ["y"],
        client_state.BACKBONE: "resmlp-small", client_state.SITE: "oslo",
    }  # fmt: skip
    metadata = {key: json.dumps(value) for key, value in names.items()}
    write_arrays(tmp_path / "model.safetensors", arrays, metadata)
    frame = pd.DataFrame({"smoker": [True, False, True]})
    frame.to_csv(tmp_path / "new.csv", index=False)
    predicted = predict_site_table(tmp_path, str(tmp_path / "new.csv")).values
    assert predicted[0] == predicted[2] != predicted[1]
    np.testing.assert_array_equal(predict_at_site(tmp_path, frame), predicted)
    np.testing.assert_array_equal(predict_at_site(tmp_path, frame.astype(str)), predicted)
    with pytest.raises(InputError, match="Column 'smoker' has 1 missing value in 2 rows"):
        predict_at_site(tmp_path, {"smoker": ["True", np.nan]})


def test_rows_with_missing_cells_are_refused_or_left_out(table, rows):
    frame = rows.copy()
    oslo = frame.index[frame.town == "oslo"]
    frame.loc[oslo[0], "sex"], frame.loc[oslo[1], "age"], frame.loc[oslo[2], "dose"] = "", np.nan, np.nan
    frame.to_csv(table, index=False)
    categories = {"sex": ["F", "M"], "ward": ["07", "11", "C"]}
    with pytest.raises(InputError, match=r"Row 1 of client 'oslo' in '.*' has no level in 'sex'") as refused:
        read(table, categories=categories)
    assert refused.value.message.endswith("or drop the row (drop-missing = true).")
    site = read(table, categories=categories, drop_missing=True, test_fraction=0.0)
    assert (len(site.train), site.dropped_rows) == (len(oslo) - 3, 3)
    frame.loc[oslo, "sex"] = ""
    frame.to_csv(table, index=False)
    with pytest.raises(InputError, match="Client 'oslo' has 0 rows"):
        _ = read(table, categories=categories, drop_missing=True).moments


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "not numeric: .* Name it in 'categories', or convert it to numbers in the same way"),
        ({"categories": {"sex": ["F"], "ward": ["07", "11"]}}, "Column 'sex' of site 'oslo' has other levels "
         "than 'categories' gives it: 'M'. Add them, or correct the table."),
        ({"targets": "sex", "inputs": "age"}, "'sex' of .* is not numeric: .* choose another column.$"),
    ],
)  # fmt: skip
def test_text_without_levels_is_refused(table, changes, words):
    with pytest.raises(InputError, match=words):
        read(table, **changes)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("sex, ward", "Write the levels of each column as JSON"),
        ('["sex"]', "Write the levels of each column as JSON"),
        ('{"sex": []}', "Write the levels of each column as JSON"),
        ('{"sex": ["F", "F"]}', "Write the levels of each column as JSON"),
        ('{"sex": "FM"}', "Write the levels of each column as JSON"),
        ('{"sex": ["F", null]}', "Write the levels of each column as JSON"),
        (3, "Write the levels of each column as JSON"),
        ('{"dose": ["1"]}', "Category 'dose' is no input. Add it to 'inputs'"),
    ],
)
def test_wrong_levels_in_a_run_config_are_refused(given, words):
    config = {"clients": 2, "inputs": "age,sex", "targets": "dose", "categories": given}
    with pytest.raises(InputError, match=words):
        FederationConfig.from_run_config(config)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('["sex", "ward"]', '["sxe"]'), "No column 'sxe'"),
        (('["sex", "ward"]', '["age"]'), "Column 'age' has .* different texts"),
        (
            ('["sex", "ward"]', '{sex = ["F", "M"]}'),
            "'ward' of .* is not numeric: .* Name it in 'categories'",
        ),
        (('column = "town"', 'column = "dose"'), "dose"),
        (('column = "town"', 'column = "twon"'), "No column 'twon'"),
    ],
)
def test_mistakes_in_a_sites_file_are_named(table, monkeypatch, change, words):
    monkeypatch.setattr(deployment, "LocalFederation", None)  # nothing starts
    path = table.with_name("sites.toml")
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match=words):
        deployment.federate(SitesConfig.read(path).with_settings(out=str(table.parent / "runs")))


def test_a_category_named_twice_counts_once(table):
    path = table.with_name("sites.toml")
    once = SitesConfig.read(path).with_summaries()
    path.write_text(path.read_text().replace('["sex", "ward"]', '["sex", "ward", "sex"]'))
    assert SitesConfig.read(path).with_summaries() == once


def test_the_printed_command_predicts_with_the_run(table, rows, tmp_path, monkeypatch):
    """A site's folder may have the models of other runs, and a name in the file may have blanks."""
    path = tmp_path / "sites.toml"
    sections = "".join(f'[sites."{town} "]\n' for town in rows.town.unique())
    path.write_text('folder = "private"\n' + SITES_FILE + sections)
    run_sites(table, procedure="ordinary", name="towns", rounds=1)
    settings = {"procedure": "full-model", "name": "towns", "rounds": 1}
    monkeypatch.setattr(deployment, "federate", lambda config, **options: run_sites(table, **settings))
    monkeypatch.setattr(SitesConfig, "with_settings", partialmethod(SitesConfig.with_settings, **settings))
    rows[rows.town == "bergen"][INPUTS].to_csv(tmp_path / "new.csv", index=False)
    code, out, _ = fedgram("federate", path)
    command = shlex.split(out.splitlines()[-1].removeprefix("Predict at 'bergen': "))
    assert (code, command[0], command[-1]) == (0, "fedgram", "new.csv")
    code, out, err = fedgram(*command[1:-1], tmp_path / "new.csv")
    assert (code, err) == (0, "")
    assert len(pd.read_csv(io.StringIO(out))) == (rows.town == "bergen").sum()


def test_a_federation_with_text_trains_and_predicts(table, rows, tmp_path):
    run = run_sites(table, procedure="full-model", name="towns", rounds=1)
    assert run.complete
    assert run.setup.data.provenance["categories"] == {"sex": ["F", "M"], "ward": ["07", "11", "C"]}
    folder = tmp_path / "private" / "oslo"
    new = rows[rows.town == "oslo"][INPUTS].reset_index(drop=True)
    predicted = predict_at_site(folder, new)
    np.testing.assert_array_equal(predict_at_site(folder, new.to_numpy(object)), predicted)
    np.testing.assert_array_equal(predict_at_site(folder, new.to_numpy().tolist()), predicted)
    np.testing.assert_array_equal(predict_at_site(folder, new[["ward", "age", "sex"]]), predicted)
    new.to_csv(tmp_path / "new.csv", index=False)
    code, out, err = fedgram("runs", "predict", folder, tmp_path / "new.csv")
    assert (code, err) == (0, "")
    table_out = pd.read_csv(io.StringIO(out), dtype={"ward": str})
    np.testing.assert_allclose(table_out["dose"], predicted[:, 0], rtol=1e-6)
    assert table_out["ward"].tolist() == new["ward"].tolist()

    with pytest.warns(UserWarning, match="did not see count as no level: 'X' of 'sex', '12' of 'ward'"):
        unknown = predict_at_site(folder, new.assign(sex="X", ward=12))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        women = predict_at_site(folder, new.assign(sex="F", ward="07"))
    assert np.abs(unknown - women).min() > 0
    with pytest.raises(InputError, match="Column 'sex' has 1 missing value"):
        predict_at_site(folder, new.assign(sex=[None, *new.sex[1:]]))
    with pytest.raises(InputError, match="Column 'sex' has 1 missing value"):
        predict_at_site(folder, new.assign(sex=[np.nan, *new.sex[1:]]).to_numpy().tolist())
