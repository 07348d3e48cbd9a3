"""The parts of a training step: optimizer, order of rows, objective, initial models, precision."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from fedgram import Penalty
from fedgram.nets import optimizer
from fedgram.nets.batches import GOLDEN, Batches, splitmix64
from fedgram.nets.cuda import HALF, autocast, storage_dtype, use_precision
from fedgram.nets.fit import choose_optimizer
from fedgram.nets.model import draw, to_model_input
from fedgram.nets.objective import Terms, compute_losses, correction_term, invert_positive_definite
from fedgram.nets.optimizer import AdamW, clip_scale, schedule
from fedgram.nets.stack import ModelStack
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import PRECISIONS, TrainConfig
from fedgram.theory.correct import correct
from tests.helpers.instances import random_moments
from tests.helpers.plain_loop import CPU, OwnNet

PENALTY = Penalty(0.03, 0.2)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("clip", [1e-3, 3.0, 1e6], ids=["always clipped", "some clipped", "never clipped"])
@pytest.mark.parametrize("at_once", [optimizer.AT_ONCE, 10], ids=["all models at once", "one or two at once"])
def test_optimizer_and_schedule_are_those_of_torch(clip, at_once, monkeypatch):
    """Three clients with 3, 2 and 1 steps in an epoch, each beside PyTorch's own optimizer."""
    monkeypatch.setattr(optimizer, "AT_ONCE", at_once)
    settings = TrainConfig(epochs=9, learning_rate=1e-2, final_learning_rate=1e-4, clip=clip)
    own_steps, shapes = [3, 2, 1], {"matrix": (3, 4), "vector": (5,), "slope": (1,)}
    parameters = {name: drawn(3, *shape) for name, shape in shapes.items()}
    theirs = [[nn.Parameter(value[m].clone()) for value in parameters.values()] for m in range(3)]
    optimizers = [torch.optim.AdamW(each, settings.learning_rate, weight_decay=0.0) for each in theirs]
    cosines = [
        torch.optim.lr_scheduler.CosineAnnealingLR(each, 9 * own, settings.final_learning_rate)
        for each, own in zip(optimizers, own_steps, strict=True)
    ]
    ours, table, norms = AdamW(parameters, clip), schedule(settings, own_steps), []
    assert table.shape == (27, 3, 2)
    for t, rates in enumerate(table):
        taking = sum(t % 3 < own for own in own_steps)
        gradients = {name: 3 ** (t % 4 - 2) * drawn(3, *shape, seed=t) for name, shape in shapes.items()}
        some = {name: value[:taking] for name, value in gradients.items()}
        ours.step(slice(0, taking), some, rates[:taking])
        for m in range(taking):
            for parameter, gradient in zip(theirs[m], gradients.values(), strict=True):
                parameter.grad = gradient[m].clone()
            norms.append(float(nn.utils.clip_grad_norm_(theirs[m], clip)))
            optimizers[m].step()
            cosines[m].step()
        for m in range(3):
            for value, parameter in zip(parameters.values(), theirs[m], strict=True):
                torch.testing.assert_close(value[m], parameter.detach(), rtol=1e-13, atol=1e-13)
    clipped = np.mean(np.array(norms) > clip)
    assert clipped == {1e-3: 1.0, 1e6: 0.0}.get(clip, clipped)
    assert clip != 3.0 or 0.2 < clipped < 0.8


def test_a_reset_optimizer_starts_over():
    parameters = {"one": drawn(2, 3)}
    start, rates = parameters["one"].clone(), torch.tensor([[0.1, 1.0], [0.2, 1.0]]).double()
    optimizer, moved = AdamW(parameters, 1.0), []
    for _ in range(2):
        parameters["one"].copy_(start)
        optimizer.reset(torch.ones(len(next(iter(parameters.values()))), dtype=torch.bool))
        optimizer.step(slice(0, 2), {"one": drawn(2, 3, seed=1)}, rates)
        moved.append(parameters["one"].clone())
    assert torch.equal(*moved)
    assert not torch.equal(moved[0], start)
    assert choose_optimizer(CPU, torch.float32) is AdamW


def test_schedule_rests_where_a_client_has_no_step():
    settings = TrainConfig(epochs=4)
    table = schedule(settings, [1, 3]).unflatten(0, (4, 3))
    assert (table[:, 1:, 0] == 0).all()
    assert (table[:, :1, 0] > 0).all()
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], settings.learning_rate)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12, settings.final_learning_rate)
    for t, (rate, root) in enumerate(table[:, :, 1].flatten(0, 1).tolist(), start=1):
        assert rate * (1 - 0.9**t) == pytest.approx(cosine.get_last_lr()[0], rel=1e-12)
        assert root == pytest.approx((1 - 0.999**t) ** -0.5, rel=1e-12)
        optimizer.step()
        cosine.step()


def test_clipping_bounds_the_norm_over_all_tensors_of_a_model():
    gradients = {"a": 10 * drawn(2, 3, 3), "b": drawn(2, 4)}
    gradients["a"][1] = gradients["b"][1] = 0.1
    scale = clip_scale(gradients, 2.0)
    whole = np.sqrt(sum(value[0].square().sum().item() for value in gradients.values()))
    np.testing.assert_allclose(scale, [2.0 / (whole + 1e-6), 1.0], rtol=1e-14)


def rows_of(counts, clients, seeds, batch=4):
    """Batches whose inputs and targets say which row of which client they are."""
    inputs = [torch.stack([torch.full((n,), m), torch.arange(n)], 1).double() for m, n in enumerate(counts)]
    targets = [10.0 * each for each in inputs]
    shift, named = drawn(len(clients) * len(seeds), 2), dict(zip(clients, counts, strict=True))
    return Batches(torch.cat(inputs), torch.cat(targets), named, seeds, shift, batch)


def order(client="a", seed=3, count=50, round=1, epoch=0):
    batches = rows_of([count], [client], [seed])
    batches.shuffle(round, epoch)
    return batches.order[0, 0, :count].tolist()


@pytest.mark.parametrize("counts", [[10, 7, 4], [4, 9, 1], [5]])
def test_every_model_takes_each_of_its_clients_rows_once(counts):
    seeds = [5, 2, 5]
    batches = rows_of(counts, [f"client {m}" for m in range(len(counts))], seeds)
    for round, epoch in ((1, 0), (2, 3)):
        batches.shuffle(round, epoch)
        seen = [[] for _ in range(len(counts) * 3)]
        for step in range(batches.steps):
            batches.select(step)
            for m, size in enumerate(batches.sizes(step)):
                assert size == max(0, min(4, counts[m] - 4 * step))
                models = slice(3 * m, 3 * m + 3)
                inputs, targets = batches.take(models, size)
                torch.testing.assert_close(targets, 10 * inputs - batches.shift[models, None], rtol=0, atol=0)
                assert (inputs[..., 0] == m).all()
                for k in range(3):
                    seen[3 * m + k] += inputs[k, :, 1].int().tolist()
        for k, rows in enumerate(seen):
            assert sorted(rows) == list(range(counts[k // 3]))
        assert all(seen[3 * m] == seen[3 * m + 2] for m in range(len(counts)))  # seed 5 twice


def test_order_depends_on_seed_client_round_and_epoch_and_on_nothing_else():
    changes = [{}, {"client": "b"}, {"seed": 4}, {"round": 2}, {"epoch": 1}, {"round": 0, "epoch": 1}]
    orders = [order(**change) for change in changes]
    assert all(sorted(each) == list(range(50)) for each in orders)
    assert len({tuple(each) for each in orders}) == len(changes)
    together = rows_of([70, 50, 33], ["c", "a", "b"], [9, 3, 4], batch=32)
    together.shuffle(1, 0)
    assert together.order[1, 0, :50].tolist() == order()  # distinct seeds are kept in order
    assert order(count=30) == [row for row in order() if row < 30]


def test_order_is_uniform():
    """Every row is as often in every position: a chi-square test with (N - 1)² degrees of freedom."""
    size, epochs = 8, 1200
    table, batches = np.zeros((size, size)), rows_of([size], ["a"], [0])
    for epoch in range(epochs):
        batches.shuffle(1 + epoch % 3, epoch)
        table[np.arange(size), batches.order[0, 0].numpy()] += 1
    statistic = ((table - epochs / size) ** 2).sum() / (epochs / size)
    assert 0.001 < stats.chi2.sf(statistic, (size - 1) ** 2) < 0.999


def reference_splitmix64(state):
    """Vigna's generator in Python's integers: the next output, and the next state."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    z = state
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31), state


def test_the_hash_is_splitmix64():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    state, outputs = 1234567, []
    for _ in published:
        output, state = reference_splitmix64(state)
        outputs.append(output)
    assert outputs == published
    counter = 1234567 + torch.arange(1, 5) * GOLDEN
    assert splitmix64(counter).tolist() == [each % 2**63 for each in published]
    for start in (0, 1, 2**63 - 1, -1, -(2**63), 987654321987654321):
        ours = splitmix64(torch.tensor([start]) + GOLDEN).item()
        assert ours == reference_splitmix64(start % 2**64)[0] % 2**63


def test_losses_are_the_formula():
    def models():
        return [draw(lambda: OwnNet(3), torch.zeros(2, 3), 5, 2, seed, None).double() for seed in range(3)]

    stack = ModelStack.from_models(models(), CPU, torch.float64)
    x, y, broadcast = drawn(3, 7, 3), drawn(3, 7, 2, seed=1), drawn(3, 2, 5, seed=2)
    moments, proximal = random_moments(np.random.default_rng(0), clients=3, size=2), [0.0, 0.5, 2.0]
    shift = correct(moments, PENALTY, 0.4)
    terms = Terms(broadcast, torch.tensor(proximal).double(), torch.as_tensor(0.4 * shift.deficit))
    for given in (terms, Terms(broadcast, terms.proximal, None)):
        outputs = stack.map_backbones(stack.parameters, stack.buffers, x)
        values = compute_losses(stack.parameters, outputs, y, given, PENALTY)
        for k, model in enumerate(models()):
            features, predictions = (each.detach().numpy() for each in model(x[k]))
            head = model.head.weight.detach().numpy()
            wanted = np.sum((predictions - y[k].numpy()) ** 2) / 14 + 0.03 * np.sum(features**2) / 14
            wanted += 0.1 * np.sum(head**2) + proximal[k] / 2 * np.sum((head - broadcast[k].numpy()) ** 2)
            wanted += 0.0 if given.deficit is None else shift.value(head)[k]
            assert values[k].item() == pytest.approx(wanted, rel=1e-13)
    some = terms.select(slice(1, 3))
    assert torch.equal(some.broadcast, broadcast[1:])
    assert torch.equal(some.deficit, terms.deficit[1:])
    assert some.proximal.tolist() == proximal[1:]


@pytest.mark.parametrize("size", range(1, 9))
def test_correction_and_its_gradient(size):
    rng = np.random.default_rng(size)
    moments = random_moments(rng, clients=4, size=size)
    expected = correct(moments, PENALTY, 0.7)
    head = rng.standard_normal((size, size + 2))
    leaf = torch.tensor(head).repeat(4, 1, 1).requires_grad_()
    value = correction_term(leaf, torch.as_tensor(0.7 * expected.deficit), PENALTY)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    np.testing.assert_allclose(value.detach(), expected.value(head), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(slope, expected.gradient(head), rtol=1e-10, atol=1e-11)
    matrix = head @ head.T + 0.03 * np.eye(size)
    stack = torch.tensor(np.stack([matrix, np.diag(np.arange(1.0, size + 1))]))
    torch.testing.assert_close(
        invert_positive_definite(stack), torch.linalg.inv(stack), rtol=1e-11, atol=1e-11
    )


def test_gradient_of_the_correction_by_finite_differences():
    deficit = drawn(2, 3, 3)
    deficit, head, step = (
        deficit + deficit.mT,
        drawn(2, 3, 4, seed=1).requires_grad_(),
        drawn(2, 3, 4, seed=2),
    )
    (slope,) = torch.autograd.grad(correction_term(head, deficit, PENALTY).sum(), head)
    with torch.no_grad():
        up, down = (correction_term(head + sign * 1e-6 * step, deficit, PENALTY) for sign in (1, -1))
        np.testing.assert_allclose((slope * step).sum(dim=(1, 2)), (up - down) / 2e-6, rtol=1e-6)


def same(first, second, prefix=""):
    one, two = first.state_dict(), second.state_dict()
    return all(torch.equal(one[name], two[name]) for name in one if name.startswith(prefix))


@pytest.mark.parametrize("backbone", ["resmlp-small", OwnNet])
def test_models_are_drawn_by_seed_and_client(backbone):
    before = torch.random.get_rng_state()
    inputs = torch.zeros(2, 12)

    def model(seed, client=None):
        return draw(backbone, inputs, 5, 2, seed, client)

    assert torch.equal(torch.random.get_rng_state(), before)
    assert same(model(1), model(1))
    assert same(model(1, "a"), model(1, "a"))
    for other in (model(1, "a"), model(1, "b")):
        assert same(model(1), other, "head")
        assert not same(model(1), other, "backbone")
        assert not same(model(1), other, "feature")
    assert not same(model(1, "a"), model(1, "b"), "backbone")
    for part in ("backbone", "feature", "head"):
        assert not same(model(1), model(2), part)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_equal_runs_are_the_same_run_however_their_seed_is_stored():
    assert Run(Procedure(), np.int64(3)) == Run(Procedure(), 3)
    ours, theirs = (draw("resmlp-small", torch.zeros(2, 4), 5, 2, seed, None) for seed in (np.int64(3), 3))
    assert same(ours, theirs)
    assert order(seed=np.int64(3)) == order(seed=3)


def test_rows_in_bytes_are_numbers():
    rows = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    assert torch.equal(to_model_input(rows, torch.float32), rows.float())
    assert torch.equal(to_model_input(rows[None], torch.float64, leading=2), rows[None].double())


def test_images_in_bytes_are_seen_with_channels_first_in_the_unit_interval():
    images = torch.randint(0, 256, (2, 3, 4, 5, 1), dtype=torch.uint8)
    images[0, 0, 0, 0, 0] = 255
    seen = to_model_input(images, torch.float64, leading=2)
    assert seen.shape == (2, 3, 1, 4, 5)
    assert torch.equal(seen[:, :, 0], images[..., 0].double() / 255)
    rows = drawn(2, 3).float()
    assert torch.equal(to_model_input(rows, torch.float64), rows.double())


@pytest.mark.parametrize("row", [(5,), (5, 4), (5, 4, 3)])
def test_bytes_are_seen_alike_in_stacked_minibatches_and_row_by_row(row):
    stacked = torch.randint(0, 256, (2, 3, *row), dtype=torch.uint8)
    singly = torch.stack([to_model_input(rows, torch.float32) for rows in stacked])
    assert torch.equal(to_model_input(stacked, torch.float32, leading=2), singly)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("before", [("highest", True), ("medium", False)])
def test_arithmetic_puts_the_switches_back(precision, before):
    found, products = (
        (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32),
        torch.backends.cuda.matmul,
    )
    reduces = products.allow_fp16_reduced_precision_reduction
    try:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        with suppress(ZeroDivisionError), use_precision(precision), autocast(precision, CPU):
            allows_tf32 = precision in ("tf32", "fp16", "bf16")
            assert torch.get_float32_matmul_precision() == ("high" if allows_tf32 else "highest")
            assert torch.backends.cudnn.allow_tf32 == allows_tf32
            assert not products.allow_fp16_reduced_precision_reduction
            product = torch.ones(2, 2) @ torch.ones(2, 2)
            assert product.dtype == HALF.get(precision, torch.float32)
            _ = 1 / 0  # also when something breaks
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before
        assert products.allow_fp16_reduced_precision_reduction == reduces
        assert not torch.is_autocast_enabled("cpu")
    finally:
        torch.set_float32_matmul_precision(found[0])
        torch.backends.cudnn.allow_tf32 = found[1]
    assert storage_dtype(precision) == (torch.float64 if precision == "fp64" else torch.float32)


def convolve_with_shortcut(kernel, stride, channels=8):
    """Build a network of 3x3 convolutions and one that changes the size of its input."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(),
        nn.Conv2d(channels, 16, kernel, stride, padding=kernel // 2), nn.Flatten(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("backbone", "is_used"),
    [
        ("resmlp-small", (False, True)),
        ("residual-cnn-small", (False, False)),
        (convolve_with_shortcut(kernel=1, stride=2), (False, False)),
        (convolve_with_shortcut(kernel=1, stride=2, channels=16), (True, True)),
        (convolve_with_shortcut(kernel=1, stride=1), (True, True)),
        (convolve_with_shortcut(kernel=3, stride=2), (True, True)),
    ],
    ids=["linear", "small", "narrow and strided", "wide", "not strided", "3x3"],
)
def test_onednn_is_used_where_it_is_fast_and_correct(backbone, is_used):
    """It is slow for many small products; afterwards it is as it was."""
    inputs = torch.zeros((2, 3) if backbone == "resmlp-small" else (2, 1, 16, 16))
    stack = ModelStack.from_models([draw(backbone, inputs, 4, 2, 0, None)], CPU, torch.float32)
    with torch.backends.mkldnn.flags(enabled=True, allow_tf32=None):
        for precision, expected in zip(("fp32", "bf16"), is_used, strict=True):
            with stack.use_precision(precision):
                assert torch.backends.mkldnn.enabled is expected
        assert torch.backends.mkldnn.enabled
