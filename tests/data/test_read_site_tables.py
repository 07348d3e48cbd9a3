"""Rows of sites with categories and times: the same from every source, and a sentence for what is wrong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedgram import InputError, read_moments
from fedgram.data.encoding import Encoding
from fedgram.data.tables.read_rows import TableSpec
from fedgram.data.tables.read_site_tables import read_columns, read_site_tables

SPEC = TableSpec("site", ["dose", "grade", "smoker", "a {0} 'name'"], ["effect"], time="day")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def frame(rows=24):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "site": np.array(["b", "a", "c"])[np.arange(rows) % 3],
            "dose": rng.standard_normal(rows),
            "grade": rng.choice(["K", "1", "2"], rows),
            "smoker": rng.random(rows) < 0.5,
            "a {0} 'name'": rng.choice(["x y", "ü"], rows),
            "day": pd.date_range("2016-02-20", periods=rows)[::-1],
            "effect": rng.standard_normal(rows),
        }
    )


def write(table, name="rows.csv"):
    table.to_parquet(name) if name.endswith("parquet") else table.to_csv(name, index=False)
    return name


def refusal(source, spec=SPEC):
    with pytest.raises(InputError) as caught:
        read_site_tables(source, spec)
    return caught.value


def assert_same(tables, table):
    assert list(tables) == sorted(table["site"].unique())
    for site, columns in tables.items():
        rows = table[table["site"] == site]
        for name, values in columns.items():
            np.testing.assert_array_equal(values, rows[name].to_numpy(values.dtype))


# Values


def folder_of_sites(table):
    for site, rows in table.groupby("site"):
        write(rows, f"{site}.csv")
    return "*.csv"


def hive_folders(table):
    for site, rows in table.groupby("site"):
        Path(f"rows/site={site}").mkdir(parents=True)
        write(rows.drop(columns="site"), f"rows/site={site}/rows.csv")
    return "rows"


@pytest.mark.parametrize(
    "store",
    [
        lambda table: table,
        lambda table: table.astype({"grade": "category"}),
        pa.Table.from_pandas,
        write,
        lambda table: write(table, "rows.csv.gz"),
        lambda table: write(table, "rows.parquet"),
        folder_of_sites,
        hive_folders,
        lambda table: [write(table[:9], "a.csv"), write(table[9:], "b.parquet")],
    ],
    ids=["pandas", "enum", "pyarrow", "csv", "gzip", "parquet", "glob", "folders", "mixed"],
)
def test_sources_agree(store):
    table = frame()
    tables = read_site_tables(store(table), SPEC)
    assert_same(tables, table)
    assert {name: values.dtype.kind for name, values in tables["a"].items()} == {
        "dose": "f", "grade": "U", "smoker": "b", "a {0} 'name'": "U", "day": "M", "effect": "f",
    }  # fmt: skip


def test_a_column_is_numeric_if_all_values_are_numbers():
    rows = 21_001  # DuckDB guesses types from the first 20,480
    late = pd.DataFrame({"site": np.arange(rows) % 2, "grade": ["1"] * (rows - 1) + ["K"], "y": 1.0})
    grade = read_site_tables(write(late), TableSpec("site", ["grade"], ["y"]))["0"]["grade"]
    assert set(grade) == {"1", "K"}
    whole = read_site_tables(write(frame().assign(grade=" 7")), SPEC)["a"]["grade"]
    assert whole.tolist() == [7.0] * 8


def test_categories_of_training_stay_text():
    table = frame().assign(grade="07")
    kinds = {"grade": "category", "dose": "number"}
    sites, columns = read_columns(write(table), replace(SPEC, targets=[], time=None), kinds)
    assert sites == table["site"].tolist()
    assert columns["grade"].tolist() == ["07"] * 24
    np.testing.assert_array_equal(columns["dose"], table["dose"])


@pytest.mark.parametrize("source", [lambda table: table, write], ids=["memory", "csv"])
@pytest.mark.parametrize(
    ("training", "levels", "new", "read"),
    [
        (["True", "FALSE", "Unknown"], ["Unknown", "false", "true"], ["True", "False"], ["true", "false"]),
        (["True", "False"], ["false", "true"], ["TRUE", "False", "no"], ["true", "false", "no"]),
        (["2020-01-01", "never"], ["2020-01-01", "never"], ["2020-01-01"], ["2020-01-01"]),
    ],
)
def test_the_rows_to_predict_do_not_change_how_a_category_is_read(source, training, levels, new, read):
    tables = read_site_tables(source(frame().assign(grade=np.resize(training, 24))), SPEC)
    encoding = Encoding.fit(tables, inputs=["grade"], targets=["effect"])
    assert encoding.inputs[0].levels == tuple(levels)
    later, said = source(frame().assign(grade=np.resize(new, 24))), []
    _, columns = read_columns(later, replace(SPEC, targets=[], time=None), encoding.kinds)
    expected = encoding.encode_inputs({"grade": np.resize(read, 24)}, on_warning=[].append)
    np.testing.assert_array_equal(encoding.encode_inputs(columns, on_warning=said.append), expected)
    assert [sentence.partition(": ")[2] for sentence in said] == ["'no' of 'grade'."] * ("no" in new)


@pytest.mark.parametrize("source", [lambda table: table, write], ids=["memory", "csv"])
def test_numbers_that_are_codes_become_text(source):
    table = frame().assign(grade=np.arange(24) % 4, dose=np.arange(24.0) % 3)
    spec = replace(SPEC, categories=("grade", "dose"))
    tables = read_site_tables(source(table), spec)
    names = Encoding.fit(tables, inputs=spec.inputs, targets=spec.targets).input_names
    assert [name for name in names if "'" not in name] == [
        *(f"dose={level}" for level in range(3)), *(f"grade={level}" for level in range(4)),
        "smoker=false", "smoker=true",
    ]  # fmt: skip
    assert tables["a"]["grade"].tolist() == [str(number) for number in table["grade"][table["site"] == "a"]]


@pytest.mark.parametrize(("name", "separator"), [("rows.csv", ","), ("rows.csv", ";"), ("rows.tsv", "\t")])
@pytest.mark.parametrize("header", ["NA", "None", "nan", "null", "N/A", "."])
def test_headers_may_look_like_missing_values(header, name, separator):
    frame().rename(columns={"dose": header}).to_csv(name, sep=separator, index=False)
    tables = read_site_tables(name, replace(SPEC, inputs=[header]))
    expected = frame()["dose"][frame()["site"] == "a"]
    np.testing.assert_array_equal(tables["a"][header], expected)


@pytest.mark.parametrize("store", [lambda table: table, lambda table: write(table, "rows.parquet")])
def test_text_that_has_only_numbers_gets_a_warning(store):
    said = []
    source = store(frame().assign(grade=np.resize(["1.5", "-2", ""], 24)))
    tables = read_site_tables(source, SPEC, said.append)
    assert said == [
        "Column 'grade' has numbers as text, such as '1.5', and is read as categories. Convert it to "
        "numbers; if they are codes, name it as a category (--categories, or the type category of a data "
        "frame)."
    ]
    assert {*tables["a"]["grade"], *tables["b"]["grade"], *tables["c"]["grade"]} == {"1.5", "-2", ""}
    read_site_tables(source, replace(SPEC, categories=["grade"]), said.append)
    read_site_tables(store(frame().assign(grade=np.resize(["07", "12"], 24))), SPEC, said.append)
    read_site_tables(write(pd.read_parquet(source) if isinstance(source, str) else source), SPEC, said.append)
    assert len(said) == 1


def test_codes_in_single_precision_are_the_levels_of_a_text_file():
    table = frame().assign(grade=(np.arange(24) % 4 + 0.1).astype(np.float32))
    spec = replace(SPEC, inputs=["grade"], categories=["grade"])
    for source in (table, write(table, "rows.csv"), write(table, "rows.parquet")):
        assert set(read_site_tables(source, spec)["a"]["grade"]) == {"0.1", "1.1", "2.1", "3.1"}


def test_codes_are_the_same_levels_with_and_without_decimals():
    spec = replace(SPEC, inputs=["grade"], categories=["grade"])
    whole, decimal = (
        write(frame().assign(grade=(np.arange(24) % 4).astype(dtype)), f"{dtype}.csv")
        for dtype in ("int64", "float64")
    )
    encoding = Encoding.fit(read_site_tables(whole, spec), inputs=["grade"], targets=["effect"])
    assert encoding == Encoding.fit(read_site_tables(decimal, spec), inputs=["grade"], targets=["effect"])
    rows = replace(spec, targets=[], time=None, categories=())
    first, second = (read_columns(file, rows, encoding.kinds)[1] for file in (whole, decimal))
    np.testing.assert_array_equal(encoding.encode_inputs(first), encoding.encode_inputs(second))


@pytest.mark.parametrize("store", [lambda table: table, lambda table: write(table, "rows.parquet")])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "Int64", "object", "category"])
def test_codes_of_many_digits_stay_distinct(store, dtype):
    codes = np.resize([2**53, 2**53 + 1, 2**53 + 2], 24).astype("int64")
    source = store(frame().assign(grade=pd.Series(codes).astype(dtype)))
    spec = replace(SPEC, categories=["grade"])
    tables = read_site_tables(source, spec)
    for number, site in enumerate("bac"):
        assert set(tables[site]["grade"].tolist()) == {str(2**53 + number)}
    _, columns = read_columns(source, replace(spec, targets=[], time=None), {"grade": "category"})
    assert columns["grade"].tolist() == codes.astype(str).tolist()


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        ([3, 1, None], ["3", "1", ""]),
        ([1.5, 2.0], ["1.5", "2"]),
        ([True, False, None], ["true", "false", ""]),
    ],
)
def test_categories_of_a_data_frame_stay_categories(values, levels):
    repeats = 24 // len(values)
    table = frame().assign(grade=pd.Categorical(values * repeats), day=pd.Categorical(np.arange(24)))
    columns = read_site_tables(table, replace(SPEC, inputs=["grade", "day"]))
    assert columns["a"]["grade"].tolist() == np.array(levels * repeats)[table["site"] == "a"].tolist()
    assert columns["a"]["day"].dtype.kind == "f"  # a time that is an input, too, is a number


def test_a_code_must_be_an_input():
    error = refusal(frame(), replace(SPEC, categories=["grad"]))
    assert str(error) == "Category 'grad' is no input; did you mean 'grade'? Add it to the inputs."


def test_a_code_must_not_be_the_time():
    error = refusal(frame(), replace(SPEC, inputs=["grade", "day"], categories=["day"]))
    assert str(error) == "The column 'day' is both the time and a category. Name it as one of them."


def test_columns_must_be_named():
    error = refusal(frame(), replace(SPEC, inputs=[], targets=[]))
    assert str(error) == "No inputs are named. Name at least one column (--inputs)."


def test_one_site_without_a_column_of_sites():
    spec = replace(SPEC, client=None, site="oslo")
    tables = read_site_tables(write(frame()), spec)
    np.testing.assert_array_equal(tables["oslo"]["effect"], frame()["effect"])


@pytest.mark.parametrize("source", [lambda table: table, write], ids=["memory", "csv"])
def test_conditions_compare_numbers_and_times(source):
    table = frame().assign(dose=np.arange(24) / 10 + 2)
    spec = replace(SPEC, where="dose > 3 AND day >= '2016-02-22' AND grade <> 'K'")
    expected = table[(table["dose"] > 3) & (table["day"] >= "2016-02-22") & (table["grade"] != "K")]
    assert_same(read_site_tables(source(table), spec), expected)


# Missing values


def with_gaps():
    table = frame().astype({"smoker": object})
    table.loc[[0, 1], "dose"] = np.nan
    table.loc[[1, 2], "grade"] = None
    table.loc[3, "smoker"] = None
    table.loc[4, "effect"] = np.nan
    return table


@pytest.mark.parametrize("source", [lambda table: table, write], ids=["memory", "csv"])
def test_missing_values_are_kept_for_imputation_or_dropped(source):
    tables = read_site_tables(source(with_gaps()), SPEC)
    assert np.isnan(tables["b"]["dose"][0])
    assert (tables["c"]["grade"][0], tables["b"]["smoker"][1]) == ("", None)
    assert np.isnan(tables["a"]["effect"][1])
    warnings = []
    dropping = replace(SPEC, drop_missing=True)
    complete = read_site_tables(source(with_gaps()), dropping, on_warning=warnings.append)
    assert_same(complete, frame()[5:])
    imputing = replace(dropping, impute="median")
    imputed = read_site_tables(source(with_gaps()), imputing, on_warning=warnings.append)
    assert sum(len(columns["effect"]) for columns in imputed.values()) == 23
    assert warnings == [
        "Dropped 5 rows with a missing value.", "Dropped 1 row with a missing value.",
    ]  # fmt: skip
    Encoding.fit(imputed, inputs=SPEC.inputs, targets=SPEC.targets, impute="median")


def test_rows_without_a_site_or_a_time():
    table = frame()
    table.loc[0, "day"] = pd.NaT
    assert "Column 'day' of site 'b' has 1 missing value in 8 rows" in str(refusal(write(table)))
    table.loc[1, "site"] = None
    assert "Some rows have no client in 'site'" in str(refusal(write(table)))
    assert_same(read_site_tables(write(table), replace(SPEC, drop_missing=True)), frame()[2:])


# Times


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["2016-03-01", "2016-03-02 14:00"], ["2016-03-01T00", "2016-03-02T14"]),
        (["2016-03-01T00:00:00Z", "2016-03-01T00:00:00+02:00"], ["2016-03-01T00", "2016-02-29T22"]),
        ([" 2016-3-1 ", "2016/03/02 14:00"], ["2016-03-01T00", "2016-03-02T14"]),
        (["2016", "2016.5"], [2016.0, 2016.5]),
    ],
)
def test_times_are_numbers_or_dates_in_utc(texts, expected):
    for source in (frame(6).assign(day=texts * 3), write(frame(6).assign(day=texts * 3))):
        _, columns = read_columns(source, SPEC)
        wanted = np.array(expected * 3, columns["day"].dtype)
        np.testing.assert_array_equal(columns["day"], wanted)


def test_a_time_may_be_an_input():
    table = frame().assign(day=np.arange(24))
    tables = read_site_tables(write(table), replace(SPEC, inputs=["day", "grade"]))
    assert_same(tables, table)


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (["2016-03-01"] * 5 + ["soon"], "Column 'day' has 1 invalid time, first 'soon' at site 'c'."),
        (["1", "2", "3", "4", "x", "2016-03-01"], "Column 'day' has 2 invalid times, first 'x' at site 'a'."),
        (["15-03-21"] * 6, "Column 'day' has 6 invalid times, first '15-03-21' at site 'b'."),
        (["31.12.2016"] * 6, "Column 'day' has 6 invalid times, first '31.12.2016' at site 'b'."),
        ([True] * 6, "Column 'day' has 6 invalid times, first 'true' at site 'b'."),
    ],
)
def test_times_that_do_not_parse_are_refused(days, words):
    for source in (frame(6).assign(day=days), write(frame(6).assign(day=days))):
        error = refusal(source)
        assert words.lower() in str(error).lower()
        assert error.field == "day"


# Refusals


@pytest.mark.parametrize(
    ("table", "spec", "words"),
    [
        (frame(), replace(SPEC, inputs=["doze"]), "No column 'doze' in 'rows.csv' (did you mean 'dose'?)"),
        (frame(), replace(SPEC, inputs=["day"], time=None), "Input 'day' has dates or times"),
        (frame(), replace(SPEC, targets=["grade"], inputs=["dose"]), "Column 'grade' of 'rows.csv' is not"),
        (frame(), replace(SPEC, inputs=["effect"]), "'effect' appears more than once"),
        (frame().assign(site="a"), SPEC, "has only the client 'a'"),
        (frame(), replace(SPEC, where="dose > 99"), "No rows of 'rows.csv' match"),
        (frame().assign(effect=lambda table: table["effect"].where(table["site"] != "a")),
         replace(SPEC, drop_missing=True), "No row of site 'a' has all values of 'effect', 'day', of 8 rows. "
         "Fill them, or drop the site (--where): site NOT IN ('a')."),
        (frame().assign(effect=lambda table: table["effect"].where(table["site"] != "a")),
         replace(SPEC, drop_missing=True, impute="median"),
         "No row of site 'a' has all values of 'effect', 'day', of 8 rows. Fill them, or drop the site"),
        (frame().assign(dose=lambda table: table["dose"].where(table["site"] != "a")),
         replace(SPEC, drop_missing=True), "No row of site 'a' has all values, of 8 rows. "
         "Fill inputs (--impute median), or drop the site (--where): site NOT IN ('a')."),
        (frame().assign(site=lambda table: table["site"].where(table.index != 4, "a ")), SPEC,
         "The client names 'a', 'a ' in the column 'site' of 'rows.csv' differ only in blanks."),
    ],
)  # fmt: skip
def test_what_is_refused(table, spec, words):
    assert words in str(refusal(write(table), spec))


def test_one_message_names_all_sites_without_a_complete_row():
    table = frame().assign(site=lambda rows: rows["site"].replace({"a": "o'hare"}))
    table = table.rename(columns={"site": "the site"})
    rows = pd.concat([table, table.assign(**{"the site": "c"}), table.assign(**{"the site": "d"})])
    rows.loc[rows["the site"].isin(["c", "o'hare"]), "effect"] = np.nan
    spec = replace(SPEC, client="the site", drop_missing=True)
    message = str(refusal(write(rows), spec))
    assert message.startswith("No row of 2 sites ('c', 'o'hare') has all values of 'effect', 'day', of ")
    condition = message.partition("drop the sites (--where): ")[2].removesuffix(".")
    assert condition == "\"the site\" NOT IN ('c', 'o''hare')"
    assert set(read_site_tables(write(rows), replace(spec, where=condition))) == {"b", "d"}


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_sites_have_no_blanks_around_their_names(name):
    padded = frame().assign(site=lambda table: " " + table["site"] + " ")
    assert_same(read_site_tables(write(padded, name), SPEC), frame())


def test_types_that_are_neither_numbers_nor_text_are_refused():
    table = pa.Table.from_pandas(frame(6)).append_column("list", pa.array([[1.0]] * 6))
    words = "Input 'list' has type DOUBLE[], which is neither numbers nor text"
    assert words in str(refusal(table, replace(SPEC, inputs=["list"])))
    assert "Input 'day' has dates" in str(refusal(frame(6), replace(SPEC, inputs=["day"])))


def test_a_file_that_lacks_a_column_is_refused():
    write(frame()[frame()["site"] == "a"], "a.csv")
    write(frame()[frame()["site"] == "b"].drop(columns="dose"), "b.csv")
    assert "'b.csv' has no column 'dose', but other files do" in str(refusal(["a.csv", "b.csv"]))


def test_text_among_numbers_is_refused_by_the_encoding():
    texts = frame()["dose"].astype(str)
    texts[4] = "broken"
    tables = read_site_tables(write(frame().assign(dose=texts)), SPEC)
    with pytest.raises(InputError, match="'dose' has text among its numbers, first 'broken' at site 'a'"):
        Encoding.fit(tables, inputs=SPEC.inputs, targets=SPEC.targets)


def test_sites_that_differ_in_case_are_two_with_a_warning():
    frame = pd.DataFrame({"site": ["Oslo", "oslo", "Bergen"] * 4, "x": np.arange(12.0), "y": np.arange(12.0)})
    said = []
    tables = read_site_tables(frame, TableSpec("site", inputs=["x"], targets=["y"]), on_warning=said.append)
    assert len(tables) == 3
    assert len(said) == 1
    assert said[0].startswith("The site names 'Oslo' and 'oslo' differ only in case and count as two.")
    said.clear()
    read_moments(frame, client="site", targets="y", on_warning=said.append)
    assert "differ only in case" in said[0]
