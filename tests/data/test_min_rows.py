"""Clients with too few rows are refused with a remedy, or left out by name."""

import numpy as np
import pandas as pd
import pytest

from fedgram import InputError, read_moments
from fedgram.data.tables.read_sample import read_sample
from tests.helpers.command import fedgram

ROWS = {"north": 40, "east": 30, "pier": 1, "dock": 2, "buoy": 4}


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    clients = np.repeat(list(ROWS), list(ROWS.values()))
    values = rng.standard_normal((len(clients), 2))
    values[-2:, 0] = np.nan  # two of four rows of 'buoy'
    return pd.DataFrame({"site": clients, "a": values[:, 0], "b": values[:, 1]})


def read(table, **options):
    said = []
    given = {"client": "site", "targets": ["a", "b"], "drop_missing": True, "on_warning": said.append}
    return read_moments(table, **given | options), said


def test_small_clients_are_named_with_a_remedy(table):
    with pytest.raises(InputError) as refused:
        read(table)
    assert refused.value.message == (
        "Clients 'buoy', 'dock', 'pier' have too few rows: each needs at least 3, one more than targets. "
        "Add rows, use fewer targets, or drop them (--min-rows 3, min_rows=3)."
    )
    assert (refused.value.client, refused.value.field) == ("buoy", "count")


def test_a_site_of_its_own_cannot_be_left_out(table):
    with pytest.raises(InputError, match=r"or drop the client\.$"):
        read(table[table.site == "dock"], client=None, site="dock")


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("convert", [lambda table: table, lambda table: table.to_csv("t.csv") or "t.csv"])
def test_small_clients_are_left_out(table, convert, robust, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, said = read(convert(table), min_rows=3, robust=robust)
    expected, _ = read(table[table.site.isin(["north", "east"])], robust=robust)
    assert found.clients == expected.clients == ("east", "north")
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-14)
    assert said == ["Left out because of fewer than 3 rows: 'buoy', 'dock', 'pier'."]
    sample = read_sample(
        convert(table), client="site", targets=["a", "b"], drop_missing=True, min_rows=3, robust=robust
    )
    np.testing.assert_array_equal(sample.moments.mean, found.mean)
    assert {name: len(rows) for name, rows in sample.rows.items()} == {"east": 30, "north": 40}


def test_complete_rows_count(table):
    assert read(table, min_rows=3, targets="b")[0].clients == ("buoy", "east", "north")
    assert read(table.dropna(), min_rows=2, targets="b")[0].clients == ("buoy", "dock", "east", "north")


def test_rows_without_a_client_are_still_refused(table):
    table.loc[0, "site"] = None
    table.loc[1, "site"] = " "
    with pytest.raises(InputError, match=r"2 of 70 rows have a missing value in 'site' \(no client: 2\)"):
        read(table, drop_missing=False, min_rows=3)


def test_nothing_is_said_where_all_clients_are_large_enough(table):
    _, said = read(table[table.site == "north"], min_rows=40)
    assert said == []


def test_no_client_is_large_enough(table):
    with pytest.raises(InputError, match="No client of the table has 1,000 complete rows"):
        read(table, min_rows=1000)


def test_a_number_of_rows_is_not_negative(table):
    with pytest.raises(InputError, match="--min-rows must be 0 or more, not -1"):
        read(table, min_rows=-1)


def test_the_command_line_leaves_out_small_clients(table, tmp_path):
    path = tmp_path / "table.csv"
    table.to_csv(path, index=False)
    command = ("explain", path, "--client", "site", "--targets", "a,b", "--drop-missing", "--resamples", "0")
    refused, done = fedgram(*command), fedgram(*command, "--min-rows", "3")
    assert refused.returncode == 2
    assert "(--min-rows 3, min_rows=3)" in refused.stderr
    assert done.returncode == 0
    assert "fewer than 3 rows: 'buoy', 'dock', 'pier'." in done.stderr
    assert "2 clients, 70 rows" in done.stdout
