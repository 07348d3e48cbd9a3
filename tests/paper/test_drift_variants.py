"""Variants of ordinary training: each changes the network, its weights, the configuration or the data."""

import argparse
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tools.drift_variants import (
    PAPER,
    VARIANTS,
    changed_models,
    find_missing,
    find_source,
    restore_units,
    save,
)

from fedgram import InputError, Moments, Penalty, predict
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.federation import clients
from fedgram.nets.model import Model, draw
from fedgram.paper.networks.mismatch import aligned_objective, averaged_objective, turned_heads

ROWS = torch.linspace(-1, 1, 40).reshape(5, 8)
BUILT_IN = VARIANTS["as built in"]
RESULTS = Path(__file__).parents[2] / "results" / "paper" / "results"


def build(variant, seed=0):
    with changed_models(variant.change):
        return clients.draw(lambda: variant.network(8), ROWS, 16, 2, seed, None).eval()


def outputs(network):
    return network(ROWS)[1].detach()


def count_parameters(network):
    return sum(value.numel() for value in network.parameters())


@cache
def built_in():
    return build(BUILT_IN)


@pytest.mark.parametrize("name", list(VARIANTS)[1:])
def test_every_variant_differs_from_what_is_built_in(name):
    variant = VARIANTS[name]
    network = build(variant)
    same_network = torch.equal(outputs(network), outputs(built_in()))
    same_network &= count_parameters(network) == count_parameters(built_in())
    config = PAPER.settings(4000, 1)
    same_config = replace(config, **variant.settings) == config
    same_data = (variant.policy, variant.own_units) == (BUILT_IN.policy, BUILT_IN.own_units)
    assert [same_network, same_config, same_data].count(False) == 1
    assert torch.equal(outputs(network), outputs(build(variant)))  # drawn again from the same seed


def test_scaled_networks_multiply_what_is_built_in():
    def hidden(name, rows=ROWS):
        return build(VARIANTS[name]).backbone(rows)

    assert torch.equal(hidden("outputs times 4"), 4 * hidden("as built in"))
    assert torch.equal(hidden("inputs times 3"), hidden("as built in", 3 * ROWS))


def test_changed_layers_leave_the_others_as_they_are():
    own, other = build(BUILT_IN), build(VARIANTS["head times 0.1"])
    assert torch.equal(other.head.weight, 0.1 * own.head.weight)
    assert torch.equal(other.feature.weight, own.feature.weight)
    other = build(VARIANTS["Kaiming-normal weights up to the features"])
    assert torch.equal(other.head.weight, own.head.weight)
    assert other.feature.weight.std() > 2 * own.feature.weight.std()
    assert not other.backbone[0].bias.any()


def test_models_are_drawn_as_before_afterwards():
    with changed_models(VARIANTS["head times 3"].change):
        pass
    assert clients.draw is draw
    assert isinstance(build(BUILT_IN), Model)


def test_only_rollouts_have_other_policies(tmp_path):
    folder = tmp_path / "swimmer-rollouts"
    folder.mkdir()
    (folder / "mujoco_swimmer_tqc_stoch.parquet").touch()
    assert find_source("swimmer", "tqc_stoch", tmp_path).variant == "tqc_stoch"
    with pytest.raises(InputError, match="mujoco_swimmer_ppo_stoch"):
        find_source("swimmer", "ppo_stoch", tmp_path)
    with pytest.raises(InputError, match="no other rollouts"):
        find_source("beijing", "tqc_stoch", tmp_path)


def test_inputs_get_their_units_back():
    split = Split(np.array([[1.0], [-1.0]], np.float32), np.array([[2.0], [3.0]]))
    provenance = {"mean": {"y": 0.0, "x": 10.0}, "scale": {"y": 1.0, "x": 4.0}}
    problem = Problem("p", "GENERATED", {"a": split, "b": split}, {}, ("y",), provenance)
    assert restore_units(problem).train["a"].inputs.ravel().tolist() == [14.0, 6.0]
    with pytest.raises(InputError, match="own units already"):
        restore_units(replace(problem, provenance={}))


def test_rows_of_the_same_runs_are_replaced(tmp_path):
    path = tmp_path / "new" / "table.csv"
    first = {"variant": "a", "setting": "s", "procedure": "ordinary", "epochs": 1, "seed": 0, "round": 1}
    first["removed"] = "0.1"
    save([first], path)
    save([first | {"seed": 1}], path)
    save([first | {"removed": "0.2"}], path)
    found = pd.read_csv(path)
    assert list(zip(found.seed, found.removed, strict=True)) == [(0, 0.2), (1, 0.1)]


def test_only_seeds_without_the_last_round_are_trained(tmp_path):
    path = tmp_path / "table.csv"
    row = {"variant": "a", "setting": "s", "procedure": "ordinary", "epochs": 400, "seed": 0, "removed": "0"}

    def missing(seeds, rounds, epochs=400, procedures="ordinary"):
        given = argparse.Namespace(seeds=seeds, rounds=rounds, procedures=procedures)
        return find_missing(given, "a", "s", epochs, path)

    assert missing("0,2", 1) == [0, 2]
    save([row | {"round": round} for round in (1, 2)] + [row | {"seed": 2, "round": 1}], path)
    assert missing("0,1,2", 2) == [1, 2]
    assert missing("0,1,2", 1) == [1]
    assert missing("0", 1, epochs=4000) == [0]
    assert missing("0,2", 1, procedures="ordinary,proximal+corrected") == [0, 2]


@pytest.mark.parametrize(
    "setting", ["beijing", "swimmer-rollouts", "hopper-rollouts", "halfcheetah-rollouts"]
)
def test_objective_after_alignment_is_that_of_committed_first_rounds(setting):
    (path,) = RESULTS.glob(f"paper-*-{setting}-resmlp-E4000-rounds8.parquet")
    runs = pd.read_parquet(path, columns=["procedure", "round", "seed", "shared_objective"])
    runs = runs[(runs.procedure == "aligned") & (runs["round"] == 1)]
    prediction = predict(Moments.load(RESULTS / f"moments-{setting}.json"), Penalty())
    size = prediction.grams.shape[-1]
    for seed, measured in zip(runs.seed, runs.shared_objective, strict=True):
        model = draw(lambda: torch.nn.Linear(8, 4), ROWS, 512, size, seed, None)
        expected = aligned_objective(prediction, model.head.weight.detach().double().numpy())
        assert measured == pytest.approx(expected, rel=5e-4)


def test_turned_heads_keep_their_grams_and_cost_more():
    rng = np.random.default_rng(0)
    roots = rng.standard_normal((3, 2, 4))
    moments = Moments([30, 20, 50], rng.standard_normal((3, 2)), roots @ roots.mT)
    prediction = predict(moments, Penalty())
    costs = []
    for angle in (0, 0.5, 1, np.pi / 2):
        heads = turned_heads(prediction, angle)
        np.testing.assert_allclose(heads @ heads.mT, prediction.grams, atol=1e-12)
        costs.append(averaged_objective(prediction, heads))
    assert costs == sorted(costs)
    assert costs[0] == pytest.approx(aligned_objective(prediction, np.eye(2, 9)))


def test_a_single_head_costs_what_its_clients_pay():
    rng = np.random.default_rng(1)
    same = Moments([10, 10], np.ones((2, 2)), np.stack([np.diag([2.0, 3.0])] * 2))
    prediction = predict(same, Penalty())
    heads = np.broadcast_to(np.linalg.cholesky(prediction.grams[0]), (2, 2, 2))
    turned = heads @ np.linalg.qr(rng.standard_normal((2, 2)))[0]
    for each in (heads, turned):
        assert averaged_objective(prediction, each) == pytest.approx(prediction.loss_optimum[0])
