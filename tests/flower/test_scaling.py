"""Columns are standardized across sites as in one process, in plain and in secure federations."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from fedgram._util.errors import InputError
from fedgram.data.encoded_columns import NO_EFFECT
from fedgram.data.encoding import CLIP
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.federation.secure_sums import decode, encode
from fedgram.flower import Site, client_app, predict_at_site
from fedgram.flower.client import Client
from fedgram.flower.config import FederationConfig
from fedgram.flower.introduction import ClientInfo, find_distant_columns, read_introduction
from fedgram.flower.messages import EVALUATE, GridTransport, Payload, RejectedReplyError
from fedgram.flower.scaling import Scaling, measure_columns, name_inputs
from fedgram.flower.secure_server import run_secure_server
from fedgram.flower.server import run_server
from fedgram.runs.train_config import TrainConfig
from fedgram.training import train
from fedgram.training.inference import predict_rows
from tests.helpers.federations import SETTINGS, SITES, standardize
from tests.helpers.flower_grid import MemoryGrid

SHORT = SETTINGS | {"rounds": 2, "epochs": 1}
# Columns far from zero and of very different sizes, as people have them.
CENTER, SIZE = np.array([1000.0, -3.0, 0.0]), np.array([10.0, 1e-3, 1e4])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh())


def test_a_rare_level_is_no_outlier():
    """A level in 2 % of the rows is 7 standard deviations away, but no unit is wrong."""
    rows = np.column_stack([np.arange(100.0), np.arange(100) < 2])
    scaling = Scaling(rows.mean(axis=0), rows.std(axis=0), np.zeros(1), np.ones(1))
    assert scaling.find_clipped(rows).sum() == 2
    assert not scaling.find_clipped(rows, [False, True]).any()
    assert scaling.find_clipped([[1e4, 0.0]], [False, True]).all()


def problem() -> Problem:
    rng = np.random.default_rng(0)
    parts: list[dict[str, Split]] = []
    for rows in (24, 8):
        drawn = {name: rng.standard_normal((rows + 4 * m, 3)) for m, name in enumerate(SITES)}
        parts.append(
            {
                name: Split(CENTER + SIZE * x, 50 + 20 * (np.tanh(x[:, :2]) + 0.3 * m))
                for m, (name, x) in enumerate(drawn.items())
            }
        )
    return Problem("far columns", "GENERATED", *parts)


def grid_of(folder, silent=None, **others) -> MemoryGrid:
    rows = problem()

    def site(context) -> Site:
        name = str(context.node_config["site"])
        parts = rows.train[name], rows.test[name]
        return Site(name, *parts, backbone=network, folder=folder / "private", device="cpu")

    config = {
        "name": "far columns", "kind": "GENERATED", "clients": 3, "procedure": "proximal+corrected",
        "backbone": "small", "reply-timeout": 1e-3, "standardize": True, "out": str(folder / "server"),
    }  # fmt: skip
    nodes = {number: {"site": name} for number, name in enumerate(SITES, start=11)}
    return MemoryGrid(client_app(site), config | SHORT | others, nodes, silent)


def serve(grid, server=run_server):
    return server(GridTransport(grid, 0.0), FederationConfig.from_run_config(grid.config))


def train_stack(folder, procedure):
    """Train in one process, on standardized columns."""
    (run,) = train(
        standardize(problem()), network, [procedure], [0], TrainConfig(**SHORT), folder=folder, device="cpu"
    )
    return run


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return train_stack(tmp_path_factory.mktemp("stack"), "proximal+corrected")


@pytest.mark.parametrize(
    "procedure", ["proximal+corrected", pytest.param("centered+private", marks=pytest.mark.slow)]
)
def test_federation_standardizes_like_one_process(tmp_path, procedure, request):
    if procedure == "proximal+corrected":
        reference = request.getfixturevalue("reference")
    else:
        reference = train_stack(tmp_path / "stack", procedure)
    run = serve(grid_of(tmp_path, procedure=procedure))
    for one, other in zip(run.rounds(), reference.rounds(), strict=True):
        for name, value in vars(one).items():
            np.testing.assert_allclose(value, vars(other)[name], rtol=1e-10, atol=1e-10, err_msg=name)
    scaling = Scaling.pool([measure_columns(Site(n, s)) for n, s in problem().train.items()], 3)
    for name, test in problem().test.items():
        (path,) = (tmp_path / "private" / name).rglob("model.safetensors")
        expected = predict_rows(reference, {name: scaling.encode_inputs(test.inputs)}, network)[name]
        found = predict_at_site(path, test.inputs, network)
        np.testing.assert_allclose(found, scaling.decode_targets(expected), rtol=1e-10)
        assert np.abs(found - test.targets).mean() < 40  # in the targets' own units


@pytest.mark.slow
def test_secure_federation_standardizes_like_one_process(tmp_path, reference):
    record = serve(grid_of(tmp_path, secure=True), run_secure_server)
    np.testing.assert_allclose(record.averages["head"], reference.rounds()[-1].head, rtol=1e-9, atol=1e-10)
    plain = Scaling.pool([measure_columns(Site(n, s)) for n, s in problem().train.items()], 3)
    stored = Scaling.from_document(record.document["scaling"])
    for name, value in stored.to_arrays().items():
        np.testing.assert_allclose(value, plain.to_arrays()[name], rtol=1e-11, atol=1e-9, err_msg=name)


def test_stopped_federation_resumes_in_the_same_units(tmp_path, reference):
    silent = lambda site, kind, n: n >= 2 and kind in ("train", EVALUATE)  # noqa: E731
    with pytest.raises(InputError, match="No client replied in round 2"):
        serve(grid_of(tmp_path, silent))
    grid = grid_of(tmp_path)
    run = serve(grid)
    np.testing.assert_allclose(run.rounds()[-1].head, reference.rounds()[-1].head, rtol=1e-10, atol=1e-10)


def test_site_with_other_units_is_named():
    clients = {
        name: ClientInfo(name, 9, 0, 0, ("y",), 7, "a0", 3, 4, np.ones(1), np.eye(1), mean, np.ones(2))
        for name, mean in zip(SITES, np.array([[0.0, 1.0], [0.5, 2.0], [0.0, 400.0]]), strict=True)
    }
    assert find_distant_columns(clients) == {"valley": "its column 2 is not in the units of the others"}


def test_false_input_moments_are_refused(tmp_path):
    grid = grid_of(tmp_path)
    reply = Client(Site("coast", problem().train["coast"], backbone=network, folder=tmp_path / "private"),
                   FederationConfig.from_run_config(grid.config)).describe(Payload())  # fmt: skip
    negative = replace(reply, arrays={**reply.arrays, "input_variance": -np.ones(3)})
    identity = {"client": "coast", "rows": 24}
    with pytest.raises(RejectedReplyError, match="'input_variance' is negative"):
        read_introduction(replace(negative, metadata={**reply.metadata, **identity}), 6)


def test_images_are_not_standardized(tmp_path):
    images = Split(np.zeros((9, 4, 4, 1), np.uint8), np.random.default_rng(0).standard_normal((9, 2)))
    with pytest.raises(InputError, match=r"Cannot standardize inputs of type uint8 and shape \(9, 4, 4, 1\)"):
        measure_columns(Site("coast", images, folder=tmp_path))


def test_tables_are_standardized_unless_the_config_says_no():
    table = {"clients": 2, "inputs": "a", "targets": "y"}
    assert FederationConfig.from_run_config(table).standardize
    assert not FederationConfig.from_run_config(table | {"standardize": False}).standardize
    assert not FederationConfig.from_run_config({"clients": 2}).standardize
    assert not FederationConfig.from_run_config({"clients": 2, "inputs": "", "dataset": "x"}).standardize
    with pytest.raises(InputError, match="true or false"):
        FederationConfig.from_run_config(table | {"standardize": "yes"})


def pool(*parts: Split) -> Scaling:
    return Scaling.pool([measure_columns(Site("a", part)) for part in parts], 1)


@pytest.mark.parametrize("size", [1e-160, 1e-170, 1e-300])
def test_columns_whose_squares_become_zero_are_refused(size):
    rows = np.random.default_rng(0).standard_normal((60, 2))
    parts = [Split(rows[:30, :1], rows[:30, 1:]), Split(rows[30:, :1], rows[30:, 1:])]
    tiny = [replace(part, inputs=size * part.inputs) for part in parts]
    with pytest.raises(InputError, match=r"^Input 1 has differences below 1\.5e-154, whose squares are too"):
        pool(*tiny)
    with pytest.raises(InputError, match=r"^Target 1 has differences"):
        pool(*(replace(part, targets=size * part.targets) for part in parts))
    found, pooled = pool(parts[0], tiny[1]), np.concatenate([parts[0].inputs, tiny[1].inputs])
    np.testing.assert_allclose(found.input_scale, pooled.std(), rtol=1e-12)


def test_columns_that_secure_sums_round_to_constants_are_named():
    rows = 1e-12 * np.random.default_rng(0).standard_normal((60, 1))
    numbers = decode(encode(measure_columns(Site("a", Split(rows, 1e12 * rows))).numbers()))
    said = []
    assert Scaling.from_total(numbers, 1, said.append).input_scale == NO_EFFECT
    assert said == [
        "Input 1 counts as constant: its variance is below 5e-20, to which secure sums are rounded. If it "
        "varies, multiply it by a large number."
    ]


@pytest.mark.parametrize("inputs", ["", "hour,minute,second"], ids=["numbers", "names"])
@pytest.mark.parametrize("server", [run_server, run_secure_server])
def test_federations_name_constant_inputs(tmp_path, caplog, monkeypatch, server, inputs):
    rows = problem()
    for split in (*rows.train.values(), *rows.test.values()):
        split.inputs[:, 1] = 0.1
    monkeypatch.setitem(globals(), "problem", lambda: rows)
    serve(grid_of(tmp_path, inputs=inputs, secure=server is run_secure_server), server)
    name = "'minute'" if inputs else "Input 2"
    said = [each.getMessage() for each in caplog.records if name in each.getMessage()]
    first = "has only one value in all training rows." if server is run_server else "counts as constant"
    assert [each.startswith(f"{name} {first}") for each in said] == [True]


def test_a_level_without_training_rows_is_no_constant_input():
    selection = {"inputs": ["sex", "unit", "age"], "categories": {"sex": ["F", "M", "X"], "unit": ["kg"]}}
    names = name_inputs(selection, 5)
    assert names == ["'sex'", "'sex'", "'sex'", "'unit'", "'age'"]
    scale = np.array([0.5, 0.5, NO_EFFECT, NO_EFFECT, 2.0])
    sentence = Scaling(np.zeros(5), scale, np.zeros(1), np.ones(1)).describe_constants(names)
    assert sentence is not None
    assert sentence.startswith("'unit' has only one value in all training rows.")
    assert Scaling(np.zeros(5), np.ones(5), np.zeros(1), np.ones(1)).describe_constants(names) is None


def sum_securely(*parts: Split) -> Scaling:
    """Pool columns through the fixed-point numbers of secure sums."""
    numbers = [encode(measure_columns(Site("a", part)).numbers()) for part in parts]
    return Scaling.from_total(decode(sum(numbers)), 1)


@pytest.mark.parametrize("value", [0.3, 1 / 3, 333333.33, 12345.678, 0.0])
def test_constant_inputs_have_no_effect_after_secure_sums(value):
    rows = np.random.default_rng(0).standard_normal((50, 1))
    parts = [Split(np.full((n, 1), value), rows[:n]) for n in (7, 50, 23)]
    found = sum_securely(*parts)
    assert found.input_scale == NO_EFFECT
    assert found.encode_inputs(np.array([[value + 5]])).astype(np.float32) == 0
    np.testing.assert_allclose(found.input_mean, value, rtol=1e-15)


@pytest.mark.parametrize(("size", "error"), [(1e-9, 1e-3), (1e-8, 1e-5), (1e-6, 1e-9)])
def test_small_columns_keep_their_scale_in_secure_sums(size, error):
    rows = size * np.random.default_rng(0).standard_normal((90, 2))
    parts = [Split(rows[start : start + 30, :1], rows[start : start + 30, 1:]) for start in (0, 30, 60)]
    found = sum_securely(*parts)
    np.testing.assert_allclose(found.input_scale, rows[:, 0].std(), rtol=error)
    np.testing.assert_allclose(found.target_scale, rows[:, 1].std(), rtol=error)


@settings(max_examples=25)
@given(
    arrays(np.float64, (12, 3), elements=st.floats(-1e3, 1e3).map(lambda x: round(x, 3))), st.integers(2, 10)
)
def test_scaling_does_not_depend_on_who_has_the_rows(rows, cut):
    rows[:, 0] = 0.1
    targets = rows[:, 2:]
    parts = [Split(rows[:cut, :2], targets[:cut]), Split(rows[cut:, :2], targets[cut:])]
    moments = [measure_columns(Site(str(m), part)) for m, part in enumerate(parts)]
    pooled = Scaling.pool(moments, 2)
    total = [sum(numbers) for numbers in zip(*(each.numbers() for each in moments), strict=True)]
    summed = Scaling.from_total(total, 2)
    assert pooled.input_scale[0] == NO_EFFECT
    for name, value in pooled.to_arrays().items():
        np.testing.assert_allclose(summed.to_arrays()[name], value, rtol=1e-9, atol=1e-9, err_msg=name)
    encoded = pooled.encode_inputs(rows[:, :2])
    assert np.abs(encoded).max() <= CLIP
    np.testing.assert_allclose(encoded[:, 1].mean(), 0, atol=1e-9)
    np.testing.assert_allclose(pooled.decode_targets(targets * 0), targets.mean(), rtol=1e-9, atol=1e-9)
