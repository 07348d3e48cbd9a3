"""Outliers, winsorized moments and samples of tables."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedgram import InputError, Moments, read_moments
from fedgram.data.outliers import OUTLIER
from fedgram.data.tables.read_sample import read_sample
from fedgram.data.tables.robust import CLIPPED


def frame(rows=60, clients=("a", "b"), seed=0):
    rng = np.random.default_rng(seed)
    names = np.repeat(clients, rows)
    values = rng.standard_normal((len(names), 2)) + (names == clients[0])[:, None]
    order = np.tile(np.arange(rows), len(clients))
    return pd.DataFrame({"site": names, "x": values[:, 0], "y": values[:, 1], "step": order})


def sample_of(source, **options):
    return read_sample(source, client="site", targets=["x", "y"], **options)


def test_clean_rows_have_no_outliers_and_the_moments_of_read_moments():
    table = frame()
    found = sample_of(table)
    expected = read_moments(table, client="site", targets=["x", "y"])
    assert found.outliers == []
    assert found.without_outliers is None
    np.testing.assert_array_equal(found.moments.covariance, expected.covariance)
    for name in "ab":
        expected_rows = table.loc[table.site == name, ["x", "y"]].to_numpy()
        np.testing.assert_array_equal(np.sort(found.rows[name], axis=0), np.sort(expected_rows, axis=0))


@pytest.mark.parametrize("robust", [False, True])
def test_a_wild_value_is_counted_and_left_out_on_demand(robust):
    table = frame()
    clean = sample_of(table.drop(index=70))
    table.loc[70, "y"] = 1e7
    found = sample_of(table, robust=robust)
    (outlier,) = found.outliers
    assert (outlier.client, outlier.target, outlier.count, outlier.farthest) == ("b", "y", 1, 1e7)
    np.testing.assert_allclose(found.without_outliers.covariance, clean.moments.covariance, rtol=1e-9)
    assert (found.moments.covariance.max() < 10) == robust
    assert (found.rows["b"].max() < 10) == robust


@pytest.mark.parametrize("distance", [0.9, 1.1])
def test_the_range_is_median_and_mad(distance):
    table = frame(rows=101)
    own = table.loc[table.site == "a", "x"]
    scale = stats.median_abs_deviation(own) * 1.4826
    # one row at the largest value moves neither the median nor the MAD when it is the largest already
    table.loc[own.idxmax(), "x"] = own.median() + distance * OUTLIER * scale
    assert bool(sample_of(table).outliers) == (distance > 1)
    moments = read_moments(table, client="site", targets=["x", "y"], robust=True)
    clipped = table.loc[table.site == "a", ["x", "y"]].to_numpy().copy()
    for column in clipped.T:
        reach = CLIPPED * 1.4826 * stats.median_abs_deviation(column)
        column[:] = np.clip(column, np.median(column) - reach, np.median(column) + reach)
    expected = Moments.from_arrays([clipped])
    np.testing.assert_allclose(moments.mean[0], expected.mean[0], rtol=1e-12)
    np.testing.assert_allclose(moments.covariance[0], expected.covariance[0], rtol=1e-12)


def test_mostly_equal_values_fall_back_on_the_mean_deviation():
    table = frame(rows=400)
    table["x"] = np.where(np.arange(len(table)) % 4 == 0, table["x"], 0.0)  # the MAD is zero
    assert sample_of(table).outliers == []
    table.loc[3, "x"] = 1e7
    assert [found.count for found in sample_of(table).outliers] == [1]


def test_few_rows_have_no_ranges():
    table = frame(rows=6)
    table.loc[2, "x"] = 1e3
    assert sample_of(table).outliers == []


def test_rows_are_in_order_of_time():
    table = frame(rows=30)
    expected = table.loc[table.site == "b", ["x", "y"]].to_numpy()
    shuffled = table.sample(frac=1, random_state=0)
    by_number = sample_of(shuffled, time=["step"])
    np.testing.assert_array_equal(by_number.rows["b"], expected)
    when = pd.Timestamp("2020-12-30") + pd.to_timedelta(shuffled["step"], unit="D")
    dated = shuffled.assign(year=when.dt.year, day=when.dt.strftime("%Y-%m-%d"))
    for columns in (["day"], ["year", "step"]):
        np.testing.assert_array_equal(sample_of(dated, time=columns).rows["b"], expected)


def test_times_in_text_files_are_ordered_as_numbers(tmp_path):
    table = frame(rows=30)
    table.sample(frac=1, random_state=0).to_csv(tmp_path / "rows.csv", index=False)
    found = sample_of(tmp_path / "rows.csv", time=["step"])
    np.testing.assert_allclose(found.rows["b"], table.loc[table.site == "b", ["x", "y"]])


def test_missing_values_are_refused_or_dropped():
    table = frame()
    table.loc[5, "x"] = np.nan
    with pytest.raises(InputError, match="missing value"):
        sample_of(table)
    said = []
    found = sample_of(table, drop_missing=True, on_warning=said.append)
    assert said == ["Dropped 1 row with a missing value."]
    assert len(found.rows["a"]) == 59
    robust = read_moments(table, client="site", targets=["x", "y"], drop_missing=True, robust=True)
    np.testing.assert_allclose(robust.mean, found.moments.mean, atol=1e-12)


def test_an_unknown_column_of_time_is_named():
    with pytest.raises(InputError, match="No column 'stage'"):
        sample_of(frame(), time=["stage"])


def test_clients_may_be_numbers():
    table = frame(clients=(10, 9))
    found = sample_of(table)
    assert found.moments.clients == tuple(found.rows) == ("9", "10")
    np.testing.assert_allclose(found.rows["10"].mean(axis=0), found.moments.mean[1])
