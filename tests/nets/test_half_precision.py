"""fp16 and bf16: gradients and weights of backbones in half precision."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn

from fedgram import Penalty
from fedgram.federation.federation import Federation
from fedgram.nets.backbones import BACKBONES
from fedgram.nets.batches import Batches
from fedgram.nets.fit import Fit
from fedgram.nets.gradients import (
    LARGEST_SLOPE,
    SHRINK,
    SMALLEST_SLOPE,
    list_product_weights,
    scale_slopes,
)
from fedgram.nets.model import draw
from fedgram.nets.objective import Terms
from fedgram.nets.stack import ModelStack
from fedgram.nets.stacked_layers import convolve_blocks
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from tests.helpers.plain_loop import tabular

CPU = torch.device("cpu")
SHAPES = {"resmlp-small": (5,), "wide-deep-64": (5,), "residual-cnn-small": (2, 16, 16)}
ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}


def prepared(backbone, precision, shrink=1.0):
    """Two models, ready to train; `shrink` multiplies their last layers and so all gradients of backbones."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, *SHAPES[backbone], generator=generator)
    targets = torch.randn(24, 2, generator=generator)
    models = [draw(backbone, inputs[:2], 6, 2, seed, None) for seed in range(2)]
    dtype = torch.float64 if precision == "fp64" else torch.float32
    stack = ModelStack.from_models(models, CPU, dtype)
    stack.parameters["feature.weight"] *= shrink
    config = TrainConfig(rounds=1, epochs=2, batch=8, features=6, penalty=Penalty(0.1, 0.1))
    clients = {"a": 12, "b": 12}
    batches = Batches(inputs.to(dtype), targets.to(dtype), clients, [0], torch.zeros(2, 2, dtype=dtype), 8)
    head = stack.parameters["head.weight"].clone()
    terms = Terms(head, torch.full((2,), 0.1, dtype=dtype), None)
    config = replace(config, precision=precision)
    fit = Fit(stack, batches, terms, config, torch.zeros(2, dtype=torch.bool))
    batches.shuffle(1, 0)
    batches.select(0)
    return fit


def gradients_of(backbone, precision, shrink):
    """Unscaled gradients of the first model's parameters, by name."""
    _, gradients, unscale = prepared(backbone, precision, shrink).gradients(slice(0, 1), 8)
    units = {
        name: 1.0 if unscale is None or name[:9] != "backbone." else unscale.item() for name in gradients
    }
    return {name: units[name] * each[0].double() for name, each in gradients.items()}


@pytest.mark.parametrize(
    ("backbone", "precision", "shrink"),
    [
        *product(["resmlp-small"], ROUNDING, [1.0, 1e-12]),
        ("wide-deep-64", "fp16", 1.0),
        ("residual-cnn-small", "fp16", 1e-12),
    ],
)
def test_gradients_are_as_exact_as_half_precision_however_small(backbone, precision, shrink):
    """The smallest number of fp16 is 6e-8: without a scale, the second gradients would all be 0."""
    exact, rounded = (gradients_of(backbone, each, shrink) for each in ("fp64", precision))
    assert 0 < exact["backbone." + first_weight(backbone)].abs().max() < (1e-9 if shrink < 1 else 10)
    # Rounding moves outputs across the kinks of ReLU, which changes gradients of deep networks much more.
    most = 0.9 if backbone == "residual-cnn-small" else 60 * ROUNDING[precision]
    for name, gradient in exact.items():
        assert (rounded[name] - gradient).norm() < most * gradient.norm(), name


def first_weight(backbone):
    firsts = {"resmlp-small": "0", "wide-deep-64": "deep.0", "residual-cnn-small": "stem.0"}
    return f"{firsts[backbone]}.weight"


@pytest.mark.parametrize(
    ("backbone", "precision"),
    [
        *product(["resmlp-small"], ROUNDING),
        pytest.param("residual-cnn-small", "fp16", marks=pytest.mark.slow),
    ],
)
def test_copies_are_the_weights_in_half_precision(backbone, precision):
    fit = prepared(backbone, precision)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    layers = [m for m in BACKBONES[backbone](SHAPES[backbone]).modules() if hasattr(m, "weight")]
    products = [layer for layer in layers if isinstance(layer, nn.Linear | nn.Conv2d)]
    assert len(fit.copies) == len(list_product_weights(fit.stack)) == len(products)
    first = "backbone." + first_weight(backbone)
    for value in fit.stack.parameters.values():
        value *= 1.5  # as a server may replace them between rounds
    before = fit.stack.parameters[first].clone()
    fit.round(1)
    assert not torch.equal(fit.stack.parameters[first], before)
    for name, copy in fit.copies.items():
        assert copy.dtype == dtype
        assert torch.equal(copy, fit.stack.parameters[name].to(dtype))


def test_weights_that_the_server_replaced_are_copied():
    ours, theirs = (prepared("resmlp-small", "fp16") for _ in range(2))
    for fit in (ours, theirs):
        for value in fit.stack.parameters.values():
            value *= 1.5
    for name, copy in theirs.copies.items():
        copy.copy_(theirs.stack.parameters[name])
    for fit in (ours, theirs):
        fit.round(1)
    for name, value in theirs.stack.parameters.items():
        assert torch.equal(ours.stack.parameters[name], value)


def test_each_model_has_its_own_scale():
    slope = torch.tensor([1e-20, 1.0, 0.0, 1e20])[:, None, None] * torch.tensor([[0.5, -1.0]])
    largest = torch.tensor([0.5, 0.25, 0.25, 0.125])
    scaled, unscale = scale_slopes(slope, largest)
    assert scaled.abs().amax(dim=(1, 2)).tolist() == [0.5, 0.25, 0.0, 0.125]
    torch.testing.assert_close(scaled * unscale[:, None, None], slope)


def test_a_step_that_overflows_changes_no_model_and_lowers_its_scale(monkeypatch):
    fit, seen = prepared("resmlp-small", "fp16"), []
    assert fit.optimizer.clip < 1e3
    fit.optimizer.clip = 1e9  # a clipped gradient is as small as the bound, however large it was

    def spoiled(models, size):
        values, gradients, unscale = type(fit).gradients(fit, models, size)
        step = len(seen)
        seen.append([fit.largest_slope.clone(), *(each.clone() for each in state(fit))])
        if step in (1, 2):
            gradients["backbone.0.weight"][1, 0, 0] = (float("inf"), float("nan"))[step - 1]
        return values, gradients, unscale

    monkeypatch.setattr(fit, "gradients", spoiled)
    fit.round(1)
    slopes = torch.stack([each[0] for each in seen])
    assert slopes[:4, 0].tolist() == [LARGEST_SLOPE] * 4
    assert slopes[:4, 1].tolist() == [LARGEST_SLOPE, LARGEST_SLOPE, SHRINK * LARGEST_SLOPE, SMALLEST_SLOPE]
    for before, after in zip(seen[1][1:], seen[3][1:], strict=True):
        assert torch.equal(before[1], after[1])
        assert not torch.equal(before[0], after[0])
    for before, after in zip(seen[0][1:], seen[1][1:], strict=True):
        assert not torch.equal(before[1], after[1])


def test_a_model_that_overflows_at_every_scale_has_diverged(monkeypatch):
    fit = prepared("resmlp-small", "fp16")

    def spoiled(models, size):
        values, gradients, unscale = type(fit).gradients(fit, models, size)
        gradients["backbone.0.weight"][1, 0, 0] = float("inf")
        return values, gradients, unscale

    monkeypatch.setattr(fit, "gradients", spoiled)
    assert fit.round(1).isfinite().tolist() == [True, False]


def test_half_precision_with_a_scalar_parameter():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.size = nn.Linear(12, 8), nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.size * torch.tanh(self.layer(x))

    run, settings = Run(Procedure(), 0), TrainConfig(rounds=1, epochs=2, features=5, precision="fp16")
    federation = Federation(tabular(), Scaled, [run], settings, CPU)
    before = federation.clients.stack.parameters["backbone.size"].clone()
    list(federation.rounds())
    assert not federation.stopped
    assert not torch.equal(federation.clients.stack.parameters["backbone.size"], before)


def state(fit):
    """A parameter, its copy and both moments."""
    name = "backbone.0.weight"
    optimizer = fit.optimizer
    return fit.stack.parameters[name], fit.copies[name], optimizer.first[name], optimizer.second[name]


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 16, 20)])
def test_convolution_of_blocks_is_the_convolution(shape):
    layer, x = nn.Conv2d(shape[0], 8, 7, 2, padding=3, bias=False).double(), torch.randn(2, *shape).double()
    torch.testing.assert_close(convolve_blocks(x, layer.weight), layer(x), rtol=1e-13, atol=1e-13)
