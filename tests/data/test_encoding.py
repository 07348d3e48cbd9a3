"""Encoding: that of pooled rows however they are divided, and a sentence for everything that is wrong."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedgram import InputError
from fedgram.data import site_summary
from fedgram.data.columns import parse_levels
from fedgram.data.encoded_columns import NO_EFFECT, CategoryColumn, NumberColumn
from fedgram.data.encoding import CLIP, Encoding
from fedgram.data.site_summary import SiteSummary

INPUTS, TARGETS = ["dose", "sex", "smoker", "constant"], ["effect", "cost"]


def rows(seed=0, size=60, offset=0.0):
    """Columns of a number, a text, a boolean, a constant number and two targets."""
    rng = np.random.default_rng(seed)
    return {
        "dose": rng.normal(offset, 3.0, size),
        "sex": rng.choice(["F", "M", "other"], size),
        "smoker": rng.random(size) < 0.4,
        "constant": np.full(size, 0.1),
        "effect": rng.normal(offset, 5.0, size),
        "cost": rng.integers(0, 100, size),
    }


def take(columns, index):
    return {name: np.asarray(values)[index] for name, values in columns.items()}


def divide(columns, cuts):
    size = len(columns["dose"])
    parts = np.split(np.arange(size), sorted({cut % (size - 1) + 1 for cut in cuts}))
    return {f"site {number}": take(columns, part) for number, part in enumerate(parts)}


def fit(tables, **options):
    return Encoding.fit(tables, **{"inputs": INPUTS, "targets": TARGETS, **options})


def refusal(tables, **options):
    with pytest.raises(InputError) as caught:
        fit(tables, **options)
    return caught.value


# Values


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 10**6), max_size=8),
    seed=st.integers(0, 100),
    offset=st.sampled_from([0.0, -40.0, 1e3]),
)
def test_it_is_scikit_learn_on_the_pooled_rows_whatever_the_partition(cuts, seed, offset):
    columns = rows(seed, offset=offset)
    encoding = fit(divide(columns, cuts))
    text = np.stack([columns["sex"], np.where(columns["smoker"], "true", "false")], axis=1)
    numbers = np.stack([columns["dose"], columns["constant"]], axis=1)
    pooled = np.hstack(
        [numbers[:, :1], OneHotEncoder(sparse_output=False).fit_transform(text), numbers[:, 1:]]
    )
    expected = StandardScaler().fit_transform(pooled)
    np.testing.assert_allclose(encoding.encode_inputs(columns), expected, rtol=1e-12, atol=1e-12)
    targets = np.stack([columns[name] for name in TARGETS], axis=1)
    scaled = StandardScaler().fit_transform(targets)
    np.testing.assert_allclose(encoding.encode_targets(columns), scaled, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(encoding.decode_targets(scaled), targets, rtol=1e-12, atol=1e-12)


def test_digits_are_kept_far_from_zero():
    near, far = rows(), rows()
    near["dose"] = np.round(near["dose"] * 1024) / 1024  # exact after adding the offset
    far["dose"] = near["dose"] + 2.0**40
    scales = [fit(divide(columns, [7, 20, 41])).inputs[0].scale for columns in (near, far)]
    np.testing.assert_allclose(*scales, rtol=1e-12)


def test_inputs_are_clipped_and_targets_are_not():
    columns = {"x": [0.0] * 99 + [1.0], "rare": ["a"] * 99 + ["b"], "y": [0.0] * 99 + [1.0]}
    encoding = Encoding.fit({"s": columns}, inputs=["x", "rare"], targets=["y"])
    assert encoding.encode_inputs(columns).max() == CLIP
    assert encoding.encode_targets(columns).max() > CLIP
    assert list(encoding.find_clipped(columns)) == ["x"]
    assert encoding.find_clipped(columns)["x"].tolist() == [False] * 99 + [True]


def test_new_rows_that_are_clipped_are_counted():
    columns = {"x": [0.0, 1.0] * 50, "z": [0.0, 2.0] * 50, "y": [0.0, 1.0] * 50}
    encoding, said = Encoding.fit({"s": columns}, inputs=["x", "z"], targets=["y"]), []
    new = {"x": [0.5, 9.0, 0.5], "z": [1.0, 99.0, -99.0]}
    np.testing.assert_array_equal(encoding.encode_new_inputs(new, said.append), encoding.encode_inputs(new))
    (sentence,) = said
    assert sentence.startswith("Inputs of 2 of 3 rows are more than 6 standard deviations from the training ")
    assert "('x', 'z')" in sentence


@pytest.mark.parametrize(("known", "new"), [(7.0, [7.0, 8.0, -1e9]), ("a", ["a", "b", "c"])])
def test_an_input_with_one_value_in_training_has_no_effect(known, new):
    columns = {"same": [known] * 4, "x": [0.0, 1.0] * 2, "y": [0.0, 1.0] * 2}
    encoding = Encoding.fit({"s": columns}, inputs=["same", "x"], targets=["y"])
    columns = {"same": new, "x": [0.0, 1.0, 0.5]}
    encoded = encoding.encode_inputs(columns, on_warning=lambda sentence: None).astype(np.float32)
    np.testing.assert_array_equal(encoded, [[0, -1], [0, 1], [0, 0]])


def test_names_kinds_and_units():
    encoding = fit({"a": rows()})
    assert encoding.input_names == (
        "dose", "sex=F", "sex=M", "sex=other", "smoker=false", "smoker=true", "constant",
    )  # fmt: skip
    assert list(encoding.kinds.values()) == ["number", "category", "category", "number"]
    assert encoding.target_names == ("effect", "cost")
    np.testing.assert_allclose(encoding.decode_targets(np.zeros((2, 2))), [encoding.target_mean] * 2)
    assert encoding.inputs[3] == NumberColumn("constant", 0.1, NO_EFFECT)


def test_documents_restore_summaries_and_encodings_exactly():
    tables = divide(rows(3), [10, 30])
    tables["site 0"]["dose"][0] = np.nan
    summaries = [
        SiteSummary.from_columns(table, site, inputs=INPUTS, targets=TARGETS, impute="median")
        for site, table in tables.items()
    ]
    sent = [SiteSummary.from_document(json.loads(json.dumps(each.document()))) for each in summaries]
    encoding = Encoding.from_summaries(sent)
    assert sent == summaries
    assert encoding == fit(tables, impute="median")
    assert Encoding.from_document(json.loads(json.dumps(encoding.document()))) == encoding


@pytest.mark.parametrize("restore", [Encoding.from_document, SiteSummary.from_document])
@pytest.mark.parametrize("document", [{}, {"inputs": [{"kind": "number"}], "targets": []}])
def test_damaged_documents_are_refused(restore, document):
    with pytest.raises(InputError, match="fields are missing or unknown"):
        restore(document)


def test_kinds_of_values_in_memory():
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, 2, None, 4], dtype="Int64"),
            "flag": pd.array([True, None, False, True], dtype="boolean"),
            "label": pd.Categorical(["u", "v", None, "u"]),
            "mixed": pd.Series(["K", 1, 2.0, None], dtype=object),
            "masked": [1.0, np.nan, 3.0, 4.0],
            "y": [True, False, True, True],
        }
    )
    columns = {**frame, "masked": np.ma.masked_invalid(frame["masked"])}
    names = ["whole", "flag", "label", "mixed", "masked"]
    encoding = Encoding.fit({"a": columns}, inputs=names, targets=["y"], impute="median")
    assert encoding.input_names == (
        "whole", "flag=false", "flag=true", "label=u", "label=v", "mixed=1", "mixed=2", "mixed=K", "masked",
    )  # fmt: skip
    assert encoding == Encoding.fit({"a": frame}, inputs=names, targets=["y"], impute="median")
    assert encoding.target_mean == 0.75


def test_lists_keep_the_types_of_their_values():
    columns = {"text": ["F", np.nan, "M"], "code": [1.0, "b", None], "flag": (True, np.nan, False)}
    columns["y"] = [1, 2, 3]
    named = {"inputs": ["text", "code", "flag"], "targets": ["y"]}
    encoding = Encoding.fit({"a": columns}, **named, impute="median")
    assert encoding.input_names == ("text=F", "text=M", "code=1", "code=b", "flag=false", "flag=true")
    assert encoding == Encoding.fit({"a": pd.DataFrame(columns)}, **named, impute="median")
    with pytest.raises(InputError, match="Column 'text' of site 'a' has 1 missing value in 3 rows"):
        Encoding.fit({"a": columns}, **named)


# Missing values


def test_missing_numbers_become_the_row_weighted_median_of_site_medians():
    tables = {
        "small": {"x": [100.0, np.nan], "c": ["u", "v"], "y": [0.0, 1.0]},
        "large": {"x": [1.0, 2.0, 3.0], "c": ["u", "u", ""], "y": [2.0, 3.0, 4.0]},
    }
    encoding = Encoding.fit(tables, inputs=["x", "c"], targets=["y"], impute="median")
    number, category = encoding.inputs
    observed = np.array([100.0, 1.0, 2.0, 3.0])
    assert number.median == 2.0
    np.testing.assert_allclose([number.mean, number.scale], [observed.mean(), observed.std()], rtol=1e-14)
    encoded = encoding.encode_inputs({"x": [np.nan], "c": [None]}, "small")
    expected = [(2.0 - number.mean) / number.scale, *(-np.array(category.mean) / category.scale)]
    np.testing.assert_allclose(encoded, [expected], rtol=1e-14)


def test_a_site_without_any_value_of_a_column_takes_no_part_in_its_moments():
    tables = {"a": {"x": [1.0, 3.0], "y": [0.0, 1.0]}, "b": {"x": [None, None], "y": [0.0, 1.0]}}
    encoding = Encoding.fit(tables, inputs=["x"], targets=["y"], impute="median")
    assert encoding.inputs[0] == NumberColumn("x", 2.0, 1.0, 2.0)
    np.testing.assert_array_equal(encoding.encode_inputs(tables["b"], "b"), [[0.0], [0.0]])


@pytest.mark.parametrize(
    ("column", "gap", "words"),
    [
        ("dose", np.nan, "Column 'dose' of site 'b' has 2 missing values in 60 rows. Drop the rows"),
        ("sex", "", "Column 'sex' of site 'b' has 2 missing values in 60 rows. Drop the rows"),
        ("effect", np.nan, "Column 'effect' of site 'b' has 2 missing values in 60 rows. Fill the values"),
    ],
)
def test_missing_values_are_refused_with_their_count(column, gap, words):
    tables = {"a": rows(), "b": rows(1)}
    tables["b"][column][[3, 4]] = gap
    error = refusal(tables)
    assert words in str(error)
    assert ("--impute median" in str(error)) == (column in INPUTS)
    assert "--drop-missing" in str(error)
    assert (error.client, error.field) == ("b", column)
    encoding = fit({"a": rows()})
    with pytest.raises(InputError, match="2 missing values"):
        encoding.encode_targets(tables["b"]) if column in TARGETS else encoding.encode_inputs(tables["b"])


# New rows


def test_unseen_levels_are_no_level_with_one_warning():
    encoding = fit({"a": rows()})
    columns = take(rows(1), slice(0, 4)) | {"sex": np.array(["F", "x", "x", "z"])}
    with pytest.warns(UserWarning, match="Levels") as caught:
        encoded = encoding.encode_inputs(columns, "b")
    assert [str(each.message) for each in caught] == [
        "Levels at site 'b' that training did not see count as no level: 'x', 'z' of 'sex'."
    ]
    sex = encoding.inputs[1]
    assert isinstance(sex, CategoryColumn)
    np.testing.assert_allclose(encoded[1, 1:4], -np.array(sex.mean) / sex.scale)
    sentences = []
    encoding.encode_inputs(columns, on_warning=sentences.append)
    assert sentences == ["Levels that training did not see count as no level: 'x', 'z' of 'sex'."]


def test_a_category_may_have_only_numbers_in_new_rows():
    tables = {"a": {"grade": ["K", "1", "2"], "y": [1.0, 2.0, 3.0]}}
    encoding = Encoding.fit(tables, inputs=["grade"], targets=["y"])
    numbers, texts = (encoding.encode_inputs({"grade": grade}) for grade in ([1, 2.0], ["1", "2"]))
    np.testing.assert_array_equal(numbers, texts)


def test_booleans_are_one_level_however_they_are_spelled():
    smoker = np.array([True, False, True])
    encoding = Encoding.fit({"a": {"smoker": smoker, "y": [1.0, 2.0, 3.0]}}, inputs=["smoker"], targets=["y"])
    texts = np.where(smoker, "True ", "FALSE")
    for values in (texts, texts.tolist(), texts.astype(object), pd.Series(texts), smoker.astype(object)):
        np.testing.assert_array_equal(
            encoding.encode_inputs({"smoker": values}), encoding.encode_inputs({"smoker": smoker})
        )
    document = encoding.document()
    document["inputs"][0]["levels"] = ["False", "True"]  # as version 0.2.0 wrote the levels of text
    assert Encoding.from_document(document) == encoding


@pytest.mark.parametrize("dtype", ["int64", "uint64", "Int64", "object"])
def test_levels_that_are_integers_are_exact(dtype):
    codes = pd.Series([2**53, 2**53 + 1, 7]).astype(dtype)
    assert parse_levels({"code": codes}, "code", "").tolist() == ["9007199254740992", "9007199254740993", "7"]


def test_whole_numbers_are_one_level_whatever_their_type():
    values = np.array([1.0, 1, np.float64(1), np.int8(1), 0.0, -0.0, None], dtype=object)
    assert parse_levels({"code": values}, "code", "").tolist() == ["1", "1", "1", "1", "0", "0", ""]


WRITTEN = ["1", "1.0", "1.00", "-3.0", "-0.0", "0.0", "-0", "07", "07.0", "1.50", "v1.0", "100", "K", ""]
NAMED = ["1", "1", "1", "-3", "0", "0", "0", "07", "07.0", "1.50", "v1.0", "100", "K", ""]


@pytest.mark.parametrize("values", [np.array(WRITTEN), WRITTEN, pd.Series(WRITTEN, dtype="string")])
def test_text_of_whole_numbers_is_a_level_without_decimals(values):
    assert parse_levels({"code": values}, "code", "").tolist() == NAMED


def test_levels_of_model_files_may_have_decimals():
    encoding = Encoding.fit({"a": {"code": ["1", "2"], "y": [1.0, 2.0]}}, inputs=["code"], targets=["y"])
    document = encoding.document()
    document["inputs"][0]["levels"] = ["1.0", "2.0"]  # as version 0.2.0 wrote the levels of text
    assert Encoding.from_document(document) == encoding


def test_text_instead_of_numbers_in_new_rows_is_refused():
    columns = rows() | {"dose": ["low"] * 60}
    with pytest.raises(InputError, match="'dose' of site 'b' has text but had numbers in training"):
        fit({"a": rows()}).encode_inputs(columns, "b")


# Refusals


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dose": ["low", "high"] * 30}, "'dose' has numbers at site 'a' but text or booleans at site 'b'"),
        ({"smoker": np.ones(60)}, "'smoker' has text or booleans at site 'a' but numbers at site 'b'"),
        ({"dose": np.r_[np.inf, np.ones(59)]}, "'dose' of site 'b' has 1 value too large to compute with"),
        ({"dose": np.ones(59)}, "'dose' and 'sex' of site 'b' have 59 and 60 rows"),
        ({"dose": np.ones((60, 2))}, "'dose' of site 'b' must have one value per row"),
        ({"dose": np.full(60, "2016-01-01", "datetime64[D]")}, "values of type datetime64[D]"),
        ({"dose": np.full(60, 1j, object)}, "values of type complex"),
        ({"effect": ["good"] * 60}, "'effect' of site 'b' is not numeric: it has the value 'good'"),
        (
            {"dose": ["12", "1,5"] * 30},
            "'dose' of site 'b' has numbers with commas, first '1,5'. Write",
        ),
        ({"dose": ["1,117.1", ""] * 30}, "'dose' of site 'b' has numbers with commas, first '1,117.1'"),
        ({"dose": [*map(str, range(59)), "err"]}, "text among its numbers, first 'err' at site 'b'"),
    ],
)
def test_what_is_refused(change, words):
    error = refusal({"a": rows(), "b": rows(1) | change})
    assert words in str(error)
    assert error.field in {*change, "sex"}


def test_an_absent_column_is_refused():
    lacking = {name: values for name, values in rows().items() if name != "dose"}
    assert str(refusal({"a": rows(), "b": lacking})).startswith("No column 'dose' at site 'b'")


def test_a_constant_target_is_refused_over_all_sites_and_not_at_one():
    constant = rows(1) | {"effect": np.full(60, 0.1)}
    fit({"a": rows(), "b": constant})
    assert "'effect' is constant over all sites" in str(refusal({"a": constant, "b": constant}))


@pytest.mark.parametrize("size", [1e-160, 1e-170, 1e-300])
@pytest.mark.parametrize("column", ["dose", "effect"])
def test_a_column_whose_squares_become_zero_is_refused(column, size):
    sites = {"a": rows(), "b": rows(1)}
    tiny = {name: each | {column: size * np.asarray(each[column])} for name, each in sites.items()}
    assert str(refusal(tiny)) == (
        f"Column '{column}' has differences below 1.5e-154, whose squares are too small to compute with. "
        "Multiply it by a large number, or drop it."
    )
    constants = {name: each | {"dose": np.full(60, size * m)} for m, (name, each) in enumerate(sites.items())}
    assert refusal(constants).field == "dose"
    encoding = fit({"a": rows(), "b": tiny["b"]})  # one site with such values harms nothing
    pooled = np.concatenate([rows()[column], tiny["b"][column]])
    found = {each.name: each for each in (*encoding.inputs, *encoding.targets)}[column]
    np.testing.assert_allclose(found.scale, pooled.std(), rtol=1e-12)


def test_very_many_levels_are_refused(monkeypatch):
    monkeypatch.setattr(site_summary, "MAX_LEVELS", 5)
    named = rows() | {"sex": [f"name {number % 6}" for number in range(60)]}
    assert "'sex' has 6 levels, but a category may have 5 at most" in str(refusal({"a": named}))


def test_text_that_names_rows_is_refused_and_few_or_repeated_levels_are_not():
    named, repeated, few = (
        {site: rows() | {"sex": [f"{site}{n % period}" for n in range(60)]} for site in "ab"}
        for period in (60, 25, 10)
    )
    words = "'sex' has 120 different texts in 120 rows, such as 'a0': they name rows, not categories"
    assert words in str(refusal(named))
    for tables in (repeated, few):
        fit(tables)


def test_further_refusals():
    assert "Unknown imputation: 'mean'" in str(refusal({"a": rows()}, impute="mean"))
    assert "There are no sites" in str(refusal({}))
    assert "No inputs are named" in str(refusal({"a": rows()}, inputs=[]))
    assert "more than once" in str(refusal({"a": rows()}, inputs=["dose", "effect"]))
    empty = rows() | {"dose": [None] * 60}
    assert "'dose' has no value at any site" in str(refusal({"a": empty}, impute="median"))
    first = SiteSummary.from_columns(rows(), "a", inputs=["dose"], targets=TARGETS)
    other = SiteSummary.from_columns(rows(), "b", inputs=["sex"], targets=TARGETS)
    with pytest.raises(InputError, match="Sites 'a' and 'b' have different inputs"):
        Encoding.from_summaries([first, other])
