"""The Flower federation matches the stacked trainer, with absent clients and restarted servers too."""

import io
import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from torch import nn

from fedgram import Moments, Penalty, predict
from fedgram._util.errors import InputError
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.data.tables.read_rows import TableSpec
from fedgram.federation.aggregation import geometric_median
from fedgram.federation.clients import Clients
from fedgram.flower import Site, client_app, predict_at_site, server_app
from fedgram.flower.client import Client
from fedgram.flower.client_state import folder_name
from fedgram.flower.config import AggregationConfig, FederationConfig
from fedgram.flower.initial_head import draw_initial_head
from fedgram.flower.introduction import ClientInfo
from fedgram.flower.messages import HEAD, GridTransport, Payload
from fedgram.flower.roster import Roster
from fedgram.flower.server import ALREADY_FINISHED, run_server
from fedgram.flower.server_state import ServerState
from fedgram.nets.model import draw_example
from fedgram.runs import Runs
from fedgram.runs.audit import AuditLog
from fedgram.runs.compare import compare_runs
from fedgram.runs.measure import measure
from fedgram.runs.procedure import BIAS_RULES, Procedure
from fedgram.runs.tensor_files import read_arrays
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.psd import closest_factor
from fedgram.training import train
from tests.helpers.command import fedgram
from tests.helpers.federations import HEAD_SHARING, SETTINGS, SITES, read_standardized
from tests.helpers.flower_grid import MemoryGrid

ROWS = {"coast": 30, "ridge": 24, "valley": 18}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh())


def problem() -> Problem:
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((rows + 8, 3)).astype(np.float32) for name, rows in ROWS.items()}
    targets = {name: np.tanh(x[:, :2]) + 0.3 * m for m, (name, x) in enumerate(inputs.items())}
    train = {name: Split(inputs[name][8:], targets[name][8:]) for name in SITES}
    test = {name: Split(inputs[name][:8], targets[name][:8]) for name in SITES}
    return Problem("three sites", "GENERATED", train, test)


def config(folder: Path, procedure: str = "proximal+corrected", **others) -> dict:
    settings = {
        "name": "three sites",
        "kind": "GENERATED",
        "clients": 3,
        "procedure": procedure,
        "backbone": "small",
        "reply-timeout": 1e-3,
    }
    return settings | SETTINGS | {"out": str(folder / "server")} | others


def app_of(folder: Path, **changes):
    """Build a client app for the problem's clients; `changes` maps a site name to a function of its site."""
    rows = problem()

    def site(context: Context) -> Site:
        name = str(context.node_config["site"])
        unchanged = Site(
            name, rows.train[name], rows.test[name], backbone=network, folder=folder / "private", device="cpu"
        )
        return changes.get(name, lambda site: site)(unchanged)

    return client_app(site)


def serve(grid: MemoryGrid) -> None:
    settings = FederationConfig.from_run_config(grid.config)
    run_server(GridTransport(grid, settings.reply_timeout), settings)


@pytest.fixture
def server_log(caplog):
    """Return a function that lists the server's log messages."""
    caplog.set_level("INFO", logger="flwr")
    return lambda: [each.getMessage() for each in caplog.records if each.module in ("server", "roster")]


def grid_of(
    folder: Path, procedure: str = "proximal+corrected", silent=None, app=None, **others
) -> MemoryGrid:
    nodes = {number: {"site": name} for number, name in enumerate(SITES, start=11)}
    return MemoryGrid(app or app_of(folder), config(folder, procedure, **others), nodes, silent)


def stored(folder: Path):
    (run,) = Runs(folder / "server").require()
    return run


@pytest.fixture(scope="module")
def run_of(tmp_path_factory) -> Callable[[str], Path]:
    """Return a function from a procedure to the folder of its complete run; tests must not change it."""

    @cache
    def run(procedure: str) -> Path:
        folder = tmp_path_factory.mktemp("run")
        serve(grid_of(folder, procedure))
        return folder

    return run


@pytest.fixture(scope="module")
def complete(run_of) -> Path:
    """Return the folder of a complete run with the default config; tests must not change it."""
    return run_of("proximal+corrected")


@pytest.fixture(scope="module")
def references(tmp_path_factory) -> dict:
    """Train all HEAD_SHARING with the stacked trainer."""
    folder = tmp_path_factory.mktemp("stack")
    settings = TrainConfig(**SETTINGS)
    runs = train(problem(), network, HEAD_SHARING, [0], settings, folder=folder, device="cpu")
    return {run.setup.procedure.name: run for run in runs}


def assert_same_rounds(ours, theirs, tolerance=1e-10):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for name, value in vars(one).items():
            np.testing.assert_allclose(value, vars(other)[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("procedure", HEAD_SHARING)
def test_federation_matches_stacked_trainer(run_of, references, procedure):
    run, reference = stored(run_of(procedure)), references[Procedure.parse(procedure).name]
    assert run.complete
    assert run.setup.procedure == reference.setup.procedure
    assert run.setup.data.test_rows == (8, 8, 8)
    assert run.setup.data.kind == "GENERATED"
    np.testing.assert_array_equal(run.initial[0], reference.initial[0])
    assert_same_rounds(run.rounds(), reference.rounds())
    np.testing.assert_allclose(measure(run).target_error, measure(reference).target_error, rtol=1e-8)


def test_similar_site_names_get_distinct_folders():
    names = ["site a", "site-a", "site_a", "?", "...", "a/b", "a-b"]
    folders = [folder_name(name) for name in names]
    assert len(set(folders)) == len(names)
    assert folder_name("site-a") == "site-a"
    assert all(Path(folder).name == folder for folder in folders)


def test_second_server_for_the_same_run_is_rejected(tmp_path):
    attempts = []

    def start_second_server(site, kind, n):
        if (site, kind, n) == ("valley", "train", 1):
            with pytest.raises(InputError, match="Another process writes to"):
                serve(grid_of(tmp_path, rounds=1))
            attempts.append(kind)
        return False

    serve(grid_of(tmp_path, silent=start_second_server, rounds=1))
    assert attempts
    assert stored(tmp_path).complete


def test_rows_and_backbone_weights_never_leave_a_client(tmp_path):
    grid, sent = grid_of(tmp_path, "solved+corrected", rounds=1), []
    app = grid.app

    def record(message, context):
        reply = app(message, context)
        sent.append(Payload.from_records(reply.content).arrays)
        return reply

    grid.app = record
    serve(grid)
    names = {name for arrays in sent for name in arrays}
    assert names == {
        "own_mean", "own_covariance", "head", "bias", "own_bias", "centered_bias", "local_objective",
        "clipped", "loss", "diverged", "objective", "train_mse", "test_mse", "validation_error",
    }  # fmt: skip
    assert max(array.size for arrays in sent for array in arrays.values()) == 2 * SETTINGS["features"]


def test_absent_client_counts_with_its_last_return(tmp_path):
    serve(grid_of(tmp_path, silent=lambda site, kind, n: (site, kind, n) == ("ridge", "train", 2)))
    first, second, third = stored(tmp_path).rounds()
    assert np.isnan(second.local_objective[1])
    assert np.isnan(second.train_mse[1]).all()
    assert not np.isnan(third.train_mse).any()
    np.testing.assert_array_equal(second.returned_heads[1], first.returned_heads[1])
    weights = np.array([30, 24, 18]) / 72
    np.testing.assert_allclose(second.head, np.tensordot(weights, second.returned_heads, 1), rtol=1e-12)
    for site, rounds in (("ridge", "13"), ("coast", "23")):  # ridge resumed from round 1
        kept = sorted(path.name for path in (tmp_path / "private" / site).rglob("round-*"))
        assert kept == [f"round-0{number}.safetensors" for number in rounds]
    measured = measure(stored(tmp_path))
    np.testing.assert_allclose(
        measured.train_mse[1], (30 * second.train_mse[0] + 18 * second.train_mse[2]) / 48
    )
    assert np.isfinite(measured.median_objective_gaps).all()
    assert json.dumps(measured.document()["objective_gap"], allow_nan=False).count("null") == 1


def test_log_names_absent_clients(tmp_path, server_log):
    missed = (("ridge", "train", 2), ("coast", "evaluate", 2))
    serve(grid_of(tmp_path, silent=lambda *request: request in missed, rounds=2))
    assert "progress of local training in round 1" in server_log()[1]
    assert server_log()[2:4] == [
        "Client 'coast' did not evaluate round 2.",
        "Client 'ridge' did not reply in round 2; using its last head.",
    ]
    assert server_log()[4].startswith("Round 2 of 2: 2 of 3 clients replied; relative distance of the head's")
    assert np.isnan(stored(tmp_path).rounds()[1].test_mse).all(axis=1).tolist() == [True, True, False]


def test_client_without_a_return_is_not_averaged(tmp_path, server_log):
    serve(grid_of(tmp_path, silent=lambda site, kind, n: (site, kind, n) == ("coast", "train", 1), rounds=2))
    first, second = stored(tmp_path).rounds()
    assert server_log()[0] == "Client 'coast' did not reply in round 1; averaging without it."
    assert np.isnan(first.returned_heads[0]).all()
    np.testing.assert_allclose(first.head, (24 * first.returned_heads[1] + 18 * first.returned_heads[2]) / 42)
    assert np.isfinite(second.returned_heads).all()


def test_last_returns_keep_the_limit_at_the_barycenter():
    rng = np.random.default_rng(1)
    rows = [rng.standard_normal((60, 3)) @ rng.standard_normal((3, 3)) for _ in range(4)]
    prediction = predict(Moments.from_arrays(rows), Penalty(0.1, 0.1))
    names = prediction.moments.clients
    weights = dict(zip(names, prediction.moments.client_weights, strict=True))
    head, present, last = rng.standard_normal((3, 6)), rng.random((80, 4)) < 0.6, ServerState("id")
    renormalized = head
    for replied in present:
        for client, gram, has_reply in zip(names, prediction.grams, replied, strict=True):
            if has_reply:
                last.update(client, dict.fromkeys(HEAD, closest_factor(head, gram)))
        if last.arrays:
            head = last.average(weights, AggregationConfig())["head"]
        if replied.any():
            heads = np.stack([closest_factor(renormalized, gram) for gram in prediction.grams[replied]])
            own = prediction.moments.client_weights[replied]
            renormalized = np.tensordot(own / own.sum(), heads, 1)
    assert psd.relative_error(psd.gram(head), prediction.barycenter.gram) < 1e-12
    assert psd.relative_error(psd.gram(renormalized), prediction.barycenter.gram) > 1e-3


def test_restarted_server_reaches_the_same_result(tmp_path, complete, server_log):
    class Stopped(Exception):
        pass

    def stop(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 2):
            raise Stopped
        return False

    with pytest.raises(Stopped):
        serve(grid_of(tmp_path, silent=stop))
    assert stored(tmp_path).account.rounds == 1
    again, before = grid_of(tmp_path), len(server_log())
    serve(again)
    assert server_log()[before] == "Resuming after round 1 of 3."
    assert again.asked.count(("coast", "train")) == 2  # round 2, which it had stored, and round 3
    assert_same_rounds(stored(tmp_path).rounds(), stored(complete).rounds(), 0)
    before = len(server_log())
    serve(again)
    assert server_log()[before:] == [ALREADY_FINISHED]
    assert again.asked.count(("coast", "train")) == 2


def test_repeated_request_gets_the_stored_reply(tmp_path, monkeypatch):
    rows, settings = problem(), FederationConfig.from_run_config(config(tmp_path))
    site = Site("coast", rows.train["coast"], backbone=network, folder=tmp_path, device="cpu")
    client = Client(site, settings)
    pooled, (head, bias) = rows.moments.pooled, draw_initial_head(settings, 2)
    shared = {"head": head, "bias": bias, "mean": pooled.mean,
              "covariance": pooled.covariance, "within": pooled.within}  # fmt: skip
    request = Payload(shared, {"round": 1, "federation": "first"})
    first = client.train(request)
    monkeypatch.setattr(Client, "_train_round", None)
    again = Client(site, settings).train(request)  # a restarted node
    np.testing.assert_array_equal(first.arrays["head"], again.arrays["head"])
    for other in (
        replace(request, arrays={**shared, "head": 2 * shared["head"]}),
        replace(request, metadata={"round": 1, "federation": "second"}),
    ):
        with pytest.raises(TypeError):  # it trains
            client.train(other)


def test_a_site_without_a_gpu_refuses_half_precision(tmp_path):
    settings = FederationConfig.from_run_config(config(tmp_path, precision="fp16"))
    site = Site("coast", problem().train["coast"], folder=tmp_path, device="cpu")
    with pytest.raises(InputError, match=r"^fp16 needs a GPU\. Train with precision fp32 on a CPU\.$"):
        Client(site, settings)


def test_independent_start_rejects_a_module(tmp_path):
    settings = FederationConfig.from_run_config(config(tmp_path, "independent"))
    rows, private = problem().train["coast"], tmp_path / "private"
    site = Site("coast", rows, backbone=nn.Linear(3, 4), folder=private, device="cpu")
    with pytest.raises(InputError, match="Pass a function that returns a new module, or a name"):
        Client(site, settings).describe(Payload())
    assert not private.exists()


@pytest.mark.parametrize("listed", [(11, 13), (11, 12, 13)], ids=["old node gone", "still listed"])
def test_restarted_client_is_recognized_by_name(tmp_path, complete, listed):
    grid = grid_of(tmp_path)

    def restart_ridge(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 1):
            grid.configs = {**{node: grid.configs[node] for node in listed}, 99: {"site": "ridge"}}
        return False

    grid.silent = restart_ridge
    serve(grid)
    assert_same_rounds(stored(tmp_path).rounds(), stored(complete).rounds(), 0)


def delete_files_of_ridge(folder, moment):
    """Return a `silent` function that deletes ridge's files at the given request."""

    def silent(*request):
        if request == moment:
            shutil.rmtree(folder / "private" / "ridge")
        return False

    return silent


def test_client_that_lost_its_files_restarts_from_the_shared_head(tmp_path, complete, server_log):
    serve(grid_of(tmp_path, silent=delete_files_of_ridge(tmp_path, ("valley", "evaluate", 1))))
    assert [each for each in server_log() if "no stored network" in each] == [
        "Client 'ridge' has no stored network; it started from the initial one."
    ]
    ours, whole = stored(tmp_path).rounds()[1], stored(complete).rounds()[1]
    assert stored(tmp_path).complete
    same = [np.array_equal(*heads) for heads in zip(ours.returned_heads, whole.returned_heads, strict=True)]
    assert same == [True, False, True]


def test_late_client_is_ignored(tmp_path, server_log):
    grid = grid_of(tmp_path, clients=2, rounds=2)
    late = grid.configs.pop(13)

    def connect_valley(site, kind, n):
        if (site, kind, n) == ("coast", "evaluate", 1):
            grid.configs[13] = late
        return False

    grid.silent = connect_valley
    serve(grid)
    assert "Client 'valley' connected after the start; ignoring it." in server_log()
    assert stored(tmp_path).setup.data.clients == ("coast", "ridge")
    assert grid.asked.count(("valley", "query")) == 1
    assert ("valley", "train") not in grid.asked


def test_node_with_other_rows_does_not_replace_a_client(tmp_path, server_log):
    def replace_rows(site: Site) -> Site:
        return replace(site, train=problem().train["coast"])

    grid = grid_of(tmp_path, rounds=2)
    app, other = grid.app, app_of(tmp_path, ridge=replace_rows)

    def connect_impostor(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 1):
            grid.configs = {**grid.configs, 99: {"site": "ridge"}}
        return False

    grid.silent = connect_impostor
    grid.app = lambda message, context: (other if context.node_id == 99 else app)(message, context)
    serve(grid)
    assert any("site 'ridge': it changed its rows after the start" in each for each in server_log())
    assert np.isfinite([each.local_objective for each in stored(tmp_path).rounds()]).all()


def test_restarted_server_continues_with_connected_clients(tmp_path):
    with pytest.raises(InputError, match="No client replied in round 2"):
        serve(grid_of(tmp_path, silent=lambda site, kind, n: kind == "train" and n == 2))
    fewer = grid_of(tmp_path)
    del fewer.configs[12]
    serve(fewer)
    run = stored(tmp_path)
    assert run.setup.data.clients == SITES
    first, *later = run.rounds()
    for each in later:
        assert np.isnan(each.local_objective[1])
        np.testing.assert_array_equal(each.returned_heads[1], first.returned_heads[1])
    nobody = grid_of(tmp_path)
    nobody.configs = {}
    serve(nobody)  # the run is complete


def test_server_that_stopped_in_round_1_waits_for_all_clients(tmp_path):
    with pytest.raises(InputError, match="No client replied in round 1"):
        serve(grid_of(tmp_path, silent=lambda site, kind, n: kind == "train"))
    fewer = grid_of(tmp_path)
    del fewer.configs[12]
    with pytest.raises(InputError, match=r"Only 2 of 3 clients connected within 0\.001 s: coast, valley"):
        serve(fewer)


def test_server_that_stopped_before_its_first_write_starts_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ServerState, "write", None)
        with pytest.raises(TypeError):
            serve(grid_of(tmp_path, rounds=1))
    serve(grid_of(tmp_path, rounds=1))
    assert stored(tmp_path).complete


def test_clients_are_sorted_by_name(tmp_path, server_log):
    grid = grid_of(tmp_path, **{"lambda-h": 0.55, "lambda-w": 0.55, "rounds": 1})
    grid.configs = {number: {"site": name} for number, name in enumerate(reversed(SITES))}
    serve(grid)
    assert stored(tmp_path).setup.data.clients == SITES
    assert any("is not fully active" in each for each in server_log())


def test_other_settings_do_not_resume_a_run(complete):
    with pytest.raises(
        InputError, match=r"'.*' was made with other settings: settings.epochs is 2 there and 3 here"
    ):
        serve(grid_of(complete, epochs=3))


def test_extra_clients_are_rejected(tmp_path):
    words = "3 clients connected, but the run config has clients = 2: coast, ridge, valley"
    with pytest.raises(InputError, match=words):
        serve(grid_of(tmp_path, clients=2))


def test_a_client_that_leaves_before_the_start_does_not_take_part(tmp_path, monkeypatch):
    grid = grid_of(tmp_path, clients=2, rounds=1, **{"reply-timeout": 60.0})
    *others, last = grid.configs.items()
    grid.configs = dict([last])
    monkeypatch.setattr(
        "fedgram.flower.roster.time.sleep", lambda seconds: setattr(grid, "configs", dict(others))
    )
    serve(grid)
    assert stored(tmp_path).setup.data.clients == SITES[:2]


def test_aggregation_belongs_to_the_run(tmp_path, server_log):
    serve(grid_of(tmp_path, rounds=1, aggregation="geometric-median"))
    assert stored(tmp_path).setup.aggregation == "geometric-median"
    last = stored(tmp_path).rounds()[0]
    weights = np.array([30, 24, 18]) / 72
    np.testing.assert_allclose(last.head, geometric_median(last.returned_heads, weights), rtol=1e-12)
    assert "to the geometric median of 3 clients" in server_log()[0]
    (comparison,) = compare_runs([stored(tmp_path)])
    assert "it aggregates by 'geometric-median' instead of the mean" in comparison.warnings[0]
    run = stored(tmp_path)
    averaged = replace(run, setup=replace(run.setup, aggregation="mean"))
    assert [bool(each.limited) for each in compare_runs([run, averaged])] == [False, True]
    with pytest.raises(InputError, match="aggregation is geometric-median there and mean here"):
        serve(grid_of(tmp_path, rounds=1))


def test_two_federations_share_no_files_at_a_site(tmp_path, server_log):
    first, second = (grid_of(tmp_path, out=str(tmp_path / name), rounds=2) for name in ("one", "two"))
    first.silent = lambda site, kind, n: kind == "train" and n == 2
    with pytest.raises(InputError, match="No client replied"):
        serve(first)
    serve(second)
    first.silent = lambda site, kind, n: False
    serve(first)
    assert not any("no stored network" in each for each in server_log())
    (one,), (two,) = (Runs(tmp_path / name).require() for name in ("one", "two"))
    assert_same_rounds(one.rounds(), two.rounds(), 0)


@pytest.mark.parametrize(
    ("procedure", "rule"),
    [("solved+corrected+offset", "offset"), ("solved+centered", "shared"), ("aligned+private", "private")],
)
def test_site_stores_the_network_that_it_predicts_with(run_of, procedure, rule):
    folder = run_of(procedure)
    rows, last = problem(), stored(folder).rounds()[-1]
    model, _ = draw_example(network, rows.train["coast"], SETTINGS["features"])
    (path,) = (folder / "private" / "coast").rglob("model.safetensors")
    state = {name: torch.from_numpy(value) for name, value in read_arrays(path).items()}
    model.double().load_state_dict(state)
    with torch.no_grad():
        _, predicted = model.eval()(torch.from_numpy(rows.test["coast"].inputs).double())
    error = np.mean((predicted.numpy() - rows.test["coast"].targets) ** 2)
    np.testing.assert_allclose(error, last.test_mse[0, BIAS_RULES.index(rule)], rtol=1e-10)
    np.testing.assert_array_equal(model.head.weight.detach().numpy(), last.head)


def test_server_app_logs_rounds_and_errors(tmp_path, caplog):
    grid = grid_of(tmp_path, rounds=1)
    with caplog.at_level("INFO", logger="flwr"):
        server_app()(grid, Context(1, 0, {}, RecordDict(), grid.config))
        with pytest.raises(InputError) as raised:
            server_app()(grid, Context(1, 0, {}, RecordDict(), grid.config | {"procedure": "proximate"}))
        logging.getLogger("flwr").error("ServerApp failed.", exc_info=raised.value)  # as Flower does
    (error,) = [each for each in caplog.records if "Unknown procedure 'proximate'" in each.message]
    assert error.levelname == "ERROR"
    assert error.exc_info is None
    assert "Round 1 of 1: 3 of 3 clients replied; relative distance of the head's Gram" in caplog.text
    assert "Run finished. Show all rounds with 'fedgram runs show" in caplog.text


def test_other_version_is_rejected(tmp_path, monkeypatch):
    grid, app = grid_of(tmp_path), app_of(tmp_path)

    def older(message, context):
        monkeypatch.setattr("fedgram.flower.client.__version__", "0.0.1")
        reply = app(message, context)
        monkeypatch.undo()
        return reply

    grid.app = older
    with pytest.raises(InputError, match=r"node 11: it runs fedgram 0\.0\.1, but the server runs"):
        serve(grid)


def test_missing_clients_are_reported(tmp_path):
    grid = grid_of(tmp_path, clients=4)
    with pytest.raises(InputError, match=r"Only 3 of 4 clients connected within \S+ s: coast, ridge, valley"):
        serve(grid)


def test_round_without_replies_can_be_repeated(tmp_path):
    with pytest.raises(InputError, match="No client replied in round 2"):
        serve(grid_of(tmp_path, silent=lambda site, kind, n: kind == "train" and n == 2, rounds=2))
    assert stored(tmp_path).account.rounds == 1
    serve(grid_of(tmp_path, rounds=2))
    assert stored(tmp_path).complete


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "coast"}, "Two nodes have the client name 'coast'"),
        ({"targets": ("up", "down")}, "Clients 'coast' and 'ridge' differ in targets: .* and up, down"),
        ({"backbone": "resmlp"}, r"Clients 'coast' and 'ridge' differ in parameters: \d+ and \d+"),
        (
            {"backbone": nn.Sequential(nn.Linear(3, 8), nn.ReLU())},
            r"Clients 'coast' and 'ridge' differ in network: \w+ and \w+",
        ),
    ],
    ids=["name", "targets", "parameters", "network"],
)
def test_inconsistent_clients_are_rejected(tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        serve(grid_of(tmp_path, app=app_of(tmp_path, ridge=lambda site: replace(site, **change))))


@pytest.mark.parametrize("node", [12, 99], ids=["same node", "other node"])
def test_client_whose_rows_changed_counts_as_absent(tmp_path, node, server_log):
    grid, rows = grid_of(tmp_path), problem()

    def replace_rows(site: Site) -> Site:
        return replace(site, train=rows.train["coast"])

    def restart_ridge(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 1):
            grid.configs = {11: grid.configs[11], 13: grid.configs[13], node: {"site": "ridge"}}
            grid.app = app_of(tmp_path, ridge=replace_rows)
        return False

    grid.silent = restart_ridge
    serve(grid)
    assert any("it changed its rows after the start" in each for each in server_log())
    assert np.isnan([each.local_objective[1] for each in stored(tmp_path).rounds()]).tolist() == [0, 1, 1]


def test_changed_inputs_and_repeated_rows_are_refused(tmp_path, server_log):
    """Neither changes the target moments: ridge sets a column to zero, valley has every row twice."""
    grid = grid_of(tmp_path, rounds=2)

    def without_column(site: Site) -> Site:
        return replace(site, train=Split(site.train.inputs * [0, 1, 1], site.train.targets))

    def twice(site: Site) -> Site:
        return replace(site, train=Split(*(np.repeat(each, 2, axis=0) for each in vars(site.train).values())))

    def change_rows(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 1):
            grid.app = app_of(tmp_path, ridge=without_column, valley=twice)
        return False

    grid.silent = change_rows
    serve(grid)
    for name in ("ridge", "valley"):
        start = f"Refused the 'train' reply of client '{name}' in round 2: it changed its rows"
        assert any(each.startswith(start) for each in server_log())
    assert np.isnan(stored(tmp_path).rounds()[1].local_objective).tolist() == [False, True, True]


def test_client_error_reaches_the_server(tmp_path):
    def broken(site: Site) -> Site:
        return replace(site, train=Split(site.train.inputs * np.nan, site.train.targets))

    words = "Node 12 rejected the 'query' message: see the log of site 'ridge'"
    with pytest.raises(InputError, match=words):
        serve(grid_of(tmp_path, app=app_of(tmp_path, ridge=broken)))


def test_a_run_that_no_site_can_take_part_in_ends_at_once(tmp_path, monkeypatch):
    """Such as one whose run config names a column that no table has."""

    def broken(site: Site) -> Site:
        return replace(site, train=Split(site.train.inputs * np.nan, site.train.targets))

    monkeypatch.setattr("fedgram.flower.roster.time.sleep", lambda seconds: pytest.fail("it waits"))
    grid = grid_of(tmp_path, app=app_of(tmp_path, **dict.fromkeys(SITES, broken)))
    grid.config["reply-timeout"] = 3600.0
    with pytest.raises(InputError, match="None of 3 connected sites can take part"):
        serve(grid)


def test_node_without_config_is_named(tmp_path):
    grid = grid_of(tmp_path, app=client_app())
    grid.configs = {12: {}, 13: {}}
    words = "node 12 has no 'site' and 'table' in its node config. Set them with 'flower-supernode"
    with pytest.raises(InputError, match=f"Node 12 rejected the 'query' message: {words}"):
        serve(grid)


def test_client_exception_stays_in_its_log(tmp_path, caplog):
    def fail(site: Site) -> Site:
        raise ZeroDivisionError("of the value 42")

    words = "Node 12 rejected the 'query' message: see the log of site 'ridge'"
    with pytest.raises(InputError, match=words) as rejected:
        serve(grid_of(tmp_path, app=app_of(tmp_path, ridge=fail)))
    assert "42" not in rejected.value.message
    assert "of the value 42" in caplog.text


def test_failed_node_is_logged_and_counts_as_absent(tmp_path, caplog):
    grid = grid_of(tmp_path, rounds=2)
    app = grid.app

    def fail_to_train(message, context):
        if (context.node_id, message.metadata.message_type) == (12, "train"):
            return Message(Error(0, "it was killed"), reply_to=message)
        return app(message, context)

    grid.app = fail_to_train
    serve(grid)
    assert "A node failed: it was killed" in caplog.text
    missed = np.isnan([each.local_objective for each in stored(tmp_path).rounds()])
    assert missed.any(axis=0).tolist() == [False, True, False]


def test_foreign_message_is_rejected():
    with pytest.raises(InputError, match="Message without fedgram record: 'arrays'"):
        Payload.from_records(RecordDict())


def test_client_that_lost_its_files_cannot_evaluate(tmp_path, server_log):
    serve(grid_of(tmp_path, silent=delete_files_of_ridge(tmp_path, ("ridge", "evaluate", 2)), rounds=2))
    words = "Client 'ridge' rejected the 'evaluate' message: site 'ridge' has not trained this round."
    assert words in server_log()


def test_failing_client_counts_as_absent_after_round_1(tmp_path):
    def fail(site: Site) -> Site:
        raise InputError("the disk is full.")

    grid, sound, full = grid_of(tmp_path), app_of(tmp_path), app_of(tmp_path, ridge=fail)

    def fill_disk_in_round_2(site, kind, n):
        grid.app = full if (kind, n) == ("train", 2) else sound
        return False

    grid.silent = fill_disk_in_round_2
    serve(grid)
    assert stored(tmp_path).complete
    assert np.isnan([each.local_objective[1] for each in stored(tmp_path).rounds()]).tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="Node 12 rejected the 'query' message: see the log of site 'ridge'"):
        serve(grid_of(tmp_path / "another", app=full))


@pytest.mark.parametrize("loss", [np.inf, np.nan])
def test_a_diverged_client_reports_no_loss(tmp_path, monkeypatch, loss):
    """An infinite number in a reply would be refused, and the client would train again in every round."""

    def diverge(self, *given):
        returned = honest(self, *given)
        return replace(
            returned,
            training_loss=torch.full_like(returned.training_loss, loss),
            diverged=torch.ones_like(returned.diverged),
        )

    honest = Clients.round
    monkeypatch.setattr(Clients, "round", diverge)
    with pytest.raises(InputError, match=r"The run stopped: every client diverged in round 1\. Lower"):
        serve(grid_of(tmp_path))


def test_run_stops_if_every_network_diverges(tmp_path):
    grid = grid_of(tmp_path, **{"learning-rate": 1e200, "clip": 1e200})
    with pytest.raises(InputError, match=r"The run stopped: every client diverged in round 1\. Lower"):
        serve(grid)
    assert stored(tmp_path).account.stopped == "every client diverged in round 1"
    with pytest.raises(InputError, match=r"The run in '.*' stopped: every client diverged"):
        serve(grid)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"procedure": "centralized"}, "'centralized' pools the rows of all clients, so no federation can"),
        (
            {"validation-fraction": 1.0},
            "Invalid 'validation-fraction' in the run config: 1. Use a number below 1",
        ),
        ({"clients": 1}, "Invalid 'clients' in the run config: 1. Use a whole number of at least 2"),
        ({"kind": "INVENTED"}, "Invalid 'kind' in the run config: 'INVENTED'. Use"),
        ({"lambda-h": "much"}, "Invalid 'lambda-h' in the run config: 'much'. Use a number"),
        ({"epochs": 0}, "epochs must be positive"),
        ({"clip": "5"}, "Invalid 'clip' in the run config: '5'. Use a number"),
        ({"rounds": True}, "Invalid 'rounds' in the run config: True. Use a number"),
        ({"reply-timeout": float("nan")}, "Invalid 'reply-timeout' in the run config: nan. Use a number"),
        ({"reply-timeout": 0}, "Invalid 'reply-timeout' in the run config: 0. Use a number above 0."),
        (
            {"reply-timeout": -1.0},
            "Invalid 'reply-timeout' in the run config: -1.0. Use a number above 0",
        ),
        ({"seed": 1.7}, "Invalid 'seed' in the run config: 1.7. Use a whole number"),
        ({"learning_rate": 1e-3}, "Unknown key in the run config: 'learning_rate'. Use 'learning-rate'"),
        (
            {"aggregation": "median"},
            "Invalid 'aggregation' in the run config: 'median'. Use mean, trimmed, geo",
        ),
        ({"aggregation": "trimmed", "trim": 2}, "Invalid 'trim' in the run config: 2. With 3 clients use at"),
        ({"clip-returns": 0.5}, "Invalid 'clip-returns' in the run config: 0.5. Use at least 1, or 0"),
        ({"max-rejections": 0}, "Invalid 'max-rejections' in the run config: 0. Use a whole number"),
        ({"patience": 60.0}, "Unknown key in the run config: 'patience'. Use 'reply-timeout'"),
    ],
)
def test_invalid_run_config_is_rejected(tmp_path, changes, words):
    with pytest.raises(InputError, match=words):
        FederationConfig.from_run_config(config(tmp_path) | changes)


def test_run_config_may_have_keys_of_the_app(tmp_path):
    settings = FederationConfig.from_run_config(
        config(tmp_path) | {"lambda-h": 0.1, "lambda-w": 0.2, "seed": 4, "batch-note": "ours"}
    )
    assert settings.settings == TrainConfig(**SETTINGS, penalty=Penalty(0.1, 0.2))
    assert settings.run.name == "proximal+corrected/seed-4"
    assert FederationConfig.from_run_config({"clients": 2}).settings == TrainConfig()


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    """Write the training rows of each client to the table 0, 1 or 2.parquet."""
    folder = tmp_path_factory.mktemp("tables")
    for number, split in enumerate(problem().train.values()):
        table = pd.DataFrame(np.hstack([split.inputs, split.targets]), columns=["a", "b", "c", "y1", "y2"])
        table.assign(site=number).to_parquet(folder / f"{number}.parquet")
    return folder


def grid_of_tables(tables: Path, folder: Path, silent=None, **others) -> MemoryGrid:
    """Build a grid of sites named 0, 1, 2, each with a table."""
    nodes = {
        number: {
            "site": number,
            "table": str(tables / f"{number}.parquet"),
            "folder": str(folder / "private"),
        }
        for number in range(3)
    }
    columns = {"inputs": "a,b,c", "targets": "y1, y2", "test-fraction": 0.25, "backbone": "resmlp-small"}
    return MemoryGrid(client_app(), config(folder) | columns | others, nodes, silent)


@pytest.fixture(scope="module")
def complete_tables(tables, tmp_path_factory) -> Path:
    """Return the folder of a complete run on tables; tests must not change it."""
    folder = tmp_path_factory.mktemp("complete-tables")
    serve(grid_of_tables(tables, folder))
    return folder


OTHER_ROWS = [
    ({"inputs": "c,b,a"}, "data.provenance.inputs is a, b, c there and c, b, a here"),
    ({"inputs": "a"}, "data.provenance.inputs is"),
    ({"targets": "y2,y1"}, "data.provenance.targets is"),
    ({"test-fraction": 0.5}, "data.provenance.test_fraction is 0.25 there and 0.5 here"),
    ({"clients": 4}, "data.provenance.clients is 3 there and 4 here"),
]


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_other_columns_or_clients_do_not_resume_a_run(tmp_path, tables, rounds, request):
    if rounds == 3:
        folder = request.getfixturevalue("complete_tables")
    else:
        folder = tmp_path
        with pytest.raises(InputError, match="No client replied"):
            serve(grid_of_tables(tables, folder, lambda site, kind, n: kind == "train" and n == rounds + 1))
    for changes, words in OTHER_ROWS:
        with pytest.raises(InputError, match=words):
            serve(grid_of_tables(tables, folder, **{"reply-timeout": 60.0}, **changes))


def test_changed_rows_are_named_when_the_reply_timeout_ends(tmp_path, server_log):
    with pytest.raises(InputError, match="No client replied"):
        serve(grid_of(tmp_path, silent=lambda site, kind, n: kind == "train" and n == 2, rounds=2))
    changes = {name: lambda site: replace(site, train=site.test) for name in SITES}
    before = len(server_log())
    words = "'coast': it changed its rows .*'ridge': it changed its rows .*'valley': it changed its rows"
    with pytest.raises(InputError, match=words):
        serve(grid_of(tmp_path, app=app_of(tmp_path, **changes), **{"reply-timeout": 1.5, "rounds": 2}))
    assert len(server_log()[before:]) == len(set(server_log()[before:])) == 3


def test_tables_at_sites_train_like_one_table(tmp_path, tables, complete_tables):
    columns = TableSpec("site", ["a", "b", "c"], ["y1", "y2"], 0.25)
    together = read_standardized(tables / "[0-2].parquet", columns)
    (reference,) = train(
        together, "resmlp-small", ["proximal+corrected"], [0], TrainConfig(**SETTINGS),
        folder=tmp_path / "stack", device="cpu",
    )  # fmt: skip
    run = stored(complete_tables)
    assert_same_rounds(run.rounds(), reference.rounds())
    with pytest.raises(InputError, match="has no networks: each site keeps its own in its private folder"):
        run.model()
    assert run.setup.data.clients == ("0", "1", "2")
    assert run.setup.data.targets == ("y1", "y2")
    assert run.setup.data.train_rows == (22, 18, 14)
    assert run.setup.data.test_rows == (8, 6, 4)
    assert run.setup.parameters < 50_000  # the config's backbone, not the default one
    folders = {path.name for path in (complete_tables / "private").iterdir() if path.is_dir()}
    assert folders == {"0", "1", "2"}


def test_seed_draws_the_test_rows(tmp_path):
    np.savetxt(tmp_path / "own.csv", np.arange(60).reshape(30, 2), delimiter=",", header="a,y", comments="")

    def test_targets(seed):
        table = str(tmp_path / "own.csv")
        return Site.from_table(table, "coast", inputs=["a"], targets=["y"], seed=seed).test.targets.tolist()

    assert test_targets(0) == test_targets(0) != test_targets(1)


def test_single_column_needs_no_list(tmp_path):
    np.savetxt(tmp_path / "own.csv", np.arange(60).reshape(30, 2), delimiter=",", header="in,pm", comments="")
    site = Site.from_table(str(tmp_path / "own.csv"), "coast", inputs="in", targets="pm")
    assert site.moments.targets == Site("coast", site.train, targets="pm").targets == ("pm",)


def test_description_shows_what_changed(tmp_path):
    info = ClientInfo("coast", 30, 8, 0, ("y",), 7, "a0", 3, 4, np.ones(1), np.eye(1))
    settings = FederationConfig.from_run_config(config(tmp_path))

    def digest(info: ClientInfo) -> str:
        transport, audit = GridTransport(grid_of(tmp_path), 0.0), AuditLog(tmp_path / "audit.jsonl")
        roster = Roster(transport, settings, ServerState("id"), audit)
        roster.clients = {info.client: info}
        return roster.build_setup().data.digest

    assert info.find_change(replace(info, test_rows=0)) is None
    for change in ({"rows": 31}, {"own_mean": np.zeros(1)}, {"own_covariance": 2 * np.eye(1)}):
        other = replace(info, **change)
        assert info.find_change(other) == "rows"
        assert digest(info) != digest(other)
    assert info.find_change(replace(info, targets=("x",))) == "targets"
    for change in ({"parameters": 8}, {"network": "b1"}):
        assert info.find_change(replace(info, **change)) == "network"


def test_site_rejects_values_that_are_not_finite():
    rows = problem().train["coast"]
    broken = Split(rows.inputs * np.nan, rows.targets)
    for given in ((broken, rows), (rows, broken)):
        with pytest.raises(InputError, match="Client 'coast' has a value in its inputs that is not finite"):
            Site("coast", *given)


def test_empty_table_is_rejected(tmp_path):
    (tmp_path / "empty.csv").write_text("a,y\n")
    with pytest.raises(InputError, match=r"No rows in '.*empty\.csv'\. Add some\."):
        Site.from_table(str(tmp_path / "empty.csv"), "coast", inputs=["a"], targets=["y"])


@pytest.mark.parametrize(("cell", "remedy"), [
    ("low", "Name it in 'categories', or convert it to numbers in the same way at every site."),
    ("", "no number in 'a'. Fill missing inputs (fill), or drop the row (drop-missing = true)."),
])  # fmt: skip
@pytest.mark.parametrize("column", [None, "site"])
def test_text_and_missing_cells_are_rejected_with_what_to_do(tmp_path, cell, remedy, column):
    rows = "".join(f"coast,{row},{row}\n" for row in range(9))
    (tmp_path / "own.csv").write_text(f"site,a,y\n{rows}coast,{cell},1\n")
    with pytest.raises(InputError) as refused:
        Site.from_table(str(tmp_path / "own.csv"), "coast", inputs=["a"], targets=["y"], column=column)
    assert refused.value.message.endswith(remedy)


@pytest.mark.parametrize("key", ["table", "site", "inputs", "targets"])
def test_missing_config_key_is_named(key):
    complete = {"table": "a.csv", "site": "coast", "inputs": "a", "targets": "y"}
    with pytest.raises(InputError, match=f"Missing key in the (node|run) config: '{key}'"):
        Site.from_config({**complete, key: ""}, {**complete, key: ""})


def test_a_site_with_a_table_stores_its_input_names(complete_tables, tables):
    path = min((complete_tables / "private").rglob("model.safetensors"))
    rows = pd.read_parquet(tables / "0.parquet")[["a", "b", "c"]]
    expected = predict_at_site(path, rows.to_numpy(), "resmlp-small")
    np.testing.assert_array_equal(predict_at_site(path, rows[["c", "a", "b"]], "resmlp-small"), expected)
    np.testing.assert_array_equal(predict_at_site(path, rows), expected)


def test_a_site_predicts_on_the_command_line(complete_tables, tables, tmp_path):
    rows = pd.read_parquet(tables / "0.parquet")[["c", "a", "b"]]
    rows.to_csv(tmp_path / "new.csv", index=False)
    private = complete_tables / "private"
    folder = private / "0"
    code, out, err = fedgram("runs", "predict", folder, tmp_path / "new.csv")
    assert (code, err) == (0, "")
    found = pd.read_csv(io.StringIO(out))
    assert found.columns.tolist() == ["c", "a", "b", "y1", "y2"]
    np.testing.assert_allclose(found[["y1", "y2"]], predict_at_site(folder, rows), rtol=1e-6)
    code, _, err = fedgram("runs", "predict", private, tmp_path / "new.csv")
    assert code == 2
    assert "has 3 models. Pass one of them" in err
    code, _, err = fedgram("runs", "predict", folder, tmp_path / "new.csv", "--site", "0")
    assert code == 2
    assert "--site applies to runs, not to a site's private folder." in err
