"""Finite profiled steps: Theorem 2 and its parts, each against a formula or a difference quotient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pytest

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import barycenter
from fedgram.theory.geometry.weights import average
from fedgram.theory.predict import phi, profiled_objective
from fedgram.ufm import displacement as theory
from fedgram.ufm import finite_instances as instances
from fedgram.ufm.finite import (
    RESIDUAL,
    ProfiledUpdate,
    iterate,
    lift,
    newton,
    return_errors,
    spectral_radius,
    symmetric_basis,
)
from fedgram.ufm.finite_instances import FAMILIES, PENALTY, RandomClients
from tests.helpers.instances import transport
from tests.helpers.unconstrained import displacement, hessian, inverse_hessian, next_gram, psi, psi_gradient


def clients_of(family: str, count: int = 4, seed: int = 0) -> RandomClients:
    return FAMILIES[family][0](np.random.default_rng(seed), count)


def update_of(clients: RandomClients, rate: float | Array, steps: int) -> ProfiledUpdate:
    return ProfiledUpdate(clients.covariance, clients.client_weights, PENALTY, np.asarray(rate), steps)


def within_gram(clients: RandomClients) -> Array:
    return phi(average(clients.client_weights, clients.covariance), PENALTY)


def directional(function: Callable[[Array], Array], at: Array, direction: Array, step: float = 1e-5) -> Array:
    """Central difference quotient of `function` along `direction`."""
    return (function(at + step * direction) - function(at - step * direction)) / (2 * step)


def symmetric_normal(shape: tuple[int, ...], seed: int = 1) -> Array:
    return psd.symmetric(np.random.default_rng(seed).standard_normal(shape))


families = pytest.mark.parametrize("family", FAMILIES)


# ---- the objects of eq. (19) ----


@families
def test_slope_is_the_gradient_of_the_profiled_objective(family: str) -> None:
    clients = clients_of(family)
    covariance = clients.covariance[:, 0]
    head, move = np.random.default_rng(2).standard_normal((2, 4, 3, 5))
    gradient = 2 * theory.slope(head @ head.mT, covariance, PENALTY) @ head
    quotient = directional(lambda w: profiled_objective(w, covariance, PENALTY), head, move)
    np.testing.assert_allclose(np.sum(gradient * move, axis=(-1, -2)), quotient, rtol=1e-6)


@families
def test_slope_derivative_against_differences(family: str) -> None:
    covariance = clients_of(family).covariance[:, 0]
    gram, move = within_gram(clients_of(family)), symmetric_normal((4, 3, 3))
    exact = theory.slope_derivative(gram, covariance, move, PENALTY)
    quotient = directional(lambda g: theory.slope(g, covariance, PENALTY), gram, move, 1e-6)
    np.testing.assert_allclose(exact, quotient, rtol=1e-6, atol=1e-7)


@families
def test_psi_is_half_the_squared_gradients(family: str) -> None:
    clients = clients_of(family)
    head = np.random.default_rng(2).standard_normal((4, 3, 5))
    gram = psd.gram(head)
    gradients = 2 * theory.slope(gram[:, None], clients.covariance, PENALTY) @ head[:, None]
    squares = np.einsum("nm,nm->n", clients.client_weights, psd.frobenius(gradients) ** 2)
    value = psi(gram, clients.covariance, clients.client_weights, PENALTY)
    np.testing.assert_allclose(value, squares / 2, rtol=1e-13)


@families
def test_psi_gradient_against_differences(family: str) -> None:
    clients = clients_of(family)
    arguments = (clients.covariance, clients.client_weights, PENALTY)
    gram, move = within_gram(clients), symmetric_normal((4, 3, 3))
    gradient = psi_gradient(gram, *arguments)
    quotient = directional(lambda g: psi(g, *arguments), gram, move, 1e-6)
    np.testing.assert_allclose(np.sum(gradient * move, axis=(-1, -2)), quotient, rtol=1e-6)


@families
def test_hessian_is_the_derivative_of_the_mean_slope_and_has_an_inverse(family: str) -> None:
    clients = clients_of(family)
    within = average(clients.client_weights, clients.covariance)
    move = symmetric_normal((4, 3, 3))
    curved = hessian(within, move, PENALTY)
    derivative = theory.slope_derivative(phi(within, PENALTY), within, move, PENALTY)
    np.testing.assert_allclose(curved, derivative, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(inverse_hessian(within, curved, PENALTY), move, atol=1e-13)


def gram_times_hessian(within: Array) -> Array:
    """T = S_{G_within} ∘ H in the orthonormal basis of Sym(3): (N, 3, 3) -> (N, 6, 6)."""
    gram, basis = phi(within, PENALTY)[:, None], symmetric_basis(3)
    curved = hessian(within[:, None], basis, PENALTY)
    return np.einsum("aij,nbij->nab", basis, gram @ curved + curved @ gram)


@families
def test_contraction_rates_are_the_eigenvalues_of_gram_times_hessian(family: str) -> None:
    clients = clients_of(family)
    within = average(clients.client_weights, clients.covariance)
    rates = theory.contraction_rates(within, PENALTY)
    spectrum = np.linalg.eigvalsh(gram_times_hessian(within))
    pairs = np.sort(rates[(..., *np.triu_indices(3))])
    np.testing.assert_allclose(spectrum, pairs, rtol=1e-10)
    smallest = np.linalg.eigvalsh(within)[:, 0]
    closed = 2 * PENALTY.head * (1 - np.sqrt(PENALTY.threshold / smallest))
    np.testing.assert_allclose(theory.contraction(within, PENALTY), closed, rtol=1e-12)


@families
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_one_step_contracts_by_the_smallest_rate(family: str, share: float) -> None:
    """‖Id - 2hT‖ = 1 - 2 h θ_min up to h = 1/(2 max θ_ij): with E = 1, DΦ^G(G_within) is Id - 2hT exactly."""
    clients = clients_of(family)
    within = average(clients.client_weights, clients.covariance)
    rates = theory.contraction_rates(within, PENALTY)
    h = share / (2 * rates.max(axis=(-1, -2)))
    jacobian = update_of(clients, h, 1).linearize(psd.sqrt(phi(within, PENALTY)))[1]
    spectrum = np.sort((1 - 2 * h[:, None, None] * rates)[(..., *np.triu_indices(3))])
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(jacobian).real), spectrum, atol=1e-12)
    norm = np.linalg.norm(jacobian, ord=2, axis=(-1, -2))
    np.testing.assert_allclose(norm, 1 - 2 * h * theory.contraction(within, PENALTY), atol=1e-13)


@pytest.mark.parametrize("draw", [instances.draw_commuting, instances.draw_commuting_both_signs])
def test_commuting_displacement_is_the_general_one(
    draw: Callable[[np.random.Generator, int], instances.CommutingClients],
) -> None:
    clients = draw(np.random.default_rng(0), 20)
    general = displacement(clients.covariance, clients.client_weights, PENALTY)
    closed = theory.commuting_displacement(clients.eigenvalues, clients.client_weights, PENALTY)
    rebuilt = (clients.basis * closed[:, None, :]) @ clients.basis.mT
    np.testing.assert_allclose(general, rebuilt, atol=1e-14)
    mean = np.einsum("nm,nmi->ni", clients.client_weights, clients.eigenvalues)
    np.testing.assert_array_equal(closed > 0, mean < 16 / 9 * PENALTY.threshold)


# ---- the update and its derivative ----


def test_one_step_is_gradient_descent_on_the_within_objective() -> None:
    clients = clients_of("generic")
    update = update_of(clients, 0.3, 1)
    head = instances.draw_initial_heads(np.random.default_rng(1), 4)
    gradient = 2 * theory.slope(psd.gram(head), update.within, PENALTY) @ head
    np.testing.assert_allclose(update.next_head(head), head - 0.3 * gradient, atol=1e-14)


def test_wide_heads_have_the_same_gram_map() -> None:
    update = update_of(clients_of("generic"), 0.2, 7)
    wide = instances.draw_initial_heads(np.random.default_rng(1), 4, features=8)
    gram = psd.gram(wide)
    np.testing.assert_allclose(psd.gram(update.next_head(wide)), next_gram(update, gram), rtol=1e-12)
    np.testing.assert_allclose(
        update.linearize(wide)[1], update.linearize(psd.sqrt(gram))[1], rtol=1e-9, atol=1e-12
    )


def test_symmetric_basis_is_orthonormal_and_lift_inverts_the_gram() -> None:
    basis = symmetric_basis(4)
    np.testing.assert_allclose(np.einsum("aij,bij->ab", basis, basis), np.eye(10), atol=1e-15)
    head, move = np.random.default_rng(0).standard_normal((3, 5)), symmetric_normal((3, 3))
    half = lift(head, move) @ head.T
    np.testing.assert_allclose(half + half.T, move, atol=1e-13)


@families
@pytest.mark.parametrize(("rate", "steps"), [(0.5, 1), (0.2, 3), (0.05, 40)])
def test_jacobian_against_differences(family: str, rate: float, steps: int) -> None:
    clients = clients_of(family)
    update, basis = update_of(clients, rate, steps), symmetric_basis(3)
    gram = within_gram(clients)
    image, jacobian = update.linearize(psd.sqrt(gram))
    np.testing.assert_allclose(image, next_gram(update, gram), rtol=1e-12, atol=1e-14)
    columns = [directional(partial(next_gram, update), gram, direction, 1e-6) for direction in basis]
    quotient = np.einsum("aij,bnij->nab", basis, columns)
    np.testing.assert_allclose(jacobian, quotient, rtol=1e-6, atol=1e-7)


def test_batch_equals_loop() -> None:
    clients, rates = clients_of("generic", 3), np.array([0.1, 0.5])
    head = instances.draw_initial_heads(np.random.default_rng(1), 3)
    grid = ProfiledUpdate(clients.covariance[:, None], clients.client_weights[:, None], PENALTY, rates, 20)
    together, solved = iterate(grid, head[:, None]), newton(grid)
    jacobian = grid.linearize(solved.head)[1]
    for i, j in product(range(3), range(2)):
        alone = ProfiledUpdate(clients.covariance[i], clients.client_weights[i], PENALTY, rates[j], 20)
        single = iterate(alone, head[i])
        np.testing.assert_allclose(together.head[i, j], single.head, rtol=1e-12, atol=1e-14)
        assert together.rounds[i, j] == single.rounds
        np.testing.assert_allclose(solved.gram[i, j], newton(alone).gram, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(jacobian[i, j], alone.linearize(solved.head[i, j])[1], atol=1e-14)


# ---- expansions in h = ηE ----


def order_of(error: Callable[[float], Array]) -> Array:
    """The power of h with which an error falls, from h = 1e-2 to 1e-3."""
    return np.log10(error(1e-2) / error(1e-3))


def local_gradient(clients: RandomClients, head: Array) -> Array:
    """∇F_m(W) = 2 Λ_m(W Wᵀ) W: (N, M, C, P)."""
    return 2 * theory.slope(psd.gram(head)[:, None], clients.covariance, PENALTY) @ head[:, None]


def local_curvature(clients: RandomClients, head: Array, move: Array) -> Array:
    """∇²F_m(W)[V] = 2 (DΛ_m[V Wᵀ + W Vᵀ] W + Λ_m V): head (N, C, P), move (N, M, C, P)."""
    heads, gram = head[:, None], psd.gram(head)[:, None]
    half = move @ heads.mT
    bend = theory.slope_derivative(gram, clients.covariance, half + half.mT, PENALTY)
    return 2 * (bend @ heads + theory.slope(gram, clients.covariance, PENALTY) @ move)


def psi_slope(clients: RandomClients, gram: Array) -> Array:
    return psi_gradient(gram, clients.covariance, clients.client_weights, PENALTY)


lengths = pytest.mark.parametrize("steps", [2, 8])
wide_heads = instances.draw_initial_heads(np.random.default_rng(3), 4, features=6)


@families
@lengths
def test_local_training_is_its_second_order_expansion(family: str, steps: int) -> None:
    """Eq. (21): W - h ∇F_m + η²E(E - 1)/2 ∇²F_m[∇F_m] with an error that falls as h³."""
    clients, head = clients_of(family), wide_heads
    gradient = local_gradient(clients, head)
    bend = local_curvature(clients, head, gradient)

    def error(h: float) -> Array:
        expanded = head[:, None] - h * gradient + h**2 * (1 - 1 / steps) / 2 * bend
        return psd.frobenius(update_of(clients, h / steps, steps).client_heads(head) - expanded)

    np.testing.assert_allclose(order_of(error), 3.0, atol=0.05)


@families
@lengths
def test_a_round_is_a_gradient_step_on_a_modified_objective(family: str, steps: int) -> None:
    """A round descends F̄ - η(E - 1) Ψ/2 by a step of size h, up to an error that falls as h³."""
    clients, head = clients_of(family), wide_heads
    within = average(clients.client_weights, clients.covariance)

    def modified(eta: float) -> Callable[[Array], Array]:
        def objective(w: Array) -> Array:
            spread = psi(psd.gram(w), clients.covariance, clients.client_weights, PENALTY)
            return profiled_objective(w, within, PENALTY) - eta * (steps - 1) * spread / 2

        return objective

    def gradient(eta: float) -> Array:
        mean = 2 * theory.slope(psd.gram(head), within, PENALTY) @ head
        return mean - eta * (steps - 1) * psi_slope(clients, psd.gram(head)) @ head  # ∇Ψ = 2 ∇ψ(G) W

    def error(h: float) -> Array:
        moved = update_of(clients, h / steps, steps).next_head(head)
        return psd.frobenius(moved - (head - h * gradient(h / steps)))

    move = np.random.default_rng(4).standard_normal(head.shape)
    quotient = directional(modified(0.1), head, move)
    np.testing.assert_allclose(np.sum(gradient(0.1) * move, axis=(-1, -2)), quotient, rtol=1e-6)
    np.testing.assert_allclose(order_of(error), 3.0, atol=0.05)


@families
@lengths
def test_the_gram_map_is_its_second_order_expansion(family: str, steps: int) -> None:
    """Eq. (22): G - 2h S_G[Λ̄] + η²E(E - 1) S_G[∇ψ] + 4h² Λ̄ G Λ̄ with an error that falls as h³."""
    clients, gram = clients_of(family), psd.gram(wide_heads)
    mean = theory.slope(gram, average(clients.client_weights, clients.covariance), PENALTY)
    bend = psi_slope(clients, gram)
    first, turned = gram @ mean + mean @ gram, gram @ bend + bend @ gram

    def error(h: float) -> Array:
        second = h**2 * (1 - 1 / steps) * turned + 4 * h**2 * mean @ gram @ mean
        return psd.frobenius(
            next_gram(update_of(clients, h / steps, steps), gram) - (gram - 2 * h * first + second)
        )

    np.testing.assert_allclose(order_of(error), 3.0, atol=0.05)


@families
@lengths
def test_the_derivative_of_the_gram_map_is_its_first_order_expansion(family: str, steps: int) -> None:
    """Eq. (23): Id - 2h (S_G ∘ DΛ̄ + S_Λ̄) with an error that falls as h²."""
    clients, gram = clients_of(family), psd.gram(wide_heads)[:, None]
    within = average(clients.client_weights, clients.covariance)[:, None]
    basis, mean = symmetric_basis(3), theory.slope(gram, within, PENALTY)
    bend = theory.slope_derivative(gram, within, basis, PENALTY)
    moved = gram @ bend + bend @ gram + mean @ basis + basis @ mean
    operator = np.einsum("aij,nbij->nab", basis, moved)

    def error(h: float) -> Array:
        jacobian = update_of(clients, h / steps, steps).linearize(wide_heads)[1]
        return psd.frobenius(jacobian - (np.eye(6) - 2 * h * operator))

    np.testing.assert_allclose(order_of(error), 2.0, atol=0.05)


# ---- fixed points ----


@families
@pytest.mark.parametrize("rate", [0.02, 0.5])
def test_one_step_leaves_the_within_gram_in_place(family: str, rate: float) -> None:
    clients = clients_of(family)
    update, gram = update_of(clients, rate, 1), within_gram(clients)
    np.testing.assert_allclose(next_gram(update, gram), gram, atol=1e-15)
    np.testing.assert_allclose(newton(update).gram, gram, rtol=1e-11, atol=1e-12)


def test_one_step_iteration_reaches_the_within_gram() -> None:
    clients = clients_of("generic")
    found = iterate(update_of(clients, 0.5, 1), instances.draw_initial_heads(np.random.default_rng(1), 4))
    assert found.converged.all()
    np.testing.assert_allclose(found.gram, within_gram(clients), atol=1e-11)


@families
@pytest.mark.parametrize(("rate", "steps"), [(0.5, 2), (0.2, 10), (0.5, 100)])
def test_iteration_and_newton_agree(family: str, rate: float, steps: int) -> None:
    update = update_of(clients_of(family), rate, steps)
    run = iterate(update, instances.draw_initial_heads(np.random.default_rng(1), 4))
    solved = newton(update)
    assert run.converged.all()
    assert solved.converged.all()
    assert (solved.rounds < 15).all()
    np.testing.assert_allclose(solved.gram, run.gram, atol=1e-10)
    np.testing.assert_allclose(next_gram(update, solved.gram), solved.gram, atol=RESIDUAL)


def test_rounds_that_run_out_are_flagged() -> None:
    update = update_of(clients_of("generic"), np.array([0.02, 0.02, 0.5, 0.5]), 20)
    found = iterate(update, instances.draw_initial_heads(np.random.default_rng(1), 4), max_rounds=30)
    np.testing.assert_array_equal(found.converged, [False, False, True, True])
    np.testing.assert_array_equal(found.rounds[:2], 30)
    assert (found.rounds[2:] < 30).all()


@families
@pytest.mark.parametrize("steps", [2, 8])
def test_displacement_is_first_order_exact(family: str, steps: int) -> None:
    """Theorem 2, part 2: the error of η(E - 1) Δ falls as h²."""
    clients, horizons = clients_of(family), np.array([1e-3, 1e-2])
    delta = displacement(clients.covariance, clients.client_weights, PENALTY)
    grams = np.array([newton(update_of(clients, h / steps, steps)).gram for h in horizons])
    first_order = (horizons * (1 - 1 / steps))[:, None, None, None] * delta
    error = psd.frobenius(grams - within_gram(clients) - first_order)
    order = np.log10(error[1] / error[0])
    np.testing.assert_allclose(order, 2.0, atol=0.05)
    assert (error[1] < 0.1 * psd.frobenius(first_order[1])).all()


@families
@pytest.mark.parametrize("steps", [2, 8])
def test_spectral_radius_is_first_order_exact(family: str, steps: int) -> None:
    """1 - 2 h θ_min with an error that falls as h²."""
    clients, horizons = clients_of(family), np.array([1e-3, 1e-2])
    theta = theory.contraction(average(clients.client_weights, clients.covariance), PENALTY)
    updates = [update_of(clients, h / steps, steps) for h in horizons]
    radius = np.array([spectral_radius(u.linearize(newton(u).head)[1]) for u in updates])
    assert (radius < 1).all()
    error = np.abs(radius - (1 - 2 * horizons[:, None] * theta))
    np.testing.assert_allclose(np.log10(error[1] / error[0]), 2.0, atol=0.05)


@families
def test_rounds_near_the_fixed_point_contract_as_the_theorem_says(family: str) -> None:
    """Theorem 2, part 3: errors fall at least as (1 - ½ h θ_min)^t."""
    clients = clients_of(family)
    update = update_of(clients, 0.02, 5)
    fixed = newton(update).gram
    rate = 1 - 0.5 * (0.02 * 5) * theory.contraction(update.within, PENALTY)
    smallest = np.linalg.eigvalsh(fixed)[:, :1, None]
    gram = fixed + 0.1 * smallest * symmetric_normal((4, 3, 3)) / 3
    start = psd.frobenius(gram - fixed)
    for count in range(1, 200):
        gram = next_gram(update, gram)
        assert (psd.frobenius(gram - fixed) <= rate**count * start).all()


# ---- long local training ----


def test_commuting_clients_return_closest_heads_and_reach_the_barycenter() -> None:
    clients = instances.draw_commuting(np.random.default_rng(0), 3)
    update = update_of(clients, 0.5, 400)
    found = iterate(update, instances.draw_initial_heads(np.random.default_rng(1), 3))
    errors = return_errors(update, found.head)
    assert (errors.gram < 1e-13).all()
    assert (errors.selection < 1e-13).all()
    star = barycenter(phi(clients.covariance, PENALTY), clients.client_weights).gram
    np.testing.assert_allclose(found.gram, star, atol=1e-12)


def test_noncommuting_clients_return_optimal_but_not_closest_heads() -> None:
    update = update_of(clients_of("generic"), 0.5, 400)
    found = iterate(update, instances.draw_initial_heads(np.random.default_rng(1), 4))
    errors = return_errors(update, found.head)
    assert (errors.gram < 1e-13).all()
    assert (errors.selection > 1e-6).all()
    assert (errors.selection < 1e-2).all()
    # The server Gram stands still while the head goes on turning.
    assert (psd.frobenius(update.next_head(found.head) - found.head) > 1e-6).all()


def test_return_errors_are_those_of_the_worst_client_of_each_problem() -> None:
    clients, heads = clients_of("generic", 3), instances.draw_initial_heads(np.random.default_rng(1), 3)
    update = update_of(clients, 0.5, 3)
    errors = return_errors(update, heads)
    assert errors.gram.shape == errors.selection.shape == (3,)
    for k, head in enumerate(heads):
        grams, returned = phi(clients.covariance[k], PENALTY), update.client_heads(heads)[k]
        closest = transport(head @ head.T, grams) @ head
        off_gram = np.linalg.norm(returned @ returned.mT - grams, axis=(1, 2))
        off_head = np.linalg.norm(returned - closest, axis=(1, 2))
        assert errors.gram[k] == pytest.approx((off_gram / np.linalg.norm(grams, axis=(1, 2))).max())
        assert errors.selection[k] == pytest.approx(
            (off_head / np.linalg.norm(closest, axis=(1, 2))).max(), rel=1e-6
        )


# ---- instances and input ----


def test_families_are_what_they_say() -> None:
    assert sum(count for _, count in FAMILIES.values()) == 52
    for family, (_, count) in FAMILIES.items():
        covariance = clients_of(family, count).covariance
        assert (np.linalg.eigvalsh(covariance)[..., 0] > PENALTY.threshold).all()
        commutator = covariance[:, 0] @ covariance[:, 1] - covariance[:, 1] @ covariance[:, 0]
        assert (psd.frobenius(commutator) > 1e-3).all()
    repeated = clients_of("repeated")
    within = np.linalg.eigvalsh(average(repeated.client_weights, repeated.covariance))
    np.testing.assert_allclose(np.diff(within).min(axis=-1), 0.0, atol=1e-14)
    weakest = np.linalg.eigvalsh(clients_of("near_threshold").covariance)[..., 0]
    assert (weakest < 1.21 * PENALTY.threshold).all()


@pytest.mark.parametrize(
    ("draw", "signs"),
    [(instances.draw_commuting, [-1, -1, -1]), (instances.draw_commuting_both_signs, [1, -1, -1])],
)
def test_displacements_of_commuting_families_have_the_signs_that_they_say(
    draw: Callable[[np.random.Generator, int], instances.CommutingClients], signs: list[int]
) -> None:
    clients = draw(np.random.default_rng(0), 50)
    moved = theory.commuting_displacement(clients.eigenvalues, clients.client_weights, PENALTY)
    np.testing.assert_array_equal(np.sign(moved), np.tile(signs, (50, 1)))


def test_client_weights_of_the_families_are_dirichlet() -> None:
    weights = clients_of("generic", 5000).client_weights
    np.testing.assert_allclose(weights.mean(axis=0), 1 / 4, rtol=0.03)
    np.testing.assert_allclose(weights.var(axis=0), 1 / 48, rtol=0.1)  # all four parameters are 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"steps": 0}, "steps"),
        ({"rate": -0.1}, "rate"),
        ({"covariance": 0.01 * np.eye(3)}, "covariance"),
        ({"covariance": np.diag([0.01, 2.0, 3.0])}, "covariance"),
    ],
)
def test_unusable_updates_are_refused(change: dict[str, float | Array], field: str) -> None:
    clients = clients_of("generic", 1)
    given = {"covariance": clients.covariance, "rate": 0.1, "steps": 2} | change
    given["covariance"] = np.broadcast_to(given["covariance"], (1, 4, 3, 3))
    with pytest.raises(InputError) as refused:
        ProfiledUpdate(client_weights=clients.client_weights, penalty=PENALTY, **given)  # type: ignore[arg-type]
    assert refused.value.field == field
