"""Variants of the first round: each changes the network, the configuration or the data."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from tools.first_rounds import PAPER, VARIANTS, find_source, save

from fedgram import InputError

ROWS = torch.linspace(-1, 1, 40).reshape(5, 8)
BUILT_IN = VARIANTS["as built in"]


def build(variant):
    torch.manual_seed(0)
    return variant.network(8)


def outputs(variant, rows=ROWS):
    return build(variant)(rows).detach()


def count_parameters(variant):
    return sum(value.numel() for value in build(variant).parameters())


@pytest.mark.parametrize("name", list(VARIANTS)[1:])
def test_every_variant_differs_from_what_is_built_in(name):
    variant = VARIANTS[name]
    assert outputs(variant).shape == (5, 1024)
    same_network = torch.equal(outputs(variant), outputs(BUILT_IN))
    same_network &= count_parameters(variant) == count_parameters(BUILT_IN)
    config = PAPER.settings(4000, 1)
    same_config = replace(config, **variant.changed) == config
    assert [same_network, same_config, variant.policy == BUILT_IN.policy].count(False) == 1


def test_scaled_networks_multiply_what_is_built_in():
    assert torch.equal(outputs(VARIANTS["outputs times 4"]), 4 * outputs(BUILT_IN))
    assert torch.equal(outputs(VARIANTS["inputs times 3"]), outputs(BUILT_IN, 3 * ROWS))


def test_only_rollouts_have_other_policies(tmp_path):
    folder = tmp_path / "swimmer-rollouts"
    folder.mkdir()
    (folder / "mujoco_swimmer_tqc_stoch.parquet").touch()
    assert find_source("swimmer", "tqc_stoch", tmp_path).variant == "tqc_stoch"
    with pytest.raises(InputError, match="mujoco_swimmer_ppo_stoch"):
        find_source("swimmer", "ppo_stoch", tmp_path)
    with pytest.raises(InputError, match="no other rollouts"):
        find_source("beijing", "tqc_stoch", tmp_path)


def test_rows_of_the_same_runs_are_replaced(tmp_path):
    path = tmp_path / "new" / "table.csv"
    first = pd.DataFrame({"variant": ["a"], "setting": ["s"], "epochs": [1], "seed": [0], "removed": ["0.1"]})
    save(first, path)
    save(first.assign(seed=1), path)
    save(first.assign(removed="0.2"), path)
    found = pd.read_csv(path)
    assert list(zip(found.seed, found.removed, strict=True)) == [(1, 0.1), (0, 0.2)]
