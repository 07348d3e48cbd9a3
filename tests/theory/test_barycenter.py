"""The barycenter against closed forms, 40-digit arithmetic, other libraries, and its own definition."""

import importlib

import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import Barycenter, InputError, barycenter
from fedgram.theory.geometry import batched_linalg, newton_batched, newton_lapack, psd
from fedgram.theory.geometry.barycenter import next_head, trajectory
from fedgram.theory.geometry.batched_linalg import products
from fedgram.theory.geometry.weights import normalize_weights
from tests.helpers.instances import covariances, mp_sqrt, rotations, to_float, transport

SEEDS = st.integers(0, 10_000)
CLIENTS = st.integers(1, 6)
SIZES = st.integers(1, 9)  # beyond 6 conjugate gradients replace the dense Hessian


def exact(grams, weights, start=None):
    """The limit of the recursion in 40 digits, from the mean or from start: it is the same by Theorem 1."""
    with mpmath.workdps(40):
        clients = [mpmath.matrix(gram.tolist()) for gram in grams]
        weights = [mpmath.mpf(weight) for weight in weights]
        gram = mpmath.matrix((np.mean(grams, axis=0) if start is None else start).tolist())
        change = 1
        while change > 1e-18:
            root = mp_sqrt(gram)
            inner = mpmath.zeros(gram.rows)
            for weight, client in zip(weights, clients, strict=True):
                inner += weight * mp_sqrt(root * client * root)
            inverse = root**-1
            moved = inverse * (inner / sum(weights)) ** 2 * inverse
            change, gram = mpmath.mnorm(moved - gram, "f") / mpmath.mnorm(gram, "f"), moved
        return to_float(gram)


def spread_out(rng, clients, size, condition):
    """Grams with eigenvalues from 1 down to 1 / condition, evenly on a log scale, rotated at random."""
    basis = rotations(rng, clients, size=size)
    grams = (basis * np.geomspace(1.0, 1 / condition, size)) @ np.swapaxes(basis, -1, -2)
    return psd.symmetric(grams)


def of_rank(rng, rank, size):
    """A singular Gram with small integer entries, so that it is exact in float64."""
    columns = rng.integers(-3, 4, (size, rank)).astype(float)
    return columns @ columns.T


@given(SEEDS, CLIENTS, SIZES)
@settings(max_examples=40, deadline=None)
def test_clients_that_commute(seed, clients, size):
    rng = np.random.default_rng(seed)
    basis, values = rotations(rng, size=size), rng.uniform(0.0, 3.0, (clients, size))
    weights = rng.dirichlet(np.ones(clients))
    found = barycenter((basis * values[:, None, :]) @ basis.T, weights)
    limit = (basis * (weights @ np.sqrt(values)) ** 2) @ basis.T
    assert psd.relative_error(found.gram, limit) < 1e-7  # √eps: rounded, a vanishing eigenvalue may be eps
    assert found.converged


@given(SEEDS, SIZES, st.floats(0.05, 0.95))
@settings(max_examples=40, deadline=None)
def test_two_clients_lie_on_the_geodesic(seed, size, share):
    first, second = covariances(np.random.default_rng(seed), 2, size=size)
    step = (1 - share) * np.eye(size) + share * transport(first, second)
    found = barycenter([first, second], [1 - share, share]).gram
    assert psd.relative_error(found, step @ first @ step) < 1e-13


@pytest.mark.parametrize(("size", "clients"), [(1, 4), (2, 3), (3, 5), (5, 3), (8, 3)])
def test_against_forty_digits(size, clients):
    rng = np.random.default_rng(size)
    grams, weights = covariances(rng, 80, clients, size=size), rng.dirichlet(np.ones(clients))
    found = barycenter(grams[0], weights).gram
    limit = exact(grams[0], weights, None if size < 5 else found)
    assert psd.relative_error(found, limit) < 5e-15
    assert psd.relative_error(barycenter(grams, weights).gram[0], limit) < 5e-15


@pytest.mark.parametrize(
    ("size", "clients", "condition"), [(2, 3, 1e4), (3, 4, 1e8), (2, 3, 1e12), (4, 3, 1e12)]
)
def test_ill_conditioned_against_forty_digits(size, clients, condition):
    rng = np.random.default_rng(size)
    grams, weights = spread_out(rng, clients, size, condition), rng.dirichlet(np.ones(clients))
    found = barycenter(grams, weights)
    assert psd.relative_error(found.gram, exact(grams, weights, found.gram)) < 1e-13
    assert found.residual < 1e-14
    assert found.iterations < 30


@pytest.mark.parametrize("size", [2, 3, 4])
def test_one_definite_client_among_singular_ones(size):
    rng = np.random.default_rng(size)
    grams = np.array([*(of_rank(rng, 1 + m % (size - 1), size) for m in range(4)), 2 * np.eye(size)])
    weights = rng.uniform(0.5, 1.5, 5)
    found = barycenter(grams, weights)
    assert psd.relative_error(found.gram, exact(grams, weights, found.gram)) < 1e-13
    assert found.converged


@given(SEEDS, st.integers(2, 7))
@settings(max_examples=40, deadline=None)
def test_no_definite_client_still_gives_a_fixed_point(seed, size):
    rng = np.random.default_rng(seed)
    grams = np.array([of_rank(rng, rng.integers(1, size), size) for _ in range(2 * size)])
    found = barycenter(grams)
    assert found.residual < 1e-13
    assert found.message == ""


def test_vanishing_clients():
    assert not barycenter(np.zeros((3, 2, 2))).gram.any()
    halved = barycenter([np.diag([4.0, 8.0]), np.zeros((2, 2))])
    np.testing.assert_allclose(halved.gram, np.diag([1.0, 2.0]), atol=1e-15)


@pytest.mark.parametrize("size", [3, 12])
def test_against_pot_and_pyriemann(size):
    ot = pytest.importorskip("ot")
    mean = pytest.importorskip("pyriemann.geometry.mean")
    rng = np.random.default_rng(size)
    grams, weights = covariances(rng, 5, size=size), rng.dirichlet(np.ones(5))
    found = barycenter(grams, weights).gram
    theirs = ot.gaussian.bures_wasserstein_barycenter(np.zeros((5, size)), grams, weights, eps=1e-12)[1]
    assert psd.relative_error(found, theirs) < 1e-11
    theirs = mean.mean_wasserstein(grams, tol=1e-12, sample_weight=weights)
    assert psd.relative_error(found, theirs) < 1e-12


def test_minimises_the_sum_of_squared_distances():
    rng = np.random.default_rng(0)
    grams, weights = covariances(rng, 4, size=3), rng.dirichlet(np.ones(4))
    lower = np.tril_indices(3)

    def squared_distances(entries):
        root = np.zeros((3, 3))
        root[lower] = entries
        cross = [scipy.linalg.sqrtm(root.T @ gram @ root).trace().real for gram in grams]
        return np.trace(root @ root.T) - 2 * weights @ cross

    start = np.linalg.cholesky(grams[0])[lower]
    best = scipy.optimize.minimize(squared_distances, start, method="BFGS", options={"gtol": 1e-7})
    root = np.zeros((3, 3))
    root[lower] = best.x
    found = barycenter(grams, weights)
    assert psd.relative_error(root @ root.T, found.gram) < 1e-6
    assert squared_distances(np.linalg.cholesky(found.gram)[lower]) <= best.fun + 1e-14


@given(SEEDS, CLIENTS, SIZES)
@settings(max_examples=60, deadline=None)
def test_solves_its_equation_and_stays_below_the_mean(seed, clients, size):
    rng = np.random.default_rng(seed)
    grams, weights = covariances(rng, clients, size=size, low=1e-3), rng.dirichlet(np.ones(clients))
    found = barycenter(grams, weights)
    maps = transport(found.gram, grams)
    np.testing.assert_allclose(np.einsum("m,mij->ij", weights, maps), np.eye(size), atol=1e-11)
    assert np.linalg.eigvalsh(np.einsum("m,mij->ij", weights, grams) - found.gram)[0] > -1e-13
    np.testing.assert_allclose(found.factor @ found.factor.T, found.gram, rtol=0, atol=1e-14)


@given(SEEDS, CLIENTS, SIZES, st.integers(-150, 150))
@settings(max_examples=40, deadline=None)
def test_invariances(seed, clients, size, power):
    rng = np.random.default_rng(seed)
    grams, weights = covariances(rng, clients, size=size), rng.dirichlet(np.ones(clients))
    found, basis, order = barycenter(grams, weights).gram, rotations(rng, size=size), rng.permutation(clients)
    rotated = psd.symmetric(basis @ grams @ basis.T)
    assert psd.relative_error(barycenter(rotated, weights).gram, basis @ found @ basis.T) < 1e-14
    assert psd.relative_error(barycenter(grams[order], weights[order]).gram, found) < 1e-14
    assert psd.relative_error(barycenter(10.0**power * grams, 7 * weights).gram / 10.0**power, found) < 1e-14
    twice = barycenter(np.concatenate([grams, grams[:1]]), np.append(weights, weights[0])).gram
    assert psd.relative_error(twice, barycenter(grams, [2 * weights[0], *weights[1:]]).gram) < 1e-14


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7])
def test_a_batch_is_its_problems_one_by_one(size):
    rng = np.random.default_rng(size)
    grams, weights = covariances(rng, 5, 4, 3, size=size), rng.uniform(0.5, 1.5, (4, 3))
    grams[0, 0] = [of_rank(rng, 1, size), of_rank(rng, size, size), np.eye(size)]
    grams[1, 1] = spread_out(rng, 3, size, 1e10)
    grams[2, 2] = spread_out(rng, 3, size, 300.0)
    grams[3] *= 1e-12
    found = barycenter(grams, weights)
    assert found.residual.shape == found.iterations.shape == found.converged.shape == (5, 4)
    for i, j in np.ndindex(5, 4):
        alone = barycenter(grams[i, j], weights[j])
        assert psd.relative_error(found.gram[i, j], alone.gram) < 2e-14
        assert psd.relative_error(psd.gram(found.factor[i, j]), alone.gram) < 2e-14
    assert found.residual.max() < 1e-14


@pytest.mark.parametrize("batch", [(4,), (2, 3)])
def test_the_same_clients_under_several_weights(batch):
    rng = np.random.default_rng(8)
    grams, weights = covariances(rng, 3, size=2), rng.uniform(0.5, 1.5, (*batch, 3))
    found = barycenter(grams, weights)
    assert found.gram.shape == (*batch, 2, 2)
    for at in np.ndindex(batch):
        assert psd.relative_error(found.gram[at], barycenter(grams, weights[at]).gram) < 2e-14


@pytest.mark.parametrize("light", [1e-7, 3e-11, 1e-18, 1e-30])
@pytest.mark.parametrize("by", ["weight", "gram"])
def test_light_clients_in_a_batch_cost_no_digits(light, by):
    grams = covariances(np.random.default_rng(0), 64, 20, size=4)
    shares = np.append(1.0, np.full(19, light))
    given = (grams, shares) if by == "weight" else (grams * shares[:, None, None] ** 2, np.ones(20))
    found = newton_batched.solve(given[0], np.broadcast_to(normalize_weights(given[1], 20), (64, 20)))[0]
    for head, each in zip(found, given[0], strict=True):
        alone = newton_lapack.solve(each, normalize_weights(given[1], 20))[0]
        assert psd.relative_error(psd.gram(head), psd.gram(alone)) < 2e-14


def test_large_batches_are_cut_to_size(monkeypatch):
    grams = covariances(np.random.default_rng(0), 100, 4, size=3)
    whole = barycenter(grams)
    monkeypatch.setattr(importlib.import_module("fedgram.theory.geometry.barycenter"), "ENTRIES", 1)
    np.testing.assert_allclose(barycenter(grams).gram, whole.gram, rtol=0, atol=1e-14)
    assert barycenter(grams[:0]).gram.shape == (0, 3, 3)


def test_the_recursion_ends_there():
    rng = np.random.default_rng(2)
    grams, weights = covariances(rng, 4, size=3), rng.dirichlet(np.ones(4))
    found, head = barycenter(grams, weights), rng.standard_normal((3, 7))
    grams_over_rounds = trajectory(head, grams, weights, 40)
    assert grams_over_rounds.shape == (41, 3, 3)
    errors = psd.relative_error(grams_over_rounds, found.gram)
    assert errors[-1] < 1e-14
    assert np.all(np.diff(errors[:8]) < 0)
    again = psd.gram(next_head(found.factor, grams, weights))
    assert psd.relative_error(again, found.gram) < 2 * found.residual + 1e-15


@pytest.mark.parametrize(
    ("grams", "weights", "sentence"),
    [
        ([[[1.0, 0.5], [0.0, 1.0]]], None, "grams is not symmetric"),
        ([[[np.nan]]], None, "grams has a value that is not finite"),
        ([[[np.inf]]], None, "grams has a value that is not finite"),
        ([np.diag([1.0, -1.0])], None, "grams has a negative eigenvalue, -1"),
        ([[np.diag([1.0, -1.0])]] * 20, None, "grams has a negative eigenvalue, -1"),
        ([[1.0, 2.0]], None, "grams must be square"),
        ([[["a"]]], None, "grams must be an array of real numbers"),
        (np.eye(2), None, r"grams must have shape \(..., clients, C, C\)"),
        (np.zeros((0, 2, 2)), None, r"grams must have shape \(..., clients, C, C\)"),
        ([np.eye(2)] * 3, [1.0, 2.0], "There are 3 clients but 2 client weights"),
        ([np.eye(2)] * 3, 2.0, "There are 3 clients but 1 client weights"),
        ([np.eye(2)] * 2, [1.0, 0.0], "Every client weight must be a finite positive number"),
        ([np.eye(2)] * 2, "equal", "client_weights must be an array of real numbers"),
        (
            [np.eye(2)] * 2,
            [1e200, 1e-200],
            "The smallest client weight is more than 300 orders of magnitude below the largest",
        ),
        (
            [[np.eye(2)] * 2] * 3,
            np.ones((4, 2)),
            r"do not fit together: grams \(3,\), client_weights \(4,\)\.",
        ),
        ([np.eye(2)] * 2, [1.0, np.inf], "Every client weight must be a finite positive number"),
    ],
)
def test_bad_input_is_an_error_with_a_sentence(grams, weights, sentence):
    with pytest.raises(InputError, match=sentence):
        barycenter(grams, weights)


def test_what_did_not_converge_says_so():
    grams = np.ones((3, 1, 1))
    short = Barycenter(grams, grams, np.array([1e-16, 1e-3, 1e-15]), np.full(3, 200))
    assert short.message == (
        "1 of 3 barycenters did not converge: one more round would change a Gram by 1.0e-03 of its size."
    )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_linear_algebra_along_the_stack(size):
    rng = np.random.default_rng(size)
    grams = np.moveaxis(covariances(rng, 3, 5, size=size), (2, 3), (0, 1))  # (C, C, 3, 5)
    grams[..., 0, 0] = np.diag([*np.ones(size - 1), -1.0])
    root, benign = batched_linalg.cholesky(grams)
    np.testing.assert_array_equal(benign, np.arange(15).reshape(3, 5) > 0)
    np.testing.assert_allclose(products(root, root.swapaxes(0, 1))[:, :, benign], grams[:, :, benign])
    identity = np.broadcast_to(np.eye(size)[:, :, None, None], grams.shape)
    left, singular, right = batched_linalg.svd(root, identity, 1e-8)
    np.testing.assert_allclose(products(left * singular, right.swapaxes(0, 1)), root, atol=1e-14)
    for basis in (left, right, batched_linalg.orthogonalize(left + 1e-6)):
        np.testing.assert_allclose(products(basis, basis.swapaxes(0, 1)), identity, atol=1e-14)
    inverse = batched_linalg.inverse(grams[:, :, 1].copy())
    np.testing.assert_allclose(
        np.einsum("ijk,jlk->ilk", inverse, grams[:, :, 1]), identity[:, :, 1], atol=1e-13
    )


def test_factors_of_ill_conditioned_matrices_keep_their_digits():
    matrix = spread_out(np.random.default_rng(0), 1, 4, 1e12)[0]
    with mpmath.workdps(50):
        root = mpmath.matrix(psd.factor(matrix).tolist())
        missing = mpmath.matrix(matrix.tolist()) - root * root.T
        smallest = mpmath.eigsy(mpmath.matrix(matrix.tolist()), eigvals_only=True)[0]
        # The symmetric root would change by missing / (2 √λ) along the weakest direction.
        assert mpmath.mnorm(missing, "f") < 1e-15
        assert abs(mpmath.eigsy(root * root.T, eigvals_only=True)[0] - smallest) / smallest < 1e-8


def test_a_trajectory_needs_as_many_features_as_targets():
    with pytest.raises(InputError, match=r"1 feature for 2 targets\. It needs at least as many"):
        trajectory(np.ones((2, 1)), np.stack([np.eye(2)] * 2), np.full(2, 0.5), 1)


@pytest.mark.parametrize("size", [1e308, 5e-324])
def test_weights_of_any_size_are_shares(size):
    grams = np.array([[[1.0]], [[4.0]]])
    np.testing.assert_array_equal(barycenter(grams, [size, size]).gram, barycenter(grams).gram)
