"""Local, full-model, moment-head and blended runs on Flower match the stacked trainer."""

import json
import logging
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from fedgram._util.errors import InputError
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.display.run_sentences import describe_run, state
from fedgram.display.run_tables import list_document
from fedgram.flower import Site, client_app, predict_at_site
from fedgram.flower.client import ANSWERS
from fedgram.flower.client_state import ClientStore
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import (
    ALONE_ERRORS,
    BLEND,
    BLENDS,
    EVALUATE,
    FINISH,
    TRAIN,
    GridTransport,
    Payload,
)
from fedgram.flower.secure_server import run_secure_server
from fedgram.flower.server import run_server
from fedgram.nets.model import draw
from fedgram.runs import Runs
from fedgram.runs.audit import read_audit
from fedgram.runs.joining import JOINING
from fedgram.runs.measure import measure
from fedgram.runs.procedure import Procedure
from fedgram.runs.tensor_files import write_arrays
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.blend import UNLIMITED
from fedgram.theory.moment_head import FeatureSums
from fedgram.training import train
from fedgram.training.inference import predict_rows
from tests.helpers.command import fedgram
from tests.helpers.flower_grid import MemoryGrid

ROWS, TARGETS = {"coast": 40, "ridge": 30}, 2
SETTINGS = {"rounds": 3, "epochs": 1, "batch": 16, "features": 5, "precision": "fp64"}
AUTO = "full-model+moment-head+site-effects+blended"
EVERY_OTHER = "full-model+moment-head=2+site-effects+blended"
QUICK = ("local", EVERY_OTHER)
SLOW = (
    "full-model",
    "full-model+corrected",
    "full-model+private",
    "full-model+moment-head",
    "full-model+moment-head=2+site-effects",
    AUTO,
    "centered+blended",
    "proximal+blended",
    "solved+corrected+offset",
)

HEAD = {"head", "bias", "own_bias", "centered_bias"}
BACKBONE = {"layer_weight", "layer_bias", "backbone"}
MEASURED = {
    "own_mean", "own_covariance", "local_objective", "clipped", "loss", "diverged", "objective", "train_mse",
    "test_mse",
}  # fmt: skip
SUMS = {"training_sums", "validation_sums"}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh())


@cache
def problem() -> Problem:
    rng = np.random.default_rng(0)

    def rows(count: int, shift: float) -> Split:
        inputs = rng.standard_normal((count, 3)).astype(np.float32)
        noise = 0.3 * rng.standard_normal((count, TARGETS))
        return Split(inputs, np.tanh(inputs[:, :2]) + shift * (1 + inputs[:, 2:]) + noise)

    parts = [
        {name: rows(count(each), 0.5 * m) for m, (name, each) in enumerate(ROWS.items())}
        for count in (lambda n: n, lambda n: 8, lambda n: n // 2)
    ]
    train_rows, test, validation = parts
    return Problem("two sites", "GENERATED", train_rows, test, validation=validation)


class RecordingGrid(MemoryGrid):
    """A grid that records the names of all arrays that leave a site."""

    def __init__(self, *given):
        super().__init__(*given)
        self.sent: set[str] = set()

    def _reply(self, message):
        reply = super()._reply(message)
        if reply is not None:
            self.sent |= Payload.from_records(reply.content).arrays.keys()
        return reply


def grid_of(folder, procedure: str, silent=None, change=lambda site: site, **others) -> RecordingGrid:
    def site(context) -> Site:
        name, data = str(context.node_config["site"]), problem()
        parts = data.train[name], data.test[name]
        own = Site(name, *parts, backbone=network, folder=folder / "private", device="cpu",
                   validation=data.validation[name])  # fmt: skip
        return change(own)

    config = {"name": "two sites", "kind": "GENERATED", "clients": 2, "procedure": procedure,
              "reply-timeout": 1e-3, "out": str(folder / "server")} | SETTINGS | others  # fmt: skip
    nodes = {number: {"site": name} for number, name in enumerate(ROWS, start=11)}
    return RecordingGrid(client_app(site), config, nodes, silent)


def serve(grid: MemoryGrid, server=run_server):
    settings = FederationConfig.from_run_config(grid.config)
    return server(GridTransport(grid, settings.reply_timeout), settings)


def train_stack(folder, *procedures):
    return train(problem(), network, procedures, [0], TrainConfig(**SETTINGS), folder=folder, device="cpu")


@pytest.fixture(scope="module")
def references(tmp_path_factory) -> dict:
    """Train the QUICK procedures with the stacked trainer."""
    return {run.setup.procedure: run for run in train_stack(tmp_path_factory.mktemp("stack"), *QUICK)}


def assert_same_run(ours, theirs, tolerance: float = 1e-10) -> None:
    """Compare all rounds and choices; heads of sites that train alone do not leave them."""
    is_local = ours.setup.procedure.local
    private = {"head", "bias", "returned_heads", "returned_biases"} if is_local else set()
    for one, other in zip(ours.rounds(), theirs.rounds(), strict=True):
        for name in vars(one).keys() - private:
            np.testing.assert_allclose(
                vars(one)[name], vars(other)[name], rtol=tolerance, atol=tolerance, err_msg=name
            )
    assert list(ours.account.chosen) == list(theirs.account.chosen)
    assert ours.account.chosen.get("alone") == theirs.account.chosen.get("alone")
    for name in theirs.account.chosen.keys() - {"alone"}:
        both = (np.array(each.account.chosen[name], float) for each in (ours, theirs))
        np.testing.assert_allclose(*both, rtol=tolerance, err_msg=name)


def assert_same_predictions(folder, reference) -> None:
    inputs = {name: split.inputs for name, split in problem().test.items()}
    for name, expected in predict_rows(reference, inputs, network).items():
        (path,) = (folder / "private" / name).rglob("model.safetensors")
        predicted = predict_at_site(path, inputs[name], network)
        np.testing.assert_allclose(predicted, expected, rtol=1e-9, atol=1e-9)


def allowed_arrays(procedure: Procedure) -> set[str]:
    """Return the names of all arrays that may leave a site."""
    names = MEASURED if procedure.local else MEASURED | HEAD
    if procedure.full_model:
        names = names | BACKBONE
    if not procedure.local:
        names = names | (SUMS if procedure.moment_head else {"validation_error"})
    if procedure.local or procedure.blended:
        names = names | {"local_error"}
    return names | {*BLENDS, ALONE_ERRORS, "local_share", *JOINING} if procedure.blended else names


def assert_federation_matches(folder, reference) -> None:
    procedure = reference.setup.procedure
    grid = grid_of(folder, procedure.name)
    run = serve(grid)
    assert_same_run(run, reference)
    assert_same_predictions(folder, reference)
    assert grid.sent == allowed_arrays(procedure)
    np.testing.assert_allclose(measure(run).objective_gap, measure(reference).objective_gap, rtol=1e-8)
    assert json.dumps(measure(run).document(), allow_nan=False)


@pytest.mark.parametrize("procedure", QUICK)
def test_federation_matches_stacked_trainer(tmp_path, references, procedure):
    assert_federation_matches(tmp_path, references[Procedure.parse(procedure)])


def test_limits_of_networks_trained_alone_are_the_same_everywhere(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgram.theory.blend.MARGIN", -0.3)  # so that many predictions reach them
    (reference,) = train_stack(tmp_path / "stack", "full-model+blended")
    assert_federation_matches(tmp_path, reference)
    test = problem().test
    found = predict_rows(reference, {name: split.inputs for name, split in test.items()}, network)
    errors = [np.mean((found[name] - split.targets) ** 2) for name, split in test.items()]
    np.testing.assert_allclose(errors, reference.account.chosen["test_mse"], rtol=1e-8)
    model = type(reference).model
    wide = {"local_limits": np.tile(UNLIMITED, (len(test), 1, 1))}
    monkeypatch.setattr(type(reference), "model", lambda run: model(run) | wide)
    unlimited = predict_rows(reference, {name: split.inputs for name, split in test.items()}, network)
    assert all(not np.allclose(unlimited[name], found[name]) for name in test)


@pytest.mark.slow
@pytest.mark.parametrize("procedure", SLOW)
def test_other_procedures_match_stacked_trainer(tmp_path, procedure):
    (reference,) = train_stack(tmp_path / "stack", procedure)
    assert_federation_matches(tmp_path, reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("procedure", "moment"),
    [
        ("local", (EVALUATE, 2)),
        ("local", (FINISH, 1)),
        *((EVERY_OTHER, (kind, n)) for kind, n in ((TRAIN, 2), (EVALUATE, 3), (BLEND, 1), (FINISH, 1))),
    ],
)
def test_killed_server_reaches_the_same_result(tmp_path, procedure, moment):
    class Stopped(Exception):
        pass

    def stop(site, kind, n):
        if (site, kind, n) == ("ridge", *moment):
            raise Stopped
        return False

    whole = serve(grid_of(tmp_path / "whole", procedure))
    with pytest.raises(Stopped):
        serve(grid_of(tmp_path, procedure, stop))
    grid = grid_of(tmp_path, procedure)
    assert_same_run(serve(grid), whole, tolerance=0)
    before = len(grid.asked)
    serve(grid)  # nothing is left to do
    assert len(grid.asked) == before


def test_run_is_not_complete_before_models_are_chosen(tmp_path):
    with pytest.raises(InputError, match=r"No client replied to 'evaluate\.finish'"):
        serve(grid_of(tmp_path, "local", lambda site, kind, n: kind == FINISH))
    (run,) = Runs(tmp_path / "server")
    assert run.awaits_choice
    assert state(run) == "3 rounds, models not chosen yet"
    (listed,) = list_document([run])["runs"]
    assert not listed["complete"]
    run = serve(grid_of(tmp_path, "local"))
    assert not run.awaits_choice
    assert state(run) == "complete"


def test_a_stored_run_shows_what_joining_changes(references):
    run = references[Procedure.parse(EVERY_OTHER)]
    code, out, _ = fedgram("runs", "show", str(run.folder))
    assert code == 0
    joining = measure(run).joining
    assert " ".join(joining.describe().split()) in " ".join(out.split())
    assert all(f" {site} " in out for site in joining.sites)
    code, out, _ = fedgram("runs", "show", str(run.folder), "--json")
    assert json.loads(out)["runs"][0]["joining"] == joining.document()


@pytest.mark.slow
def test_absent_site_is_left_out_of_full_model_averages(tmp_path):
    missed = (("ridge", "train", 2), ("ridge", "evaluate.finish", 1))
    run = serve(grid_of(tmp_path, AUTO, lambda *asked: asked in missed))
    second = run.rounds()[1]
    assert np.isnan(second.returned_heads[1]).all()
    np.testing.assert_array_equal(second.head, second.returned_heads[0])
    chosen = run.account.chosen
    assert (chosen["test_mse"][1], chosen["local_share"][1]) == (None, None)
    assert chosen["test_mse"][0] > 0
    assert [each["test_mse"] is None for each in measure(run).joining.document()] == [False, True]


def test_the_choice_is_stated_in_words_and_with_the_sites_that_it_covers(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    missed = (("ridge", FINISH, 1),)
    run = serve(grid_of(tmp_path, "full-model+moment-head", lambda *asked: asked in missed, rounds=1))
    ridge, mse = run.account.chosen["ridge"], run.account.chosen["test_mse"][0]
    sentence = f"Chosen on validation rows: round 1, ridge {ridge:.3g}, intercept off, deviation off."
    assert sentence in caplog.messages
    assert "reveal rows" not in caplog.text  # every site has more rows than features
    shown = (
        f"Validation rows chose the kept models: test MSE {mse:.3g} over 1 of 2 sites, unlike in the rounds."
    )
    assert shown in describe_run(run, measure(run))
    account = replace(run.account, chosen={**run.account.chosen, "test_mse": [mse, mse]})
    assert f"test MSE {mse:.3g}, unlike" in " ".join(
        describe_run(replace(run, account=account), measure(run))
    )


def test_sums_over_few_rows_are_warned_of(tmp_path, caplog):
    def keep_few(site):
        few = replace(site, train=site.train.take(slice(5)))  # the backbone has 6 outputs
        return few if site.name == "ridge" else site

    def is_silent(site, kind, number):
        return kind == TRAIN  # the warning comes before the first round

    with pytest.raises(InputError, match="No client replied in round 1"):
        serve(grid_of(tmp_path, "full-model+moment-head", is_silent, keep_few))
    assert (
        "Fewer training or validation rows than features (6) at 'ridge': the sums that these clients send "
        "can reveal rows to the server. Set secure = true in the run config."
    ) in caplog.messages


def test_a_secure_choice_is_stated_in_words(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    serve(grid_of(tmp_path, "full-model+moment-head", rounds=1, secure=True), run_secure_server)
    assert any(each.endswith("intercept off, deviation off.") for each in caplog.messages)


def tamper(monkeypatch, kind, name, change):
    """Let site 'ridge' change an array before it signs its reply."""
    honest = ANSWERS[kind]

    def dishonest(self, request):
        reply = honest(self, request)
        if self.site.name != "ridge" or name not in reply.arrays:
            return reply
        return replace(reply, arrays={**reply.arrays, name: change(np.asarray(reply.arrays[name]))})

    monkeypatch.setitem(ANSWERS, kind, dishonest)


def add_row(triangle):
    return triangle + np.eye(1, len(triangle))[0]


def negate_features(triangle):
    sums = FeatureSums.from_triangle(triangle, TARGETS)
    return replace(sums, features_features=-sums.features_features).to_triangle()


def double_targets(triangle):
    sums = FeatureSums.from_triangle(triangle, TARGETS)
    return replace(sums, targets_targets=2 * sums.targets_targets).to_triangle()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "change", "reason"),
    [
        (TRAIN, "layer_bias", lambda x: x[:-1], "'layer_bias' is not a float64 array of shape (5,)"),
        (TRAIN, "local_error", lambda x: -1 - x, "validation error is not a sum of squares"),
        (EVALUATE, "training_sums", add_row, "its sums are over 31 rows, not 30"),
        (EVALUATE, "training_sums", negate_features, "its sums are not those of any rows"),
        (EVALUATE, "training_sums", double_targets, "other target moments than its introduction"),
        (EVALUATE, "validation_sums", lambda x: np.nan * x, "'validation_sums' has a value that is not"),
        (BLEND, "errors", lambda x: -1 - x, "validation error is not a sum of squares"),
        (BLEND, "difference", lambda x: -1 - x, "'difference' is not a sum of squares"),
        (BLEND, "agreement", lambda x: x[:-1], "'agreement' is not a float64 array of shape (8,)"),
        (BLEND, "alone_errors", lambda x: -1 - x, "'alone_errors' are not sums of squares"),
        (FINISH, "local_share", lambda x: x + 2, "'local_share' is not between 0 and 1"),
        (FINISH, "test_mse", lambda x: x + np.inf, "'test_mse' has a value that is not finite"),
        (FINISH, "alone_mse", lambda x: -1 - x, "'alone_mse' is negative"),
        (FINISH, "change_low", lambda x: x - 3, "'change_low' is below -1"),
    ],
)
def test_false_replies_do_not_count(tmp_path, monkeypatch, kind, name, change, reason):
    tamper(monkeypatch, kind, name, change)
    run = serve(grid_of(tmp_path, AUTO, rounds=1))
    refusals = read_audit(run.folder / "audit.jsonl").refusals
    assert {each["client"] for each in refusals} <= {"coast", "ridge"}
    assert any(reason in each["reason"] for each in refusals if each["client"] == "ridge")


def test_procedure_that_needs_validation_rows_is_refused_before_training(tmp_path):
    grid = grid_of(
        tmp_path, AUTO, change=lambda site: replace(site, validation=None), **{"validation-fraction": 0.0}
    )
    with pytest.raises(
        InputError, match=r"Procedure 'full-model.*blended' chooses strengths on validation rows, but no"
    ):
        serve(grid)
    assert {kind for _, kind in grid.asked} == {"query"}
    assert not list(Runs(tmp_path / "server"))


def test_validation_rows_are_drawn_at_the_site():
    rows = problem().train["coast"]
    site = Site("coast", rows).hold_out_validation(0.25)
    assert (len(site.train), len(site.validation)) == (30, 10)
    together = np.concatenate([site.train.targets, site.validation.targets])
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(rows.targets, axis=0))
    assert site.hold_out_validation(0.5) is site
    assert len(Site("coast", rows.take(slice(4))).hold_out_validation(0.9).train) == 3


def test_a_site_draws_the_validation_rows_that_a_problem_of_all_sites_draws():
    together = replace(problem(), validation={})
    divided = together.hold_out_validation(0.25)
    for name, rows in together.train.items():
        site = Site(name, rows).hold_out_validation(0.25)
        np.testing.assert_array_equal(site.train.inputs, divided.train[name].inputs)
        np.testing.assert_array_equal(site.validation.targets, divided.validation[name].targets)
    others = {"first": together.train["coast"], **together.train}  # moves the sites' places
    for name, split in replace(together, train=others, test={}).hold_out_validation(0.25).validation.items():
        if name in divided.validation:
            np.testing.assert_array_equal(split.targets, divided.validation[name].targets)


class Square(nn.Module):
    """A backbone that overflows for rows of 3e38."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 6)

    def forward(self, x):
        return self.layer(x) ** 2


def test_a_network_that_overflows_on_a_validation_row_has_diverged(tmp_path):
    coast, ridge = problem().validation.values()
    extreme = {"coast": Split(np.full_like(coast.inputs, 3e38), coast.targets), "ridge": ridge}
    settings, reason = SETTINGS | {"precision": "fp32"}, "diverged in round 1"
    together = replace(problem(), validation=extreme)
    config = TrainConfig(**settings)
    (run,) = train(together, Square, ["local"], [0], config, folder=tmp_path / "stack", device="cpu")
    assert run.account.stopped == f"client 'coast' {reason}"

    def change(site):
        return replace(site, backbone=Square, validation=extreme[site.name])

    serve(grid_of(tmp_path, "local", change=change, precision="fp32"))
    (run,) = Runs(tmp_path / "server")
    assert read_audit(run.folder / "audit.jsonl").suspended == {"coast": f"its network {reason}"}
    assert np.isfinite(run.account.chosen["test_mse"][1])


def test_store_keeps_the_best_rounds(tmp_path):
    store = ClientStore(tmp_path)
    for number, error in enumerate((np.inf, 1.0, 2.0, np.inf, 5.0), start=1):  # infinite after divergence
        store.write_round(number, "request", {"x": np.zeros(1)}, error, keep=(1,))
    assert store.find_best_round() == 2
    assert sorted(path.stem for path in tmp_path.iterdir()) == [f"round-0{n}" for n in (1, 2, 4, 5)]


@pytest.fixture
def model_file(tmp_path):
    """Write the model of a site that was trained on columns 'a', 'b' and 'c'."""
    model = draw(network, torch.zeros(2, 3), 5, 2, 0, None)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    write_arrays(tmp_path / "model.safetensors", state, {"inputs": json.dumps(["a", "b", "c"])})
    write_arrays(tmp_path / "without names" / "model.safetensors", state)
    return tmp_path / "model.safetensors"


def test_other_backbone_does_not_predict_at_a_site(model_file):
    with pytest.raises(InputError, match="does not match the backbone and inputs"):
        predict_at_site(model_file, np.ones((4, 3)), "resmlp-small")


def test_columns_of_data_frames_are_chosen_by_name_at_a_site(model_file):
    rows = np.random.default_rng(0).standard_normal((6, 3))
    expected = predict_at_site(model_file, rows, network)
    frame = pd.DataFrame(rows, columns=["a", "b", "c"]).assign(y=0.0)
    np.testing.assert_array_equal(predict_at_site(model_file, frame[["c", "y", "a", "b"]], network), expected)
    np.testing.assert_array_equal(predict_at_site(model_file, torch.tensor(rows), network), expected)
    table = pa.table({name: frame[name] for name in "cba"})
    np.testing.assert_array_equal(predict_at_site(model_file, table, network), expected)
    half = torch.tensor(rows, dtype=torch.bfloat16)
    np.testing.assert_array_equal(
        predict_at_site(model_file, half, network), predict_at_site(model_file, half.double(), network)
    )
    with pytest.raises(InputError, match=r"no column 'b'. Pass the columns 'a', 'b', 'c'\."):
        predict_at_site(model_file, frame[["a", "c"]], network)


def test_a_model_without_input_names_warns_of_data_frames(model_file):
    path, rows = model_file.parent / "without names", np.eye(3)
    expected = predict_at_site(model_file, rows, network)
    np.testing.assert_array_equal(predict_at_site(path, rows, network), expected)
    with pytest.warns(UserWarning, match="has no input names, so the order of columns is not checked"):
        found = predict_at_site(path, pd.DataFrame(rows, columns=["a", "b", "c"]), network)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[1.0, 2.0, np.nan]], "Column 'c' has 1 missing value in 1 row"),
        (np.ma.masked_equal([[1.0, 2.0, 3.0]], 2.0), "Column 'b' has 1 missing value in 1 row"),
        ([[1.0, np.inf, 3.0]], "Column 'b' has 1 value too large to compute with, first inf"),
        ([["1", "x", "2"]], "Column 'a' is not numeric"),
        ([[1.0, 2.0], [1.0]], "Rows of the inputs have different lengths"),
        (np.full((2, 4, 4, 1), np.nan), "Row 1 of the inputs has a value that is missing or not finite"),
        (np.ma.masked_equal(np.zeros((2, 4, 4, 1)), 0.0), "Row 1 of the inputs has a value that is missing"),
        (np.ones((2, 2)), "The inputs have 2 columns instead of 3: 'a', 'b', 'c'"),
        (pd.DataFrame(np.ones((2, 3)), columns=[0, "a", "b"]), "The column name 0 is not text"),
        (pd.DataFrame(np.ones((2, 4)), columns=["a", "b", "a", "c"]), "The column 'a' occurs twice"),
        (None, "The inputs are not numbers: object"),
    ],
)
def test_inputs_that_are_not_finite_numbers_are_refused_at_a_site(model_file, inputs, message):
    with pytest.raises(InputError, match=message):
        predict_at_site(model_file, inputs, network)


def test_a_prediction_that_overflows_is_refused_at_a_site(tmp_path):
    state = draw(Square, torch.zeros(2, 3), 5, 2, 0, None).state_dict()
    write_arrays(tmp_path / "model.safetensors", {name: value.numpy() for name, value in state.items()})
    with pytest.raises(InputError, match=r"row 2 is not finite: its inputs are too large for the network"):
        predict_at_site(tmp_path, np.array([[1.0] * 3, [3e38] * 3]), Square)


def test_a_site_predicts_rows_in_parts(model_file, monkeypatch):
    rows = np.random.default_rng(0).standard_normal((9, 3))
    expected = predict_at_site(model_file, rows, network)
    monkeypatch.setattr("fedgram.nets.stored_model.ROWS_AT_ONCE", 4)
    np.testing.assert_allclose(predict_at_site(model_file, rows, network), expected, rtol=1e-5, atol=1e-6)


def test_the_folder_of_a_model_predicts_like_its_file(model_file, tmp_path):
    expected = predict_at_site(model_file, np.eye(3), network)
    np.testing.assert_array_equal(predict_at_site(str(tmp_path), np.eye(3), network), expected)
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "other", tmp_path / "empty"):
        with pytest.raises(InputError, match=r"^No model file at '.*'\. Pass the site's private folder"):
            predict_at_site(path, np.eye(3), network)
    model_file.write_bytes(model_file.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"Restore it from a backup, or train again\.$"):
        predict_at_site(model_file, np.eye(3), network)
