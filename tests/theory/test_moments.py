"""Client moments: from arrays, pooled, merged, and the file other programs read."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError, Moments, correct, explain, predict
from tests.helpers.instances import random_moments


def sample(seed=0, sizes=(20, 31, 12), targets=3):
    rng = np.random.default_rng(seed)
    return {f"site {m}": rng.standard_normal((n, targets)) @ rng.standard_normal((targets, targets)) + m
            for m, n in enumerate(sizes)}  # fmt: skip


@given(st.integers(0, 1000), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_pooled_moments_are_those_of_the_concatenated_data(seed, targets):
    data = sample(seed, targets=targets)
    moments, everything = Moments.from_arrays(data), np.concatenate(list(data.values()))
    np.testing.assert_allclose(moments.pooled.mean, everything.mean(axis=0), atol=1e-13)
    covariance = np.cov(everything.T, bias=True).reshape(targets, targets)
    np.testing.assert_allclose(moments.pooled.covariance, covariance, atol=1e-12)
    np.testing.assert_allclose(moments.client_weights, np.array([20, 31, 12]) / 63)


def test_one_site_has_moments_but_nothing_to_average(tmp_path):
    (name, rows), *_ = sample(0).items()
    alone = Moments.from_arrays({name: rows})
    alone.save(tmp_path / "alone.json")
    np.testing.assert_array_equal(Moments.load(tmp_path / "alone.json").covariance, alone.covariance)
    for ask in (predict, correct):
        with pytest.raises(
            InputError, match=f"at least two clients, but there is only '{name}'. Add"
        ) as caught:
            ask(alone)
        assert (caught.value.client, caught.value.field) == (name, "clients")


def test_pooled_moments_split_into_within_and_between():
    moments = random_moments(np.random.default_rng(0))
    p, mean = moments.client_weights, moments.client_weights @ moments.mean
    within = sum(w * s for w, s in zip(p, moments.covariance, strict=True))
    between = sum(w * np.outer(m - mean, m - mean) for w, m in zip(p, moments.mean, strict=True))
    np.testing.assert_allclose(moments.pooled.within, within, rtol=1e-14)
    np.testing.assert_allclose(moments.pooled.between, between, atol=1e-15)


@given(st.integers(0, 1000), st.integers(5, 25))
@settings(max_examples=25, deadline=None)
def test_merging_disjoint_samples_is_exact(seed, cut):
    data = sample(seed, sizes=(40, 40))
    first = Moments.from_arrays({name: rows[:cut] for name, rows in data.items()})
    second = Moments.from_arrays({name: rows[cut:] for name, rows in data.items()})
    merged, whole = first.merged(second), Moments.from_arrays(data)
    np.testing.assert_array_equal(merged.count, whole.count)
    np.testing.assert_allclose(merged.mean, whole.mean, atol=1e-13)
    np.testing.assert_allclose(merged.covariance, whole.covariance, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "away"), [(10**6, 1e3), (10**12, 1e6), (10**15, 1e9)])
def test_merging_few_rows_with_many_costs_no_digits(rows, away):
    few = Moments([10], [[away]], [[[1.0]]], clients=("a",))
    many = Moments([rows], [[0.0]], [[[1.0]]], clients=("a",))
    total = 10 + rows
    for merged in (few.merged(many), many.merged(few)):
        assert merged.mean.item() == pytest.approx(float(Fraction(10 * int(away), total)), rel=1e-15)
        variance = 1 + Fraction(10 * rows * int(away) ** 2, total**2)
        assert merged.covariance.item() == pytest.approx(float(variance), rel=1e-15)


def test_many_parts_are_merged_at_once():
    parts = [random_moments(np.random.default_rng(seed)) for seed in range(4)]
    one_by_one = parts[0].merged(parts[1]).merged(parts[2]).merged(parts[3])
    together = parts[0].merged(*parts[1:])
    assert together.document() == one_by_one.document()


def test_merging_keeps_clients_that_only_one_side_has():
    data = sample()
    merged = Moments.from_arrays({k: data[k] for k in ("site 0", "site 1")}).merged(
        Moments.from_arrays({k: data[k] + 1 for k in ("site 1", "site 2")})
    )
    assert merged.clients == ("site 0", "site 1", "site 2")
    assert merged.count.tolist() == [20, 62, 12]


def test_merging_different_targets_is_refused():
    data = sample()
    first = Moments.from_arrays(data, target_names=("a", "b", "c"))
    with pytest.raises(
        InputError, match=r"different targets: a, b, c and a, b, d\. Compute both from the same"
    ):
        first.merged(Moments.from_arrays(data, target_names=("a", "b", "d")))


def test_merging_different_scales_is_refused():
    moments = Moments.from_arrays(sample())
    with pytest.raises(InputError, match=r"scaled differently\. Merge first, then scale"):
        moments.merged(moments.scaled([2.0, 1.0, 1.0]))
    scaled = moments.scaled([2.0, 1.0, 1.0])
    np.testing.assert_array_equal(scaled.merged(scaled).scale, [2.0, 1.0, 1.0])


def test_merging_takes_targets_by_name():
    data, order = sample(), [2, 0, 1]
    first = Moments.from_arrays(data, target_names=("a", "b", "c"))
    turned = {name: rows[:, order] + 1 for name, rows in data.items()}
    merged = first.merged(Moments.from_arrays(turned, target_names=("c", "a", "b")))
    whole = Moments.from_arrays({name: np.concatenate([rows, rows + 1]) for name, rows in data.items()})
    assert merged.targets == ("a", "b", "c")
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-13)
    np.testing.assert_allclose(merged.covariance, whole.covariance, rtol=1e-12)


def test_covariance_survives_a_large_offset():
    data = {name: np.round(rows, 3) for name, rows in sample().items()}
    shifted = {name: rows + 2.0**27 for name, rows in data.items()}
    exact = {name: rows - 2.0**27 for name, rows in shifted.items()}
    np.testing.assert_allclose(
        Moments.from_arrays(shifted).covariance, Moments.from_arrays(exact).covariance, rtol=1e-9, atol=1e-9
    )


def exact_moments(rows, offset, unit):
    """Mean and covariance of rows that are an offset and whole multiples of a unit, in whole numbers."""
    whole = np.rint((rows - offset) / unit).astype(np.int64)
    total, products = whole.sum(axis=0).tolist(), (whole.T @ whole).tolist()
    scatter = [
        [Fraction(products[i][j]) - Fraction(total[i] * total[j], len(rows)) for j in range(len(total))]
        for i in range(len(total))
    ]
    mean = [offset + float(Fraction(each, len(rows)) * Fraction(unit)) for each in total]
    return mean, [[float(each / len(rows) * Fraction(unit) ** 2) for each in row] for row in scatter]


def test_many_rows_with_a_large_offset_cost_no_digits():
    rng, offset, unit = np.random.default_rng(0), 1.7e9, 2.0**-22  # the spacing of numbers of that size
    rows = offset + 1e-3 * rng.standard_normal((1_000_000, 2)) @ [[1.0, 0.5], [0.0, 1.0]]
    moments = Moments.from_arrays([rows])
    mean, covariance = exact_moments(rows, offset, unit)
    np.testing.assert_allclose(moments.mean[0], mean, rtol=2e-16)
    np.testing.assert_allclose(moments.covariance[0], covariance, rtol=1e-13)


def test_saving_and_loading_keeps_every_bit(tmp_path):
    moments = Moments.from_arrays(sample(), target_names=("a", "b", "c"))
    for written in (moments, moments.weighted([1.0, 2.0, 3.0])):
        written.save(tmp_path / "moments.json")
        read = Moments.load(tmp_path / "moments.json")
        assert read.clients == written.clients
        assert read.targets == written.targets
        for field in ("count", "mean", "covariance", "client_weights"):
            np.testing.assert_array_equal(getattr(read, field), getattr(written, field))
    assert [path.name for path in tmp_path.iterdir()] == ["moments.json"]


def test_the_file_is_the_documented_format(tmp_path):
    Moments.from_arrays(sample(), target_names=("a", "b", "c")).save(tmp_path / "moments.json")
    document = json.loads((tmp_path / "moments.json").read_text())
    assert document["format"] == "fedgram-moments/1"
    assert document["targets"] == ["a", "b", "c"]
    assert set(document["clients"][0]) == {"name", "count", "mean", "covariance"}
    assert document["clients"][1]["count"] == 31


GOOD = {
    "format": "fedgram-moments/1",
    "targets": ["a", "b"],
    "clients": [
        {"name": "x", "count": 9, "mean": [0, 1], "covariance": [[2, 0.5], [0.5, 1]]},
        {"name": "y", "count": 9, "mean": [1, 1], "covariance": [[1, 0], [0, 3]]},
    ],
}


PRIVATE = {"epsilon": 1.0, "delta": 1e-6, "noise": 1.0, "bounds": [[0, 1], [0, 1]]}


def broken(**change):
    """GOOD with fields of the second client replaced."""
    return GOOD | {"clients": [GOOD["clients"][0], GOOD["clients"][1] | change]}


@pytest.mark.parametrize(
    ("document", "words", "client", "field"),
    [
        (broken(covariance=[[1, 0.5], [0, 3]]), "not symmetric", "y", "covariance"),
        (broken(covariance=[[1, 3], [3, 1]]), "negative eigenvalue", "y", "covariance"),
        (broken(covariance=[[1, 0, 0]]), "must be 2 by 2 for 2 targets, but is 1 by 3", "y", "covariance"),
        (broken(covariance=[[1, 0], [0]]), "equally long lists", "y", "covariance"),
        (broken(covariance=[[1, float("nan")], [float("nan"), 1]]), "not finite", "y", "covariance"),
        (broken(mean=[1, float("inf")]), "not finite", "y", "mean"),
        (broken(mean=[1]), "The mean of client 'y' has 1 number, but there are 2 targets", "y", "mean"),
        (broken(mean=[1, 2, 3]), "has 3 numbers, but there are 2 targets", "y", "mean"),
        (broken(mean="none"), "list of numbers", "y", "mean"),
        (broken(mean=[1, True]), "list of numbers", "y", "mean"),
        (broken(count=2), "'y' has 2 rows, but it needs at least 3", "y", "count"),
        (broken(count=50.5), "client 'y' is 50.5, but it must be a whole number", "y", "count"),
        (
            broken(count=1e300),
            r"'y' is 1e\+300, but it must be from 3 to 9,007,199,254,740,992",
            "y",
            "count",
        ),
        (broken(count=-1e300), r"'y' is -1e\+300, but it must be from 3 to 9,007", "y", "count"),
        (broken(privacy=PRIVATE | {"epsilon": -1}), "'y' in '.*s.json': epsilon must be", "y", "epsilon"),
        (broken(privacy=PRIVATE | {"bounds": [[0, 1], [2, 1]]}), "'y' in '.*s.json': Every", "y", "bounds"),
        (broken(name="x"), "more than once", "x", "clients"),
        (broken(name=""), "Client number 2 in '.*s.json' has no name. Add one", None, "name"),
        (broken(name=" "), "Client number 2 in '.*s.json' has no name", None, "name"),
        (broken(name=3), "number 2 in '.*s.json' must be text, not 3. Put it in quotes", None, "name"),
        (broken(weight=1), "has no weight but others do", "x", "weight"),
        (GOOD | {"clients": []}, "list of objects", None, "clients"),
        (GOOD | {"targets": ["a", "a"]}, "more than once", None, "targets"),
        (GOOD | {"targets": []}, "list of target names", None, "targets"),
        (GOOD | {"format": "other/2"}, "not a moments file", None, "format"),
        ([1, 2], "not a moments file", None, "format"),
    ],
)
def test_damaged_files_are_refused_in_one_sentence(tmp_path, document, words, client, field):
    path = tmp_path / "moments.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=words) as caught:
        Moments.load(path)
    assert (caught.value.client, caught.value.field) == (client, field)
    assert caught.value.message.endswith(".")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("missing", ["count", "mean", "covariance"])
def test_missing_fields_are_named(tmp_path, missing):
    client = {key: value for key, value in GOOD["clients"][1].items() if key != missing}
    path = tmp_path / "moments.json"
    path.write_text(json.dumps(GOOD | {"clients": [GOOD["clients"][0], client]}))
    with pytest.raises(InputError, match=f"Client 'y' has no '{missing}'"):
        Moments.load(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b'{"format": "fedg', "not complete JSON: Unterminated string starting at line 1, column 12"),
        (b"{", "not complete JSON: Expecting property name enclosed in double quotes at line 1"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"[" * 200_000, "number or nesting too large"),
        (b"1" * 5_000, "number or nesting too large"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, content, words):
    path = tmp_path / "moments.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        Moments.load(path)


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "moments.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8-sig")
    assert Moments.load(path).clients == ("x", "y")


def test_a_missing_file_and_an_unwritable_place(tmp_path):
    with pytest.raises(InputError, match="Cannot read"):
        Moments.load(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="Cannot write"):
        Moments.from_arrays(sample()).save(tmp_path / "no folder" / "moments.json")


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1, 2], "3 clients but 2"),
        ([1, -1, 1], "positive"),
        ([1, 0, 1], "positive"),
        ([1, np.nan, 1], "positive"),
        ([1e200, 1e-200, 1], "300 orders of magnitude below the largest"),
    ],
)
def test_bad_weights_are_refused(weights, words):
    with pytest.raises(InputError, match=words) as caught:
        Moments.from_arrays(sample(), client_weights=weights)
    assert caught.value.field == "weight"


def test_bad_arrays_are_refused():
    good = np.random.default_rng(0).standard_normal((9, 2))
    bad, flat = good.copy(), good.copy()
    bad[3, 1], flat[:, 0] = np.nan, 7.0
    with pytest.raises(InputError, match=r"Client 'b'.*row 4, column 2"):
        Moments.from_arrays({"a": good, "b": bad})
    with pytest.raises(InputError, match="Target 'target 1' is constant at client 'b'"):
        Moments.from_arrays({"a": good, "b": flat})
    with pytest.raises(InputError, match="Target 'x' is constant at client 'b'"):
        Moments.from_arrays({"a": good, "b": flat}, target_names=["x", "y"])
    with pytest.raises(InputError, match="same number of targets"):
        Moments.from_arrays({"a": good, "b": good[:, :1]})
    with pytest.raises(InputError, match="must have shape"):
        Moments.from_arrays({"a": good, "b": good[:, 0]})
    for rows in (0, 2):  # a warning would be an error
        with pytest.raises(InputError, match=f"Client 'b' has {rows} rows"):
            Moments.from_arrays({"a": good, "b": good[:rows]})


def test_targets_without_finite_squares_are_refused_in_one_sentence():
    huge = {client: 1e160 * rows for client, rows in sample().items()}
    with pytest.raises(InputError, match=r"of the targets are too large to compute with\. Rescale"):
        Moments.from_arrays(huge)
    with pytest.raises(InputError, match=r"of the targets \(u, v, w\) are too large"):
        Moments.from_arrays(huge, target_names=["u", "v", "w"])
    with pytest.raises(InputError, match="a list or dict of arrays, one per client, not NoneType"):
        Moments.from_arrays(None)


def test_what_is_not_numbers_is_refused_in_a_sentence():
    with pytest.raises(InputError, match="The target array of client 'client 1' must be") as caught:
        Moments.from_arrays([[["a"]]])
    assert (caught.value.client, caught.value.field) == ("client 1", "targets")
    good = {"count": [9, 9], "mean": np.zeros((2, 1)), "covariance": np.ones((2, 1, 1))}
    for field in good:
        with pytest.raises(InputError, match=f"{field} must be an array of real numbers") as caught:
            Moments(**good | {field: "a"})
        assert caught.value.field == field
    with pytest.raises(InputError, match="client_weights must be an array of real numbers") as caught:
        Moments(**good, client_weights="equal")
    assert caught.value.field == "weight"


def test_the_weight_of_one_client_may_be_a_number():
    alone = Moments([9], [[1.0]], [[[2.0]]], client_weights=3.0)
    assert alone.client_weights.tolist() == [1.0]
    assert alone.pooled.mean.tolist() == [1.0]


def test_weights_whose_sum_overflows_are_shares():
    moments = Moments([9, 9], [[0.0], [2.0]], np.ones((2, 1, 1)), client_weights=[1e308, 1e308])
    assert moments.client_weights.tolist() == [0.5, 0.5]
    assert moments.pooled.mean.tolist() == [1.0]


@pytest.mark.parametrize("batched", ["mean", "covariance", "client_weights"])
def test_problems_may_share_what_has_no_leading_axes(batched):
    one = random_moments(np.random.default_rng(0))
    fields = {name: getattr(one, name) for name in ("count", "mean", "covariance", "client_weights")}
    steps = np.array([1.0, 1.5, 2.0])
    scaled = fields[batched] * steps.reshape(3, *[1] * fields[batched].ndim)
    many = Moments(**fields | {batched: scaled})
    assert (many.mean.shape, many.covariance.shape) == ((3, 4, 3), (3, 4, 3, 3))
    assert many.client_weights.shape == (3, 4)
    gap = explain(predict(many))
    for k in range(3):
        alone = explain(predict(Moments(**fields | {batched: scaled[k]})))
        np.testing.assert_allclose(gap.traces[k], alone.traces, rtol=1e-10)
        np.testing.assert_allclose(gap.by_client[k], alone.by_client, rtol=1e-9, atol=1e-13)


def test_leading_axes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"do not fit together: mean \(3,\), covariance \(2,\)"):
        Moments([9, 9], np.zeros((3, 2, 1)), np.ones((2, 2, 1, 1)))


def test_moments_of_many_problems_are_neither_saved_nor_merged(tmp_path):
    many, one = (random_moments(np.random.default_rng(0), batch=batch) for batch in ((5,), ()))
    for refused, done in (
        (lambda: many.save(tmp_path / "moments.json"), "saved"),
        (lambda: many.merged(one), "merged"),
        (lambda: one.merged(many), "merged"),
    ):
        with pytest.raises(InputError, match=rf"leading axes \(5,\), cannot be {done}. Pass those"):
            refused()
    assert not list(tmp_path.iterdir())


def test_clients_of_one_name_are_refused_whatever_its_type():
    rows = np.random.default_rng(0).standard_normal((3, 20, 2))
    with pytest.raises(InputError, match="The client name '1' appears more than once"):
        Moments.from_arrays({1: rows[0], "1": rows[1], 2: rows[2]})


def test_all_clients_with_too_few_rows_are_named():
    rows = np.random.default_rng(0).standard_normal((9, 9, 2))
    given = {f"site {m}": each[: 2 if m < 7 else 9] for m, each in enumerate(rows)}
    words = "Clients 'site 0', 'site 1', 'site 2', 'site 3', 'site 4' and 2 more have too few rows"
    with pytest.raises(InputError, match=words):
        Moments.from_arrays(given)


def test_clients_whose_names_differ_by_blanks_are_refused():
    rows = np.random.default_rng(0).standard_normal((2, 9, 2))
    with pytest.raises(InputError, match="The client names 'a', 'a ' differ only in blanks"):
        Moments.from_arrays({"a": rows[0], "a ": rows[1]})


@pytest.mark.parametrize("shape", [(0, 2), (2, 0)])
def test_moments_of_nobody_or_of_nothing_are_refused(shape):
    clients, targets = shape
    with pytest.raises(InputError, match="with at least one of each"):
        Moments(np.full(clients, 9.0), np.zeros(shape), np.zeros((*shape, targets)))


def test_one_name_may_stand_without_a_list():
    rows = np.random.default_rng(0).standard_normal((9, 1))
    assert Moments.from_arrays([rows], target_names="pm").targets == ("pm",)
    assert Moments([9], [[0.0]], [[[1.0]]], "oslo", "pm").clients == ("oslo",)
    with pytest.raises(InputError, match="There are 2 targets but 1 target names"):
        Moments([9], [[0.0, 0.0]], [np.eye(2)], targets="pm")


def test_names_that_are_numbers_become_text(tmp_path):
    moments = Moments([9, 9], [[0.0], [1.0]], np.ones((2, 1, 1)), (1, 2), (25,), {2: 3, 1: 1})
    assert (moments.clients, moments.targets) == (("1", "2"), ("25",))
    assert moments.client_weights.tolist() == [0.25, 0.75]
    moments.save(tmp_path / "moments.json")
    assert Moments.load(tmp_path / "moments.json").clients == ("1", "2")


def test_weights_may_be_given_by_name():
    data = sample()
    by_name = Moments.from_arrays(data, client_weights={"site 2": 1, "site 0": 2, "site 1": 5})
    np.testing.assert_array_equal(by_name.client_weights, [2 / 8, 5 / 8, 1 / 8])
    assert by_name.weighted(dict.fromkeys(data, 1)).client_weights.tolist() == [1 / 3] * 3
    with pytest.raises(InputError, match=r"Unknown client 'nobody'\. The clients are 'site 0', 'site 1'"):
        by_name.weighted({"nobody": 1})
    with pytest.raises(InputError, match="Client 'site 1' has no weight"):
        by_name.weighted({"site 0": 1, "site 2": 1})


@given(st.lists(st.integers(3, 10_000), min_size=2, max_size=8))
def test_weights_by_rows_stay_so_when_other_parts_are_replaced(count):
    clients = len(count)
    moments = Moments(count, np.zeros((clients, 1)), np.ones((clients, 1, 1)))
    for _ in range(3):
        moments = replace(moments, mean=moments.mean + 1)
    assert moments.is_weighted_by_rows
    assert not moments.weighted([1, *count[1:]]).is_weighted_by_rows or count[0] == 1


@pytest.mark.parametrize("values", [np.array([["2020-02-03"], ["2020-02-04"]], "M8[D]"), [[1j], [2j]]])
def test_what_is_no_real_number_is_refused(values):
    with pytest.raises(InputError, match="'client 1' must be an array of real numbers"):
        Moments.from_arrays([values, values])


def test_scaled_moments_are_saved_in_their_own_units(tmp_path):
    moments = Moments.from_arrays(sample())
    moments.scaled([1000.0, 0.01, 3.0]).save(tmp_path / "moments.json")
    loaded = Moments.load(tmp_path / "moments.json")
    np.testing.assert_allclose(loaded.mean, moments.mean, rtol=1e-14)
    np.testing.assert_allclose(loaded.covariance, moments.covariance, rtol=1e-14)
