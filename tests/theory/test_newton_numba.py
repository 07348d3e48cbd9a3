"""The compiled solver against the one that it stands in for, closed forms, and 40-digit arithmetic."""

import importlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError, barycenter
from fedgram.theory.geometry import newton_lapack, psd
from fedgram.theory.geometry.barycenter import COMPILED_SIZE, single_solver, solve_batched, solve_each
from tests.helpers.instances import covariances, rotations
from tests.theory.test_barycenter import exact, of_rank, spread_out

numba = pytest.importorskip("numba")
compiled = importlib.import_module("fedgram.theory.geometry.newton_numba")

SEEDS = st.integers(0, 10_000)
CLIENTS = st.integers(1, 9)
SIZES = st.integers(1, COMPILED_SIZE)


def difference(grams, weights):
    """Relative difference of the compiled solver to the other one, and its residual."""
    head, residual, rounds = compiled.solve(grams, weights)
    expected, _, expected_rounds = newton_lapack.solve(grams, weights)
    assert isinstance(residual, float)
    assert isinstance(rounds, int)
    assert rounds <= 2 * expected_rounds + 10  # rounding decides when either stops
    return psd.relative_error(psd.gram(head), psd.gram(expected)), residual


@given(SEEDS, CLIENTS, SIZES, st.sampled_from([1.0, 1e-3, 1e-6]), st.integers(-150, 150))
@settings(max_examples=100)
def test_random_clients(seed, clients, size, low, power):
    rng = np.random.default_rng(seed)
    grams, weights = covariances(rng, clients, size=size, low=low), rng.dirichlet(np.ones(clients))
    off, residual = difference(10.0**power * grams, weights)
    assert off < 1e-13
    assert residual < 1e-14


@given(SEEDS, CLIENTS, SIZES, st.sampled_from([1e4, 1e8, 1e12]))
@settings(max_examples=60)
def test_ill_conditioned_clients(seed, clients, size, condition):
    rng = np.random.default_rng(seed)
    off, residual = difference(spread_out(rng, clients, size, condition), rng.dirichlet(np.ones(clients)))
    assert off < 1e-13
    assert residual < 1e-14


@pytest.mark.parametrize(
    ("size", "clients", "condition"), [(2, 3, 10.0), (5, 3, 10.0), (2, 3, 1e12), (3, 5, 1e12)]
)
def test_against_forty_digits(size, clients, condition):
    rng = np.random.default_rng(size)
    grams, weights = spread_out(rng, clients, size, condition), rng.dirichlet(np.ones(clients))
    gram = psd.gram(compiled.solve(grams, weights)[0])
    assert psd.relative_error(gram, exact(grams, weights, gram)) < (5e-15 if condition < 1e3 else 1e-13)


@given(SEEDS, st.integers(2, COMPILED_SIZE))
@settings(max_examples=40)
def test_singular_clients_beside_a_definite_one(seed, size):
    rng = np.random.default_rng(seed)
    grams = np.array([*(of_rank(rng, 1 + m % (size - 1), size) for m in range(4)), 2 * np.eye(size)])
    off, residual = difference(grams, rng.dirichlet(np.ones(5)))
    assert off < 1e-13
    assert residual < 1e-14


@given(SEEDS, SIZES)
@settings(max_examples=20)
def test_one_client_and_equal_clients(seed, size):
    gram = covariances(np.random.default_rng(seed), size=size)
    for clients in (1, 3):
        head, _, rounds = compiled.solve(np.array([gram] * clients), np.full(clients, 1 / clients))
        assert psd.relative_error(psd.gram(head), gram) < 1e-14
        assert rounds == 1


@given(SEEDS, CLIENTS, SIZES)
@settings(max_examples=20)
def test_clients_that_commute(seed, clients, size):
    rng = np.random.default_rng(seed)
    basis, values = rotations(rng, size=size), rng.uniform(0.1, 3.0, (clients, size))
    weights = rng.dirichlet(np.ones(clients))
    head, _, _ = compiled.solve((basis * values[:, None, :]) @ basis.T, weights)
    limit = (basis * (weights @ np.sqrt(values)) ** 2) @ basis.T
    assert psd.relative_error(psd.gram(head), limit) < 1e-14


def test_vanishing_clients_and_bad_ones():
    assert not compiled.solve(np.zeros((3, 2, 2)), np.full(3, 1 / 3))[0].any()
    with pytest.raises(InputError, match="negative eigenvalue"):
        compiled.solve(np.array([np.eye(2), np.diag([1.0, -1.0])]), np.full(2, 0.5))


def test_arrays_of_any_kind_are_compiled_for_once():
    grams = covariances(np.random.default_rng(0), 4, size=3)
    expected = barycenter(grams).gram
    compilations = len(compiled.minimize.signatures)
    frozen = np.asfortranarray(grams)
    frozen.flags.writeable = False
    np.testing.assert_array_equal(barycenter(frozen).gram, expected)
    np.testing.assert_array_equal(barycenter(np.broadcast_to(frozen, (2, *grams.shape))).gram[1], expected)
    assert len(compiled.minimize.signatures) == compilations


def test_what_it_cannot_solve_goes_to_the_other_solver(monkeypatch):
    grams, weights = covariances(np.random.default_rng(0), 4, size=3), np.full(4, 0.25)
    monkeypatch.setattr(compiled, "LIMIT", 1)
    head, _, rounds = compiled.solve(grams, weights)
    expected, _, expected_rounds = newton_lapack.solve(grams, weights)
    np.testing.assert_array_equal(head, expected)
    assert rounds == expected_rounds > 1


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_together_and_one_by_one_agree(size):
    rng = np.random.default_rng(size)
    grams, weights = covariances(rng, 20, 3, size=size), rng.dirichlet(np.ones(3), 20)
    grams[0] = [of_rank(rng, 1, size), of_rank(rng, size, size), np.eye(size)]
    grams[1] = spread_out(rng, 3, size, 1e10)
    together, each = solve_batched(grams, weights), solve_each(grams, weights)
    assert psd.relative_error(psd.gram(together[0]), psd.gram(each[0])).max() < 2e-14
    assert max(together[1].max(), each[1].max()) < 1e-14


@pytest.fixture
def choose_again():
    single_solver.cache_clear()
    yield
    single_solver.cache_clear()


def test_small_problems_are_compiled(choose_again):
    assert single_solver(COMPILED_SIZE) is compiled.solve
    assert single_solver(COMPILED_SIZE + 1) is newton_lapack.solve


def test_without_numba_numpy_does_it(choose_again, monkeypatch):
    grams = covariances(np.random.default_rng(0), 20, 4, size=3)
    expected = barycenter(grams).gram
    single_solver.cache_clear()
    monkeypatch.delitem(sys.modules, "fedgram.theory.geometry.newton_numba")
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it fails
    assert single_solver(3) is newton_lapack.solve
    assert psd.relative_error(barycenter(grams).gram, expected).max() < 1e-14
    assert psd.relative_error(barycenter(grams[0]).gram, expected[0]) < 1e-14


def test_without_a_folder_to_write_it_still_compiles(monkeypatch):
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(compiled.dot.py_func)
    assert compiled.compile_cached(compiled.dot.py_func)(np.ones(3), np.ones(3)) == 3.0


def test_numba_waits_until_it_is_needed():
    code = "import sys, fedgram; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
