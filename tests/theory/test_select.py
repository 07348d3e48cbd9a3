"""Selection after training: alignment, and the closed-form solve of the last layers."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError, Penalty, align, closest_head, phi, solve
from fedgram.theory.geometry import psd
from fedgram.theory.predict import profiled_objective
from fedgram.theory.select import unshrink

SEEDS = st.integers(0, 10_000)
PENALTY = Penalty(0.1, 0.2)


@given(SEEDS, st.integers(1, 4), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_alignment_is_orthogonal_closest_and_keeps_predictions(seed, size, extra):
    rng = np.random.default_rng(seed)
    width = size + extra
    head, broadcast = rng.standard_normal((2, size, width))
    weight, bias, inputs = (
        rng.standard_normal((width, 3)),
        rng.standard_normal(width),
        rng.standard_normal((3, 7)),
    )
    aligned = align(head, broadcast)
    np.testing.assert_allclose(aligned.rotation.T @ aligned.rotation, np.eye(width), atol=1e-13)
    np.testing.assert_allclose(aligned.head, closest_head(broadcast, psd.symmetric(head @ head.T)), atol=1e-6)
    np.testing.assert_allclose(aligned.head @ aligned.head.T, head @ head.T, atol=1e-12)
    new_weight, new_bias = aligned.layer(weight, bias)
    before, after = weight @ inputs + bias[:, None], new_weight @ inputs + new_bias[:, None]
    np.testing.assert_allclose(aligned.head @ after, head @ before, atol=1e-12)
    np.testing.assert_allclose(np.sum(after**2), np.sum(before**2), rtol=1e-12)


def test_alignment_of_stacked_heads():
    rng = np.random.default_rng(0)
    heads, broadcast = rng.standard_normal((4, 2, 5)), rng.standard_normal((2, 5))
    stacked = align(heads, np.broadcast_to(broadcast, heads.shape))
    for m in range(4):
        np.testing.assert_allclose(stacked.head[m], align(heads[m], broadcast).head, atol=1e-13)


def client(seed, rows=60, inputs=6, targets=2, width=4):
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((rows, inputs)) + 1.5
    y = np.tanh(u @ rng.standard_normal((inputs, targets))) + 0.3 * rng.standard_normal((rows, targets))
    return u, y, rng.standard_normal((targets, width)), rng


def loss(u, y, head, bias, weight, layer_bias, deficit):
    features = u @ weight.T + layer_bias
    fit = np.sum((features @ head.T + bias - y) ** 2) + PENALTY.features * np.sum(features**2)
    gram = head @ head.T + PENALTY.features * np.eye(len(head))
    correction = 0.5 * PENALTY.features * np.trace(np.linalg.solve(gram, deficit))
    return fit / (2 * len(u)) + PENALTY.head / 2 * np.sum(head**2) + correction


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("corrected", [False, True])
def test_solved_layers_are_stationary_and_least(seed, corrected):
    u, y, broadcast, rng = client(seed)
    deficit = np.array([[0.4, 0.1], [0.1, 0.3]]) if corrected else np.zeros((2, 2))
    solved = solve(u, y, broadcast, PENALTY, deficit if corrected else None)
    point = (solved.head, solved.bias, solved.layer_weight, solved.layer_bias)
    least = loss(u, y, *point, deficit)
    for _ in range(30):
        step = [rng.standard_normal(part.shape) for part in point]
        up, down = ([p + sign * 1e-5 * s for p, s in zip(point, step, strict=True)] for sign in (1, -1))
        slope = (loss(u, y, *up, deficit) - loss(u, y, *down, deficit)) / 2e-5
        assert abs(slope) < 1e-6
        far = [p + 0.3 * s for p, s in zip(point, step, strict=True)]
        assert loss(u, y, *far, deficit) > least


def test_solved_head_is_the_selected_factor_of_the_explained_optimum():
    u, y, broadcast, _ = client(5)
    solved = solve(u, y, broadcast, PENALTY)
    np.testing.assert_allclose(
        solved.head, closest_head(broadcast, phi(solved.explained, PENALTY)), atol=1e-14
    )
    residual = np.cov(y.T, bias=True) - solved.explained
    least = loss(u, y, solved.head, solved.bias, solved.layer_weight, solved.layer_bias, np.zeros((2, 2)))
    profiled = profiled_objective(solved.head, solved.explained, PENALTY) + 0.5 * np.trace(residual)
    assert least == pytest.approx(float(profiled), rel=1e-12)
    assert np.linalg.eigvalsh(residual)[0] > -1e-12


def test_interpolating_inputs_explain_all_of_the_covariance():
    rng = np.random.default_rng(6)
    u, y = rng.standard_normal((20, 30)), rng.standard_normal((20, 2))
    solved = solve(u, y, rng.standard_normal((2, 4)), PENALTY)
    np.testing.assert_allclose(solved.explained, np.cov(y.T, bias=True), atol=1e-12)
    assert solved.clipped == 0


def test_clipped_directions_are_counted():
    u, y, broadcast, _ = client(7)
    assert solve(u, y, broadcast, PENALTY, deficit=-10 * np.eye(2)).clipped == 2


def test_inputs_and_targets_must_match():
    u, y, broadcast, _ = client(8)
    with pytest.raises(InputError, match="60 inputs but 59 targets"):
        solve(u, y[1:], broadcast, PENALTY)


def test_a_head_needs_as_many_features_as_targets():
    for refused in (lambda: closest_head(np.ones((2, 1)), np.eye(2)), lambda: align(*np.ones((2, 2, 1)))):
        with pytest.raises(InputError, match=r"1 feature for 2 targets\. It needs at least as many"):
            refused()


@pytest.mark.parametrize("place", ["inputs", "targets", "broadcast", "deficit", "trained"])
def test_values_that_are_not_finite_are_refused(place):
    u, y, broadcast, _ = client(9)
    given = {"inputs": u, "targets": y, "broadcast": broadcast}
    given |= {"deficit": np.zeros((2, 2)), "trained": np.zeros((2, 6))}
    given[place] = np.full_like(given[place], np.nan)
    with pytest.raises(InputError, match=f"{place} has a value that is not finite") as caught:
        solve(penalty=PENALTY, **given)
    assert caught.value.field == place


def test_targets_are_rows():
    u, y, broadcast, _ = client(9)
    with pytest.raises(InputError, match=r"targets must have shape \(rows, columns\), not \(60,\)"):
        solve(u, y[:, 0], broadcast, PENALTY)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"The head has shape \(2, 5\) and the broadcast \(2, 4\)\. Both"):
        align(np.ones((2, 5)), np.ones((2, 4)))
    with pytest.raises(InputError, match=r"The head has shape \(5,\) and the broadcast \(5,\)\. Both"):
        align(np.ones(5), np.ones(5))
    with pytest.raises(InputError, match=r"The head must have shape \(..., 3, features\)"):
        closest_head(np.ones((2, 5)), np.eye(3))
    with pytest.raises(InputError, match="gram must be square"):
        closest_head(np.ones((2, 5)), np.ones((2, 3)))
    with pytest.raises(InputError, match=r"do not fit together: head \(3,\), broadcast \(2,\)\. Pass"):
        align(np.ones((3, 2, 5)), np.ones((2, 2, 5)))
    with pytest.raises(InputError, match=r"do not fit together: broadcast \(3,\), gram \(2,\)\. Pass"):
        closest_head(np.ones((3, 2, 5)), np.array([np.eye(2)] * 2))
    u, y, _, _ = client(9)
    with pytest.raises(InputError, match=r"broadcast must have shape \(rows, columns\), not \(3, 2, 5\)"):
        solve(u, y, np.ones((3, 2, 5)), PENALTY)
    with pytest.raises(InputError, match="The head has 5 features but the layer has 4"):
        unshrink(np.ones((2, 5)), np.ones((4, 6)), PENALTY)
    with pytest.raises(InputError, match="layer_weight has a value that is not finite"):
        unshrink(np.ones((2, 5)), np.full((5, 6), np.nan), PENALTY)


def test_a_number_is_no_penalty():
    u, y, broadcast, _ = client(9)
    for refused in (
        lambda: phi(np.eye(2), 0.1),
        lambda: solve(u, y, broadcast, 0.1),
        lambda: unshrink(broadcast, np.ones((broadcast.shape[1], 6)), 0.1),
    ):
        with pytest.raises(
            InputError, match=r"penalty= expects Penalty, got float\. Build it with Penalty\(features="
        ):
            refused()


@pytest.mark.parametrize(
    ("place", "shape", "needed"), [("deficit", (3, 3), (2, 2)), ("trained", (2, 5), (2, 6))]
)
def test_what_is_added_fits_the_rows(place, shape, needed):
    u, y, broadcast, _ = client(9)
    with pytest.raises(InputError) as caught:
        solve(u, y, broadcast, PENALTY, **{place: np.zeros(shape)})
    assert caught.value.message == f"{place} must have shape {needed} for these rows, not {shape}."
    assert caught.value.field == place


def test_the_map_behind_optimal_features_is_found_again():
    rng = np.random.default_rng(9)
    head, wanted = rng.standard_normal((2, 5)), rng.standard_normal((2, 6))
    features = head.T @ np.linalg.solve(head @ head.T + PENALTY.features * np.eye(2), wanted)
    np.testing.assert_allclose(unshrink(head, features, PENALTY), wanted, atol=1e-13)


def test_a_direction_that_the_head_hardly_uses_is_blown_up_a_hundred_times():
    head, layer = np.diag([1.0, 1e-5]), np.random.default_rng(10).standard_normal((2, 3))
    shown = unshrink(head, layer, PENALTY) / (head @ layer)
    np.testing.assert_allclose(shown, [[1 + PENALTY.features] * 3, [100] * 3], rtol=1e-6)


def solved_map(*given, **options):
    solved = solve(*given, PENALTY, **options)
    assert solved.clipped == 0
    return unshrink(solved.head, solved.layer_weight, PENALTY)


def test_of_maps_that_fit_as_well_the_one_closest_to_the_trained_one_is_taken():
    rng = np.random.default_rng(11)
    u, y, broadcast = rng.standard_normal((20, 30)), rng.standard_normal((20, 2)), rng.standard_normal((2, 4))
    trained = rng.standard_normal((2, 30))
    found, centered = solved_map(u, y, broadcast, trained=trained), u - u.mean(axis=0)
    np.testing.assert_allclose(centered @ found.T, y - y.mean(axis=0), atol=1e-10)
    unseen = scipy.linalg.null_space(centered)
    np.testing.assert_allclose((found - trained) @ unseen, 0, atol=1e-11)


def test_weak_directions_of_the_inputs_stay_as_they_were_trained():
    u, y, broadcast, rng = client(13)
    u[:, 5] = u[:, 5].mean() + 1e-3 * (u[:, 5] - u[:, 5].mean())
    trained = rng.standard_normal((2, 6))
    _, strength, directions = np.linalg.svd(u - u.mean(axis=0))
    assert strength[5] < 1e-2 * strength[0] < strength[4]
    kept = solved_map(u, y, broadcast, trained=trained, weak=1e-2)
    np.testing.assert_allclose((kept - trained) @ directions[5], 0, atol=1e-12)
    least = solved_map(u, y, broadcast)
    np.testing.assert_allclose((kept - least) @ directions[:5].T, 0, atol=1e-12)
    assert np.abs((kept - least) @ directions[5]).max() > 1
