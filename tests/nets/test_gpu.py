"""What only a GPU does: the fused optimizer, captured steps, and a federation close to that of the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgram import Penalty
from fedgram.federation.federation import Federation
from fedgram.nets import cuda
from fedgram.nets.fit import choose_optimizer
from fedgram.nets.model import draw
from fedgram.nets.optimizer import AdamW, schedule
from fedgram.nets.stack import ModelStack
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from tests.helpers.plain_loop import OwnNet, assert_same_round, pictures, tabular

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler's advice on precision is not ours
]
CPU, GPU = torch.device("cpu"), torch.device("cuda")
SETTINGS = TrainConfig(
    rounds=2, epochs=3, batch=16, features=5, penalty=Penalty(0.02, 0.05), clip=1.0, precision="fp32"
)
WORDS = ["ordinary", "proximal=0.1+aligned", "corrected+offset", "corrected+full-model", "independent"]


@pytest.fixture(autouse=True)
def _compile_short_runs(monkeypatch):
    monkeypatch.setattr("fedgram.nets.fit.FEWEST_COMPILED", 0)


def own_net():
    return OwnNet()


def own_net_with_norm():
    return OwnNet(norm=True)


def settings_of(backbone, precision="fp32"):
    return replace(SETTINGS, batch=batch_of(backbone), precision=precision)


def batch_of(backbone):
    """Few pictures at a time."""
    return 7 if backbone in ("resnet-small", "residual-cnn-small") else 16


def problem_of(backbone):
    """Unequal clients, but few sizes of batches: each is compiled, which takes longer than to train."""
    return pictures((14, 11, 7)) if batch_of(backbone) == 7 else tabular((32, 27, 16))


def trained(backbone, settings, device, words=WORDS):
    """A federation after all its rounds, and its records."""
    runs = [Run(Procedure.parse(each), 3 + r % 2) for r, each in enumerate(words)]
    federation = Federation(problem_of(backbone), backbone, runs, settings, device)
    return federation, list(federation.rounds())


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Numbers of parameters that are and are not multiples of 16, below and above one block of 2048.
SHAPES = {"slope": (1,), "bias": (7,), "even": (16,), "odd": (13, 11), "block": (64, 32),
          "more": (131, 16), "most": (71, 73), "kernel": (6, 5, 3, 3)}  # fmt: skip


@pytest.mark.parametrize("clip", [1.0, 1e6], ids=["clipped", "not clipped"])
def test_the_fused_optimizer_is_the_plain_one(clip):
    models = 5
    plain = {name: drawn(models, *shape, seed=1) for name, shape in SHAPES.items()}
    fused = {name: value.to(GPU) for name, value in plain.items()}
    kind = choose_optimizer(GPU, torch.float32)
    assert kind is not AdamW
    slow, fast = AdamW(plain, clip), kind(fused, clip)
    rates = schedule(TrainConfig(epochs=50), [1] * models).float()
    for t in range(50):
        for part in (slice(0, 2), slice(2, 5)) if t % 2 else (slice(0, 5),):
            count = part.stop - part.start
            gradients = {name: drawn(count, *shape, seed=t) for name, shape in SHAPES.items()}
            slow.step(part, gradients, rates[t, part])
            fast.step(
                part, {name: value.to(GPU) for name, value in gradients.items()}, rates[t, part].to(GPU)
            )
    for name in SHAPES:
        torch.testing.assert_close(fused[name].cpu(), plain[name], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(fast.second[name].cpu(), slow.second[name], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_fused_optimizer_keeps_copies_in_half_precision(dtype):
    shapes = {"backbone.bias": (7,), "backbone.odd": (13, 11), "backbone.even": (64, 32), "head": (5, 16)}
    plain = {name: drawn(3, *shape, seed=1) for name, shape in shapes.items()}
    fused = {name: value.to(GPU) for name, value in plain.items()}
    copies, copied = (
        {name: each[name].to(dtype) for name in ("backbone.odd", "backbone.even")} for each in (plain, fused)
    )
    slow, fast = AdamW(plain, 1.0, copies), choose_optimizer(GPU, torch.float32)(fused, 1.0, copied)
    rates, unscale = schedule(TrainConfig(epochs=9), [1] * 3).float(), torch.tensor([0.5, 2.0, 1e-3])
    for t in range(9):
        gradients = {
            name: drawn(3, *shape, seed=t).to(dtype if name in copies else torch.float32)
            for name, shape in shapes.items()
        }
        if t in (4, 5):  # models with such gradients stay as they are
            gradients["backbone.odd"][1, 0, 0] = float("inf") if t == 4 else float("nan")
        there = {name: value.to(GPU) for name, value in gradients.items()}
        ours = fast.step(slice(0, 3), there, rates[t].to(GPU), unscale.to(GPU))
        assert torch.equal(slow.step(slice(0, 3), gradients, rates[t], unscale), ours.cpu())
        assert ours.tolist() == [True, t not in (4, 5), True]
    for name in shapes:
        torch.testing.assert_close(fused[name].cpu(), plain[name], rtol=1e-5, atol=1e-6)
    for name, copy in copied.items():
        assert torch.equal(copy, fused[name].to(dtype))


@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 0.02), ("fp16", 0.02), ("bf16", 0.1)])
@pytest.mark.parametrize("backbone", [own_net, "resmlp-small", "resnet-small"])
def test_low_precision_stays_close(backbone, precision, tolerance):
    _, expected = trained(backbone, settings_of(backbone, "fp64"), CPU, WORDS[:2])
    _, found = trained(backbone, settings_of(backbone, precision), GPU, WORDS[:2])
    for record, other in zip(found, expected, strict=True):
        for run in other:
            error = np.abs(record[run].head - other[run].head).max() / np.abs(other[run].head).max()
            assert 0 < error < tolerance


def wide(value):
    """The same numbers, with those of each model further apart."""
    room = torch.zeros(len(value), 2 * value[0].numel(), device=value.device)
    return room.as_strided(value.shape, (room.shape[1], *value.stride()[1:])).copy_(value)


LAYOUTS = {
    "transposed": lambda value: value.transpose(-1, -2).contiguous().transpose(-1, -2),
    "models innermost": lambda value: value.movedim(0, -1).contiguous().movedim(-1, 0),
    "models apart": wide,
    "the same for all models": lambda value: value[:1].expand_as(value),
    "at an odd address": lambda value: torch.cat([value.new_zeros(1), value.flatten()])[1:].view_as(value),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(16, 4), (13, 11)])
def test_the_fused_optimizer_reads_gradients_wherever_they_are(layout, shape):
    plain = {"one": drawn(3, *shape, seed=1)}
    fused = {"one": plain["one"].to(GPU)}
    slow, fast = AdamW(plain, 1.0), choose_optimizer(GPU, torch.float32)(fused, 1.0)
    rates = schedule(TrainConfig(epochs=4), [1] * 3).float()
    for t in range(4):
        gradient = LAYOUTS[layout](drawn(3, *shape, seed=10 + t))
        slow.step(slice(0, 3), {"one": gradient}, rates[t])
        on_gpu = LAYOUTS[layout](gradient.contiguous().to(GPU))
        fast.step(slice(0, 3), {"one": on_gpu}, rates[t].to(GPU))
    torch.testing.assert_close(fused["one"].cpu(), plain["one"], rtol=1e-5, atol=1e-6)


BACKBONES = [own_net, own_net_with_norm, "wide-deep-64", "resmlp-small", "resnet-small", "residual-cnn-small"]


def tolerance_of(backbone, precision):
    """AdamW moves by the sign of gradients that are all rounding; convolutions in fp32 have many of these."""
    return 1e-7 if precision == "fp64" else 1e-2 if batch_of(backbone) == 7 else 1e-3


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_federation_on_the_gpu_is_the_one_on_the_cpu(backbone, precision):
    settings = settings_of(backbone, precision)
    words = [*WORDS, "solved+corrected=0.3+offset"] if callable(backbone) else WORDS
    (theirs, expected), (ours, found) = (trained(backbone, settings, device, words) for device in (CPU, GPU))
    tolerance = tolerance_of(backbone, precision)
    for record, other in zip(found, expected, strict=True):
        for run in theirs.runs:
            assert_same_round(record[run], other[run], tolerance)
    for name, value in theirs.clients.stack.buffers.items():
        exactly = not value.is_floating_point()  # how many batches were seen
        given = {"rtol": 0, "atol": 0} if exactly else {"rtol": tolerance, "atol": 10 * tolerance}
        torch.testing.assert_close(ours.clients.stack.buffers[name].cpu(), value, **given)


@pytest.mark.parametrize(
    ("backbone", "precision"),
    [(own_net, "fp32"), (own_net_with_norm, "fp32"), ("resmlp-small", "fp32"), ("resnet-small", "fp64")],
)
def test_captured_steps_are_eager_steps(monkeypatch, backbone, precision):
    settings, tolerance = settings_of(backbone, precision), tolerance_of(backbone, precision)
    captured, _ = trained(backbone, settings, GPU)
    monkeypatch.setattr(cuda.GraphRecorder, "__call__", lambda self, step: step)
    monkeypatch.setattr(cuda, "compile_on_gpu", lambda function, device: function)
    eager, _ = trained(backbone, settings, GPU)
    for name, value in captured.state().items():
        torch.testing.assert_close(value, eager.state()[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backbone", [own_net_with_norm, "resnet-small"])
def test_getting_ready_changes_no_model(backbone):
    """Steps are tried before they are captured, on whatever lies in memory."""
    spoiled = [torch.full((1_000_000,), float("nan"), device=GPU) for _ in range(8)]
    spoiled += [torch.full((size,), float("nan"), device=GPU) for size in (8, 64, 512, 4096)]
    del spoiled  # the allocator hands these out again as they are
    runs = [Run(Procedure.parse(words), 1) for words in ("ordinary", "proximal+corrected")]
    data, settings = problem_of(backbone), settings_of(backbone)
    ours, theirs = (Federation(data, backbone, runs, settings, device).state() for device in (GPU, CPU))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name].cpu(), value, rtol=0, atol=0, msg=name)


def test_a_second_federation_in_the_same_process_is_like_the_first():
    first, second = (trained(own_net, SETTINGS, GPU)[0].state() for _ in range(2))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-5, atol=1e-5)


def test_going_on_from_a_state_of_the_cpu():
    there, records = trained(own_net, SETTINGS, CPU)
    first, _ = trained(own_net, replace(SETTINGS, rounds=1), CPU)
    second = Federation(problem_of(own_net), own_net, there.runs, SETTINGS, GPU)
    second.load(first.state())
    (last,) = second.rounds()
    for run in there.runs:
        assert_same_round(last[run], records[-1][run], 1e-3)


@pytest.mark.parametrize("backbone", ["resmlp-small", "residual-cnn-small"])
def test_evaluation_in_single_precision_is_not_in_tf32(backbone):
    """PyTorch lets convolutions use TF32 unless told otherwise; its error is a thousand times larger."""
    data = problem_of(backbone)
    inputs = torch.tensor(next(iter(data.train.values())).inputs)
    seen = inputs[:2].permute(0, 3, 1, 2) / 255 if inputs.ndim == 4 else inputs[:2].float()
    found = []
    for device, dtype in ((CPU, torch.float64), (GPU, torch.float32)):
        stack = ModelStack.from_models(
            [draw(backbone, seen, 5, 2, seed, None) for seed in range(2)], device, dtype
        )
        both = inputs.to(device).expand(2, *inputs.shape)
        found.append(stack.outputs(stack.tensors, both).double().cpu())
    error = (found[0] - found[1]).abs().max() / found[0].abs().max()
    assert error < 1e-5


def test_steps_that_are_too_rare_to_compile_are_the_same():
    """The last minibatch of one client, a twentieth of all."""
    runs = [Run(Procedure.parse(words), 1) for words in WORDS]
    data, settings = tabular((160, 155)), settings_of(own_net, "fp64")
    ours, theirs = (Federation(data, own_net, runs, settings, device) for device in (GPU, CPU))
    assert ours.clients.fit.common == [(2 * len(runs), 16)]
    for record, other in zip(ours.rounds(), theirs.rounds(), strict=True):
        for run in runs:
            assert_same_round(record[run], other[run], tolerance_of(own_net, "fp64"))


def test_drawing_a_model_leaves_the_generator_of_the_gpu_alone():
    before = torch.cuda.get_rng_state()
    draw("resmlp-small", torch.zeros(2, 4), 5, 2, 0, None)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_the_shortest_rounds():
    """Fewer steps than are tried before a capture. Last in this file: an index outside stops the GPU."""
    short = replace(SETTINGS, epochs=1, batch=40)
    _, expected = trained(own_net, short, CPU)
    _, found = trained(own_net, short, GPU)
    torch.cuda.synchronize()
    for record, other in zip(found, expected, strict=True):
        for run in other:
            assert_same_round(record[run], other[run], 1e-3)
