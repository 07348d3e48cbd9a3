"""Problems as clients hold them, and the paper's ways of splitting rows over clients."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError, Moments, explain, predict, read_moments
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.data.splits import hold_out, partition_at_random, partition_by_projection
from fedgram.data.target_scale import target_scale

SEEDS = st.integers(0, 2**32 - 1)


def clients(seed=0, sizes=(40, 60, 25), width=3, targets=2):
    """Inputs and targets of clients with different sizes, means and covariances."""
    rng = np.random.default_rng(seed)
    inputs = {f"site {m}": rng.standard_normal((size, width)) for m, size in enumerate(sizes)}
    outputs = {
        name: rng.standard_normal((len(rows), targets)) @ rng.standard_normal((targets, targets)) + m
        for m, (name, rows) in enumerate(inputs.items())
    }
    return inputs, outputs


def test_a_problem_keeps_names_order_and_unequal_sizes():
    inputs, targets = clients()
    problem = Problem.from_arrays(
        inputs, targets, name="mine", kind="GENERATED", target_names=("east", "north")
    )
    assert problem.clients == ("site 0", "site 1", "site 2")
    assert [len(split) for split in problem.train.values()] == [40, 60, 25]
    assert (problem.name, problem.kind, problem.target_names) == ("mine", "GENERATED", ("east", "north"))
    listed = Problem.from_arrays(list(inputs.values()), list(targets.values()))
    assert listed.clients == ("client 1", "client 2", "client 3")
    np.testing.assert_array_equal(listed.train["client 2"].targets, targets["site 1"])


def test_moments_are_those_of_the_training_targets():
    inputs, targets = clients()
    moments = Problem.from_arrays(inputs, targets, target_names=("east", "north")).moments
    np.testing.assert_array_equal(moments.count, [40, 60, 25])
    assert moments.targets == ("east", "north")
    for m, values in enumerate(targets.values()):
        np.testing.assert_allclose(moments.mean[m], values.mean(axis=0), atol=1e-14)
        np.testing.assert_allclose(moments.covariance[m], np.cov(values.T, bias=True), rtol=1e-12)


def test_a_table_is_split_by_its_client_column():
    frame = pd.DataFrame(
        {"site": [2, 1, 2, 1, 1], "x": range(5), "y": [0.5, 1.5, 2.5, 3.5, 4.5], "unused": "a"}
    )
    problem = Problem.from_frame(frame, client="site", inputs=["x"], targets=["y"])
    assert problem.clients == ("1", "2")
    np.testing.assert_array_equal(problem.train["1"].inputs, [[1], [3], [4]])
    np.testing.assert_array_equal(problem.train["2"].targets, [[0.5], [2.5]])
    with pytest.raises(InputError, match="no column 'z'") as caught:
        Problem.from_frame(frame, client="site", inputs=["x", "z"], targets=["y"])
    assert caught.value.field == "z"
    alone = Problem.from_frame(frame, client="site", inputs="x", targets="y")
    assert alone.digest == problem.digest
    with pytest.raises(InputError, match=r"The column 'unused' is not numeric: .* Convert it"):
        Problem.from_frame(frame, client="site", inputs=["x", "unused"], targets=["y"])


def test_clients_of_one_name_are_one_client():
    frame = pd.DataFrame({"site": [1, "1", "b", "b"], "x": range(4), "y": 0.0})
    problem = Problem.from_frame(frame, client="site", inputs=["x"], targets=["y"])
    assert {client: len(split) for client, split in problem.train.items()} == {"1": 2, "b": 2}


def test_names_of_clients_are_text():
    inputs, targets = (dict(enumerate(values.values(), start=1)) for values in clients())
    assert Problem.from_arrays(inputs, targets).clients == ("1", "2", "3")
    with pytest.raises(InputError, match="The client name '1' appears more than once"):
        Problem.from_arrays({**inputs, "1": inputs[1]}, targets)


def test_arrays_of_clients_are_a_list_or_a_dict():
    _, targets = clients()
    with pytest.raises(
        InputError, match="inputs must be a list or dict of arrays, one per client, not NoneType"
    ):
        Problem.from_arrays(None, targets)


def test_a_dataset_without_items_is_named():
    with pytest.raises(InputError, match="The dataset of client 'b' is empty"):
        Problem.from_datasets({"a": [([0.0], [1.0])], "b": []})


def test_map_style_datasets_are_read_item_by_item():
    datasets = {name: [(np.full((4, 4), i), np.array([i, -i])) for i in range(3)] for name in ("a", "b")}
    problem = Problem.from_datasets(datasets)
    assert problem.train["a"].inputs.shape == (3, 4, 4)
    np.testing.assert_array_equal(problem.train["b"].targets, [[0, 0], [1, -1], [2, -2]])


def test_centering_removes_the_mean_term_and_keeps_covariances():
    inputs, targets = clients()
    given_test = {name: Split(inputs[name][:5], targets[name][:5]) for name in inputs}
    train = Problem.from_arrays(inputs, targets).train
    problem = Problem("mine", "REAL", train, given_test, provenance={"seed": 3})
    centered = problem.centered()
    np.testing.assert_allclose(centered.moments.mean, 0, atol=1e-14)
    np.testing.assert_allclose(centered.moments.covariance, problem.moments.covariance, rtol=1e-12)
    shift = targets["site 2"].mean(axis=0)
    np.testing.assert_allclose(centered.test["site 2"].targets, targets["site 2"][:5] - shift, atol=1e-14)
    gap = explain(predict(centered.moments))
    assert abs(gap.traces[0]) < 1e-12 < gap.traces[1]
    assert centered.provenance == {"seed": 3, "targets": "centered at each client's mean"}


def test_the_digest_tells_problems_apart():
    inputs, targets = clients()
    digest = Problem.from_arrays(inputs, targets).digest
    assert Problem.from_arrays(inputs, targets, name="other").digest == digest
    moved = targets | {"site 1": targets["site 1"] + np.eye(60, 2) * 1e-15}
    assert Problem.from_arrays(inputs, moved).digest != digest
    single = {name: values.astype(np.float32) for name, values in inputs.items()}
    assert Problem.from_arrays(single, targets).digest != digest
    images = {name: values[:, None] for name, values in inputs.items()}
    assert Problem.from_arrays(images, targets).digest != digest
    assert Problem.from_arrays(list(inputs.values()), list(targets.values())).digest != digest
    train = Problem.from_arrays(inputs, targets).train
    assert Problem("mine", "REAL", train, train).digest != digest


def test_bad_problems_are_refused_in_a_sentence():
    inputs, targets = clients()
    with pytest.raises(InputError, match="40 inputs but 39 targets"):
        Split(inputs["site 0"], targets["site 0"][:39])
    with pytest.raises(InputError, match=r"\(rows, targets\), not \(40,\)"):
        Split(inputs["site 0"], targets["site 0"][:, 0])
    with pytest.raises(InputError, match=r"at least two clients, not 1\. Add rows of other clients"):
        Problem.from_arrays([inputs["site 0"]], [targets["site 0"]])
    train = Problem.from_arrays(inputs, targets).train
    for test in ({"site 0": train["site 0"]}, dict(reversed(train.items()))):
        with pytest.raises(InputError, match=r"Test rows have clients .* the same clients in the same order"):
            Problem("mine", "REAL", train, test)
    with pytest.raises(InputError, match=r"2 targets but 3 target names\. Pass one name per target"):
        Problem.from_arrays(inputs, targets, target_names=("east", "north", "up"))
    targets["site 1"][7, 1] = np.nan
    with pytest.raises(InputError, match=r"'site 1' has a value in its targets .* row 8, column 2") as caught:
        Problem.from_arrays(inputs, targets)
    assert (caught.value.client, caught.value.field) == ("site 1", "targets")


def test_rows_for_testing_are_checked_as_well():
    train = Problem.from_arrays(*clients()).train
    broken = Split(np.full((2, 3), np.nan), np.zeros((2, 2)))
    with pytest.raises(InputError, match="'site 2' has a value in its inputs that is not finite, in row 1"):
        Problem("mine", "REAL", train, train | {"site 2": broken})
    narrow = Split(np.zeros((2, 1)), np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"A row of client 'site 2' has inputs of shape \(1,\)"):
        Problem("mine", "REAL", train, train | {"site 2": narrow})


def test_inputs_that_are_infinite_in_single_precision_are_refused():
    inputs, targets = clients()
    inputs["site 1"][4, 2] = -1e39
    with pytest.raises(InputError, match=r"its inputs that is too large to compute with, in row 5, column 3"):
        Problem.from_arrays(inputs, targets)
    inputs["site 1"][4, 2], targets["site 1"][4, 0] = -1e38, 1e39
    Problem.from_arrays(inputs, targets)


def test_a_value_of_an_image_has_a_row_and_no_column():
    images = np.zeros((5, 4, 4, 1))
    images[2, 1, 3] = np.inf
    with pytest.raises(InputError, match=r"that is not finite, in row 3. Drop the row"):
        Problem.from_arrays([images, images], [np.zeros((5, 1))] * 2)


def test_inputs_and_targets_belong_to_clients_by_name():
    inputs, targets = clients()
    turned = Problem.from_arrays(inputs, dict(list(targets.items())[::-1]))
    assert turned.digest == Problem.from_arrays(inputs, targets).digest
    with pytest.raises(InputError, match=r"Client 'site 2' has inputs but no targets. Pass both"):
        Problem.from_arrays(inputs, {name: targets[name] for name in ("site 0", "site 1")})
    with pytest.raises(InputError, match=r"Client 'north' has targets but no inputs. Pass both"):
        Problem.from_arrays(inputs, targets | {"north": targets["site 0"]})
    with pytest.raises(InputError, match="Client 'site 0': There are 40 inputs but 39 targets") as caught:
        Problem.from_arrays(inputs, targets | {"site 0": targets["site 0"][:39]})
    assert (caught.value.client, caught.value.field) == ("site 0", "inputs")


@pytest.mark.parametrize("what", ["inputs", "targets"])
@pytest.mark.parametrize(
    "values",
    [np.full((60, 2), "a"), [["1.5"]] * 60, np.ones((60, 2), complex), [[1.0, 2.0], [3.0]], None, 7.0],
)
def test_only_numbers_are_taken(what, values):
    inputs, targets = clients()
    (inputs if what == "inputs" else targets)["site 1"] = values
    words = f"The {what} of client 'site 1' are not an array of numbers. Convert them first."
    with pytest.raises(InputError, match=f"^{words}$") as caught:
        Problem.from_arrays(inputs, targets)
    assert (caught.value.client, caught.value.field) == ("site 1", what)


@pytest.mark.parametrize("what", ["inputs", "targets"])
def test_only_real_numbers_are_taken_from_datasets(what):
    item = {"inputs": [0.0], "targets": [1.0]}
    datasets = {"a": [tuple(item.values())], "b": [tuple((item | {what: [1j]}).values())]}
    with pytest.raises(InputError, match=f"The {what} of client 'b' are not an array of numbers"):
        Problem.from_datasets(datasets)


def test_targets_of_a_split_are_real_numbers():
    with pytest.raises(InputError, match="targets must be an array of real numbers"):
        Split(np.ones((3, 1)), np.ones((3, 1)) * 1j)


def test_one_target_may_stand_without_a_list():
    inputs, targets = clients(width=2)
    alone = {name: values[:, :1] for name, values in targets.items()}
    problem = Problem.from_arrays(inputs, alone, target_names="pm")
    assert problem.target_names == Problem("x", "REAL", problem.train, target_names="pm").target_names
    assert problem.moments.targets == ("pm",)


@pytest.mark.parametrize(("what", "shape"), [("inputs", (3,)), ("inputs", (2, 2)), ("targets", (3,))])
def test_rows_of_all_clients_have_one_shape(what, shape):
    inputs, targets = clients(width=2)
    (inputs if what == "inputs" else targets)["site 2"] = np.ones((25, *shape)) * np.arange(shape[-1])
    said = re.escape(
        f"A row of client 'site 2' has {what} of shape {shape}, but one of the first client has shape (2,)"
    )
    with pytest.raises(InputError, match=f"^{said}. All clients need the same shape.$"):
        Problem.from_arrays(inputs, targets)


def test_the_kind_of_data_is_one_of_three():
    with pytest.raises(
        InputError, match=r"Unknown kind of data: 'foo'. Use one of REAL, GENERATED, RE-RENDERED"
    ):
        Problem.from_arrays(*clients(), kind="foo")


def test_rows_without_a_client_are_counted():
    frame = pd.DataFrame({"site": ["a", None, "b"], "x": 0.0, "y": 1.0})
    with pytest.raises(InputError, match="1 of 3 rows have no client in 'site'"):
        Problem.from_frame(frame, client="site", inputs=["x"], targets=["y"])


@pytest.mark.parametrize("kind", ["string", "Int64"])
def test_missing_clients_of_pandas_are_counted(kind):
    sites = (
        pd.array([1, pd.NA, 2], dtype=kind) if kind == "Int64" else pd.array(["a", pd.NA, "b"], dtype=kind)
    )
    frame = pd.DataFrame({"site": sites, "x": 0.0, "y": 1.0})
    with pytest.raises(InputError, match="1 of 3 rows have no client in 'site'"):
        Problem.from_frame(frame, client="site", inputs=["x"], targets=["y"])


@pytest.mark.parametrize("twice", ["site", "x"])
def test_columns_of_one_name_are_refused(twice):
    frame = pd.DataFrame([["a", 0.0, 1.0, 2.0]] * 4, columns=["site", "x", "y", twice])
    with pytest.raises(InputError, match=f"several columns '{twice}'"):
        Problem.from_frame(frame, client="site", inputs=["x"], targets=["y"])


NOTHING = np.ones((3, 0))
PAIRS = [(np.ones(2), np.array([float(n)])) for n in range(6)]


@pytest.mark.parametrize(
    "items", [[(1.0, 2.0, 3.0)] * 3, [(np.ones(2), np.ones(1)), (np.ones(3), np.ones(1))], [1.0, 2.0]]
)
def test_items_of_datasets_are_pairs(items):
    with pytest.raises(InputError, match="Items of client 'b' are not pairs"):
        Problem.from_datasets({"a": PAIRS, "b": items})


def test_names_of_datasets_are_text_or_numbers():
    assert Problem.from_datasets([PAIRS, PAIRS]).clients == ("client 1", "client 2")
    held_out = Problem.from_datasets({1: PAIRS, 2: PAIRS}).hold_out_validation(0.3)
    assert [len(split) for split in held_out.validation.values()] == [2, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda problem: hold_out(problem, 0.2, seed=-1), "A seed must be a whole number of at least 0"),
        (
            lambda problem: problem.hold_out_validation(0.2).hold_out_validation(0.2),
            r"validation rows already\. Call with_validation_in_training\(\) first",
        ),
        (lambda problem: problem.hold_out_validation(0.2, seed=-1), "A seed must be a whole number"),
        (lambda problem: problem.hold_out_validation("0.2"), "fraction must be between 0 and 1, not 0.2"),
        (lambda problem: Problem.from_arrays({"": [[1.0]], "b": [[1.0]]}, {"": [[1.0]], "b": [[1.0]]}),
         "A client has no name"),
        (lambda problem: Problem.from_arrays([NOTHING] * 2, [np.ones((3, 1))] * 2), "have no inputs"),
        (lambda problem: Problem.from_arrays([np.ones((3, 1))] * 2, [NOTHING] * 2), "have no targets"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        change(Problem.from_arrays(*clients()))


def test_a_problem_without_validation_rows_has_nothing_to_move():
    problem = Problem.from_arrays(*clients())
    assert problem.with_validation_in_training() is problem


def test_images_need_no_finiteness_check():
    images = [np.zeros((5, 2, 2, 1), np.uint8)] * 2
    assert (
        Problem.from_arrays(images, [np.arange(5.0)[:, None]] * 2).train["client 1"].inputs.dtype == np.uint8
    )


def test_projection_sorts_along_the_leading_second_moment_direction():
    rng = np.random.default_rng(0)
    targets = rng.standard_normal((101, 3)) * [1, 5, 2] + [0.5, -1, 0]
    projection = partition_by_projection(targets, 4)
    leading = np.linalg.svd(targets)[2][0]  # of the second moments, so of the uncentered targets
    np.testing.assert_allclose(abs(projection.direction @ leading), 1, rtol=1e-12)
    assert projection.direction[abs(projection.direction).argmax()] > 0
    order = np.argsort(targets @ projection.direction)
    np.testing.assert_array_equal(np.concatenate(projection.rows), order[:100])  # 101 = 4 * 25 + 1
    assert [len(rows) for rows in projection.rows] == [25] * 4
    assert (projection.high[:-1] <= projection.low[1:]).all()


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 4), st.integers(2, 5))
def test_projection_groups_do_not_depend_on_rotation_scale_or_order(seed, size, count):
    rng = np.random.default_rng(seed)
    targets = rng.standard_normal((12 * count, size)) * np.arange(1, size + 1) + 0.3
    rotation, _ = np.linalg.qr(rng.standard_normal((size, size)))
    order = rng.permutation(len(targets))
    changed = partition_by_projection(2.5 * (targets @ rotation)[order], count)
    assert changed.direction[np.abs(changed.direction).argmax()] > 0
    groups = [set(order[rows]) for rows in changed.rows]
    expected = [set(rows) for rows in partition_by_projection(targets, count).rows]
    assert groups in (expected, expected[::-1])  # the direction has a sign by convention only


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_rows_go_to_the_nearest_training_interval(seed):
    rng = np.random.default_rng(seed)
    targets = rng.standard_normal((40, 2)) * [3, 1]
    projection = partition_by_projection(targets, 4)
    for client, rows in enumerate(projection.rows):
        assert (projection.assign(targets[rows]) == client).all()
    fresh = rng.standard_normal((200, 2)) * [5, 1]
    for position, client in zip(fresh @ projection.direction, projection.assign(fresh), strict=True):
        away = [
            max(low - position, position - high, 0)
            for low, high in zip(projection.low, projection.high, strict=True)
        ]
        assert away[client] == min(away)


def test_fewer_rows_than_clients_cannot_be_split():
    with pytest.raises(InputError, match="Cannot split 3 rows over 4 clients"):
        partition_by_projection(np.eye(3), 4)


def test_dealing_at_random_uses_every_row_once():
    groups = partition_at_random(np.random.default_rng(3), 3002, 4)
    assert sorted(map(len, groups)) == [750, 750, 751, 751]
    np.testing.assert_array_equal(np.sort(np.concatenate(groups)), np.arange(3002))
    again = partition_at_random(np.random.default_rng(3), 3002, 4)
    other = partition_at_random(np.random.default_rng(4), 3002, 4)
    np.testing.assert_array_equal(np.concatenate(groups), np.concatenate(again))
    assert (np.concatenate(groups) != np.concatenate(other)).any()


def test_no_row_is_printed():
    inputs, targets = clients()
    problem = Problem.from_arrays(inputs, targets)
    rows = sum(map(len, problem.train.values()))
    assert (
        repr(problem)
        == f"Problem('own data', REAL, {len(inputs)} clients, {rows} training rows, 0 test rows)"
    )
    assert repr(problem.train["site 0"]) == "Split(inputs (40, 3), targets (40, 2))"


def test_clients_of_a_table_are_named_as_everywhere():
    table = pd.DataFrame({"site": [2.0, 1.0] * 4, "a": range(8), "y": [0, 1, 3, 2, 5, 4, 7, 9]})
    named = Problem.from_frame(table, client="site", inputs=["a"], targets=["y"])
    assert named.clients == read_moments(table, client="site", targets=["y"]).clients == ("1", "2")
    table["site"] = ["a", " "] * 4
    with pytest.raises(InputError, match="4 of 8 rows have no client in 'site'"):
        Problem.from_frame(table, client="site", inputs=["a"], targets=["y"])
    with pytest.raises(InputError, match="The column 'y' appears more than once among client, inputs and"):
        Problem.from_frame(table, client="site", inputs=["a", "y"], targets=["y"])


def test_images_of_all_clients_are_of_one_type():
    targets = np.arange(8.0).reshape(2, 4, 1)
    images = np.zeros((2, 4, 5, 5, 1), dtype=np.uint8)
    Problem.from_arrays([images[0], images[1]], list(targets))
    with pytest.raises(InputError, match="of client 'client 2' are float64, but"):
        Problem.from_arrays([images[0], images[1] / 255], list(targets))
    Problem.from_arrays([images[0, ..., 0, 0], images[1, ..., 0, 0] / 255], list(targets))  # rows of numbers


def test_columns_of_several_types_are_numbers():
    table = pd.DataFrame({"a": [0.5, 1.5, 2.5], "b": [True, False, True], "c": [1, 2, 3]})
    problem = Problem.from_arrays([table, table[["c", "b", "a"]]], [np.eye(3)[:, :1], np.eye(3)[:, 1:2]])
    for split in problem.train.values():
        np.testing.assert_array_equal(split.inputs, [[0.5, 1, 1], [1.5, 0, 2], [2.5, 1, 3]])
    assert problem.provenance["inputs"] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", [">f8", ">f4", ">i4", np.longdouble])
def test_numbers_of_any_kind_are_those_of_this_machine(kind):
    inputs, targets = clients()
    own = {client: rows.astype(kind) for client, rows in inputs.items()}
    for split in Problem.from_arrays(own, targets).train.values():
        assert split.inputs.dtype.isnative
        assert split.inputs.dtype.itemsize <= 8


def test_errors_have_the_units_of_targets_that_a_dataset_scales():
    provenance = {"scale": {"posX": 0.3}, "mean": {"posX": 0.5}}
    np.testing.assert_array_equal(target_scale(provenance, ["posX", "other"]), [0.3, 1.0])


def test_a_series_of_one_target_is_named_with_what_to_do():
    frame = pd.DataFrame({"dose": range(4), "effect": range(1, 5)})
    with pytest.raises(InputError, match=r"Pass one target y as y\[:, None\], or a series as y.to_frame"):
        Problem.from_arrays([frame[["dose"]]] * 2, [frame["effect"]] * 2)
    with pytest.raises(InputError, match=r"'client 1' must have shape .* a series as y.to_frame"):
        Moments.from_arrays([frame["effect"]] * 2)
