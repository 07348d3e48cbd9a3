"""Moments of tables: the same from every kind of source, and a sentence for everything that is wrong."""

import gzip
import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError, Moments
from fedgram.data.problem import Problem
from fedgram.data.tables.diagnostics import translate_errors
from fedgram.data.tables.files import MISSING_TEXT
from fedgram.data.tables.read_moments import read_moments
from fedgram.data.tables.source import connect_duckdb

TARGETS = ["PM2.5", 'it\'s "odd"']


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def frame(seed=0, rows=90, clients=("north", "east", "west"), offset=0.0):
    """Rows of clients in turn, with correlated targets."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, 2)) @ [[1.0, 0.5], [0.0, 2.0]] + offset
    names = np.array(clients)[np.arange(rows) % len(clients)]
    return pd.DataFrame({"site": names, TARGETS[0]: values[:, 0], TARGETS[1]: values[:, 1], "year": 2010})


def read(source, client="site", targets=TARGETS, **options):
    return read_moments(source, client=client, targets=targets, **options)


def refusal(source, **options):
    with pytest.raises(InputError) as caught:
        read(source, **options)
    return caught.value


def expected(table):
    arrays = {str(name): rows[TARGETS].to_numpy() for name, rows in table.groupby("site")}
    return Moments.from_arrays(arrays, target_names=TARGETS)


def assert_same(moments, reference):
    assert (moments.clients, moments.targets) == (reference.clients, reference.targets)
    np.testing.assert_array_equal(moments.count, reference.count)
    np.testing.assert_allclose(moments.mean, reference.mean, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(moments.covariance, reference.covariance, rtol=1e-12, atol=1e-13)


WRITERS = {
    ".csv": lambda table, path: table.to_csv(path, index=False),
    ".txt": lambda table, path: table.to_csv(path, index=False, sep=";"),
    ".csv.gz": lambda table, path: table.to_csv(path, index=False),
    ".tsv": lambda table, path: table.to_csv(path, index=False, sep="\t"),
    ".parquet": lambda table, path: table.to_parquet(path, index=False),
    ".pq": lambda table, path: table.to_parquet(path, index=False),
}


def write(table, path):
    name = Path(path).name
    WRITERS[name[name.index(".") :]](table, path)
    return path


# ---- sources ----


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_kind_of_file_gives_the_moments_of_its_rows(suffix):
    table = frame()
    assert_same(read(write(table, f"data{suffix}")), expected(table))


@pytest.mark.parametrize("wrap", [str, Path, lambda path: [path], lambda path: [Path(path)]])
def test_a_path_may_be_text_a_path_or_a_list(wrap):
    table = frame()
    assert_same(read(wrap(write(table, "data.parquet"))), expected(table))


@pytest.mark.parametrize("convert", [lambda table: table, pa.table], ids=["pandas", "pyarrow"])
def test_tables_in_memory_are_read_as_they_are(convert):
    table = frame()
    assert_same(read(convert(table)), expected(table))


@given(st.integers(0, 1000), st.lists(st.sampled_from(sorted(WRITERS)), min_size=1, max_size=4))
@settings(max_examples=5, deadline=None)
def test_a_table_split_into_files_is_the_whole_table(tmp_path_factory, seed, suffixes):
    table, folder = frame(seed), tmp_path_factory.mktemp("split")
    shuffled = table[["year", *TARGETS[::-1], "site"]]
    for number, (part, suffix) in enumerate(
        zip(np.array_split(np.arange(90), len(suffixes)), suffixes, strict=True)
    ):
        (folder / str(number % 2)).mkdir(exist_ok=True)
        write((table if number % 2 else shuffled).iloc[part], folder / str(number % 2) / f"{number}{suffix}")
    assert_same(read(folder), expected(table))
    assert_same(read(str(folder / "*" / "*")), expected(table))


def test_files_of_different_dialects_are_one_table():
    table = frame(rows=300).assign(day=pd.date_range("2020-01-01", periods=300), size=1)
    for number in range(5):
        size = [1, 1.5, 2, 2.5, 3][number]  # BIGINT in some files, DOUBLE in others
        part = table[60 * number : 60 * (number + 1)].assign(size=size)
        part.columns = [name.upper() if number == 3 else name for name in part.columns]
        separator, line_end = [(",", "\n"), (";", "\r\n"), ("\t", "\n")][number % 3]
        part.to_csv(f"{number}.csv", index=False, sep=separator, lineterminator=line_end, quoting=number % 2)
    assert_same(read("."), expected(table))
    found = read(".", where="day >= DATE '2020-03-01' AND size > 1.2 AND size < 3")
    assert_same(found, expected(table[60:240]))


def test_each_file_is_sniffed_once(monkeypatch):
    queries = []

    class Spy:
        def __init__(self, connection):
            self.connection = connection

        def execute(self, query):
            queries.append(query)
            return self.connection.execute(query)

        def __getattr__(self, name):
            return getattr(self.connection, name)

    @contextmanager
    def connect():
        with connect_duckdb() as connection:
            yield Spy(connection)

    monkeypatch.setattr("fedgram.data.tables.reader.connect_duckdb", connect)
    for number in range(3):
        write(frame(seed=number), f"{number}.csv")
    read(".", drop_missing=True)
    assert sum("sniff_csv" in query for query in queries) == 3
    assert all("auto_detect = false" in query for query in queries if "read_csv" in query)


def test_no_line_of_a_csv_is_skipped():
    lines = frame().to_csv(index=False) + frame().assign(month=1).to_csv(index=False)
    Path("data.csv").write_text(lines)
    assert (
        refusal("data.csv").message == "Cannot read 'data.csv': line 92 has 5 values, but the header has 4."
    )
    table = frame(clients=("#1", "#2", "x"))
    assert_same(read(write(table, "hash.csv")), expected(table))


def test_apostrophes_are_not_quotes():
    table = frame().assign(note="none")
    table.loc[[20, 60], "note"] = ["'flu", "other patients'"]
    assert_same(read(write(table, "data.csv")), expected(table))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz"])
def test_quotes_may_begin_far_down(suffix):
    """DuckDB guesses the dialect from the first 20,480 rows."""
    table = frame(rows=24_000).assign(note="none")
    quoted = ['Haus "Q"', "St. Mary's, Leeds", "two\nlines"]
    table.loc[21_000:, "site"] = np.resize(quoted, 3_000)
    table.loc[22_000, "note"] = 'a, "b"'
    assert_same(read(write(table, f"data{suffix}")), expected(table))


@pytest.mark.parametrize("more", ["", "NA", '""', ","])
@pytest.mark.parametrize("rows", [0, 22_000], ids=["all lines", "later lines"])
def test_values_that_no_column_names_are_no_missing_ones(more, rows):
    """Where 1,234 stands for 1234 all columns after it are shifted."""
    Path("data.csv").write_text("site,PM2.5,z\n" + "a,1,2\nb,3,\n" * (rows // 2) + f"a,1,234,{more}\n" * 9)
    line = f"line {rows + 2:,} has {5 if more == ',' else 4} values, but the header has 3"
    assert refusal("data.csv", targets=["PM2.5"]).message == f"Cannot read 'data.csv': {line}."


def test_columns_of_objects_are_read_whole():
    values = pd.Series([1, 2] * 2000, dtype=object)
    values[2001::2] = 2.75
    clients = pd.Series([0, 1, 2] * 1333 + [0], dtype=object)
    clients[2500:2520] = "007"
    found = read(pd.DataFrame({"site": clients, "y": values}), targets=["y"])
    assert found.clients == ("0", "1", "2", "007")
    by_client = values.astype(float).groupby(clients.astype(str)).mean()
    np.testing.assert_allclose(found.mean[:, 0], by_client[list(found.clients)], rtol=1e-14)


def test_folders_are_searched_without_what_is_hidden_and_with_what_is_linked():
    table = frame()
    for folder in ("data/.old", "data/_temporary", "data/_key=1", "elsewhere"):
        os.makedirs(folder)
    for place in ("data/.old", "data/_temporary"):
        write(table, f"{place}/again.csv")
    write(table[:30], "data/1.csv")
    write(table[30:60], "data/_key=1/2.csv")
    write(table[60:], "elsewhere/3.csv")
    os.symlink("../elsewhere", "data/link")
    os.symlink("..", "data/link/loop")
    assert_same(read("data"), expected(table))


def test_a_glob_may_match_folders_of_parts():
    table = frame()
    os.makedirs("parts.csv")
    os.makedirs("other")
    write(table[:50], "parts.csv/part-0.csv")
    write(table[50:], "rest.csv")
    write(table, "other/all.csv")
    assert_same(read("*"), expected(table))


def test_a_client_has_one_name_in_all_files():
    """As a number 7.0 is 7, as text it is not."""
    write(frame(clients=(7, 8)), "1.csv")
    write(frame(clients=(7.0, 8.0)), "2.parquet")
    write(frame(clients=(7, 8)), "3.parquet")
    write(frame(clients=(True, False)), "4.parquet")
    assert read(["1.csv", "3.parquet"]).clients == read(["2.parquet", "3.parquet"]).clients == ("7", "8")
    assert refusal(["1.csv", "2.parquet"]).message == (
        "Clients in 'site' have type VARCHAR in '1.csv' but DOUBLE in '2.parquet', so one client may get two "
        "names. Convert them to text."
    )
    assert "type BIGINT in '3.parquet' but BOOLEAN in" in refusal(["3.parquet", "4.parquet"]).message


def test_numbers_of_clients_are_whole_in_text_files_with_missing_clients():
    """pandas writes 7 as 7.0 if another client is missing."""
    write(frame(clients=(7.0, 11.0, np.nan)), "1.csv")
    write(frame(clients=(7, 12)), "2.csv")
    assert read(["1.csv", "2.csv"], drop_missing=True).clients == ("7", "11", "12")
    write(frame(clients=("v1.0", "1.0")), "names.csv")
    assert read("names.csv").clients == ("1.0", "v1.0")


SITES = {
    "days": (pd.to_datetime(["2020-01-01", "2020-01-02"]), ("2020-01-01", "2020-01-02")),
    "times": (
        pd.to_datetime(["2020-01-01 12:30:00.5", "2020-01-02 00:00:00.0"]),
        ("2020-01-01 12:30:00.500000", "2020-01-02"),
    ),
    "zoned": (
        pd.to_datetime(["2020-01-01 01:00", "2020-07-01 01:00"]).tz_localize("Europe/Berlin"),
        ("2020-01-01", "2020-06-30 23:00:00"),
    ),
    "single precision": (np.array([0.1, 2.5], np.float32), ("0.1", "2.5")),
    "codes in single precision": (np.array([7, 16777216], np.float32), ("7", "16777216")),
    "large numbers": (np.array([1e-5, 123456789012345680.0]), ("1e-05", "123456789012345680")),
    "decimals": ([Decimal("1.50"), Decimal("2.00")], ("1.50", "2")),
}


@pytest.mark.parametrize(("values", "names"), SITES.values(), ids=SITES)
def test_sites_have_the_same_names_in_text_files_parquet_files_and_frames(values, names):
    table = frame(clients=(0, 1))
    table["site"] = pd.Series(values)[table["site"]].reset_index(drop=True)
    for source in (table, write(table, "data.csv"), write(table, "data.parquet")):
        assert read(source).clients == names
    write(table[:45], "half.csv")
    write(table[45:], "half.parquet")
    if table["site"].dtype.kind == "M":
        assert read(["half.csv", "half.parquet"]).clients == names
    if table["site"].dtype != object:
        problem = Problem.from_frame(table, client="site", inputs=["year"], targets=TARGETS)
        assert set(problem.clients) == set(names)


def test_sites_in_single_and_double_precision_have_one_name_or_are_refused():
    for site, dtype in ("single", np.float32), ("double", np.float64):
        write(frame().assign(site=np.resize([2.5, 7, 16777216], 90).astype(dtype)), f"{site}.parquet")
    assert read(["double.parquet", "single.parquet"]).clients == ("2.5", "7", "16777216")
    write(frame().assign(site=np.resize([0.1, 2.5], 90).astype(np.float32)), "single.parquet")
    assert read("single.parquet").clients == ("0.1", "2.5")
    message = "have type FLOAT in 'single.parquet' but DOUBLE in 'double.parquet', so one client may get two"
    with pytest.raises(InputError, match=message):
        read(["double.parquet", "single.parquet"])


def test_text_of_times_that_are_written_in_another_way_is_a_name_as_it_is():
    write(frame(clients=("01/02/2020 00:00:00", "03/04/2020 00:00:00")), "data.csv")
    assert read("data.csv").clients == ("01/02/2020 00:00:00", "03/04/2020 00:00:00")
    write(frame(clients=("2020-01-01 00:00:00", "north")), "data.csv")
    assert read("data.csv").clients == ("2020-01-01 00:00:00", "north")


def test_to_a_condition_nan_is_missing():
    table = {name: column.to_numpy() for name, column in frame().items()}
    table["year"] = np.where(np.arange(90) < 9, np.nan, np.arange(90.0))
    kept = frame()[np.arange(90) > 40]
    pq.write_table(pa.table(table), "data.parquet")
    for source in ("data.parquet", pa.table(table)):
        assert_same(read(source, where="year > 40"), expected(kept))


def test_a_file_named_twice_counts_once():
    table = frame()
    write(table, "data.csv")
    os.symlink("data.csv", "link.csv")
    assert_same(read(["data.csv", "*.csv", "./data.csv", os.path.abspath("data.csv")]), expected(table))


def test_a_folder_passes_over_files_that_are_no_tables():
    os.makedirs("folder/site=north")
    table = frame()
    write(table, "folder/data.csv")
    for name in ("readme.md", "_metadata", "._data.csv"):
        Path("folder", name).write_text("no table")
    assert_same(read("folder"), expected(table))


def test_folders_named_after_the_client_are_a_column():
    table = frame()
    for name, rows in table.groupby("site"):
        os.makedirs(f"data/site={name}")
        write(rows.drop(columns="site"), f"data/site={name}/rows.parquet")
    assert_same(read("data"), expected(table))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("key", ["site", "Site"])
def test_folders_do_not_replace_a_column_that_is_asked_for(suffix, key):
    for name in ("a", "b"):
        os.makedirs(f"data/{key}={name}")
        write(frame(), f"data/{key}={name}/rows{suffix}")
    for options in ({}, {"client": None, "site": "x", "where": "site = 'north'"}):
        error = refusal("data", **options)
        assert error.message == (
            f"'{key}' is both a column in the files of 'data' and a folder name, '{key}=...'. Rename the "
            "column or the folders."
        )
        assert error.field == key
    assert read("data", client=None, site="x").count == [180]


def test_folders_that_only_some_files_are_in_give_no_column():
    table = frame()
    os.makedirs("data/site=a")
    write(table[:45], "data/rows.csv")
    write(table[45:], "data/site=a/rows.csv")
    assert_same(read("data"), expected(table))


def test_columns_of_one_name_are_told_apart_in_folders_that_give_numbers():
    for year in (1, 2):
        os.makedirs(f"data/year={year}")
        write(named("site", "y", "Y"), f"data/year={year}/rows.csv")
    message = refusal("data", targets=["y"]).message
    assert message.startswith("'y' matches several columns of 'data/year=1/rows.csv': 'y', 'Y'")


def test_names_of_files_are_taken_literally():
    table = frame()
    assert_same(read(write(table, "it's [1] {x}.csv")), expected(table))


# ---- rows and clients ----


def test_where_is_a_condition_on_any_column():
    table = frame()
    table["year"] = np.arange(90) // 45 + 2010
    write(table, "data.csv")
    kept = table[(table["year"] == 2011) & (table["PM2.5"] > -1)]
    assert_same(read("data.csv", where='year = 2011 AND "PM2.5" > -1 -- the second year'), expected(kept))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_clients_that_are_numbers_come_by_size(suffix):
    table = frame(clients=(10, 9, 100))
    moments = read(write(table, f"data{suffix}"))
    assert moments.clients == ("9", "10", "100")
    np.testing.assert_allclose(moments.mean[0], table[table["site"] == 9][TARGETS].mean())


@pytest.mark.parametrize("first", [0, 2, 4])
def test_clients_come_in_order_of_name_numbers_first(first):
    table = frame(clients=np.roll(["b", "a", "10", "9", "nan"], first))
    assert read(table).clients == ("9", "10", "a", "b", "nan")


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".tsv"])
def test_all_rows_may_belong_to_one_site(suffix):
    table = frame()
    own = read(write(table[TARGETS], f"data{suffix}"), client=None, site="it's own")
    assert own.clients == ("it's own",)
    assert_same(own, expected(table.assign(site="it's own")))


def test_one_target_may_be_given_by_its_name():
    assert read(frame(), targets="PM2.5").targets == ("PM2.5",)


def test_columns_may_be_called_by_a_number():
    table = frame().set_axis([0, 1, 2, 3], axis=1)
    moments = read(table, client=0, targets=[1, np.int64(2)])
    assert moments.targets == ("1", "2")
    np.testing.assert_array_equal(moments.covariance, read(frame()).covariance)
    assert read(table, client=0, targets=2).targets == ("2",)
    assert refusal(table, client=0, targets=[0]).message.startswith("The column '0' is both client and")


def test_client_weights_are_passed_on():
    np.testing.assert_allclose(read(frame(), client_weights=[1, 1, 2]).client_weights, [0.25, 0.25, 0.5])


def test_the_first_rows_of_a_csv_do_not_decide_its_types():
    table = frame(rows=22_000, clients=(1, 2)).round(0)
    table[TARGETS] = table[TARGETS].astype(int)
    late = frame(rows=9, clients=("x",))
    Path("data.csv").write_text(table.to_csv(index=False) + late.to_csv(index=False, header=False))
    assert_same(read("data.csv"), expected(pd.concat([table, late])))


def test_whole_and_decimal_numbers_are_numbers():
    table = frame()
    table[TARGETS[0]] = np.arange(90, dtype=np.int16)
    decimal = pa.table(table).set_column(
        2, TARGETS[1], pa.array(np.arange(90) % 7).cast(pa.decimal128(25, 3))
    )
    assert_same(read(decimal), expected(table.assign(**{TARGETS[1]: np.arange(90.0) % 7})))


@pytest.mark.parametrize("convert", [lambda table: table, lambda table: write(table, "data.csv"),
                                     lambda table: write(table, "data.parquet")])  # fmt: skip
def test_true_and_false_are_one_and_zero(convert):
    table = frame()
    table[TARGETS[0]] = table[TARGETS[0]] > 0
    assert_same(read(convert(table)), expected(table.astype({TARGETS[0]: float})))


@pytest.mark.parametrize("convert", [lambda table: table, lambda table: write(table, "data.parquet")])
def test_clients_kept_as_bytes_have_their_names(convert):
    table = frame(clients=("nørd", "east", "10"))
    kept = table.assign(site=table["site"].str.encode("utf-8"))
    assert_same(read(convert(kept)), expected(table))
    kept.loc[kept["site"] == b"east", "site"] = b"\xff"
    assert read(convert(kept)).clients == ("10", r"\xFF", "nørd")


@pytest.mark.parametrize("kind", ["float64", "Float64", "category", "object"])
def test_frames_that_were_sliced_or_turned_round_are_read_as_they_are(kind):
    table = frame()
    table = table.astype({TARGETS[0]: kind} if "oat64" in kind else {"site": kind})
    for turned in (table[::-1], table[::2], table[80:7:-3]):
        assert read(turned).document() == read(turned.copy()).document()


@pytest.mark.parametrize(
    "convert", [lambda table: table, pa.Table.from_pandas, lambda table: write(table, "data.parquet")]
)
def test_clients_that_are_times_are_called_the_same_in_every_zone(convert):
    table = frame()
    days = {"north": "2020-01-01", "east": "2020-07-01 00:00:00.5", "west": "2021-01-01"}
    when = pd.to_datetime(table["site"].map(days), format="ISO8601")
    berlin = when.dt.tz_localize("Europe/Berlin")
    clients = ("2019-12-31 23:00:00", "2020-06-30 22:00:00.500000", "2020-12-31 23:00:00")
    for zone in (berlin, berlin.dt.tz_convert("Asia/Tokyo")):
        zoned = table.assign(site=zone)
        assert read(convert(zoned)).clients == clients
        assert (
            tuple(Problem.from_frame(zoned, client="site", inputs="year", targets=TARGETS).train) == clients
        )


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_condition_on_times_with_a_zone_is_in_utc_on_every_machine(zone):
    hours = pd.date_range("2019-12-30", periods=90, freq="h", tz="UTC")
    write(frame().assign(hour=hours), "data.parquet")
    given = {"client": "site", "targets": "PM2.5", "where": "hour < '2020-01-01 00:00'"}
    code = f"from fedgram import read_moments\nprint(read_moments('data.parquet', **{given}).count.sum())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TZ": zone},
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(run.stdout) == 48


# ---- accuracy ----


def exact_covariance(values):
    """Covariance (1/N) of the float64 values themselves, in fractions."""
    columns = [[Fraction(float(x)) for x in column] for column in values.T]
    n, sums = len(values), [sum(column) for column in columns]
    products = [[sum(x * y for x, y in zip(a, b, strict=True)) for b in columns] for a in columns]
    return np.array(
        [[float((products[i][j] - sums[i] * sums[j] / n) / n) for j in range(2)] for i in range(2)]
    )


@given(
    st.integers(0, 1000), st.sampled_from([0.0, 5.0, 15.0, 1e4, 1e8, -1e12]), st.sampled_from([0.0, 9.0, 1e8])
)
@settings(max_examples=12, deadline=None)
def test_no_offset_costs_digits(seed, common, between):
    table = frame(seed, rows=150, offset=common)
    table[TARGETS] += between * (np.arange(150) % 3)[:, None]
    moments = read(table)
    for m, client in enumerate(moments.clients):
        exact = exact_covariance(table[table["site"] == client][TARGETS].to_numpy())
        assert np.abs(moments.covariance[m] - exact).max() <= 1e-12 * np.abs(exact).max()


def test_an_outlier_among_the_first_rows_costs_no_digits():
    table = frame(rows=3000)
    table.loc[0, "PM2.5"] = 1e9
    moments = read(table)
    exact = exact_covariance(table[table["site"] == "east"][TARGETS].to_numpy())
    np.testing.assert_allclose(moments.covariance[0], exact, rtol=1e-13)


def test_the_smallest_spread_is_not_taken_for_a_constant():
    table = frame(rows=300)
    table["PM2.5"] = 1e8
    table.loc[:2, "PM2.5"] = np.nextafter(1e8, 2e8)
    moments, exact = read(table), exact_covariance(table[table["site"] == "east"][TARGETS].to_numpy())
    np.testing.assert_allclose(moments.covariance[0], exact, rtol=1e-12)


# ---- missing values ----


def test_text_that_means_missing_is_missing():
    write(frame(), "data.csv")
    with open("data.csv", "a") as file:
        file.writelines(f"east,{text},1.0,2010\n" for text in MISSING_TEXT)
    assert refusal("data.csv").message == (
        "12 of 102 rows have a missing value in 'PM2.5' (client 'east': 12). "
        "Drop them (--drop-missing, drop_missing=True), or fill them."
    )
    assert_same(read("data.csv", drop_missing=True), expected(frame()))


def with_gaps():
    table = frame(rows=2000, clients=("a", "b", "c", "d", "e"))
    for client, gaps in zip("abcde", (1, 300, 20, 0, 3), strict=True):
        table.loc[table.index[table["site"] == client][:gaps], "PM2.5"] = np.nan
    return table


@pytest.mark.parametrize("convert", [lambda table: table, lambda table: write(table, "data.csv"),
                                     lambda table: pa.table(table, nthreads=1),
                                     lambda table: write(table, "data.parquet")])  # fmt: skip
def test_missing_values_are_counted_and_named(convert):
    error = refusal(convert(with_gaps()))
    assert error.message == (
        "324 of 2,000 rows have a missing value in 'PM2.5' (client 'b': 300, client 'c': 20, client 'e': 3, "
        "...). Drop them (--drop-missing, drop_missing=True), or fill them."
    )
    assert (error.client, error.field) == ("b", "PM2.5")
    assert_same(read(convert(with_gaps()), drop_missing=True), expected(with_gaps().dropna()))


def test_nan_in_parquet_is_missing_though_its_bounds_leave_nan_out():
    table = frame()
    values = table["PM2.5"].to_numpy().copy()
    values[4] = np.nan
    columns = pa.table(table).set_column(1, "PM2.5", pa.array(values, from_pandas=False))
    pq.write_table(columns, "data.parquet")
    assert refusal("data.parquet").message.startswith("1 of 90 rows has a missing value in 'PM2.5'")
    assert_same(read("data.parquet", drop_missing=True), expected(table.drop(index=4)))


@pytest.mark.parametrize("missing", [None, "", "  "])
def test_rows_without_a_client_are_missing(missing):
    table = frame()
    table.loc[[0, 1], "site"] = missing
    table.loc[5, TARGETS[1]] = np.nan
    error = refusal(table)
    assert error.message == (
        "3 of 90 rows have a missing value in 'it's \"odd\"', 'site' (no client: 2, client 'west': 1). "
        "Drop them (--drop-missing, drop_missing=True), or fill them."
    )
    assert error.client is None
    assert_same(read(table, drop_missing=True), expected(table.drop(index=[0, 1, 5])))


def test_a_client_that_is_called_what_is_missing_is_told():
    table = frame(clients=("NA", "east", "west"))
    write(frame(rows=9, clients=("north",)), "others.parquet")
    said = (
        "fill them. NA, N/A, nan, null, None and '.' mean missing in a CSV or TSV file, so rename a client of"
    )
    for suffix in (".csv", ".tsv"):
        path = write(table, f"data{suffix}")
        for source in (path, [path, "others.parquet"]):
            message = refusal(source).message
            assert "a missing value in 'site' (no client: 30). Drop" in message
            assert said in message
    assert read(write(table, "data.parquet")).clients == ("NA", "east", "west")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_what_else_is_missing_says_nothing_of_names(suffix):
    table = frame()
    table.loc[3, "site" if suffix == ".parquet" else "PM2.5"] = None
    assert refusal(write(table, f"data{suffix}")).message.endswith("or fill them.")


@pytest.mark.parametrize("away", [0.0, 1e6], ids=["in one pass", "in two"])
def test_it_is_said_how_many_rows_are_left_out(away):
    table, said = frame(), []
    table.loc[table["site"] == "east", "PM2.5"] += away
    read(table, drop_missing=True, on_warning=said.append)
    assert said == []
    table.loc[[0, 1], "site"] = None
    table.loc[5, TARGETS[1]] = np.nan
    read(table, drop_missing=True, on_warning=said.append)
    assert said == ["Dropped 3 rows with a missing value."]


def test_whole_clients_stay_whole_numbers_next_to_missing_ones():
    table = frame(clients=(1, 2, 3))
    table["site"] = table["site"].astype(float).where(table.index != 7)
    assert read(table, drop_missing=True).clients == ("1", "2", "3")


def test_dropping_never_drops_a_client_silently():
    table = frame()
    table.loc[table["site"] == "east", "PM2.5"] = np.nan
    assert refusal(table, drop_missing=True).message.startswith("Client 'east' has 0 rows")


# ---- values that cannot be used ----


@pytest.mark.parametrize("rows", [0, 22_000], ids=["first rows", "later rows"])
def test_text_among_numbers_is_named_with_its_line(rows):
    Path("data.csv").write_text("site,PM2.5\n" + "a,1\n" * rows + "b,hot\nb,NA\nb,true\nb,cold\n")
    error = refusal("data.csv", targets=["PM2.5"])
    assert error.message == (
        f"Column 'PM2.5' of 'data.csv' is not numeric: 2 values of text, first 'hot' in row {rows + 1:,}. "
        "Convert it to numbers in the same way at every site, or choose another column."
    )
    assert error.field == "PM2.5"


def test_of_long_text_the_beginning_is_shown():
    notes = "seen\nat night, " * 20
    frame().assign(note=notes).to_csv("data.csv", index=False)
    beginning = "'seen at night, seen at night, seen at ni...'"
    assert f"90 values of text, first {beginning} in row 1" in refusal("data.csv", targets=["note"]).message
    in_memory = refusal(frame().assign(note=notes), targets=["note"]).message
    assert f"type VARCHAR, for example {beginning} in row 1" in in_memory


@pytest.mark.parametrize(("length", "reason"), [
    (20, "line 3 has 3 values, but the header has 2."),
    (200_000, 'Error when sniffing file "data.csv".'),
])  # fmt: skip
def test_uneven_lines_are_named_beside_quotes(length, reason):
    Path("data.csv").write_text(f'site,PM2.5\n"{"a" * length}",1\n' + "b,2,3\n" * 9)
    assert refusal("data.csv").message == f"Cannot read 'data.csv': {reason}"


def test_a_file_without_a_target_is_named():
    table = frame()
    write(table, "1.csv")
    write(table.drop(columns=TARGETS[0]), "2.csv")
    assert refusal(["1.csv", "2.csv"]).message == (
        "'2.csv' has no column 'PM2.5', but other files do. Add it, or drop the file."
    )


def test_an_interrupt_is_one():
    """DuckDB makes a failure of its own of it."""
    for kind in (RuntimeError, duckdb.InterruptException):
        with pytest.raises(KeyboardInterrupt), translate_errors(None):
            raise kind("Query interrupted")
    with pytest.raises(RuntimeError, match="other"), translate_errors(None):
        raise RuntimeError("other")


@pytest.mark.parametrize("text", ["1,5", "-12,25"])
def test_decimal_commas_are_told_what_to_write(text):
    Path("data.csv").write_text(f"site;PM2.5\na;{text}\nb;{text}\n")
    error = refusal("data.csv", targets=["PM2.5"])
    assert error.message == (
        f"Column 'PM2.5' of 'data.csv' is not numeric: 2 values of text, first '{text}' in row 1. Write "
        "decimals with a point, and thousands without a comma."
    )


@pytest.mark.parametrize(("values", "holds"), [
    ([1.0, None, "hot", 2.0], "VARCHAR, for example 'hot' in row 3"),
    (["1.5"] * 4, "VARCHAR, for example '1.5' in row 1"),
    ([date(2010, 3, 1)] * 4, "DATE, for example '2010-03-01' in row 1"),
    (pd.Categorical(["low", "high"] * 2), "ENUM, for example 'low' in row 1"),
])  # fmt: skip
def test_a_column_that_holds_no_numbers_is_named(values, holds):
    table = pd.DataFrame({"site": ["a", "b"] * 2, "x": values})
    message = (
        f"Column 'x' of the table is not numeric: it has type {holds}. Convert it to numbers in the same way "
        "at every site, or choose another column."
    )
    assert refusal(table, targets=["x"]).message == message


@pytest.mark.parametrize("drop_missing", [False, True])
@pytest.mark.parametrize(("value", "what"), [
    (np.inf, "an infinite value"), (-np.inf, "an infinite value"),
    (1e200, "a value of size 1e+200, too large to square,"),
])  # fmt: skip
def test_a_value_without_a_finite_square_is_named(value, what, drop_missing):
    table = frame()
    table.loc[7, TARGETS[1]] = value
    table.loc[8, "site"] = None if drop_missing else "west"
    error = refusal(table, drop_missing=drop_missing)
    assert error.message == (f"Client 'east' has {what} in 'it's \"odd\"'. Correct it, or drop its row.")
    assert (error.client, error.field) == ("east", TARGETS[1])


@pytest.mark.parametrize("size", [1e-160, 1e-170, 1e-300])
def test_a_target_whose_squares_become_zero_is_refused(size):
    table = frame()
    table.loc[table["site"] == "east", "PM2.5"] *= size
    assert read(table).covariance[0, 0, 0] < 1e-300  # one client with such values harms nothing
    table["PM2.5"] = size * frame()["PM2.5"]
    assert refusal(table).message == (
        "Target 'PM2.5' has differences below 1.5e-154, whose squares are too small to compute with. "
        "Multiply it by a large number, or drop it."
    )
    with pytest.raises(InputError, match=r"Target 'PM2\.5' has differences below"):
        expected(table)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8 + 0.1, -3e-300])
def test_a_constant_target_is_named(value):
    table = frame(rows=3000)
    table.loc[table["site"] == "east", "PM2.5"] = value
    error = refusal(table)
    assert error.message == (
        "Target 'PM2.5' is constant at client 'east', so it cannot be predicted. "
        "Drop the target or the client."
    )
    assert (error.client, error.field) == ("east", "PM2.5")


def test_all_clients_with_a_constant_target_are_named():
    table = frame()
    table.loc[table["site"] != "west", "PM2.5"] = 0.1
    others = ", ".join(f"'{name}'" for name in sorted(set(table["site"]) - {"west"}))
    assert refusal(table).message == (
        f"Target 'PM2.5' is constant at clients {others}, so it cannot be predicted. "
        "Drop the target or these clients."
    )


# ---- many targets, which NumPy sums ----


@pytest.fixture
def _sum_in_batches(monkeypatch):
    monkeypatch.setattr("fedgram.data.tables.read_moments.MANY_TARGETS", 1)
    monkeypatch.setattr("fedgram.data.tables.sum_batches.BATCH_VALUES", 70)  # of the 180 values


@pytest.mark.usefixtures("_sum_in_batches")
@pytest.mark.parametrize("offset", [0.0, 1e8])
@pytest.mark.parametrize("robust", [False, True])
def test_batches_give_the_moments_of_their_rows(offset, robust):
    table = frame(offset=offset)
    assert_same(read(table, robust=robust), expected(table))


@pytest.mark.usefixtures("_sum_in_batches")
@pytest.mark.parametrize(("column", "value", "message"), [
    ("PM2.5", np.nan, "1 of 90 rows has a missing value in 'PM2.5' (client 'east': 1)."),
    ("site", None, "1 of 90 rows has a missing value in 'site' (no client: 1)."),
    ("PM2.5", np.inf, "Client 'east' has an infinite value in 'PM2.5'."),
    ("PM2.5", 1e200, "Client 'east' has a value of size 1e+200, too large to square, in 'PM2.5'."),
])  # fmt: skip
def test_batches_refuse_what_sql_refuses(column, value, message):
    table = frame()
    table.loc[7, column] = value
    assert refusal(table).message.startswith(message)
    if value is None or np.isnan(value):
        assert_same(read(table, drop_missing=True), expected(table.dropna()))
    table = frame().assign(**{"PM2.5": 0.1})
    assert refusal(table).message.startswith("Target 'PM2.5' is constant at clients 'east', ")


def test_many_targets_are_read():
    rng = np.random.default_rng(0)
    names = [f"y{number}" for number in range(200)]
    table = pd.DataFrame(rng.standard_normal((606, 200)), columns=names).assign(site=["a", "b"] * 303)
    reference = Moments.from_arrays({name: rows[names] for name, rows in table.groupby("site")})
    assert_same(read(table, targets=names), reference)


def test_too_few_rows_are_reported_as_that_and_not_as_a_constant():
    table = frame()
    table.loc[0, "site"] = "alone"
    assert refusal(table).message.startswith("Client 'alone' has 1 row, but it needs at least 3")


# ---- what was asked for ----


@pytest.mark.parametrize(("options", "message"), [
    ({"targets": ["PM25"]}, "No column 'PM25' in the table (did you mean 'PM2.5'?). Columns: "
                            "'site', 'PM2.5', 'it's \"odd\"', 'year'."),
    ({"client": "Site"}, "No column 'Site' in the table (did you mean 'site'?). Columns: "
                         "'site', 'PM2.5', 'it's \"odd\"', 'year'."),
    ({"client": "hospital"}, "No column 'hospital' in the table. Columns: "
                             "'site', 'PM2.5', 'it's \"odd\"', 'year'."),
    ({"targets": []}, "There are no targets. Name at least one column."),
    ({"targets": ["PM2.5", "PM2.5"]}, "The target 'PM2.5' appears more than once. Name it once."),
    ({"client": "PM2.5"}, "The column 'PM2.5' is both client and target. Choose one."),
    ({"site": "north"}, "Pass either client= or site=, not both."),
    ({"client": None}, "Pass client=, the column of each row's client, or site=, its name."),
    ({"where": "year >"}, 'Invalid condition "year >" (where): syntax error at or near ")".'),
    ({"where": "sum(year) > 1"}, 'Invalid condition "sum(year) > 1" (where): '
                                 "WHERE clause cannot contain aggregates."),
    ({"where": "true); COPY source TO 'stolen.csv'; SELECT (1"},
     'Invalid condition "true); COPY source TO \'stolen.csv\'; SELECT (1" (where): more than one statement.'),
    ({"where": "year < 0"}, 'No rows of the table match the condition "year < 0". Widen it.'),
])  # fmt: skip
def test_a_question_that_cannot_be_answered_is_explained(options, message):
    assert refusal(frame(), **options).message == message


@pytest.mark.parametrize(("yes", "no"), [("y", "n"), ("Y", "N"), ("yes", "no"), ("true", "false")])
def test_truth_values_are_one_and_zero(tmp_path, yes, no):
    path = tmp_path / "rows.csv"
    answers = [yes, no, no, yes, no, ""]
    path.write_text("site,y\n" + "".join(f"{site},{each}\n" for site in "ab" for each in answers))
    found = read_moments(path, client="site", targets=["y"], drop_missing=True)
    np.testing.assert_allclose(found.mean, [[0.4], [0.4]])
    path.write_text(path.read_text() + "b,perhaps\n")
    with pytest.raises(InputError, match=r"is not numeric: .* 'perhaps' in row 13"):
        read_moments(path, client="site", targets=["y"], drop_missing=True)


def test_names_that_differ_by_blanks_are_refused_with_their_place():
    table = frame()
    table.loc[3, "site"] += " "
    assert refusal(table).message == (
        "The client names 'north', 'north ' in the column 'site' of the table differ only in blanks. Remove "
        "the blanks."
    )
    assert_same(read(table.assign(site=frame()["site"] + " ")), expected(frame()))


@pytest.mark.parametrize(("where", "reason"), [
    ("yeer > 2010", 'Referenced column "yeer" not found in FROM clause'),
    ("site::INT = 1", "Could not convert string 'north' to INT32"),
])  # fmt: skip
def test_the_reason_why_where_fails_is_given(where, reason):
    error = refusal(frame(), where=where)
    assert error.message.startswith(f'Invalid condition "{where}" (where): {reason}')
    assert "\n" not in error.message
    assert error.field == "where"


def named(*columns):
    """A table with these names of columns."""
    table = pd.concat([frame()[["site", TARGETS[0]]]] + [frame()[[TARGETS[1]]]] * (len(columns) - 2), axis=1)
    return table.set_axis(list(columns), axis=1)


def arrow(table):
    """pandas refuses names that appear twice on its way to pyarrow."""
    arrays = [pa.array(table.iloc[:, number]) for number in range(table.shape[1])]
    inner = pa.StructArray.from_arrays([arrays[1]], names=["y"])
    return pa.table([inner, *arrays], names=["inner", *table.columns])


CONVERTED = {
    "pandas": lambda table: table,
    "pyarrow": arrow,
    "csv": lambda table: write(table, "data.csv"),
    "parquet": lambda table: pq.write_table(arrow(table), "data.parquet") or "data.parquet",
}


@pytest.mark.parametrize("kind", CONVERTED)
@pytest.mark.parametrize(("columns", "asked", "alike"), [
    (("site", "y", "y"), "y", "'y', 'y'"),
    (("site", "y", "Y"), "y", "'y', 'Y'"),
    (("site", "y", "Y"), "Y", "'y', 'Y'"),
    (("site", "y", "y"), "y_1", "'y', 'y'"),
    (("site", "y", "y", "y_1"), "y_1", "'y', 'y', 'y_1'"),
])  # fmt: skip
def test_columns_of_one_name_are_refused_where_they_are_asked_for(kind, columns, asked, alike):
    error = refusal(CONVERTED[kind](named(*columns)), targets=[asked])
    place = f"'data.{kind}'" if kind in ("csv", "parquet") else "the table"
    assert error.message == (
        f"'{asked}' matches several columns of {place}: {alike} (case is ignored). Rename all but one."
    )
    assert error.field == asked


@pytest.mark.parametrize("kind", CONVERTED)
@pytest.mark.parametrize(("columns", "asked"), [
    (("site", "z", "y", "y"), "z"), (("site", "y", "y_1"), "y"), (("site", "y_1", "y"), "y_1"),
])  # fmt: skip
def test_columns_of_one_name_are_no_matter_elsewhere(kind, columns, asked):
    read_back = read(CONVERTED[kind](named(*columns)), targets=[asked])
    np.testing.assert_allclose(read_back.mean[:, 0], read(frame(), targets=TARGETS[0]).mean[:, 0])


def test_the_file_with_columns_of_one_name_is_found_among_others():
    write(named("site", "y"), "1.csv")
    write(named("site", "y", "Y"), "2.tsv")
    assert "'2.tsv': 'y', 'Y'" in refusal(["1.csv", "2.tsv"], targets=["y"]).message


def test_many_columns_are_not_all_listed():
    table = frame().assign(**{f"x{number}": 0 for number in range(50)})
    assert refusal(table, client="hospital").message.endswith("'x14', 'x15', ....")


# ---- files that cannot be read ----


def damaged(path, change):
    Path(path).write_bytes(change(Path(path).read_bytes()))
    return path


@pytest.mark.parametrize(("path", "message"), [
    ("nothing.csv", "No such file or folder: 'nothing.csv'. Check the path."),
    ("nothing*.csv", "No file matches 'nothing*.csv'. Check the pattern."),
    ("folder", "The folder 'folder' has no CSV, TSV or Parquet file. Choose another folder."),
    ("sheet.xlsx", "'sheet.xlsx' does not have the suffix of a CSV, TSV or Parquet file. Convert it, or pass "
                   "a data frame."),
    ("x.parquet.gz", "'x.parquet.gz' is a gzipped Parquet file, but only CSV and TSV may be gzipped. "
                     "Unpack it first."),
    ("empty.csv", "The file 'empty.csv' is empty. Export it again, or leave it out."),
    ("header.csv", "No rows with a client in 'header.csv'. Add some."),
    ("ragged.csv", "Cannot read 'ragged.csv': line 3 has 3 values, but the header has 2."),
])  # fmt: skip
def test_a_path_without_a_table_is_explained(path, message):
    os.mkdir("folder")
    Path("sheet.xlsx").write_text("a sheet")
    Path("x.parquet.gz").write_bytes(gzip.compress(b"PAR1"))
    Path("empty.csv").touch()
    Path("header.csv").write_text("site,PM2.5\n")
    Path("ragged.csv").write_text("site,PM2.5\na,1\nb,1,2\n")
    error = refusal(path, targets=["PM2.5"])
    assert error.message == message
    assert error.message == refusal([path], targets=["PM2.5"]).message


@pytest.mark.parametrize(("name", "change"), [
    ("data.parquet", lambda content: content[: len(content) // 2]),
    ("data.parquet", lambda content: b"not Parquet"),
    ("data.parquet", lambda content: content[:400] + bytes(2000) + content[2400:]),
    ("data.csv.gz", lambda content: content[: len(content) // 2]),
    ("data.csv.gz", lambda content: b"not gzip"),
    ("data.csv", lambda content: content + b"north,1.0\n"),
    ("data.csv", lambda content: content + b"north\xff,1.0,2.0,2010\n"),
])  # fmt: skip
def test_a_damaged_file_is_named_with_the_reason(name, change):
    damaged(write(frame(rows=22_000), name), change)
    error = refusal(name)
    assert error.message.startswith(f"Cannot read '{name}': ")
    assert error.message.endswith(".")
    assert "\n" not in error.message
    assert error.field == "source"


def test_mixed_line_ends_are_named():
    Path("mixed.csv").write_bytes(b"site,y\r\nnorth,1\nsouth,2\r\nnorth,3\nsouth,5\n")
    with pytest.raises(InputError, match=r"its lines end in different ways \(CRLF and LF\)"):
        read_moments("mixed.csv", client="site", targets="y")


def test_of_several_files_the_damaged_one_is_named():
    for name in ("1.parquet", "2.parquet", "1.csv", "2.csv"):
        write(frame(rows=22_000), name)
    damaged("2.parquet", lambda content: content[:50])
    damaged("2.csv", lambda content: content + b"north\xff,1.0,2.0,2010\n")
    for source in (["1.parquet", "2.parquet"], "*.parquet"):
        assert refusal(source).message.startswith("Cannot read '2.parquet': ")
    assert refusal("*.csv").message == "Cannot read '2.csv': it is not UTF-8 text. Save it as UTF-8."


def test_the_first_of_several_paths_stands_for_them():
    for name in ("1.parquet", "2.parquet"):
        write(frame(), name)
    message = refusal(["1.parquet", "2.parquet"], where="year < 0").message
    assert message.startswith("No rows of '1.parquet' and 1 more match")


def test_a_file_that_may_not_be_read_is_explained(monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os.path, "getsize", refuse)
    message = refusal(write(frame(), "data.csv")).message
    assert message == "Cannot read 'data.csv': Permission denied."


def test_a_stream_is_refused_because_it_can_be_read_only_once():
    assert refusal(pa.table(frame()).to_reader()).message == (
        "Unsupported source: RecordBatchReader. Pass a path, a list of paths, or a pandas or pyarrow table."
    )


@pytest.mark.parametrize(
    ("source", "called"),
    [({"site": ["a"]}, "dict"), ([], "an empty list"), ([{"site": "a"}], "list"), (("a.csv", 3), "tuple")],
)
def test_what_is_no_table_is_named(source, called):
    assert refusal(source).message.startswith(f"Unsupported source: {called}. Pass a path")


def test_too_little_memory_is_explained(monkeypatch):
    connect = duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda config: connect(config={**config, "memory_limit": "1MB"}))
    table = frame(rows=300_000)
    table["site"] = np.arange(300_000)
    error = refusal(write(table, "data.parquet"))
    assert error.message == (
        "Not enough memory to read 'data.parquet'. Close other programs, and check that 'site' names the "
        "client of a row, not the row."
    )


def test_importing_does_not_import_duckdb():
    code = "import sys, fedgram.data.tables.read_moments; sys.exit('duckdb' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_gzip_is_known_by_the_name_of_the_file():
    table = frame()
    Path("data.TSV.gz").write_bytes(gzip.compress(table.to_csv(index=False, sep="\t").encode()))
    assert_same(read("data.TSV.gz"), expected(table))


def test_folders_may_name_the_clients(tmp_path):
    for site in ("01", "02"):
        folder = tmp_path / f"site={site}"
        folder.mkdir()
        (folder / "rows.csv").write_text("y\n1\n2\n4\n")
    assert read_moments(tmp_path, client="site", targets="y").clients == ("01", "02")
