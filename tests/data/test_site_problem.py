"""Problems from the tables of sites: missing values, and rows in order of time."""

import numpy as np
import pytest

from fedgram import InputError
from fedgram.data.site_problem import build_site_problem


def tables(sites=3, rows=20):
    rng = np.random.default_rng(0)
    return {
        f"site {m}": {
            "x": rng.normal(size=rows),
            "sex": rng.choice(["F", "M"], rows),
            "y": rng.normal(size=rows),
        }
        for m in range(sites)
    }


def refusal(given, **options):
    with pytest.raises(InputError) as refused:
        build_site_problem(given, inputs=["x", "sex"], targets=["y"], **options)
    return refused.value


def test_missing_inputs_are_counted_over_all_sites_and_columns():
    given = tables(9)
    for m, table in enumerate(given.values()):  # site m lacks m values
        table["x"][:m] = np.nan
    given["site 3"]["sex"][:2] = ""  # in rows that lack a number as well
    error = refusal(given)
    assert error.message == (
        "36 of 180 rows have a missing value in 'x', 'sex' (site 'site 8': 8, site 'site 7': 7, site "
        "'site 6': 6, site 'site 5': 5, site 'site 4': 4, and 3 more sites). Drop the rows (--drop-missing), "
        "or fill the values with --impute median (in Python impute='median')."
    )
    assert (error.client, error.field) == ("site 8", "x")
    problem, _ = build_site_problem(given, inputs=["x", "sex"], targets=["y"], impute="median")
    assert sum(map(len, problem.train.values())) > 0


def test_missing_text_of_a_list_is_no_level():
    given = {site: table | {"sex": [np.nan, "F", "M"] * 5} for site, table in tables(rows=15).items()}
    _, encoding = build_site_problem(given, inputs=["x", "sex"], targets=["y"], impute="median")
    assert encoding.input_names == ("x", "sex=F", "sex=M")


def test_one_missing_target_is_named():
    given = tables()
    given["site 1"]["y"][-1] = np.nan
    error = refusal(given, impute="median")
    assert error.message.startswith(
        "1 of 60 rows has a missing value in 'y' (site 'site 1': 1). Fill the values"
    )


@pytest.mark.parametrize("lacking", ["inputs", "targets"])
def test_no_column_is_refused(lacking):
    named = {"inputs": ["x"], "targets": ["y"]} | {lacking: []}
    with pytest.raises(InputError, match=f"No {lacking} are named. Name at least one column"):
        build_site_problem(tables(), **named)


def test_text_among_numbers_is_said_once_and_with_what_to_do():
    given, said = tables(), []
    for table in given.values():
        table["grade"] = np.resize(["1", "2", "3"], 20)
        table["kind"] = np.resize(["1", "2", "x"], 20)  # a third is text: a category
    given["site 1"]["grade"][-1] = "K"
    build_site_problem(given, inputs=["x", "sex", "grade", "kind"], targets=["y"], on_warning=said.append)
    assert said == [
        "Column 'grade' is read as categories because 1 of 60 values is text, such as 'K' at site 'site 1'. "
        "If it should be numbers, correct the text, or leave it empty and use --impute median (in Python "
        "impute='median')."
    ]


def test_inputs_that_are_cut_off_are_named_with_the_site_that_has_most():
    given, said = tables(3, 100), []
    given["site 1"]["x"][:3], given["site 2"]["x"][0] = 60.0, -60.0
    build_site_problem(given, inputs=["x", "sex"], targets=["y"], on_warning=said.append)
    assert said == [
        "Inputs more than 6 standard deviations from their mean are cut off there: 'x' (4 rows, most at "
        "'site 1'). Values beyond that predict the same."
    ]
    for table in given.values():
        table |= {f"x{number}": table["x"] for number in range(7)}
    build_site_problem(given, inputs=[f"x{n}" for n in range(7)], targets=["y"], on_warning=said.append)
    assert said[1].count("4 rows") == 5
    assert "'x4' (4 rows, most at 'site 1') and 2 more columns. Values" in said[1]


def test_targets_far_from_all_others_are_named():
    given, said = tables(3, 40), []
    given["site 2"]["y"][5], given["site 2"]["y"][6] = 1e6, -9999.0
    build_site_problem(given, inputs=["x"], targets=["y"], on_warning=said.append)
    assert said == [
        "2 values are far from all others at the same site, such as 1e+06 in 'y' at 'site 2'. Errors depend "
        "on them: check them, and correct what is wrong."
    ]
    for table in given.values():
        table["y"] = np.where(np.arange(40) == 3, 50.0, 0.0)  # a rare event is no outlier
    build_site_problem(given, inputs=["x"], targets=["y"], on_warning=said.append)
    assert len(said) == 1


@pytest.mark.parametrize(("rows", "warnings"), [(10, 1), (9, 0)])
def test_outliers_are_named_at_sites_with_ten_rows_or_more(rows, warnings):
    given, said = tables(3, 40), []
    given["site 2"] = {name: values[:rows] for name, values in given["site 2"].items()}
    given["site 2"]["y"][5] = 1e6
    build_site_problem(given, inputs=["x"], targets=["y"], on_warning=said.append)
    assert len(said) == warnings
    assert all("1 value is far from all others at the same site" in sentence for sentence in said)


def test_rows_in_order_of_time_say_so():
    given = tables()
    for table in given.values():
        table["day"] = np.random.default_rng(1).permutation(20)
        table["y"] = table["day"] + 0.5  # the target tells the time
    problem, encoding = build_site_problem(given, inputs=["x"], targets=["y"], time="day")
    assert problem.provenance["time"] == "day"
    for part in (problem.train, problem.validation, problem.test):
        for split in part.values():
            assert (np.diff(split.targets[:, 0]) > 0).all()
    np.testing.assert_allclose(
        encoding.decode_targets(problem.test["site 0"].targets)[:, 0], [16.5, 17.5, 18.5, 19.5]
    )
    random, _ = build_site_problem(given, inputs=["x"], targets=["y"])
    assert "time" not in random.provenance
