"""Training, validation and test rows: disjoint, complete, independent of other sites, and by time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError
from fedgram.data.holdout import MIN_SITE_ROWS, VALIDATION_FRACTION, divide_rows, divide_rows_where

COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 200), min_size=1, max_size=4)


def same(one, other):
    return all(
        np.array_equal(getattr(one, part), getattr(other, part)) for part in ("train", "validation", "test")
    )


@settings(max_examples=50, deadline=None)
@given(counts=COUNTS, fraction=st.floats(0, 0.99), seed=st.integers(0, 5), by_time=st.booleans())
def test_every_row_has_one_part_of_the_right_size(counts, fraction, seed, by_time):
    order = {site: np.arange(count)[::-1] for site, count in counts.items()} if by_time else None
    for site, parts in divide_rows(counts, fraction, seed, order).items():
        count = counts[site]
        everything = np.concatenate([parts.train, parts.validation, parts.test])
        assert sorted(everything) == list(range(count))
        np.testing.assert_array_equal(parts.fitted, np.setdiff1d(np.arange(count), parts.test))
        if count < (MIN_SITE_ROWS if max(counts.values()) >= MIN_SITE_ROWS else 5):
            assert len(parts.train) == count
            continue
        assert len(parts.test) == min(round(fraction * count), count - 1)
        assert len(parts.validation) == round(VALIDATION_FRACTION * (count - len(parts.test)))
        assert len(parts.train) > 0


@pytest.mark.parametrize(
    "divide", [divide_rows, lambda rows: divide_rows_where({k: np.arange(n) < 2 for k, n in rows.items()})]
)
def test_small_sites_are_divided_if_no_site_is_large(divide):
    among_themselves, next_to_a_large_one = divide({"a": 8, "b": 4}), divide({"a": 8, "b": 4, "c": 10})
    assert [len(among_themselves[site].validation) for site in "ab"] == [1, 0]
    assert [len(next_to_a_large_one[site].validation) for site in "ab"] == [0, 0]


def test_a_site_keeps_its_rows_with_or_without_others():
    alone, together = divide_rows({"b": 50}), divide_rows({"a": 30, "b": 50})
    assert same(alone["b"], together["b"])
    assert not same(divide_rows({"b": 50}, seed=1)["b"], alone["b"])
    assert not same(divide_rows({"c": 50})["c"], alone["b"])


TIMES = st.lists(st.integers(0, 8), min_size=MIN_SITE_ROWS, max_size=60)


@settings(max_examples=50, deadline=None)
@given(times=TIMES, fraction=st.floats(0.05, 0.45), as_dates=st.booleans())
def test_rows_with_equal_times_stay_together_if_enough_are_left(times, fraction, as_dates):
    array = np.array(times, "datetime64[D]") if as_dates else np.array(times)
    parts = divide_rows({"a": len(times)}, fraction, order={"a": array})["a"]
    ranked = array[[*parts.train, *parts.validation, *parts.test]]
    assert (ranked[1:] >= ranked[:-1]).all()
    assert sorted([*parts.train, *parts.validation, *parts.test]) == list(range(len(times)))
    for known, later in (([*parts.train, *parts.validation], parts.test), (parts.train, parts.validation)):
        together = np.sort(array[[*known, *later]])
        share = fraction if later is parts.test else VALIDATION_FRACTION
        wanted = min(round(share * len(together)), len(together) - 1)
        sizes = [len(together) - n for n in range(1, len(together)) if together[n - 1] < together[n]]
        sizes = [size for size in sizes if wanted / 2 <= size <= 2 * wanted]
        if wanted and sizes:
            assert array[known].max() < array[later].min()
            assert abs(len(later) - wanted) == min(abs(size - wanted) for size in sizes)
        else:
            assert len(later) == wanted


def test_the_cut_between_times_is_the_nearest_and_does_not_depend_on_the_order_of_the_table():
    times = np.array([1, 1, 1, 2, 2, 3, 3, 3, 4, 4])
    for fraction, held_out in ((0.1, 2), (0.2, 2), (0.3, 2), (0.4, 5), (0.5, 5)):
        parts = divide_rows({"a": 10}, fraction, order={"a": times})["a"]
        assert len(parts.test) == held_out
    shuffled = np.random.default_rng(0).permutation(10)
    parts, again = (divide_rows({"a": 10}, order={"a": each})["a"] for each in (times, times[shuffled]))
    assert set(parts.test) == set(shuffled[again.test])
    for times, fraction, sizes in (
        ([0] * 39 + [1] * 60 + [2], 0.2, [64, 16, 20]),  # one row of the last time, or 61, would be held out
        ([0] * 79 + [1] + [2] * 20, 0.2, [64, 16, 20]),
        ([0] * 50 + [1] * 50, 0.01, [79, 20, 1]),
    ):
        few = divide_rows({"a": 100}, fraction, order={"a": np.array(times)})["a"]
        assert [len(few.train), len(few.validation), len(few.test)] == sizes
    alike = divide_rows({"a": 10}, order={"a": np.ones(10)})["a"]
    assert (len(alike.test), len(alike.validation)) == (2, 2)  # one time: drawn at random


def test_given_test_rows():
    times = np.arange("2016-02-20", "2016-03-11", dtype="datetime64[D]")
    is_test = times >= np.datetime64("2016-03-01")
    parts = divide_rows_where({"a": is_test}, order={"a": times})["a"]
    assert times[parts.test].min() == np.datetime64("2016-03-01")
    assert times[parts.validation].min() > times[parts.train].max()
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (8, 2, 10)
    small = divide_rows_where({"a": [True, False, False]})["a"]
    assert (list(small.train), list(small.validation), list(small.test)) == ([1, 2], [], [0])


@pytest.mark.parametrize("fraction", [1.0, -0.1, float("nan"), "0.2"])
def test_a_fraction_out_of_range_is_refused(fraction):
    with pytest.raises(InputError, match="test fraction must be at least 0 and below 1"):
        divide_rows({"a": 20}, fraction)


@pytest.mark.parametrize("fraction", [0.05, 0.4, 0.99])
def test_the_validation_fraction_is_that_of_the_other_rows(fraction):
    parts = divide_rows({"a": 50}, 0.2, validation_fraction=fraction)["a"]
    assert len(parts.test) == 10
    assert len(parts.validation) == min(round(fraction * 40), 39)
    same_test = divide_rows({"a": 50}, 0.2)["a"].test
    np.testing.assert_array_equal(parts.test, same_test)


@pytest.mark.parametrize("fraction", [0.0, 1.0, 7, float("nan"), "0.2"])
def test_a_validation_fraction_out_of_range_is_refused(fraction):
    with pytest.raises(InputError, match="validation fraction must be between 0 and 1") as caught:
        divide_rows({"a": 20}, 0.2, validation_fraction=fraction)
    assert caught.value.field == "validation"


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (np.r_[np.nan, np.arange(19)], "Site 'a' has 1 row without a time"),
        (np.full(20, "NaT", "datetime64[s]"), "Site 'a' has 20 rows without a time"),
        (np.full(20, "late"), "times of site 'a' must be 20 numbers or dates, not <U4"),
        (np.arange(19), "must be 20 numbers or dates"),
    ],
)
def test_times_that_have_no_order_are_refused(times, words):
    with pytest.raises(InputError) as caught:
        divide_rows({"a": 20}, order={"a": times})
    assert words in str(caught.value)
    assert caught.value.client == "a"


def test_a_site_without_training_rows_is_refused():
    with pytest.raises(InputError) as caught:
        divide_rows_where({"a": [True, False], "b": [True, True]})
    expected = "All 2 rows of site 'b' are for testing. Leave some for training, or drop the site."
    assert str(caught.value) == expected
