"""Stacking changes nothing: a run among others is the run that a plain loop trains alone."""

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from fedgram import Penalty
from fedgram.data.problem import Problem
from fedgram.federation.client_data import ClientData, PooledMoments
from fedgram.federation.clients import Clients
from fedgram.federation.federation import Federation
from fedgram.nets.backbones import BACKBONES, PreActivatedResMLP
from fedgram.nets.stack import ModelStack
from fedgram.runs.procedure import WORDS, Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from tests.helpers.plain_loop import (
    CPU,
    OwnNet,
    RecurrentNet,
    assert_same_round,
    pictures,
    tabular,
    train_alone,
    trained,
)

# Rows and batches are such that clients take 3, 2 and 2 steps per epoch, the last of a few rows only; one
# row where there is no BatchNorm, which cannot train on one. Some of the gradients are clipped.
SETTINGS = TrainConfig(
    rounds=2, epochs=2, batch=16, features=5, penalty=Penalty(0.02, 0.05),
    learning_rate=3e-3, final_learning_rate=1e-4, clip=1.0, precision="fp64",
)  # fmt: skip
ON_PICTURES = replace(SETTINGS, epochs=1, batch=7, clip=3.0)

PROCEDURES = [
    "ordinary", "proximal=0.1", "corrected", "proximal=0.05+corrected=0.7", "aligned", "solved",
    "proximal=0.1+solved+corrected=0.3+offset", "private", "offset", "aligned+corrected+offset",
    "corrected+centered", "full-model", "corrected+private+full-model", "solved+private+independent",
    "independent", "local", "centralized",
]  # fmt: skip
# Where a backbone fits every row, the plain correction makes the gradient of the backbone vanish, and Adam
# goes where rounding points. The user's small networks fit no row exactly.
ON_OWN = [*PROCEDURES, "solved+corrected+offset"]
# Convolutions take long; what they could change is in the gradients and in BatchNorm.
ON_IMAGES = ["ordinary", "proximal=0.1+aligned+corrected=0.6+offset", "corrected+full-model", "centralized"]

SMALL = {name: name for name in BACKBONES if name.endswith("-small")} | {"wide-deep-64": "wide-deep-64"}
OWN = {"own": partial(OwnNet), "own with BatchNorm": partial(OwnNet, norm=True)}
PREACTIVATED = {"pre-activated": partial(PreActivatedResMLP, 12, width=16, blocks=2)}
RECURRENT = {"recurrent": RecurrentNet}
TRIED = SMALL | OWN | PREACTIVATED | RECURRENT


def procedures(backbone):
    if backbone in OWN:
        return ON_OWN
    if backbone in ("wide-deep-64", "pre-activated", "recurrent"):
        return ["ordinary", "full-model", "local"]
    return PROCEDURES if backbone == "resmlp-small" else ON_IMAGES


def problem(backbone) -> Problem:
    if backbone in OWN or backbone in ("resmlp-small", "wide-deep-64", "pre-activated", "recurrent"):
        return tabular((40, 27, 18 if "BatchNorm" in backbone else 17))
    return pictures(shape=(8, 8, 1) if "cnn" in backbone else (16, 16, 1))


def settings(backbone) -> TrainConfig:
    return ON_PICTURES if problem(backbone).name == "pictures" else SETTINGS


@cache
def stacked(backbone, centralized):
    """All procedures on a backbone, trained as one stack, with two seeds among them."""
    words = [each for each in procedures(backbone) if (each == "centralized") == centralized]
    runs = [Run(Procedure.parse(each), 3 + r % 2) for r, each in enumerate(words)]
    return trained(problem(backbone), TRIED[backbone], runs, settings(backbone))


def model_at(federation: Federation, client, run):
    """Parameters and buffers of one model of a stack, by name."""
    k = client * len(federation.runs) + federation.runs.index(run)
    stack = federation.clients.stack
    return {name: value[k] for name, value in (stack.parameters | stack.buffers).items()}


# Procedures and backbones are independent code: "own" takes all procedures, the others a few unless slow.
QUICK = {
    "own with BatchNorm": (
        "ordinary",
        "proximal=0.1+solved+corrected=0.3+offset",
        "full-model",
        "centralized",
    ),
    "resmlp-small": ("ordinary", "aligned+corrected+offset", "solved+private+independent", "centralized"),
    "residual-cnn-small": (),  # the small ResNet covers convolutions
}
CASES = [
    pytest.param(backbone, words, marks=() if words in QUICK.get(backbone, [words]) else pytest.mark.slow)
    for backbone in TRIED
    for words in procedures(backbone)
]


@pytest.mark.parametrize(("backbone", "words"), CASES)
def test_a_run_in_a_stack_is_the_run_alone(backbone, words):
    federation, recorded = stacked(backbone, words == "centralized")
    run = next(each for each in federation.runs if each.procedure == Procedure.parse(words))
    alone, clients = train_alone(problem(backbone), TRIED[backbone], run, settings(backbone))
    assert len(recorded[run]) == len(alone) == settings(backbone).rounds
    for ours, theirs in zip(recorded[run], alone, strict=True):
        assert_same_round(ours, theirs, 1e-10)
    for m, client in enumerate(clients):
        ours, theirs = model_at(federation, m, run), client.model.state_dict()
        assert ours.keys() == theirs.keys()
        # Adam divides by the size of gradients: where they are rounding, a parameter may move by more.
        for name in ours:
            torch.testing.assert_close(
                ours[name], theirs[name], rtol=1e-8, atol=1e-8, msg=lambda text, at=name: f"{at}: {text}"
            )


def test_the_comparison_covers_every_word_and_what_is_hard_about_it():
    said = {word.partition("=")[0] for words in ON_OWN for word in words.split("+")}
    # the others need validation rows: tests/federation/test_site_models.py
    assert said == set(WORDS) - {"shared", "moment-head", "site-effects", "blended"}
    run = Run(Procedure(), 3)
    records, clients = train_alone(problem("own"), TRIED["own"], run, SETTINGS)
    assert len({len(client.norms) for client in clients}) == 2  # steps per round
    norms = np.concatenate([client.norms for client in clients])
    assert 0.2 < (norms > SETTINGS.clip).mean() < 0.8
    moved = [np.abs(now.head - before.head).max() for before, now in pairwise(records)]
    assert min(moved) > 1e-3
    assert np.isnan(records[0].test_mse[1]).all()
    assert np.isfinite(records[0].test_mse[[0, 2]]).all()


class Tempered(OwnNet):
    """A network with a parameter that is one number."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return super().forward(x) / self.temperature


def test_a_backbone_may_have_a_parameter_without_axes():
    run = Run(Procedure(), 3)
    federation, recorded = trained(problem("own"), Tempered, [run], SETTINGS)
    alone, clients = train_alone(problem("own"), Tempered, run, SETTINGS)
    assert_same_round(recorded[run][-1], alone[-1], 1e-10)
    ours = model_at(federation, 1, run)["backbone.temperature"]
    assert ours.item() == pytest.approx(clients[1].model.backbone.temperature.item(), rel=1e-10)
    assert ours.item() != 2.0


STACKS = {
    "three seeds": [("proximal+solved+corrected+offset", seed) for seed in (1, 7, 2)],
    "permuted seeds": [("proximal+solved+corrected+offset", seed) for seed in (2, 1, 7)],
    "other procedures": [
        ("full-model", 7), ("aligned", 2), ("proximal+solved+corrected+offset", 7), ("centered", 1),
    ],
}  # fmt: skip


UNEQUAL = tabular((50, 5, 6, 40, 3))
COMPARED = Run(Procedure.parse("proximal+solved+corrected+offset"), 7)


@cache
def alone_on(backbone):
    return trained(problem(backbone), TRIED[backbone], [COMPARED], SETTINGS)


@pytest.mark.parametrize("among", STACKS)
@pytest.mark.parametrize("backbone", OWN)
def test_a_run_does_not_depend_on_what_it_is_stacked_with(backbone, among):
    run = COMPARED
    others = [Run(Procedure.parse(words), seed) for words, seed in STACKS[among]]
    alone, expected = alone_on(backbone)
    federation, recorded = trained(problem(backbone), TRIED[backbone], others, SETTINGS)
    for ours, theirs in zip(recorded[run], expected[run], strict=True):
        assert_same_round(ours, theirs, 1e-12)
    for m in range(3):
        torch.testing.assert_close(
            model_at(federation, m, run), model_at(alone, m, run), rtol=1e-11, atol=1e-11
        )


@cache
def alone_with_unequal_rows(run):
    return train_alone(UNEQUAL, "wide-deep-64", run, replace(SETTINGS, epochs=1))[0]


@pytest.mark.parametrize("bridged", [0, 2])
def test_small_clients_between_large_ones_are_left_out_of_later_steps(bridged, monkeypatch):
    """Clients take 4, 1, 1, 3, 1 steps: gaps of two clients, and one at the end."""
    monkeypatch.setattr("fedgram.nets.fit.BRIDGED", bridged)
    run = Run(Procedure.parse("full-model"), 3)
    federation, recorded = trained(UNEQUAL, "wide-deep-64", [run], replace(SETTINGS, epochs=1))
    fit = federation.clients.fit
    assert fit.pads
    ranges = [[models for models, _ in fit._split_by_size(fit.batches.sizes(step))] for step in range(4)]
    apart = [slice(0, 1), slice(3, 4)] if bridged < 2 else [slice(0, 4)]
    assert ranges == [[slice(0, 5)], apart, apart, [slice(0, 1)]]
    for ours, theirs in zip(recorded[run], alone_with_unequal_rows(run), strict=True):
        assert_same_round(ours, theirs, 1e-10)


@pytest.mark.parametrize(
    ("rows", "common"),
    [
        ((160, 155), [(4, 16)]),  # the last step of a client is a twentieth of all
        ((32, 27, 16), [(6, 16), (2, 16), (2, 11)]),
        (range(3, 15), [(2, 3)]),  # each size is rare, and the first as common as any
    ],
)
def test_only_shapes_that_are_common_are_compiled(rows, common, monkeypatch):
    seen = set()

    def compiled(function, device):
        def noting(stack, leaves, *tensors):
            if function is ModelStack.map_backbones:
                seen.add(tuple(tensors[-1].shape[:2]))
            return function(stack, leaves, *tensors)

        return noting

    monkeypatch.setattr("fedgram.nets.cuda.compile_on_gpu", compiled)
    runs = [Run(Procedure.parse(words), 0) for words in ("ordinary", "proximal")]
    settings = TrainConfig(rounds=1, epochs=2, batch=16, features=5)
    backbone = partial(OwnNet, norm=True)  # BatchNorm would read padding
    next(Federation(tabular(tuple(rows)), backbone, runs, settings, CPU).rounds())
    assert not seen  # too few steps in all
    monkeypatch.setattr("fedgram.nets.fit.FEWEST_COMPILED", 2)
    federation = Federation(tabular(tuple(rows)), backbone, runs, settings, CPU)
    next(federation.rounds())
    assert federation.clients.fit.common == common
    assert seen == set(common)


def test_convolutions_stacked_or_not_are_the_same():
    run, other = (Run(Procedure.parse("corrected+offset"), seed) for seed in (7, 1))
    data, backbone = problem("resnet-small"), "resnet-small"
    _, expected = trained(data, backbone, [run], ON_PICTURES)
    _, recorded = trained(data, backbone, [other, run], ON_PICTURES)
    for ours, theirs in zip(recorded[run], expected[run], strict=True):
        assert_same_round(ours, theirs, 1e-12)


@pytest.mark.parametrize("backbone", OWN)
@pytest.mark.parametrize("words", ["proximal+corrected", "solved+corrected+offset", "aligned+private"])
def test_a_client_alone_returns_what_it_returns_in_the_federation(backbone, words):
    """What a site of a real federation computes: it holds its own rows and the exchanged moments only."""
    run, data = Run(Procedure.parse(words), 5), problem(backbone)
    federation, recorded = trained(data, TRIED[backbone], [run], SETTINGS)
    start = Federation(data, TRIED[backbone], [run], SETTINGS, CPU)
    name = data.clients[2]
    site = ClientData.from_splits({name: data.train[name]}, {}, CPU)
    alone = Clients(site, PooledMoments.from_problem(data), TRIED[backbone], [run], SETTINGS, CPU)
    head, bias = start.head, start.bias
    for record in recorded[run]:
        returned = alone.round(record.number, head, bias)
        given = (returned.layers.head[0], returned.layers.bias[0], returned.training_loss[0])
        expected = (record.returned_heads[2], record.returned_biases[2], record.training_loss[2])
        for ours, theirs in zip(given, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
        head, bias = torch.as_tensor(record.head)[None], torch.as_tensor(record.bias)[None]
    for name, value in (alone.stack.parameters | alone.stack.buffers).items():
        torch.testing.assert_close(value[0], model_at(federation, 2, run)[name], rtol=1e-11, atol=1e-11)
