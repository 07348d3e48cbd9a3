"""Kernels of convolutional layers against PyTorch in double precision; they need a GPU."""

import pytest
import torch

from fedgram.nets import stack
from fedgram.nets.backbones import build_residual_cnn, build_resnet
from fedgram.nets.batches import Batches
from fedgram.nets.fit import Fit
from fedgram.nets.model import draw
from fedgram.nets.objective import Terms
from fedgram.nets.stack import ModelStack
from fedgram.runs.train_config import TrainConfig
from tests.helpers.plain_layers import PlainConvolution, PlainPooling

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler's advice on precision is not ours
]
GPU = torch.device("cuda")
MODELS = 3
ERRORS = {torch.float16: 4e-4, torch.bfloat16: 4e-3, torch.float32: 2e-3}  # the last in TF32
LAYERS = {
    "16 x 16": (5, 16, 64, 64, 3, 1, 1),
    "5 x 5": (130, 5, 64, 128, 3, 1, 1),
    "2 x 2": (256, 2, 512, 256, 3, 1, 1),
    "192 channels, not whole tiles of 128": (5, 4, 192, 192, 3, 1, 1),
    "stride 2": (130, 6, 64, 128, 3, 2, 1),
    "stride 2, odd": (7, 5, 128, 64, 3, 2, 1),
    "1x1, stride 2": (256, 4, 64, 128, 1, 2, 0),
    "one image of one pixel": (1, 1, 64, 64, 3, 1, 1),
    "rows of few channels": (131, 20, 4, 64, (7, 8), 2, 0),
}


def draw_layer(images, size, channels, out, kernel, stride, padding, dtype):
    generator = torch.Generator(GPU).manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device=GPU).to(dtype)

    kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    x, weight = normal(MODELS, images, size, size, channels), normal(MODELS, out, *kernel, channels)
    shape = [(size + 2 * padding - each) // stride + 1 for each in kernel]
    return x, weight, normal(MODELS, images, *shape, out), kernel, stride, padding


def relative(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_fused_convolutions(layer, dtype):
    from fedgram.nets import fused_convolution as fused

    x, weight, slope, kernel, stride, padding = draw_layer(*LAYERS[layer], dtype)
    size = x.shape[2:4]
    exact = x.double(), weight.double(), slope.double()
    spoiled = torch.full((50_000_000,), float("nan"), device=GPU)
    del spoiled  # results begin as NaN, so what is not written shows
    found = fused.convolve(x, weight, stride, padding)
    assert relative(found, PlainConvolution.convolve(*exact[:2], stride, padding)) < ERRORS[dtype]
    found = fused.convolve_weight(slope, x, kernel, stride, padding)
    expected = PlainConvolution.convolve_weight(exact[2], exact[0], kernel, stride, padding)
    assert relative(found, expected) < ERRORS[dtype]
    if x.shape[4] >= 64:
        found = fused.convolve_data(slope, weight, size, stride, padding)
        expected = PlainConvolution.convolve_data(exact[2], exact[1], size, stride, padding)
        assert relative(found, expected) < ERRORS[dtype]


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("size", [(8, 8), (7, 9), (1, 3)])
def test_fused_pooling(size, dtype):
    from fedgram.nets import fused_pooling as fused

    x = torch.randn(MODELS, 6, *size, 64, device=GPU).mul(2).round().div(2).to(dtype)  # with equal numbers
    weight = torch.randn(MODELS, 64, device=GPU)
    window = (3, 2, 1)
    found, taps = (value.cpu() for value in fused.select(x, weight, *window))
    expected, places = PlainPooling.select(x.float().cpu(), weight.cpu(), *window)
    assert torch.equal(found.float(), expected)
    assert torch.equal(taps, places)
    slope = torch.randn(*found.shape, device=GPU).to(dtype)
    offset, factor = torch.randn(2, MODELS, 64, device=GPU)
    found = fused.unselect(slope, taps.to(GPU), x, offset, factor, *window).double().cpu()
    exact = (value.double().cpu() for value in (slope, taps, x, offset, factor))
    torch.testing.assert_close(
        found, PlainPooling.unselect(*exact, *window), rtol=10 * ERRORS[dtype], atol=10 * ERRORS[dtype]
    )


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
@pytest.mark.parametrize("build", [build_resnet, build_residual_cnn])
def test_stacked_gradients_are_those_of_models_alone(monkeypatch, build, precision):
    def backbone():
        return build(3, (1, 1, 1, 1)) if build is build_resnet else build(3)

    stacked = find_gradients(backbone, precision)
    monkeypatch.setattr(stack, "can_stack", lambda model: False)
    alone = find_gradients(backbone, precision)
    exact = find_gradients(backbone, "fp64")
    for name, expected in exact.items():
        error, usual = (float((each[name] - expected).norm() / expected.norm()) for each in (stacked, alone))
        assert error < 1.5 * usual + 1e-3, name


def find_gradients(backbone, precision):
    """Gradients of four models on their first minibatch, in double precision, and their buffers."""
    dtype = torch.float64 if precision == "fp64" else torch.float32
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (2, 40, 24, 24, 3), generator=generator, dtype=torch.uint8)
    targets = torch.randn(2, 40, 2, generator=generator).to(dtype)
    shown = inputs[0, :2].movedim(-1, 1) / 255
    models = [draw(backbone, shown, 16, 2, seed, None) for seed in range(4)]
    whole = ModelStack.from_models(models, GPU, dtype)
    shift = torch.zeros(4, 2, device=GPU, dtype=dtype)
    rows = inputs.flatten(0, 1).to(GPU), targets.flatten(0, 1).to(GPU)
    batches = Batches(*rows, {"a": 40, "b": 40}, [0, 1], shift, 40)
    terms = Terms(whole.parameters["head.weight"].clone(), shift[:, 0], None)
    config = TrainConfig(rounds=1, epochs=1, features=16, precision=precision)
    fit = Fit(whole, batches, terms, config, torch.zeros(4, dtype=torch.bool, device=GPU))
    batches.shuffle(1, 0)
    batches.select(0)
    with whole.use_precision(precision):
        parts = [fit.gradients(part, 40) for part in stack.split_slice(slice(0, 4), fit.models_at_once)]
    found = {}
    for name in parts[0][1]:
        scaled = [
            gradients[name].double() * (1.0 if unscale is None or not name.startswith("backbone") else
            unscale.double().reshape(-1, *[1] * (gradients[name].ndim - 1)))
            for _, gradients, unscale in parts
        ]  # fmt: skip
        found[name] = torch.cat(scaled)
    return found | {name: value.double() for name, value in whole.buffers.items() if "running" in name}
