"""What clients return and how it is measured, beside the same in NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import Moments, Penalty, align, closest_head, phi, solve
from fedgram.federation import returns
from fedgram.federation.evaluation import Biases, OutputRows, mean_squared_errors, objective
from fedgram.federation.returns import (
    WEAK,
    Layers,
    align_layers,
    feature_offset,
    least_squares,
    recenter,
    return_layers,
    shrink_layers,
    solve_for_map,
    unshrink,
)
from fedgram.federation.ridge import _factorize_by_cholesky, _factorize_by_eigenvalues, fit_ridges
from fedgram.runs.procedure import Procedure
from fedgram.theory import select
from fedgram.theory.correct import correct
from fedgram.theory.geometry import psd
from tests.helpers.instances import covariances, random_moments
from tests.helpers.numpy_ridge import fit_ridge
from tests.helpers.shrunk_layers import TrainedLayers, solve_shrunk

SEEDS = st.integers(0, 10_000)
PENALTY = Penalty(0.1, 0.2)
MIXED = np.array([[0.3, 0.1], [0.1, -0.1]])  # a deficit with a negative direction, as the correction may have


def random_layers(rng, models=3, targets=2, features=5, width=4):
    shapes = [(targets, features), (targets,), (features, width), (features,)]
    return Layers(*(torch.tensor(rng.standard_normal((models, *shape))) for shape in shapes))


def client(seed, models=3, rows=40, width=4, targets=2, features=5):
    """Outputs u, targets and broadcasts of several models, with N > D and a good condition."""
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((models, rows, width)) + 1.5
    slope = rng.standard_normal((models, width, targets))
    y = np.tanh(u @ slope) + 0.3 * rng.standard_normal((models, rows, targets))
    return u, y, rng.standard_normal((models, targets, features)), rng


def solve_layers(trained, outputs, targets, broadcast, deficit, penalty):
    """Solve for the last layers; the map keeps the trained one in weak directions of the outputs."""
    inputs, centered = (each - each.mean(dim=1, keepdim=True) for each in (outputs.double(), targets))
    fitted = least_squares(inputs, centered, trained.mT)
    return solve_for_map(fitted, outputs.double(), targets, broadcast, deficit, penalty)


@given(SEEDS, st.integers(1, 4), st.integers(0, 4))
@settings(max_examples=25)
def test_alignment_is_the_one_of_numpy_as_far_as_it_is_determined(seed, targets, extra):
    rng = np.random.default_rng(seed)
    layers = random_layers(rng, targets=targets, features=targets + extra)
    broadcast, u = torch.tensor(rng.standard_normal(layers.head.shape)), torch.tensor(rng.random((3, 9, 4)))
    ours = align_layers(layers, broadcast)
    np.testing.assert_allclose(ours.head, align(layers.head.numpy(), broadcast.numpy()).head, atol=1e-11)
    before, after = layers.features(u), ours.features(u)
    torch.testing.assert_close(after @ ours.head.mT, before @ layers.head.mT, rtol=0, atol=1e-12)
    torch.testing.assert_close(after @ after.mT, before @ before.mT, rtol=0, atol=1e-11)
    torch.testing.assert_close(ours.bias, layers.bias, rtol=0, atol=0)


@pytest.mark.parametrize("deficit", [None, MIXED, np.diag([0.5, 0.2])], ids=["none", "mixed", "positive"])
@pytest.mark.parametrize("seed", range(3))
def test_solved_layers_are_those_of_numpy(seed, deficit):
    u, y, broadcast, rng = client(seed)
    added = np.zeros((2, 2)) if deficit is None else deficit
    trained = rng.standard_normal((3, 2, u.shape[2]))
    given = (torch.tensor(each) for each in (trained, u, y, broadcast, np.tile(added, (3, 1, 1))))
    ours, clipped = solve_layers(*given, PENALTY)
    for k in range(3):
        theirs = solve(u[k], y[k], broadcast[k], PENALTY, deficit, trained[k])
        pairs = zip(vars(ours), ("head", "bias", "layer_weight", "layer_bias"), strict=True)
        for our_name, name in pairs:
            np.testing.assert_allclose(getattr(ours, our_name)[k], getattr(theirs, name), atol=1e-12)
        assert int(clipped[k]) == theirs.clipped


@pytest.mark.parametrize("deficit", [np.zeros((2, 2)), np.diag([0.5, 0.2])], ids=["plain", "corrected"])
def test_layers_at_their_minimum_are_returned_as_they_are(deficit):
    """Though half of the directions of u are too weak to be solved for, and hold much of what is fitted."""
    u, y, broadcast, _ = client(9)
    u = u * np.geomspace(1, WEAK**2, u.shape[2])
    rows = [torch.tensor(each) for each in (u, y, broadcast, np.tile(deficit, (3, 1, 1)))]
    strong = torch.linalg.svdvals(rows[0] - rows[0].mean(dim=1, keepdim=True))
    assert ((strong > WEAK * strong[:, :1]).sum(dim=1) < u.shape[2]).all()
    exact = [solve(u[k], y[k], broadcast[k], PENALTY, deficit) for k in range(3)]
    names = ("head", "bias", "layer_weight", "layer_bias")
    least = Layers(*(torch.tensor(np.stack([getattr(each, name) for each in exact])) for name in names))
    ours, _ = solve_layers(unshrink(least.head, least.layer_weight, PENALTY), *rows, PENALTY)
    for name, value in vars(least).items():
        torch.testing.assert_close(getattr(ours, name), value, rtol=1e-8, atol=1e-10)


@given(SEEDS, st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=25)
def test_maps_before_shrinkage_are_those_of_numpy(seed, targets, extra):
    rng = np.random.default_rng(seed)
    layers = random_layers(rng, targets=targets, features=targets + extra)
    layers.head[0, 0] = 0  # a direction that the head leaves alone
    ours = unshrink(layers.head, layers.layer_weight, PENALTY)
    for k in range(len(ours)):
        theirs = select.unshrink(layers.head[k].numpy(), layers.layer_weight[k].numpy(), PENALTY)
        np.testing.assert_allclose(ours[k], theirs, atol=1e-11)


def untrained(u):
    """The map of layers that have learned nothing."""
    return np.zeros((len(u), 2, u.shape[2]))


def local_loss(point, u, y, deficit):
    """Eq. (1) of all rows with the correction, of one model's layers."""
    head, bias, weight, layer_bias = point
    features = u @ weight.T + layer_bias
    fit = np.sum((features @ head.T + bias - y) ** 2) + PENALTY.features * np.sum(features**2)
    system = head @ head.T + PENALTY.features * np.eye(len(head))
    added = 0.5 * PENALTY.features * np.trace(np.linalg.solve(system, deficit))
    return fit / (2 * len(u)) + PENALTY.head / 2 * np.sum(head**2) + added


@pytest.mark.parametrize("deficit", [np.zeros((2, 2)), np.diag([0.5, 0.2])], ids=["plain", "corrected"])
def test_all_directional_derivatives_vanish_at_a_solved_return(deficit):
    u, y, broadcast, rng = client(4, models=1)
    given = map(torch.tensor, (untrained(u), u, y, broadcast, deficit[None]))
    layers, clipped = solve_layers(*given, PENALTY)
    point = [value[0].numpy() for value in vars(layers).values()]
    least = local_loss(point, u[0], y[0], deficit)
    assert clipped.item() == 0
    for _ in range(20):
        step = [rng.standard_normal(part.shape) for part in point]
        near = [[p + t * s for p, s in zip(point, step, strict=True)] for t in (1e-5, -1e-5, 0.3)]
        up, down, far = (local_loss(each, u[0], y[0], deficit) for each in near)
        assert abs(up - down) / 2e-5 < 1e-7
        assert far > least
    moved = [1.1 * point[0], *point[1:]]
    assert local_loss(moved, u[0], y[0], deficit) > least + 1e-4  # the head matters


@pytest.mark.parametrize("penalty", [PENALTY, Penalty(0.07, 0.03), Penalty(0.01, 0.01)])
def test_inactive_directions_are_counted_and_left_out(penalty):
    """A deficit below, at and above what leaves a direction active."""
    u, y, broadcast, _ = client(5, models=1)
    explained = solve(u[0], y[0], broadcast[0], penalty).explained
    values, basis = np.linalg.eigh(explained)
    wanted = [[2.0, 3.0], [0.5 * penalty.threshold, 3.0], [-5.0, 0.99 * penalty.threshold]]
    for count, eigenvalues in enumerate(wanted):
        deficit = (basis * (np.array(eigenvalues) - values)) @ basis.T
        given = map(torch.tensor, (untrained(u), u, y, broadcast, deficit[None]))
        ours, clipped = solve_layers(*given, penalty)
        assert clipped.tolist() == [count]
        gram = (ours.head[0] @ ours.head[0].mT).numpy()
        gains = np.maximum(penalty.scale * np.sqrt(np.maximum(eigenvalues, 0)) - penalty.features, 0)
        np.testing.assert_allclose(gram, (basis * gains) @ basis.T, atol=1e-13)
        np.testing.assert_allclose(basis[:, :count].T @ ours.head[0].numpy(), 0, atol=1e-12)


@given(SEEDS, st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=25)
def test_closest_head_is_the_one_of_numpy(seed, size, extra):
    rng = np.random.default_rng(seed)
    gram, broadcast = covariances(rng, 2, size=size), rng.standard_normal((2, size, size + extra))
    factor = np.linalg.cholesky(gram)
    ours = returns.closest_head(torch.tensor(broadcast), torch.tensor(factor)).numpy()
    np.testing.assert_allclose(ours, closest_head(broadcast, gram), atol=1e-10)
    np.testing.assert_allclose(psd.gram(ours), gram, atol=1e-13)


@pytest.mark.parametrize(("rows", "width"), [(30, 6), (6, 30), (12, 12)])
def test_least_squares_changes_least_and_leaves_weak_directions_alone(rows, width):
    rng = np.random.default_rng(rows)
    left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for size in (rows, width))
    wanted = rng.standard_normal((rows, 2))
    for weakest, kept in ((0.02, True), (0.005, False)):
        strengths = np.array([1.0, 0.7, 0.2, weakest])
        u = (left[:, :4] * strengths) @ right[:, :4].T
        start = rng.standard_normal((width, 2))
        ours = least_squares(*(torch.tensor(each)[None] for each in (u, wanted, start)))[0].numpy()
        used = 4 if kept else 3
        rest = (left[:, :used].T @ (wanted - u @ start)) / strengths[:used, None]
        exact = start + right[:, :used] @ rest
        np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-4 * np.abs(exact).max())
        strong = right[:, :3].T
        np.testing.assert_allclose(strong @ ours, strong @ exact, atol=1e-8)


@given(SEEDS)
@settings(max_examples=20)
def test_recentered_features_have_mean_zero_and_the_same_predictions(seed):
    rng = np.random.default_rng(seed)
    layers, u = random_layers(rng), torch.tensor(rng.standard_normal((3, 11, 4)))
    mean = layers.features(u).mean(dim=1)
    ours = recenter(layers, mean)
    torch.testing.assert_close(ours.features(u).mean(dim=1), torch.zeros(3, 5).double(), rtol=0, atol=1e-13)
    before = layers.features(u) @ layers.head.mT + layers.bias[:, None]
    torch.testing.assert_close(
        ours.features(u) @ ours.head.mT + ours.bias[:, None], before, rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("size", [1, 3])
def test_feature_offset_is_that_of_the_correction(size):
    rng = np.random.default_rng(size)
    moments, head = random_moments(rng, clients=4, size=size), rng.standard_normal((size, 5))
    heads, distance = torch.tensor(head).repeat(4, 1, 1), torch.tensor(moments.offset)
    expected = correct(moments, PENALTY).feature_offset(head)
    np.testing.assert_allclose(feature_offset(heads, distance, PENALTY), expected, atol=1e-13)


def noisy(seed, rows=40, noise=1.0):
    """A client whose targets are linear in u up to noise."""
    u, _, broadcast, rng = client(seed, rows=rows)
    slope = rng.standard_normal((3, u.shape[2], 2))
    return u, u @ slope + noise * rng.standard_normal((3, rows, 2)), broadcast, rng


@pytest.mark.parametrize("rows", [3, 7, 40])
@pytest.mark.parametrize("noise", [0.0, 0.05, 1.0, 20.0])
def test_ridge_maps_are_those_of_numpy(rows, noise):
    u, y, _, rng = noisy(rows, rows, noise)
    u, y = u - u.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    start = rng.standard_normal((3, 4, 2))
    ours = fit_ridges(*map(torch.tensor, (u, y, start)))
    for k in range(3):
        theirs = fit_ridge(u[k], y[k], start[k])
        np.testing.assert_allclose(ours.weight[k], theirs.weight, atol=1e-9)
        assert ours.share[k].item() == pytest.approx(theirs.share, abs=1e-9)
        assert bool(ours.is_exact[k]) == theirs.is_exact


@pytest.mark.parametrize("factorize", [_factorize_by_eigenvalues, _factorize_by_cholesky])
def test_strengths_are_solved_together(factorize):
    rng = np.random.default_rng(0)
    x, right = rng.standard_normal((3, 9, 4)), rng.standard_normal((3, 4, 2, 5))
    strengths = np.array([[0.1, 2.0], [1.0, 1e-3], [7.0, 0.5]])
    inputs = torch.tensor(x)
    solve, leverages = factorize(inputs, inputs.mT @ inputs, torch.tensor(strengths))
    found = solve(torch.tensor(right)).numpy()
    for k, s in np.ndindex(3, 2):
        inverse = np.linalg.inv(x[k].T @ x[k] + strengths[k, s] * np.eye(4))
        np.testing.assert_allclose(found[k, :, s], inverse @ right[k, :, s], rtol=1e-11)
        np.testing.assert_allclose(leverages[k, :, s], np.diag(x[k] @ inverse @ x[k].T), rtol=1e-11)


def trained_layers(layers, k=0):
    return TrainedLayers(*(value[k].numpy() for value in vars(layers).values()))


@pytest.mark.parametrize("deficit", [np.zeros((2, 2)), MIXED], ids=["plain", "mixed"])
@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
def test_shrunk_layers_are_those_of_numpy(noise, deficit):
    u, y, broadcast, rng = noisy(2, noise=noise)
    layers = random_layers(rng)
    ours, clipped = shrink_layers(
        layers, *map(torch.tensor, (u, y, broadcast, np.tile(deficit, (3, 1, 1)))), PENALTY
    )
    for k in range(3):
        theirs = solve_shrunk(u[k], y[k], broadcast[k], PENALTY, trained_layers(layers, k), deficit, WEAK)
        for name, value in zip(vars(ours).values(), list(vars(theirs).values())[:4], strict=True):
            np.testing.assert_allclose(name[k], value, atol=1e-10)
        assert int(clipped[k]) == theirs.clipped


def test_rows_without_noise_have_the_exact_solution():
    u, y, broadcast, rng = noisy(3, noise=0.0)
    layers, deficit = random_layers(rng), np.tile(MIXED, (3, 1, 1))
    rows = [torch.tensor(each) for each in (u, y, broadcast, deficit)]
    ours, _ = shrink_layers(layers, *rows, PENALTY)
    exact, _ = solve_layers(unshrink(layers.head, layers.layer_weight, PENALTY), *rows, PENALTY)
    for name, value in vars(exact).items():
        torch.testing.assert_close(getattr(ours, name), value, rtol=0, atol=1e-12)


def test_targets_that_outputs_do_not_explain_leave_head_and_predictions_as_they_are():
    """The trained map is least squares already; what is left of the targets is noise."""
    rng = np.random.default_rng(4)
    u = torch.tensor(rng.standard_normal((1, 60, 4)))
    layers, broadcast = random_layers(rng, models=1), torch.tensor(rng.standard_normal((1, 2, 5)))
    layers = replace(layers, layer_weight=1e-3 * layers.layer_weight)
    noise = rng.standard_normal((60, 2))
    design = np.column_stack([u[0], np.ones(60)])
    noise -= design @ np.linalg.lstsq(design, noise)[0]
    target = unshrink(layers.head, layers.layer_weight, PENALTY)[0].numpy()
    y = torch.tensor(u[0].numpy() @ target.T + noise)[None]
    ours, _ = shrink_layers(layers, u, y, broadcast, torch.zeros(1, 2, 2).double(), PENALTY)
    torch.testing.assert_close(ours.head, layers.head, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.bias, layers.bias, rtol=0, atol=0)
    found = unshrink(broadcast, ours.layer_weight, PENALTY)[0].numpy()
    np.testing.assert_allclose(found, target, atol=1e-10)
    mean, own = (each.center(u.mean(dim=1)) for each in (ours, layers))
    ours_mean, own_mean = (
        unshrink(head, each[..., None], PENALTY) for head, each in ((broadcast, mean), (layers.head, own))
    )
    torch.testing.assert_close(ours_mean, own_mean, rtol=0, atol=1e-10)


RETURNED = ("trained", "aligned", "solved")
EVERY = [Procedure(returned=word, bias=bias) for word in RETURNED for bias in ("shared", "private", "offset")]


@pytest.mark.parametrize("at_once", [1, 40 * 4 * 2, 10**6], ids=["alone", "pairs", "together"])
def test_return_rules_compose_whatever_is_computed_together(monkeypatch, at_once):
    monkeypatch.setattr(returns, "NUMBERS_AT_ONCE", at_once)
    rng = np.random.default_rng(6)
    clients = [noisy(seed, rows) for seed, rows in ((6, 40), (7, 23), (8, 40))]
    layers = random_layers(rng, models=9)
    rows = [(torch.tensor(u[k]), torch.tensor(y[k])) for u, y, _, _ in clients for k in range(3)]
    broadcast = torch.tensor(np.concatenate([each[2] for each in clients]))
    deficit = torch.tensor(MIXED).repeat(9, 1, 1)
    mean = torch.stack([u.mean(dim=0) for u, _ in rows])
    given = return_layers(EVERY, layers, dict(enumerate(rows)), mean, broadcast, deficit, PENALTY)
    for k, procedure in enumerate(EVERY):
        own, at = layers.select(slice(k, k + 1)), slice(k, k + 1)
        u, y = (each[None] for each in rows[k])
        aligned = align_layers(own, broadcast[at])
        solution, clipped = shrink_layers(aligned, u, y, broadcast[at], deficit[at], PENALTY)
        expected = {"trained": own, "aligned": aligned, "solved": solution}[procedure.returned]
        goes_on = own if procedure.returned == "trained" else aligned
        center = expected.features(u).mean(dim=1)
        torch.testing.assert_close(given.center[at], center, rtol=0, atol=1e-12)
        if procedure.bias == "offset":
            expected, goes_on = (recenter(each, each.features(u).mean(dim=1)) for each in (expected, goes_on))
        for ours, theirs in ((given.returned, expected), (given.resume_from, goes_on)):
            for name, value in vars(theirs).items():
                torch.testing.assert_close(getattr(ours, name)[at], value, rtol=0, atol=1e-11)
        assert given.clipped[k] == (int(clipped) if procedure.returned == "solved" else 0)


def test_objective_and_errors_are_those_of_direct_prediction():
    rng = np.random.default_rng(7)
    layers, u = random_layers(rng), torch.tensor(rng.standard_normal((3, 20, 4)))
    train = [rng.standard_normal((20, 2)) * (1 + m) + m for m in range(3)]
    moments = Moments.from_arrays(train)
    y, biases = torch.tensor(np.stack(train)), Biases(*torch.tensor(rng.standard_normal((3, 3, 2))))
    features = layers.features(u)
    center, distance = features.mean(dim=1), torch.tensor(moments.offset)
    new, new_y = (
        layers.features(torch.tensor(rng.standard_normal((3, 7, 4)))),
        torch.tensor(rng.random((3, 7, 2))),
    )
    under_rules = biases.under_rules(layers.head, center, distance, PENALTY)
    ours = mean_squared_errors((new - center[:, None]) @ layers.head.mT, under_rules, new_y)
    value = objective(layers, OutputRows.from_outputs(u), y, PENALTY)
    for k in range(3):
        head, bias = layers.head[k].numpy(), layers.bias[k].numpy()
        offset = correct(moments, PENALTY).feature_offset(head)[k]
        plain = new[k].numpy()
        seen = (plain, plain, plain - center[k].numpy() + offset)
        guesses = [h @ head.T + b[k].numpy() for h, b in zip(seen, vars(biases).values(), strict=True)]
        expected = [np.mean((guess - new_y[k].numpy()) ** 2) for guess in guesses]
        np.testing.assert_allclose(ours[k], expected, rtol=1e-13)
        weight, layer_bias = layers.layer_weight[k].numpy(), layers.layer_bias[k].numpy()
        direct = local_loss((head, bias, weight, layer_bias), u[k].numpy(), train[k], np.zeros((2, 2)))
        assert value[k].item() == pytest.approx(direct, rel=1e-13)


def test_the_offset_recovers_centralized_predictions_after_solved_corrected_returns():
    """Where outputs explain every row, heads are those of G_cen, and errors those of pooled training."""
    rng = np.random.default_rng(8)
    train = [rng.standard_normal((12, 2)) @ rng.standard_normal((2, 2)) + 2 * m for m in range(3)]
    moments, broadcast = Moments.from_arrays(train), torch.tensor(rng.standard_normal((1, 2, 4)))
    outputs = torch.tensor(rng.standard_normal((3, 12, 40)))
    rest = correct(moments, PENALTY)
    targets, deficit = torch.tensor(np.stack(train)), torch.tensor(rest.deficit)
    layers, _ = solve_layers(
        torch.zeros(3, 2, 40).double(), outputs, targets, broadcast.repeat(3, 1, 1), deficit, PENALTY
    )
    for head in layers.head.numpy():
        np.testing.assert_allclose(psd.gram(head), rest.centralized, atol=1e-10)
    np.testing.assert_allclose(rest.centralized, phi(moments.pooled.covariance, PENALTY), atol=1e-14)
    head = layers.head.mean(dim=0).repeat(3, 1, 1)
    features, pooled = layers.features(outputs), torch.tensor(moments.pooled.mean).repeat(3, 1)
    center = features.mean(dim=1)
    biases = Biases(pooled, layers.bias, pooled)  # solved features are centered, so both averages are μ_g
    np.testing.assert_allclose(center, 0, atol=1e-12)
    under_rules = biases.under_rules(head, center, torch.tensor(moments.offset), PENALTY)
    ours = mean_squared_errors((features - center[:, None]) @ head.mT, under_rules, targets)
    inverse = np.linalg.inv(rest.centralized + PENALTY.features * np.eye(2))
    residuals = PENALTY.features * (np.stack(train) - moments.pooled.mean) @ inverse
    np.testing.assert_allclose(ours[:, 2], (residuals**2).mean(axis=(1, 2)), rtol=1e-8)
    assert (ours[:, 0] > 2 * ours[:, 2]).all()
