"""Warnings about columns with values that are unlike the others: in a few rows, at one site, or in time."""

import re

import numpy as np
import pytest

from fedgram.data.site_problem import build_site_problem


def tables(sites=3, rows=40):
    rng = np.random.default_rng(0)
    return {
        f"s{m}": {
            "x": rng.normal(10, 3, rows),
            "day": np.arange(rows, dtype=float),
            "month": np.arange(rows) % 12.0,
            "y": rng.normal(50, 8, rows),
        }
        for m in range(sites)
    }


def warnings_of(given, inputs=("x", "month"), **options):
    said = []
    build_site_problem(given, inputs=list(inputs), targets=["y"], on_warning=said.append, **options)
    return said


def test_ordinary_columns_have_no_warnings():
    assert warnings_of(tables()) == warnings_of(tables(), time="day") == []


@pytest.mark.parametrize("value", [0.1, True, "north"])
def test_an_input_with_one_value_is_named(value):
    given = tables()
    for columns in given.values():
        columns["same"] = np.full(40, value)
    said = warnings_of(given, inputs=("x", "same"))
    assert [each.partition(". ")[0] for each in said] == ["'same' has only one value in all training rows"]


def test_an_input_that_varies_between_sites_or_only_in_test_rows():
    given = tables()
    for m, columns in enumerate(given.values()):
        columns["site"], columns["late"] = np.full(40, m), np.where(np.arange(40) < 36, 0.0, 1.0)
    (said,) = warnings_of(given, inputs=("x", "site", "late"), time="day", test_fraction=0.1)[:1]
    assert said.startswith("'late' has only one value in all training rows.")


def test_a_huge_value_makes_the_others_almost_equal():
    given = tables()
    given["s1"]["x"][3] = 1e9
    said = warnings_of(given, test_fraction=0.1)
    assert any(each.startswith("Inputs more than 6 standard deviations") for each in said)
    assert "The cut-off rows make all other values of 'x' almost equal after standardization" in " ".join(
        said
    )


def test_a_value_that_is_merely_far_does_not():
    given = tables()
    given["s1"]["x"][3] = 45.0
    said = " ".join(warnings_of(given))
    assert "cut off there: 'x' (1 row" in said
    assert "almost equal" not in said


def test_rare_events_are_no_mistakes():
    given = tables(rows=100)
    for m, table in enumerate(given.values()):
        table["x"] = np.where(np.arange(100) == 7 * m, 1.0, 0.0)
    assert "almost equal" not in " ".join(warnings_of(given))


@pytest.mark.parametrize(("column", "factor"), [("y", 1e-3), ("x", 365.0), ("x", -1000.0)])
@pytest.mark.parametrize("sites", [2, 4])
def test_another_unit_at_one_site_is_named(column, factor, sites):
    given = tables(sites)
    given["s1"][column] = given["s1"][column] * factor
    (note,) = (each for each in warnings_of(given) if "check their unit" in each)
    site, size = re.match(rf"At '(\w+)' the values of '{column}' are about (.*) those at", note).groups()
    assert site == "s1" or sites == 2  # of two sites, either may have the other unit
    number = float(size.removeprefix("1/").split()[0].replace(",", ""))
    assert number == pytest.approx(max(abs(factor), 1 / abs(factor)), rel=0.4)
    if site == "s1":
        assert size.startswith("1/") == (abs(factor) < 1)


@pytest.mark.parametrize("change", [
    lambda x: x * 20,  # less than a factor of 100
    lambda x: x + 5000,  # another level, but the same deviation
    lambda x: x - x.mean() + 1e-3 * x,  # a mean near zero
    lambda x: 0 * x + 7,  # a constant
])  # fmt: skip
def test_other_differences_are_no_units(change):
    given = tables()
    given["s1"]["x"] = change(given["s1"]["x"])
    assert not [each for each in warnings_of(given) if "check their unit" in each]


def test_columns_that_grow_with_time_are_named():
    said = warnings_of(tables(), ("x", "day", "month"), time="day")
    assert said == [
        "Many test rows have values of 'day' that no training row has, as in columns that grow with time. "
        "Models cannot learn there: compare the errors without these inputs."
    ]
    assert warnings_of(tables(), ("x", "day", "month")) == []  # random test rows


def test_columns_that_grow_with_time_are_named_if_sites_end_at_different_times():
    given = tables()
    for name, columns in given.items():
        end = 50 if name == "s0" else 40
        columns["day"] = np.linspace(0.0, end, len(columns["day"]))
    assert "test rows have values of 'day'" in "".join(warnings_of(given, ("x", "day"), time="day"))
