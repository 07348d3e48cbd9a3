"""Bures–Wasserstein geometry against closed forms, SciPy, POT and pyRiemann."""

import mpmath
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError
from fedgram._util.arrays import as_finite_array
from fedgram.theory.geometry import psd
from tests.helpers.instances import covariances, mp_sqrt, rotations, to_float, transport

SEEDS = st.integers(0, 10_000)


def trace_formula(first, second):
    root = scipy.linalg.sqrtm(first)
    cross = scipy.linalg.sqrtm(root @ second @ root)
    return np.sqrt(np.trace(first) + np.trace(second) - 2 * np.trace(cross).real)


@given(SEEDS, st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_distance_is_the_trace_formula_and_a_metric(seed, size):
    a, b, c = covariances(np.random.default_rng(seed), 3, size=size)
    assert psd.distance(a, b) == pytest.approx(trace_formula(a, b), rel=1e-7)
    assert psd.distance(a, b) == pytest.approx(psd.distance(b, a), rel=1e-12)
    assert psd.distance(a, c) <= psd.distance(a, b) + psd.distance(b, c) + 1e-12
    assert psd.distance(a, a) < 1e-13


def test_distance_agrees_with_pot_and_pyriemann():
    ot = pytest.importorskip("ot")
    geometry = pytest.importorskip("pyriemann.geometry.distance")
    a, b = covariances(np.random.default_rng(0), 2, size=4)
    zero = np.zeros(4)
    assert psd.distance(a, b) == pytest.approx(
        ot.gaussian.bures_wasserstein_distance(zero, zero, a, b), rel=1e-9
    )
    assert psd.distance(a, b) == pytest.approx(geometry.distance_wasserstein(a, b), rel=1e-9)


def test_distance_keeps_its_digits_when_the_matrices_are_close():
    rng = np.random.default_rng(1)
    basis = rotations(rng, size=3)
    values, step = np.array([1.0, 2.0, 3.0]), 1e-4 * np.array([1.0, -2.0, 1.0])
    near, far = (basis * values) @ basis.T, (basis * (np.sqrt(values) + step) ** 2) @ basis.T
    assert psd.distance(near, far) == pytest.approx(np.linalg.norm(step), rel=1e-11)


def test_distance_between_singular_matrices():
    assert psd.distance(np.diag([4.0, 0.0]), np.diag([0.0, 9.0])) == pytest.approx(np.sqrt(13.0), rel=1e-15)
    assert psd.distance(np.zeros((2, 2)), np.diag([0.0, 9.0])) == pytest.approx(3.0, rel=1e-15)


@given(SEEDS, st.integers(1, 5), st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_closest_factor_is_the_projection_of_lemma_1(seed, size, extra):
    rng = np.random.default_rng(seed)
    gram, head = covariances(rng, size=size), rng.standard_normal((size, size + extra))
    shared = head @ head.T
    closest = psd.closest_factor(head, gram)
    np.testing.assert_allclose(closest @ closest.T, gram, atol=1e-13)
    np.testing.assert_allclose(closest, transport(shared, gram) @ head, atol=1e-6)
    assert np.linalg.norm(closest - head) == pytest.approx(psd.distance(shared, gram), rel=1e-6)
    for turn in rotations(rng, 20, size=size + extra):
        assert np.linalg.norm(closest @ turn - head) >= np.linalg.norm(closest - head) - 1e-12


@given(SEEDS, st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_transport_maps_one_gram_to_the_other(seed, size):
    gram, target = covariances(np.random.default_rng(seed), 2, size=size)
    carried = transport(gram, target)
    np.testing.assert_allclose(carried @ gram @ carried, target, atol=1e-13)
    assert np.linalg.eigvalsh(carried)[0] > 0
    np.testing.assert_allclose(transport(gram, gram), np.eye(size), atol=1e-13)


def test_transport_against_forty_digits():
    gram, target = covariances(np.random.default_rng(3), 2, size=3)
    with mpmath.workdps(40):
        root = mp_sqrt(mpmath.matrix(gram.tolist()))
        middle = mp_sqrt(root * mpmath.matrix(target.tolist()) * root)
        exact = to_float(root**-1 * middle * root**-1)
    assert psd.relative_error(transport(gram, target), exact) < 1e-13


def test_batches_equal_loops():
    rng = np.random.default_rng(4)
    grams, targets = covariances(rng, 2, 3, size=4), covariances(rng, 2, 3, size=4)
    for function in (psd.distance, transport, psd.closest_factor):
        stacked = function(grams, targets)
        for index in np.ndindex(2, 3):
            np.testing.assert_allclose(stacked[index], function(grams[index], targets[index]), rtol=1e-13)


def test_invariance_under_rotation_and_scaling():
    rng = np.random.default_rng(5)
    a, b = covariances(rng, 2, size=4)
    turn = rotations(rng, size=4)
    assert psd.distance(turn @ a @ turn.T, turn @ b @ turn.T) == pytest.approx(psd.distance(a, b), rel=1e-13)
    assert psd.distance(9 * a, 9 * b) == pytest.approx(3 * psd.distance(a, b), rel=1e-13)


def test_factor_of_a_singular_matrix_drops_only_rounding():
    rng = np.random.default_rng(6)
    thin = rng.standard_normal((5, 2))
    matrix = psd.symmetric(thin @ thin.T)
    root = psd.factor(matrix)
    np.testing.assert_allclose(root @ root.T, matrix, atol=1e-14)


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.ones((2, 3)), "must be square"),
        (np.ones(3), "must be square"),
        (np.zeros((0, 0)), "must be square"),
        ([[1.0, np.nan], [np.nan, 1.0]], "not finite"),
        ([[1.0, 0.5], [0.4, 1.0]], "not symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "negative eigenvalue"),
    ],
)
def test_matrices_that_are_not_semidefinite_are_refused(matrix, words):
    with pytest.raises(InputError, match=words):
        psd.check_psd(matrix, "The matrix")


@pytest.mark.parametrize("size", [2, 3])
def test_rounding_is_that_of_each_matrix_of_a_batch(size):
    skew = np.triu(np.full((size, size), 1e-8), 1)
    large = 1e6 * np.eye(size) + skew
    np.testing.assert_array_equal(
        psd.check_psd([large, np.eye(size)], "Both"), [psd.symmetric(large), np.eye(size)]
    )
    with pytest.raises(InputError, match="Both is not symmetric"):
        psd.check_psd([1e6 * np.eye(size), np.eye(size) + skew], "Both")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_square_root_is_that_of_scipy_also_of_small_and_singular_matrices(size):
    matrices = covariances(np.random.default_rng(7), 3, size=size, low=1e-3, high=0.5)
    for matrix, root in zip(matrices, psd.sqrt(matrices), strict=True):
        np.testing.assert_allclose(root, scipy.linalg.sqrtm(matrix), atol=1e-13)
    np.testing.assert_array_equal(psd.sqrt(np.diag([9.0, 0.0])), np.diag([3.0, 0.0]))


def test_definite_matrices_can_be_asked_for():
    np.testing.assert_array_equal(
        psd.check_psd(np.diag([1.0, 0.1]), "The matrix", definite=True), np.diag([1.0, 0.1])
    )
    with pytest.raises(InputError, match="must be positive definite"):
        psd.check_psd(np.diag([1.0, 0.0]), "The matrix", definite=True)


def test_nothing_is_relative_to_zero():
    error = psd.relative_error(
        np.ones((2, 1, 1)), np.array([[[2.0]], [[0.0]]])
    )  # a warning would be an error
    np.testing.assert_array_equal(error, [0.5, np.nan])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("equal", "X must be an array of real numbers"),
        ([[1.0], [1.0, 2.0]], "with rows of one length"),
        ([1j], "X must be an array of real numbers"),
        (np.array([1j]), "X must be an array of real numbers"),
        ([np.array([1j])], "X must be an array of real numbers"),
        ([1.0, np.nan], "X has a value that is not finite"),
    ],
)
def test_what_is_not_numbers_is_refused_in_a_sentence(values, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        as_finite_array(values, "X")
    assert caught.value.field == "X"


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        (np.ones((2, 1)), "The head has 1 feature for 2 targets. It needs at least as many"),
        (np.ones((3, 5)), r"The head must have shape \(..., 2, features\), one row per target, not \(3, 5\)"),
        (np.ones(5), r"The head must have shape .* not \(5,\)"),
    ],
)
def test_a_head_that_cannot_have_the_gram_has_no_closest_factor(head, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        psd.closest_factor(head, np.eye(2))
    assert caught.value.field == "head"
