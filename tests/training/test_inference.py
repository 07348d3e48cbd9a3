"""The networks of a run on new rows."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fedgram import InputError
from fedgram.data.problem import Problem
from fedgram.runs import Runs, StoredRun
from fedgram.runs.procedure import BIAS_RULES
from fedgram.training import predict_rows, train
from tests.helpers.small_runs import SETTINGS, net, small_problem, trained

PROCEDURES = ["ordinary", "private", "solved+corrected+offset", "solved+centered"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("runs")
    trained(made, [*PROCEDURES, "centralized"], [0])
    return made


def errors(run):
    """Mean squares of each client's test errors, of those that have test rows."""
    test = {client: split for client, split in small_problem().test.items() if len(split)}
    found = predict_rows(run, {client: split.inputs for client, split in test.items()}, net)
    return [np.mean((found[client] - split.targets) ** 2) for client, split in test.items()]


def test_test_rows_are_predicted_as_they_were_in_training(folder):
    for run in Runs(folder):
        own = run.rounds()[-1].test_mse[:, BIAS_RULES.index(run.setup.procedure.bias)]
        if run.setup.procedure.centralized:
            assert np.average(errors(run), weights=[5, 3]) == pytest.approx(own[0], rel=1e-4)
        else:
            np.testing.assert_allclose(errors(run), own[:2], rtol=1e-4)


def test_blanks_around_a_name_do_not_count(folder):
    rows = small_problem().test["site 1"].inputs
    for run in Runs(folder):
        padded, plain = (predict_rows(run, {name: rows}, net)[name] for name in (" site 1 ", "site 1"))
        np.testing.assert_array_equal(padded, plain)


@pytest.mark.parametrize(
    ("client", "backbone", "words"),
    [
        ("site 9", net, "The run has no client 'site 9'. Its clients are 'site 0', 'site 1', 'site 2'"),
        ("site 0", "resmlp-small", "do not match this backbone for rows of shape .4,.. Pass the inputs"),
        ("site 0", lambda: bent(), "do not match this backbone for rows of shape .4,.. Pass the inputs"),
        ("site 0", None, "was trained with your own backbone 'net'. Pass it in Python"),
    ],
)
def test_what_does_not_fit_is_said(folder, client, backbone, words):
    run = next(run for run in Runs(folder) if not run.setup.procedure.centralized)
    with pytest.raises(InputError, match=words):
        predict_rows(run, {client: np.zeros((2, 4))}, backbone)


@pytest.fixture(scope="module")
def framed(tmp_path_factory):
    """A run that was trained on columns of a data frame, named from the last to the first."""
    rows = pd.DataFrame(np.random.default_rng(0).standard_normal((40, 4)), columns=["u", "v", "y", "z"])
    rows["site"], rows["w"] = np.resize(["a", "b"], 40), rows["y"] > 0
    problem = Problem.from_frame(rows, client="site", inputs=["w", "v", "u"], targets=["z", "y"])
    folder = tmp_path_factory.mktemp("framed")
    (run,) = train(problem, "resmlp-small", ["ordinary"], [0], SETTINGS, folder=folder)
    return run, rows[["u", "v", "w"]]


def test_columns_of_data_frames_are_taken_by_name(framed):
    run, rows = framed
    assert run.setup.data.provenance["inputs"] == ["w", "v", "u"]
    own = rows[["w", "v", "u"]].to_numpy(np.float64)
    expected = predict_rows(run, {"a": own})["a"]
    for given in (rows, rows[["v", "w", "u"]], own[:, ::-1][:, ::-1]):
        np.testing.assert_array_equal(predict_rows(run, {"a": given})["a"], expected)
    backwards = predict_rows(run, {"a": own[::-1]})["a"]
    np.testing.assert_allclose(backwards, expected[::-1], rtol=1e-5, atol=1e-6)


def test_any_number_of_rows_is_predicted(framed, monkeypatch):
    run, rows = framed
    expected = predict_rows(run, {"a": rows})["a"]
    monkeypatch.setattr("fedgram.nets.stored_model.ROWS_AT_ONCE", 7)
    np.testing.assert_allclose(predict_rows(run, {"a": rows})["a"], expected, rtol=1e-5, atol=1e-6)
    assert predict_rows(run, {"a": rows[:0]})["a"].shape == (0, 2)


def test_the_model_is_built_once_for_all_clients(folder):
    run = next(run for run in Runs(folder) if not run.setup.procedure.centralized)
    built = []

    def counted():
        built.append(net())
        return built[-1]

    rows = {client: split.inputs for client, split in small_problem().test.items()}
    predict_rows(run, rows, counted)
    assert len(rows) > len(built) == 1


def test_rows_that_cannot_be_predicted_are_named(framed):
    run, rows = framed
    refused = {
        "have columns 'u', 'v' instead of 'w', 'v', 'u'": {"a": rows[["u", "v"]]},
        "Client 'a' has a value in its inputs that is not finite, in row 1": {"a": rows.assign(u=np.nan)},
        "predict_rows() expects Mapping, got DataFrame. Pass {'a': rows": rows,
    }
    for words, given in refused.items():
        with pytest.raises(InputError, match=re.escape(words)):
            predict_rows(run, given)


class Odd(nn.Module):
    """A tensor in two layers, a count, numbers that are not saved, and an unused layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.second.weight, self.unused = self.first.weight, nn.Linear(3, 3)
        self.register_buffer("scale", torch.rand(4), persistent=False)

    def forward(self, x):
        return self.scale * self.norm(self.second(torch.tanh(self.first(x))))


class Temperature(nn.Module):
    """A layer that gives one number for all rows."""

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.ones(()))

    def forward(self):
        return self.value


class Tempered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.temperature = nn.Linear(4, 4), Temperature()

    def forward(self, x):
        return torch.tanh(self.layer(x) / self.temperature())


class Twice(nn.Module):
    """A layer of two names."""

    def __init__(self):
        super().__init__()
        self.first = self.again = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.again(torch.tanh(self.first(x))))


class Both(Twice):
    """And a tensor in two layers."""

    def __init__(self):
        super().__init__()
        self.last.weight = self.first.weight


def test_a_layer_and_a_tensor_of_two_names_do_not_go_together(tmp_path):
    with pytest.raises(InputError, match="both a layer with two names and a parameter in two layers"):
        train(small_problem(), Both, ["ordinary"], [0], SETTINGS, folder=tmp_path)


def test_networks_of_any_making_predict_as_they_were_trained(tmp_path):
    problem = small_problem()
    for number, backbone in enumerate(
        [Odd, Tempered, Twice, lambda: nn.Sequential(nn.LazyLinear(5), nn.Tanh())]
    ):
        (run,) = train(problem, backbone, ["private"], [0], SETTINGS, folder=tmp_path / str(number))
        found = predict_rows(run, {client: split.inputs for client, split in problem.train.items()}, backbone)
        mse = [np.mean((found[client] - split.targets) ** 2) for client, split in problem.train.items()]
        np.testing.assert_allclose(mse, run.rounds()[-1].train_mse[:, BIAS_RULES.index("private")], rtol=1e-6)


def test_one_warning_names_all_unknown_clients(tmp_path):
    (run,) = train(small_problem(), Odd, ["full-model"], [0], SETTINGS, folder=tmp_path)
    known, rows = run.setup.data.clients[0], np.ones((2, 4))
    with pytest.warns(UserWarning, match=r"^2 of 3 clients .* for them: 'east', 'west'\.$") as caught:
        predict_rows(run, {known: rows, "east": rows, "west": rows}, Odd)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=rf"^Client 'east' .* Clients of the training: '{known}', "):
        predict_rows(run, {"east": rows}, Odd)


def test_an_unknown_client_gets_the_mean_of_all_running_statistics(tmp_path, monkeypatch):
    (run,) = train(small_problem(), Odd, ["full-model"], [0], SETTINGS, folder=tmp_path)
    rows, arrays = np.ones((2, 4)), run.model()
    with pytest.warns(UserWarning, match="did not take part"):
        found = predict_rows(run, {"new": rows}, Odd)["new"]
    assert np.ptp(arrays["backbone.norm.running_mean"], axis=0).max() > 0
    rows_of = run.setup.data.train_rows
    mean = {
        name: np.zeros_like(value) + np.average(value, axis=0, weights=rows_of).astype(value.dtype)
        for name, value in arrays.items()
    }
    monkeypatch.setattr(StoredRun, "model", lambda run: mean)
    np.testing.assert_allclose(found, predict_rows(run, {"site 0": rows}, Odd)["site 0"], rtol=1e-9)


def test_images_are_of_the_type_that_was_trained_on(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 12, 16, 16, 1), dtype=np.uint8)
    problem = Problem.from_arrays(list(images), list(rng.standard_normal((2, 12, 2))))
    settings = replace(SETTINGS, rounds=1, epochs=1)
    (run,) = train(problem, "resnet-small", ["ordinary"], [0], settings, folder=tmp_path)
    assert predict_rows(run, {"client 1": images[0]})["client 1"].shape == (12, 2)
    with pytest.raises(InputError, match="'client 1' are float64, but the run was trained on"):
        predict_rows(run, {"client 1": images[0] / 255})


def bent():
    """The same layers, with another function between them."""
    return nn.Sequential(*(nn.Sigmoid() if not list(each.parameters()) else each for each in net()))


def test_our_backbones_are_taken_by_name_on_any_machine(tmp_path):
    (run,) = train(small_problem(), "resmlp-small", ["ordinary"], [0], SETTINGS, folder=tmp_path)
    elsewhere = replace(run, setup=replace(run.setup, network="drawn on another machine"))
    rows = {"site 0": np.ones((2, 4))}
    np.testing.assert_array_equal(predict_rows(elsewhere, rows)["site 0"], predict_rows(run, rows)["site 0"])


def test_a_module_with_other_weights_is_taken(folder):
    run = next(iter(Runs(folder)))
    drawn, given = (predict_rows(run, {"site 0": np.ones((1, 4))}, each)["site 0"] for each in (net, net()))
    np.testing.assert_array_equal(drawn, given)


def test_the_network_of_a_centralized_run_serves_all(folder):
    run = next(run for run in Runs(folder) if run.setup.procedure.centralized)
    rows = {"site 0": np.ones((2, 4)), "elsewhere": np.ones((2, 4))}
    found = predict_rows(run, rows, net)
    np.testing.assert_array_equal(found["elsewhere"], found["site 0"])


@pytest.mark.parametrize(
    ("rounds", "stopped", "words"),
    [
        (3, None, "they were not saved. Train again in another folder"),
        (1, None, "1 of 3 rounds are finished. Train the rest first"),
        (1, "its loss is infinite", "it was stopped because its loss is infinite"),
    ],
)
def test_why_there_are_no_networks(tmp_path, rounds, stopped, words):
    (run,) = trained(tmp_path, ["ordinary"], [0], keep_models=False)
    account = replace(run.account, seconds=(1.0,) * rounds, stopped=stopped)
    settings = replace(run.setup.settings, rounds=3)
    begun = replace(run, account=account, setup=replace(run.setup, settings=settings))
    with pytest.raises(InputError, match=words):
        predict_rows(begun, {"site 0": np.zeros((2, 4))}, net)
