"""A Flower federation: the same as the stacked trainer, also when clients are away and servers stop."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict

from fedgram import Moments, Penalty, predict
from fedgram._util.errors import InputError
from fedgram.data.problem import Problem, Split
from fedgram.data.tables.read_rows import Reading, read_table
from fedgram.flower import Site, client_app, server_app
from fedgram.flower.app import GridTransport
from fedgram.flower.client_state import folder_name
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import Payload
from fedgram.flower.roster import ClientInfo, setup_of
from fedgram.flower.server import run_server
from fedgram.flower.server_state import SHARED, LastReturns
from fedgram.nets.backbones import ResMLP
from fedgram.nets.model import example
from fedgram.runs import Runs
from fedgram.runs.measure import measure
from fedgram.runs.procedure import BIAS_RULES
from fedgram.runs.tensor_files import read_arrays
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.psd import closest_factor
from fedgram.training import train
from tests.helpers.flower_grid import MemoryGrid

SITES = ("coast", "ridge", "valley")
ROWS = {"coast": 30, "ridge": 24, "valley": 18}
SETTINGS = {"rounds": 3, "epochs": 2, "batch": 16, "features": 6, "precision": "fp64"}
PROCEDURES = (
    "ordinary",
    "proximal+corrected",
    "solved+corrected+offset",
    "aligned+private",
    "centered+corrected+independent",
)


def problem() -> Problem:
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((rows + 8, 3)).astype(np.float32) for name, rows in ROWS.items()}
    targets = {name: np.tanh(x[:, :2]) + 0.3 * m for m, (name, x) in enumerate(inputs.items())}
    train = {name: Split(inputs[name][8:], targets[name][8:]) for name in SITES}
    test = {name: Split(inputs[name][:8], targets[name][:8]) for name in SITES}
    return Problem("three sites", "GENERATED", train, test)


def config(folder: Path, procedure: str = "proximal+corrected", **others) -> dict:
    words = {
        "name": "three sites",
        "kind": "GENERATED",
        "clients": 3,
        "procedure": procedure,
        "backbone": "resmlp-small",
        "patience": 0.0,
    }
    return words | SETTINGS | {"out": str(folder / "server")} | others


def app_of(folder: Path, rows: Problem | None = None, **changed):
    """A client app whose nodes are the problem's clients; `changed` holds sites by the name of their node."""
    held = rows or problem()

    def site(context: Context) -> Site:
        name = str(context.node_config["site"])
        made = Site(
            name, held.train[name], held.test[name], backbone="resmlp-small", folder=folder / "private",
            device="cpu",
        )  # fmt: skip
        return changed.get(name, lambda made: made)(made)

    return client_app(site)


def serve(grid: MemoryGrid, told=lambda sentence: None) -> None:
    plan = FederationConfig.from_run_config(grid.config)
    run_server(GridTransport(grid, plan.patience), plan, told)


def grid_of(
    folder: Path, procedure: str = "proximal+corrected", silent=None, app=None, **others
) -> MemoryGrid:
    nodes = {number: {"site": name} for number, name in enumerate(SITES, start=11)}
    return MemoryGrid(app or app_of(folder), config(folder, procedure, **others), nodes, silent)


def stored(folder: Path):
    (run,) = Runs(folder / "server").require()
    return run


def assert_same_rounds(ours, theirs, tolerance=1e-10):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for name, value in vars(one).items():
            np.testing.assert_allclose(value, vars(other)[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("procedure", PROCEDURES)
def test_a_federation_is_the_stacked_trainer_with_its_clients_apart(tmp_path, procedure):
    serve(grid_of(tmp_path, procedure))
    run = stored(tmp_path)
    (reference,) = train(
        problem(), "resmlp-small", [procedure], [0], TrainConfig(**SETTINGS), folder=tmp_path / "stack",
        device="cpu",
    )  # fmt: skip
    assert run.complete
    assert run.setup.procedure == reference.setup.procedure
    assert run.setup.data.test_rows == (8, 8, 8)
    assert run.setup.data.kind == "GENERATED"
    np.testing.assert_array_equal(run.initial[0], reference.initial[0])
    assert_same_rounds(run.rounds(), reference.rounds())
    np.testing.assert_allclose(measure(run).target_error, measure(reference).target_error, rtol=1e-8)


def test_sites_of_similar_names_keep_to_folders_of_their_own():
    names = ["site a", "site-a", "site_a", "?", "...", "a/b", "a-b"]
    folders = [folder_name(name) for name in names]
    assert len(set(folders)) == len(names)
    assert folder_name("site-a") == "site-a"
    assert all(Path(folder).name == folder for folder in folders)


def test_a_run_that_another_server_leads_is_left_to_it(tmp_path):
    def again(sentence):
        with pytest.raises(InputError, match="Another process writes to"):
            serve(grid_of(tmp_path))
        heard.append(sentence)

    heard = []
    serve(grid_of(tmp_path), again)
    assert heard
    assert stored(tmp_path).complete


def test_no_row_and_no_weight_of_a_backbone_leaves_a_client(tmp_path):
    grid, sent = grid_of(tmp_path, "solved+corrected"), []
    app = grid.app

    def listening(message, context):
        reply = app(message, context)
        sent.append({name: array.numpy() for name, array in reply.content.array_records["arrays"].items()})
        return reply

    grid.app = listening
    serve(grid)
    names = {name for letter in sent for name in letter}
    assert names == {
        "own_mean", "own_covariance", "head", "bias", "own_bias", "centered_bias", "local_objective",
        "clipped", "loss", "diverged", "objective", "train_mse", "test_mse",
    }  # fmt: skip
    assert max(array.size for letter in sent for array in letter.values()) == 2 * SETTINGS["features"]


def test_a_client_that_is_away_counts_with_what_it_returned_last(tmp_path):
    away = grid_of(tmp_path, silent=lambda site, kind, n: (site, kind, n) == ("ridge", "train", 2))
    serve(away)
    first, second, third = stored(tmp_path).rounds()
    assert np.isnan(second.local_objective[1])
    assert np.isnan(second.train_mse[1]).all()
    assert not np.isnan(third.train_mse).any()
    np.testing.assert_array_equal(second.returned_heads[1], first.returned_heads[1])
    weights = np.array([30, 24, 18]) / 72
    np.testing.assert_allclose(second.head, np.tensordot(weights, second.returned_heads, 1), rtol=1e-12)
    for site, rounds in (("ridge", "13"), ("coast", "23")):  # ridge went on from what it had
        kept = sorted(path.name for path in (tmp_path / "private" / site).rglob("round-*"))
        assert kept == [f"round-0{number}.safetensors" for number in rounds]
    measured = measure(stored(tmp_path))
    np.testing.assert_allclose(
        measured.train_mse[1], (30 * second.train_mse[0] + 18 * second.train_mse[2]) / 48
    )
    assert np.isfinite(measured.median_objective_gaps).all()
    assert json.dumps(measured.document(), allow_nan=False).count("null") == 1


def test_who_did_not_answer_and_who_did_not_measure_is_told(tmp_path):
    missed = (("ridge", "train", 2), ("coast", "evaluate", 2))
    said: list[str] = []
    serve(grid_of(tmp_path, silent=lambda *asked: asked in missed), said.append)
    assert said[1].startswith(
        "Round 2 of 3: 2 of 3 clients; ridge did not answer; coast did not measure it; the"
    )
    assert np.isnan(stored(tmp_path).rounds()[1].test_mse).all(axis=1).tolist() == [True, True, False]


def test_a_client_that_never_answered_is_left_out_until_it_does(tmp_path):
    serve(grid_of(tmp_path, silent=lambda site, kind, n: (site, kind, n) == ("coast", "train", 1)))
    first, second, _ = stored(tmp_path).rounds()
    assert np.isnan(first.returned_heads[0]).all()
    np.testing.assert_allclose(first.head, (24 * first.returned_heads[1] + 18 * first.returned_heads[2]) / 42)
    assert np.isfinite(second.returned_heads).all()


def test_with_what_was_returned_last_the_limit_is_the_barycenter_whoever_is_away():
    rng = np.random.default_rng(1)
    rows = [rng.standard_normal((60, 3)) @ rng.standard_normal((3, 3)) for _ in range(4)]
    prediction = predict(Moments.from_arrays(rows), Penalty(0.1, 0.1))
    names = prediction.moments.clients
    weights = dict(zip(names, prediction.moments.client_weights, strict=True))
    head, present, memory = rng.standard_normal((3, 6)), rng.random((80, 4)) < 0.6, LastReturns("theirs")
    renormalised = head
    for here in present:
        for client, gram, answers in zip(names, prediction.grams, here, strict=True):
            if answers:
                memory.remember(client, dict.fromkeys(SHARED, closest_factor(head, gram)))
        if memory.last:
            head = memory.average(weights)["head"]
        if here.any():
            heads = np.stack([closest_factor(renormalised, gram) for gram in prediction.grams[here]])
            own = prediction.moments.client_weights[here]
            renormalised = np.tensordot(own / own.sum(), heads, 1)
    assert psd.relative_error(psd.gram(head), prediction.barycenter.gram) < 1e-12
    assert psd.relative_error(psd.gram(renormalised), prediction.barycenter.gram) > 1e-3


def test_a_server_that_stops_goes_on_to_the_same_result(tmp_path):
    serve(grid_of(tmp_path / "whole"))

    class Stopped(Exception):
        pass

    def stopping(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 2):
            raise Stopped
        return False

    with pytest.raises(Stopped):
        serve(grid_of(tmp_path / "twice", silent=stopping))
    assert stored(tmp_path / "twice").account.rounds == 1
    again, said = grid_of(tmp_path / "twice"), list[str]()
    serve(again, said.append)
    assert said[0] == "Going on after round 1 of 3."
    assert again.asked.count(("coast", "train")) == 2  # rounds 2, answered from its file, and 3
    assert_same_rounds(stored(tmp_path / "twice").rounds(), stored(tmp_path / "whole").rounds(), 0)
    said.clear()
    serve(again, said.append)
    assert said == []  # nothing is left
    assert again.asked.count(("coast", "train")) == 2


def test_the_same_question_is_answered_from_disk_and_another_one_anew(tmp_path, monkeypatch):
    from fedgram.flower.client import Client

    held, plan = problem(), FederationConfig.from_run_config(config(tmp_path))
    site = Site("coast", held.train["coast"], backbone="resmlp-small", folder=tmp_path, device="cpu")
    participant = Client(site, plan)
    pooled, begun = held.moments.pooled, participant.introduce().arrays
    shared = {"head": begun["head"], "bias": begun["bias"], "mean": pooled.mean,
              "covariance": pooled.covariance, "within": pooled.within}  # fmt: skip
    asked = Payload(shared, {"round": 1, "federation": "ours"})
    first = participant.train(asked)
    monkeypatch.setattr(Client, "_trained", None)
    again = Client(site, plan).train(asked)  # a node that was restarted
    np.testing.assert_array_equal(first.arrays["head"], again.arrays["head"])
    for other in (
        replace(asked, arrays={**shared, "head": 2 * shared["head"]}),
        replace(asked, words={"round": 1, "federation": "another"}),
    ):
        with pytest.raises(TypeError):  # it trains
            participant.train(other)


def test_a_site_with_a_module_draws_no_backbone_of_its_own(tmp_path):
    from fedgram.flower.client import Client

    plan = FederationConfig.from_run_config(config(tmp_path, "independent"))
    rows, private = problem().train["coast"], tmp_path / "private"
    site = Site("coast", rows, backbone=torch.nn.Linear(3, 4), folder=private, device="cpu")
    with pytest.raises(InputError, match="give a function that draws a new module, or a name"):
        Client(site, plan).introduce()
    assert not private.exists()


@pytest.mark.parametrize("listed", [(11, 13), (11, 12, 13)], ids=["old node gone", "still listed"])
def test_a_client_that_was_restarted_is_known_by_its_name(tmp_path, listed):
    grid = grid_of(tmp_path)

    def moving(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 1):
            grid.configs = {**{node: grid.configs[node] for node in listed}, 99: {"site": "ridge"}}
        return False

    grid.silent = moving
    serve(grid)
    serve(grid_of(tmp_path / "whole"))
    assert_same_rounds(stored(tmp_path).rounds(), stored(tmp_path / "whole").rounds(), 0)


def losing_files(folder, moment):
    """Nobody is silent, but when this is asked the files of ridge are lost."""

    def silent(*asked):
        if asked == moment:
            shutil.rmtree(folder / "private" / "ridge")
        return False

    return silent


def test_a_client_that_lost_its_files_begins_again_with_the_shared_head(tmp_path):
    said: list[str] = []
    serve(grid_of(tmp_path, silent=losing_files(tmp_path, ("valley", "evaluate", 1))), said.append)
    assert [each for each in said if "had no network" in each] == [
        "Client 'ridge' had no network, and began with the one that the seed draws."
    ]
    serve(grid_of(tmp_path / "whole"))
    ours, whole = stored(tmp_path).rounds()[1], stored(tmp_path / "whole").rounds()[1]
    assert stored(tmp_path).complete
    same = [np.array_equal(*heads) for heads in zip(ours.returned_heads, whole.returned_heads, strict=True)]
    assert same == [True, False, True]


def test_who_comes_after_the_start_does_not_take_part(tmp_path):
    held = problem()
    grid = grid_of(tmp_path, clients=2, app=app_of(tmp_path, held))
    late = grid.configs.pop(13)

    def arriving(site, kind, n):
        if (site, kind, n) == ("coast", "evaluate", 1):
            grid.configs[13] = late
        return False

    grid.silent, said = arriving, list[str]()
    serve(grid, said.append)
    assert "Client 'valley' came after the start, and does not take part." in said
    assert stored(tmp_path).setup.data.clients == ("coast", "ridge")
    assert grid.asked.count(("valley", "query")) == 1
    assert ("valley", "train") not in grid.asked


def test_another_with_the_name_of_a_client_does_not_take_its_place(tmp_path):
    def fewer(site: Site) -> Site:
        return replace(site, train=problem().train["coast"])

    grid, said = grid_of(tmp_path), list[str]()
    app, other = grid.app, app_of(tmp_path, ridge=fewer)

    def joining(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 1):
            grid.configs = {**grid.configs, 99: {"site": "ridge"}}
        return False

    grid.silent = joining
    grid.app = lambda message, context: (other if context.node_id == 99 else app)(message, context)
    serve(grid, said.append)
    assert any("Client 'ridge' has other rows than at the start" in each for each in said)
    assert np.isfinite([each.local_objective for each in stored(tmp_path).rounds()]).all()


def test_a_restarted_server_goes_on_with_those_who_are_there(tmp_path):
    with pytest.raises(InputError, match="No client answered in round 2"):
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
    serve(nobody)  # all is finished


def test_a_server_that_stopped_in_its_first_round_waits_for_all(tmp_path):
    with pytest.raises(InputError, match="No client answered in round 1"):
        serve(grid_of(tmp_path, silent=lambda site, kind, n: kind == "train"))
    fewer = grid_of(tmp_path)
    del fewer.configs[12]
    with pytest.raises(InputError, match=r"Only 2 of 3 clients are there after 0 s \(coast, valley\)"):
        serve(fewer)


def test_a_server_that_stops_before_it_remembers_anything_begins_anew(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(LastReturns, "write", None)
        with pytest.raises(TypeError):
            serve(grid_of(tmp_path))
    serve(grid_of(tmp_path))
    assert stored(tmp_path).complete


def test_clients_are_in_order_of_name_whatever_their_nodes(tmp_path):
    grid, said = grid_of(tmp_path, **{"lambda-h": 0.55, "lambda-w": 0.55, "rounds": 1}), list[str]()
    grid.configs = {number: {"site": name} for number, name in enumerate(reversed(SITES))}
    serve(grid, said.append)
    assert stored(tmp_path).setup.data.clients == SITES
    assert any("is not fully active" in each for each in said)


def test_other_settings_do_not_go_on_from_a_run(tmp_path):
    serve(grid_of(tmp_path))
    with pytest.raises(InputError, match=r"made by other settings: settings.epochs is 2 there and 3 here"):
        serve(grid_of(tmp_path, epochs=3))


def test_more_clients_than_were_said_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"3 clients \(coast, ridge, valley\), but the configuration says 2"):
        serve(grid_of(tmp_path, clients=2))


def test_two_federations_at_one_site_do_not_meet(tmp_path):
    first, second = (grid_of(tmp_path, out=str(tmp_path / name)) for name in ("one", "two"))
    first.silent = lambda site, kind, n: kind == "train" and n == 2
    with pytest.raises(InputError, match="No client answered"):
        serve(first)
    serve(second)
    first.silent = lambda site, kind, n: False
    said: list[str] = []
    serve(first, said.append)
    assert not any("had no network" in each for each in said)
    (one,), (two,) = (Runs(tmp_path / name).require() for name in ("one", "two"))
    assert_same_rounds(one.rounds(), two.rounds(), 0)


@pytest.mark.parametrize(
    ("procedure", "rule"),
    [("solved+corrected+offset", "offset"), ("solved+centered", "shared"), ("aligned+private", "private")],
)
def test_a_site_is_left_with_the_network_that_it_predicts_with(tmp_path, procedure, rule):
    serve(grid_of(tmp_path, procedure))
    held, last = problem(), stored(tmp_path).rounds()[-1]
    model, _ = example("resmlp-small", held.train["coast"], SETTINGS["features"])
    (path,) = (tmp_path / "private" / "coast").rglob("model.safetensors")
    state = {name: torch.from_numpy(value) for name, value in read_arrays(path).items()}
    model.double().load_state_dict(state)
    with torch.no_grad():
        _, predicted = model.eval()(torch.from_numpy(held.test["coast"].inputs).double())
    error = np.mean((predicted.numpy() - held.test["coast"].targets) ** 2)
    np.testing.assert_allclose(error, last.test_mse[0, BIAS_RULES.index(rule)], rtol=1e-10)
    np.testing.assert_array_equal(model.head.weight.detach().numpy(), last.head)


def test_the_server_says_what_is_wrong_in_one_sentence(tmp_path, caplog):
    grid = grid_of(tmp_path)
    with caplog.at_level("INFO", logger="flwr"):
        server_app()(grid, Context(1, 0, {}, RecordDict(), grid.config))
        with pytest.raises(InputError):
            server_app()(grid, Context(1, 0, {}, RecordDict(), grid.config | {"procedure": "proximate"}))
    (said,) = [each for each in caplog.records if "no procedure 'proximate'" in each.message]
    assert said.levelname == "ERROR"
    assert "Round 3 of 3: 3 of 3 clients; the head's Gram is" in caplog.text


def test_another_version_is_refused(tmp_path, monkeypatch):
    grid, app = grid_of(tmp_path), app_of(tmp_path)

    def older(message, context):
        monkeypatch.setattr("fedgram.__version__", "0.0.1")
        reply = app(message, context)
        monkeypatch.undo()
        return reply

    grid.app = older
    with pytest.raises(InputError, match=r"Client 'coast' runs fedgram 0\.0\.1, and the server"):
        serve(grid)


def test_too_few_clients_are_a_sentence(tmp_path):
    grid = grid_of(tmp_path, clients=4)
    with pytest.raises(InputError, match=r"Only 3 of 4 clients are there after 0 s \(coast, ridge, valley\)"):
        serve(grid)


def test_nobody_answering_is_a_sentence_and_nothing_is_lost(tmp_path):
    with pytest.raises(InputError, match="No client answered in round 2"):
        serve(grid_of(tmp_path, silent=lambda site, kind, n: kind == "train" and n == 2))
    assert stored(tmp_path).account.rounds == 1
    serve(grid_of(tmp_path))
    assert stored(tmp_path).complete


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda site: replace(site, name="coast"), "Two nodes say that they are client 'coast'"),
        (
            lambda site: replace(site, targets=("up", "down")),
            "Client 'ridge' has targets up, down, but client",
        ),
        (lambda site: replace(site, backbone="resmlp"), r"Client 'ridge' has parameters \d+, but client"),
        (
            lambda site: replace(site, backbone=ResMLP(3, width=64, blocks=2)),
            r"Client 'ridge' has network \w+, but client",
        ),
    ],
)
def test_clients_that_do_not_fit_together_are_refused(tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        serve(grid_of(tmp_path, app=app_of(tmp_path, ridge=change)))


@pytest.mark.parametrize("node", [12, 99], ids=["at the same node", "at another"])
def test_a_client_with_other_rows_than_at_the_start_is_away(tmp_path, node):
    grid, held = grid_of(tmp_path), problem()

    def fewer(site: Site) -> Site:
        return replace(site, train=held.train["coast"])

    def moving(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 1):
            grid.configs = {11: grid.configs[11], 13: grid.configs[13], node: {"site": "ridge"}}
            grid.app = app_of(tmp_path, ridge=fewer)
        return False

    grid.silent = moving
    said: list[str] = []
    serve(grid, said.append)
    assert sum("Client 'ridge' has other rows than at the start" in each for each in said) == 1
    assert np.isnan([each.local_objective[1] for each in stored(tmp_path).rounds()]).tolist() == [0, 1, 1]


def test_what_a_client_refuses_reaches_the_server(tmp_path):
    def broken(site: Site) -> Site:
        return replace(site, train=Split(site.train.inputs * np.nan, site.train.targets))

    words = "A client could not introduce itself: the log of site 'ridge' says why"
    with pytest.raises(InputError, match=words):
        serve(grid_of(tmp_path, app=app_of(tmp_path, ridge=broken)))


def test_a_node_without_a_configuration_is_named(tmp_path):
    grid = grid_of(tmp_path, app=client_app())
    grid.configs = {12: {}, 13: {}}
    words = "the configuration of node 12 names no 'site' and 'table', as one of a SuperNode does"
    with pytest.raises(InputError, match=f"A client could not introduce itself: {words}"):
        serve(grid)


def test_a_mistake_at_a_client_is_told_in_its_log_alone(tmp_path, caplog):
    def mistaken(site: Site) -> Site:
        raise ZeroDivisionError("of the value 42")

    with pytest.raises(
        InputError, match="could not introduce itself: the log of site 'ridge' says why"
    ) as refused:
        serve(grid_of(tmp_path, app=app_of(tmp_path, ridge=mistaken)))
    assert "42" not in refused.value.message
    assert "of the value 42" in caplog.text


def test_a_node_that_fails_is_told_of_and_left_out(tmp_path, caplog):
    grid = grid_of(tmp_path)
    app = grid.app

    def failing(message, context):
        if (context.node_id, message.metadata.message_type) == (12, "train"):
            return Message(Error(0, "it was killed"), reply_to=message)
        return app(message, context)

    grid.app = failing
    serve(grid)
    assert "A node did not answer: it was killed" in caplog.text
    missed = np.isnan([each.local_objective for each in stored(tmp_path).rounds()])
    assert missed.any(axis=0).tolist() == [False, True, False]


def test_a_message_of_something_else_is_refused():
    with pytest.raises(InputError, match="A message does not hold what fedgram sends"):
        Payload.from_records(RecordDict())


def test_a_client_that_loses_its_files_after_training_cannot_measure(tmp_path):
    said: list[str] = []
    serve(grid_of(tmp_path, silent=losing_files(tmp_path, ("ridge", "evaluate", 2))), said.append)
    assert "A client could not measure its errors: it has not trained this round" in said


def refusing(site: Site) -> Site:
    raise InputError("the disk is full.")


def test_a_client_that_cannot_go_on_is_away_once_training_is_under_way(tmp_path):
    grid, sound, full = grid_of(tmp_path), app_of(tmp_path), app_of(tmp_path, ridge=refusing)

    def filling(site, kind, n):
        grid.app = full if (kind, n) == ("train", 2) else sound
        return False

    grid.silent = filling
    serve(grid)
    assert stored(tmp_path).complete
    assert np.isnan([each.local_objective[1] for each in stored(tmp_path).rounds()]).tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="A client could not introduce itself: the log of site 'ridge'"):
        serve(grid_of(tmp_path / "anew", app=full))


def test_a_network_that_diverges_ends_the_run(tmp_path):
    grid = grid_of(tmp_path, **{"learning-rate": 1e30, "clip": 1e30})
    with pytest.raises(InputError, match=r"given up: client 'coast' diverged in round 1"):
        serve(grid)
    assert stored(tmp_path).account.stopped == "client 'coast' diverged in round 1"
    with pytest.raises(InputError, match=r"The run in '.*' was given up: client 'coast' diverged"):
        serve(grid)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"procedure": "full-model"}, "'full-model' needs rows or backbones of all clients"),
        ({"procedure": "centralized"}, "'centralized' needs rows or backbones"),
        ({"clients": 1}, "clients = 2 or more, not 1"),
        ({"kind": "INVENTED"}, "no kind of data 'INVENTED'"),
        ({"lambda-h": "much"}, "'lambda-h' in the configuration must be a number"),
        ({"epochs": 0}, "epochs must be positive"),
        ({"clip": "5"}, "'clip' in the configuration must be a number"),
        ({"rounds": True}, "'rounds' in the configuration must be a number"),
        ({"patience": float("nan")}, "'patience' in the configuration must be a number from 0, not nan"),
        ({"patience": -1.0}, "'patience' in the configuration must be a number from 0, not -1.0"),
        ({"seed": 1.7}, "'seed' in the configuration must be a whole number"),
        ({"learning_rate": 1e-3}, "The configuration has 'learning_rate'; did you mean 'learning-rate'"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(tmp_path, changes, words):
    with pytest.raises(InputError, match=words):
        FederationConfig.from_run_config(config(tmp_path) | changes)


def test_a_plan_is_read_from_a_configuration_that_may_hold_more(tmp_path):
    plan = FederationConfig.from_run_config(
        config(tmp_path) | {"lambda-h": 0.1, "lambda-w": 0.2, "seed": 4, "batch-note": "ours"}
    )
    assert plan.settings == TrainConfig(**SETTINGS, penalty=Penalty(0.1, 0.2))
    assert plan.run.name == "proximal+corrected/seed-4"
    assert FederationConfig.from_run_config({"clients": 2}).settings == TrainConfig()


def grid_of_tables(folder: Path, silent=None, **others) -> MemoryGrid:
    """Sites numbered from 0, each with a table."""
    nodes = {}
    for number, split in enumerate(problem().train.values()):
        table = pd.DataFrame(np.hstack([split.inputs, split.targets]), columns=["a", "b", "c", "y1", "y2"])
        table.assign(site=number).to_parquet(folder / f"{number}.parquet")
        place = {"table": str(folder / f"{number}.parquet"), "folder": str(folder / "private")}
        nodes[number] = {"site": number, **place}
    columns = {"inputs": "a,b,c", "targets": "y1, y2", "test-fraction": 0.25}
    return MemoryGrid(client_app(), config(folder) | columns | others, nodes, silent)


OTHER_ROWS = [
    ({"inputs": "c,b,a"}, "data.provenance.inputs is a, b, c there and c, b, a here"),
    ({"inputs": "a"}, "data.provenance.inputs is"),
    ({"targets": "y2,y1"}, "data.provenance.targets is"),
    ({"test-fraction": 0.5}, "data.provenance.test_fraction is 0.25 there and 0.5 here"),
    ({"clients": 4}, "data.provenance.clients is 3 there and 4 here"),
]


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_other_columns_or_clients_do_not_go_on_from_a_run(tmp_path, rounds):
    grid = grid_of_tables(tmp_path, lambda site, kind, n: kind == "train" and n == rounds + 1)
    with pytest.raises(InputError, match="No client answered") if rounds < 3 else nullcontext():
        serve(grid)
    for changes, words in OTHER_ROWS:
        with pytest.raises(InputError, match=words):
            serve(grid_of_tables(tmp_path, patience=60.0, **changes))


def test_rows_that_are_not_there_any_more_are_named_at_the_end_of_patience(tmp_path):
    with pytest.raises(InputError, match="No client answered"):
        serve(grid_of(tmp_path, silent=lambda site, kind, n: kind == "train" and n == 2))
    other = {name: lambda site: replace(site, train=site.test) for name in SITES}
    said: list[str] = []
    with pytest.raises(InputError, match=r"'coast' has other rows .*'ridge' has other rows .*'valley' has"):
        serve(grid_of(tmp_path, app=app_of(tmp_path, **other), patience=1.5), said.append)
    assert len(said) == len(set(said)) == 3


def test_tables_at_sites_are_trained_on_as_one_table_is(tmp_path):
    serve(grid_of_tables(tmp_path))
    columns = Reading("site", ["a", "b", "c"], ["y1", "y2"], 0.25)
    together = read_table(str(tmp_path / "[0-2].parquet"), columns, seed=0)
    (reference,) = train(
        together, "resmlp-small", ["proximal+corrected"], [0], TrainConfig(**SETTINGS),
        folder=tmp_path / "stack", device="cpu",
    )  # fmt: skip
    assert_same_rounds(stored(tmp_path).rounds(), reference.rounds())
    with pytest.raises(
        InputError, match=r"has no networks: they are at the sites, each in its private folder"
    ):
        stored(tmp_path).model()


def test_tables_at_the_sites_are_read_there(tmp_path):
    serve(grid_of_tables(tmp_path))
    run = stored(tmp_path)
    assert run.setup.data.clients == ("0", "1", "2")
    assert run.setup.data.targets == ("y1", "y2")
    assert run.setup.data.train_rows == (22, 18, 14)
    assert run.setup.data.test_rows == (8, 6, 4)
    assert run.setup.parameters < 50_000  # of the backbone that the configuration names
    assert {path.name for path in (tmp_path / "private").iterdir()} == {"0", "1", "2"}


def test_rows_for_testing_are_drawn_at_the_site_by_its_seed(tmp_path):
    np.savetxt(tmp_path / "own.csv", np.arange(60).reshape(30, 2), delimiter=",", header="a,y", comments="")

    def tested(seed):
        table = str(tmp_path / "own.csv")
        return Site.from_table(table, "coast", inputs=["a"], targets=["y"], seed=seed).test.targets.tolist()

    assert tested(0) == tested(0) != tested(1)


def test_a_site_may_name_one_column_without_a_list(tmp_path):
    np.savetxt(tmp_path / "own.csv", np.arange(60).reshape(30, 2), delimiter=",", header="in,pm", comments="")
    site = Site.from_table(str(tmp_path / "own.csv"), "coast", inputs="in", targets="pm")
    assert site.moments.targets == Site("coast", site.train, targets="pm").targets == ("pm",)


def test_rows_that_have_changed_are_known_by_their_moments(tmp_path):
    plan = FederationConfig.from_run_config(config(tmp_path))
    member = ClientInfo("coast", 30, 8, ("y",), 7, "a0", np.ones(1), np.eye(1), np.ones((1, 2)), np.ones(1))
    assert member.changed(replace(member, test_rows=0)) is None
    for change in ({"rows": 31}, {"own_mean": np.zeros(1)}, {"own_covariance": 2 * np.eye(1)}):
        other = replace(member, **change)
        assert member.changed(other) == "other rows"
        assert setup_of([member], plan).data.digest != setup_of([other], plan).data.digest
    assert member.changed(replace(member, targets=("x",))) == "other targets"
    for change in ({"parameters": 8}, {"network": "b1"}):
        assert member.changed(replace(member, **change)) == "another network"


def test_values_that_are_not_finite_are_refused_at_the_site():
    rows = problem().train["coast"]
    broken = Split(rows.inputs * np.nan, rows.targets)
    for given in ((broken, rows), (rows, broken)):
        with pytest.raises(InputError, match="Client 'coast' has a value in its inputs that is not finite"):
            Site("coast", *given)


def test_a_table_without_rows_is_a_sentence(tmp_path):
    (tmp_path / "empty.csv").write_text("a,y\n")
    with pytest.raises(InputError, match=r"There are no rows in '.*empty\.csv'; add some\."):
        Site.from_table(str(tmp_path / "empty.csv"), "coast", inputs=["a"], targets=["y"])


@pytest.mark.parametrize("key", ["table", "site", "inputs", "targets"])
def test_a_configuration_that_lacks_something_says_what(key):
    given = {"table": "a.csv", "site": "coast", "inputs": "a", "targets": "y"}
    with pytest.raises(InputError, match=f"does not say '{key}'"):
        Site.configured({**given, key: ""}, {**given, key: ""})
