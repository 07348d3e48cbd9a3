"""Layers that compute K models at once: on a CPU with PyTorch's functions in place of the kernels."""

import sys
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from fedgram.federation.federation import Federation
from fedgram.nets import cuda, stacked_ops
from fedgram.nets.backbones import ResNet, build_residual_cnn, build_resnet
from fedgram.nets.model import draw
from fedgram.nets.stack import STACKED, ModelStack, split_slice
from fedgram.nets.stacked_layers import BatchNorm2d, Conv2d, GroupNorm, can_stack, pad_rows, set_stacked
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from tests.helpers.plain_layers import PlainConvolution, PlainPooling
from tests.helpers.plain_loop import pictures

MODELS = 2


def build_group_normalized():
    """The first half of a residual CNN."""
    return ResNet(build_residual_cnn(3).stem, 64, (1, 1), lambda width: GroupNorm(8, width))


NETWORKS = {
    "ResNet": lambda: build_resnet(3, (1, 1, 1)),
    "ResNet, gray": lambda: build_resnet(1, (1, 1)),
    "residual CNN": build_group_normalized,
}


@pytest.fixture(autouse=True)
def _plain_kernels(monkeypatch):
    monkeypatch.setitem(sys.modules, "fedgram.nets.fused_convolution", PlainConvolution)
    monkeypatch.setitem(sys.modules, "fedgram.nets.fused_pooling", PlainPooling)


def draw_networks(build):
    """Networks whose normalizations have weights of both signs."""
    torch.manual_seed(0)
    networks = [build().double() for _ in range(MODELS)]
    for network in networks:
        for layer in network.modules():
            if isinstance(layer, BatchNorm2d):
                nn.init.normal_(layer.weight)
                nn.init.normal_(layer.bias)
    return networks


def stack(networks, tensors):
    return {
        name: torch.stack([dict(tensors(each))[name].detach() for each in networks])
        for name, _ in tensors(networks[0])
    }


@pytest.mark.parametrize("name", NETWORKS)
def test_stacked_networks_are_each_network_alone(name):
    networks = draw_networks(NETWORKS[name])
    assert can_stack(networks[0])
    channels = networks[0].stem[0].in_channels
    x = torch.randn(MODELS, 4, 10, 12, channels, dtype=torch.float64).movedim(-1, 2)
    parameters = {
        key: value.requires_grad_() for key, value in stack(networks, nn.Module.named_parameters).items()
    }
    buffers = stack(networks, nn.Module.named_buffers)
    base = deepcopy(networks[0])
    set_stacked(base, True)
    outputs = vmap(lambda *state: functional_call(base, state[:2], state[2]))(parameters, buffers, x)
    slope = torch.randn_like(outputs)
    gradients = dict(
        zip(parameters, torch.autograd.grad(outputs, list(parameters.values()), slope), strict=True)
    )
    for k, network in enumerate(networks):
        alone = network(x[k])
        torch.testing.assert_close(outputs[k], alone, rtol=1e-5, atol=1e-5)  # stacked norms are in fp32
        expected = torch.autograd.grad(alone, list(network.parameters()), slope[k])
        for (key, _), gradient in zip(network.named_parameters(), expected, strict=True):
            error = (gradients[key][k] - gradient).norm() / gradient.norm()
            assert error < 1e-4, key
        for key, value in network.named_buffers():
            torch.testing.assert_close(buffers[key][k], value, rtol=1e-5, atol=1e-5)


def test_stacked_images_are_never_copied_to_another_order(monkeypatch):
    orders = []
    monkeypatch.setattr(
        stacked_ops,
        "_channels_last",
        lambda value: (
            orders.append(value.permute(0, 1, 3, 4, 2).is_contiguous())
            or value.permute(0, 1, 3, 4, 2).contiguous()
        ),
    )
    networks = draw_networks(NETWORKS["ResNet"])
    set_stacked(networks[0], True)
    for layer in networks[0].modules():
        if isinstance(layer, Conv2d):
            layer.to(memory_format=torch.channels_last)
    x = torch.randn(5, 20, 20, 3, dtype=torch.float64).movedim(-1, 1)
    networks[0](x).square().sum().backward()
    assert len(orders) > 20
    assert all(orders)


def test_evaluation_is_that_of_pytorch():
    (network, *_), x = draw_networks(NETWORKS["ResNet"]), torch.randn(5, 3, 20, 20, dtype=torch.float64)
    network.eval()
    expected = network(x)
    set_stacked(network, True)
    assert torch.equal(network(x), expected)


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding"), [(3, 7, 2, 3), (1, 7, 2, 3), (3, 3, 1, 1)]
)
@pytest.mark.parametrize("size", [(16, 16), (9, 13), (7, 8)])
def test_padded_rows_have_32_numbers_and_change_nothing(channels, kernel, stride, padding, size):
    layer = Conv2d(channels, 64, kernel, stride, padding).double()
    x = torch.randn(2, channels, *size, dtype=torch.float64)
    images, kernels = pad_rows(x, layer.weight, stride, padding)
    assert kernels.shape[1] * kernels.shape[3] == 32
    assert images.shape[1] * stride % 8 == 0  # kernels begin at multiples of 16 bytes in half precision
    assert images.shape[1] * images.shape[3] % 8 == 0  # and so do rows of images
    found = torch.nn.functional.conv2d(images, kernels, stride=stride)
    torch.testing.assert_close(found, layer(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (build_resnet(3, (1, 1)), True),
        (build_group_normalized(), True),
        (build_resnet(3, (1, 1), width=8), False),
        (build_resnet(5, (1, 1)), False),  # rows of 8 channels and 7 columns are too long
        (nn.Sequential(nn.Conv2d(64, 64, 3)), False),
        (nn.Sequential(nn.Conv1d(64, 64, 3), Conv2d(64, 64, 3)), False),
    ],
    ids=["ResNet", "residual CNN", "narrow", "five channels", "own layers", "own layers, too"],
)
def test_networks_that_can_be_stacked(model, expected):
    assert can_stack(model) is expected


def build_wide():
    return build_resnet(3, (1, 1))


@pytest.mark.parametrize(
    ("backbone", "precision", "expected"),
    [(build_wide, "fp16", STACKED), (build_wide, "tf32", STACKED), (build_wide, "fp32", 1),
     ("resnet-small", "fp16", 1), ("resmlp-small", "fp16", 2)],
)  # fmt: skip
def test_models_that_a_step_computes_at_once(monkeypatch, backbone, precision, expected):
    x = torch.zeros(2, 5) if backbone == "resmlp-small" else torch.zeros(2, 3, 16, 16)
    models = [draw(backbone, x, 8, 2, seed, None) for seed in range(2)]
    models = ModelStack.from_models(models, torch.device("cpu"), torch.float32)
    alone = models.models_at_once
    assert models.trained_at_once(precision) == alone
    monkeypatch.setattr("fedgram.nets.stack.has_fused_layers", lambda device: True)
    assert models.trained_at_once(precision) == expected
    assert models.models_at_once == alone  # evaluation does not change


def test_minibatches_of_unequal_size_overlap(monkeypatch):
    """They are computed client by client, on streams of their own; others one after another."""
    turns = []

    class Recorded(cuda.StreamPool):
        def use(self, turn):
            turns.append(turn)
            return super().use(turn)

    monkeypatch.setattr("fedgram.nets.cuda.StreamPool", Recorded)
    monkeypatch.setattr("fedgram.nets.stack.has_fused_layers", lambda device: True)
    monkeypatch.setattr("fedgram.nets.fit.split_slice", lambda models, at_once: split_slice(models, 2))
    config = TrainConfig(rounds=1, epochs=1, batch=3, features=3, precision="tf32")
    runs = [Run(Procedure(), seed) for seed in (0, 1)]
    federation = Federation(
        pictures((6, 5, 6)), lambda: build_resnet(1, (1,)), runs, config, torch.device("cpu")
    )
    turns.clear()  # those of recording
    next(federation.rounds())
    assert turns == [0, 0, 0, 0, 1, 2]
