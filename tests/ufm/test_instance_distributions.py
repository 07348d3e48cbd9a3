"""Random instances have the distributions that the paper states, not only values inside their ranges."""

import numpy as np
from scipy import stats

from fedgram.theory.predict import phi
from fedgram.ufm import finite_instances
from fedgram.ufm.instances import (
    UNIT,
    WEAK,
    barycenter_instances,
    fixed_instance,
    gap_moments,
    selection_instances,
    sweep_moments,
)

LEAST = 1e-4  # p-value below which a distribution is another one; the seeds are fixed


def assert_uniform(values, low, high):
    """A test of the whole distribution hardly sees its ends, so these are compared too."""
    values, near = np.ravel(values), 0.005 * (high - low)
    assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > LEAST
    assert low - 1e-12 < values.min() < low + near
    assert high - near < values.max() < high + 1e-12


def assert_dirichlet(client_weights, concentration):
    """The first weight is Beta(a, (M - 1) a)."""
    clients = client_weights.shape[-1]
    law = stats.beta(concentration, (clients - 1) * concentration)
    assert stats.kstest(client_weights[..., 0].ravel(), law.cdf).pvalue > LEAST


def eigenvalues(matrices):
    return np.linalg.eigvalsh(matrices)


def test_selection_suite():
    clients = selection_instances(np.random.default_rng(0), 8, 16, 1000)
    assert_uniform(eigenvalues(clients.covariance), 2, 5)
    assert_uniform(np.linalg.svd(clients.broadcast, compute_uv=False), 0.7, 1.5)
    assert clients.penalty == UNIT


def test_barycenter_suite():
    drawn = barycenter_instances(np.random.default_rng(0), 4, 8, 1000)
    assert_uniform(eigenvalues(phi(drawn.moments.covariance, UNIT)), 0.4, 4)
    assert_dirichlet(drawn.moments.client_weights, 2)
    for normal in (drawn.moments.mean, drawn.head):
        assert stats.kstest(normal.ravel(), stats.norm.cdf).pvalue > LEAST


def test_gap_suite():
    moments = gap_moments(np.random.default_rng(0), 4, 4, 2000)
    assert_uniform(eigenvalues(moments.covariance), 0.25, 3)
    assert_dirichlet(moments.client_weights, 2)
    assert stats.kstest(moments.mean.ravel(), stats.norm.cdf).pvalue > LEAST


def test_controlled_sweeps():
    drawn = [sweep_moments(np.random.default_rng(seed)) for seed in range(400)]
    assert_uniform([eigenvalues(moments.covariance) for moments in drawn], 0.3, 3)
    # Four weights uniform in [0.5, 1.5], scaled to sum to one.
    raw = np.random.default_rng(0).uniform(0.5, 1.5, (20_000, 4))
    weights = [moments.client_weights[0] for moments in drawn]
    assert stats.ks_2samp(weights, raw[:, 0] / raw.sum(axis=1)).pvalue > LEAST


def test_finite_steps():
    clients = finite_instances.draw_generic(np.random.default_rng(0), 2000)
    assert_uniform(eigenvalues(clients.covariance), 0.3, 3)
    assert_dirichlet(clients.client_weights, 2)
    assert finite_instances.PENALTY == WEAK


def test_fixed_instance_has_the_printed_moments():
    """Written out from Appendix D.1: every angle, variance and mean."""
    instance = fixed_instance()
    printed = [(-40, 3, 0.11), (10, 1.1, 0.45), (55, 2.4, 0.13), (100, 2.5, 0.09)]
    found = [*instance.moments.covariance, instance.head @ instance.head.T]
    for (degrees, large, small), matrix in zip(printed, found, strict=True):
        axis = np.array([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))])
        expected = small * np.eye(2) + (large - small) * np.outer(axis, axis)
        np.testing.assert_allclose(matrix, expected, atol=1e-14)
    np.testing.assert_array_equal(instance.moments.mean, [[0, -2.2], [0, 0], [0, 2.2]])
    assert (instance.penalty.features, instance.penalty.head) == (0.1, 0.1)
    assert instance.targets.shape[-1] == 256
