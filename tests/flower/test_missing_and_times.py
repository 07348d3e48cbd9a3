"""Federations whose tables lack values or have times: rows and fill values are those of `fedgram advise`."""

import json

import numpy as np
import pandas as pd
import pytest

from fedgram._util.errors import InputError
from fedgram.data.encoding import Encoding
from fedgram.data.holdout import divide_rows
from fedgram.data.tables.read_rows import TableSpec
from fedgram.data.tables.read_site_tables import read_site_tables
from fedgram.flower import Site, predict_at_site
from fedgram.flower.config import FederationConfig
from fedgram.flower.sites_file import SitesConfig, read_site
from fedgram.runs.paired_bootstrap import FEWEST_CONSECUTIVE_ROWS, FEWEST_ROWS
from tests.helpers.command import fedgram
from tests.helpers.federations import run_sites, write_sites

SITES_FILE = """inputs = ["age", "ward"]
targets = ["dose"]
categories = ["ward"]
fill = "median"
time = "day"
table = "all.csv"
column = "town"
"""


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Draw visits in no order: several on each day, and some without an age or a ward."""
    rng = np.random.default_rng(0)
    counts = [60, 40, 25]
    frame = pd.DataFrame(
        {
            "town": np.repeat(["bergen", "new york", "oslo"], counts),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 20, 125), unit="D"),
            "age": rng.normal(50, 10, 125).round(1),
            "ward": rng.choice(["A", "B"], 125),
        }
    )
    frame["dose"] = 0.1 * frame.age + (frame.ward == "B") + rng.normal(0, 0.1, 125)
    frame.loc[rng.choice(125, 30, replace=False), "age"] = np.nan
    frame.loc[rng.choice(125, 10, replace=False), "ward"] = None
    return frame


@pytest.fixture
def table(tmp_path, rows):
    return write_sites(tmp_path, rows, SITES_FILE)


def read(table, site="oslo", **others):
    given = {"inputs": ["age"], "targets": "dose", "column": "town", "input_type": np.float64}
    return Site.from_table(str(table), site, **given | {"fill": {"age": 50.0}} | others)


@pytest.mark.parametrize("as_numbers", [False, True])
def test_sites_hold_out_the_latest_rows_as_advise_does(table, rows, as_numbers):
    frame = rows.assign(day=(rows.day - rows.day.min()).dt.days) if as_numbers else rows
    frame.to_csv(table, index=False)
    for town, own in frame.groupby("town"):
        for share in (0.2, 0.3):
            site = read(table, town, time="day", validation_fraction=share)
            (parts,) = divide_rows(
                {town: len(own)}, order={town: own.day.to_numpy()}, validation_fraction=share
            ).values()
            found = {"train": site.train, "validation": site.validation, "test": site.test}
            for name, split in found.items():
                expected = own.iloc[getattr(parts, name)]
                np.testing.assert_array_equal(split.targets[:, 0], expected.dose)
                np.testing.assert_array_equal(split.inputs[:, 0], expected.age.fillna(50.0))
            days = [own.day.iloc[part] for part in (parts.train, parts.validation, parts.test)]
            assert days[0].max() < days[1].min() <= days[1].max() < days[2].min()
            assert site.hold_out_validation(share) is site


def test_without_validation_rows_all_earlier_rows_are_for_training(table, rows):
    own = rows[rows.town == "oslo"]
    site = read(table, time="day")
    assert site.validation is None
    assert len(site.train) + len(site.test) == len(own)
    last = sorted(own.day)[-len(site.test) :]
    np.testing.assert_array_equal(np.sort(site.test.targets[:, 0]), np.sort(own[own.day >= last[0]].dose))


def test_rows_without_a_time_are_refused_or_left_out(table, rows):
    frame = rows.copy()
    frame.loc[frame.index[frame.town == "oslo"][0], "day"] = pd.NaT
    frame.to_csv(table, index=False)
    with pytest.raises(
        InputError, match=r"'day' of site 'oslo' has 1 missing value .* \(drop-missing = true\)"
    ):
        read(table, time="day")
    site = read(table, time="day", drop_missing=True)
    assert (site.dropped_rows, len(site.train) + len(site.test)) == (1, 24)
    with pytest.raises(InputError, match="No column 'dya'"):
        read(table, time="dya")
    with pytest.raises(InputError, match=r"Column 'ward' has .* invalid times"):
        read(table, time="ward")


def test_values_to_fill_are_those_of_one_process(table):
    config = SitesConfig.read(table.with_name("sites.toml")).with_summaries().run_config
    tables = read_site_tables(table, TableSpec("town", ["age", "ward"], ["dose"], impute="median"))
    encoding = Encoding.fit(tables, inputs=["age", "ward"], targets=["dose"], impute="median")
    assert json.loads(config["fill"]) == {"age": encoding.inputs[0].median, "ward": ""}
    assert json.loads(config["categories"]) == {"ward": ["A", "B"]}


def test_known_levels_and_given_values_need_no_table(table):
    levels = "categories = {ward = ['A', 'B']}"
    text = SITES_FILE.replace('categories = ["ward"]', levels)
    for fill, expected in (('"median"', None), ('{age = 41, ward = ""}', {"age": 41, "ward": ""})):
        table.with_name("sites.toml").write_text(text.replace('"median"', fill))
        sites = SitesConfig.read(table.with_name("sites.toml")).with_summaries()
        found = json.loads(sites.run_config["fill"])
        assert found == expected if expected else found["age"] > 41
        site = read_site(sites.node_config("oslo"), sites.run_config)
        assert (site.train.inputs[:, 1:].sum(axis=1) == 0).any()  # a missing ward has no level


def test_a_column_without_any_value_is_refused(table, rows):
    rows.assign(age=np.nan).to_csv(table, index=False)
    with pytest.raises(InputError, match=r"Column 'age' has no value at any site\. Drop it"):
        SitesConfig.read(table.with_name("sites.toml")).with_summaries()


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        ("median", "Write a value for each input as JSON"),
        ("[1]", "Write a value for each input as JSON"),
        ('{"dose": 1.0}', "Write a value for each input as JSON"),
        ('{"age": "x"}', "Invalid 'fill' of 'age' in the run config: 'x'. Use a number."),
        ('{"age": NaN}', "Invalid 'fill' of 'age' in the run config: nan. Use a number."),
        ('{"age": true}', "Use a number."),
        ('{"ward": "A"}', 'Use "": a missing category has no level.'),
    ],
)
def test_wrong_values_to_fill_are_refused(fill, words):
    config = {"clients": 2, "inputs": "age,ward", "targets": "dose", "categories": '{"ward": ["A"]}'}
    with pytest.raises(InputError, match=words):
        FederationConfig.from_run_config(config | {"fill": fill})


def test_a_federation_trains_and_predicts_with_missing_values(table, rows, tmp_path):
    run = run_sites(table, procedure="full-model+moment-head+blended", name="towns", rounds=1)
    provenance = run.setup.data.provenance
    median = provenance["fill"]["age"]
    assert (run.complete, provenance["time"]) == (True, "day")
    rows_tested, change = run.setup.data.test_rows, run.account.chosen["change_low"]
    assert FEWEST_ROWS <= max(rows_tested) < FEWEST_CONSECUTIVE_ROWS
    assert change == [None] * 3  # consecutive rows depend on each other, so these are too few
    folder = tmp_path / "private" / "oslo"
    new = rows[rows.town == "oslo"][["age", "ward"]].reset_index(drop=True)
    assert new.isna().any(axis=None)
    predicted = predict_at_site(folder, new)
    np.testing.assert_array_equal(predict_at_site(folder, new.assign(age=new.age.fillna(median))), predicted)
    assert len(predict_at_site(folder, new.assign(age=None, ward=None))) == len(new)
    new.to_csv(tmp_path / "new.csv", index=False)
    code, out, err = fedgram("runs", "predict", folder, tmp_path / "new.csv")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == len(new) + 1
