"""Instances: moments that hold exactly, distributions as the paper states them, and seeds that repeat."""

import numpy as np
import pytest

from fedgram._util.errors import InputError
from fedgram.theory.activity import Activity
from fedgram.theory.explain import explain
from fedgram.theory.moments import Moments
from fedgram.theory.predict import phi, predict
from fedgram.ufm.instances import (
    BARYCENTER_SIZES,
    GAP_SIZES,
    SELECTION_SIZES,
    UNIT,
    WEAK,
    barycenter_instances,
    fixed_instance,
    gap_instances,
    gap_moments,
    random_covariances,
    random_orthogonal,
    scale_covariances,
    scale_means,
    selection_instances,
    sweep_moments,
    targets_with_moments,
)
from fedgram.ufm.joint import Sample


@pytest.mark.parametrize("count", [5, 8, 64])
def test_targets_have_exactly_the_moments_asked_for(count):
    rng = np.random.default_rng(0)
    mean, covariance = 10 * rng.standard_normal((6, 4)), random_covariances(rng, (6,), 4, (0.01, 5.0))
    sample = Sample.from_targets(targets_with_moments(rng, mean, covariance, count))
    assert sample.targets.shape == (6, 4, count)
    np.testing.assert_allclose(sample.mean, mean, atol=1e-13)
    np.testing.assert_allclose(sample.covariance, covariance, atol=1e-13)


def test_too_few_samples_for_the_covariance_are_refused():
    with pytest.raises(InputError, match="3 samples cannot have a covariance of rank 3"):
        targets_with_moments(np.random.default_rng(0), np.zeros(3), np.eye(3), 3)


def test_fixed_instance_is_the_papers():
    instance = fixed_instance()
    np.testing.assert_allclose(
        np.linalg.eigvalsh(instance.moments.covariance), [[0.11, 3.0], [0.45, 1.1], [0.13, 2.4]], rtol=1e-13
    )
    np.testing.assert_allclose(np.linalg.eigvalsh(instance.head @ instance.head.T), [0.09, 2.5], rtol=1e-13)
    gap = explain(predict(instance.moments, instance.penalty))
    np.testing.assert_allclose(gap.traces, [1.02, 0.290, 0.193], rtol=5e-3)
    assert gap.relative == pytest.approx(0.578, rel=1e-3)
    names = ("client 1", "client 2", "client 3")
    measured = Moments.from_arrays(dict(zip(names, np.swapaxes(instance.targets, 1, 2), strict=True)))
    np.testing.assert_allclose(measured.mean, instance.moments.mean, atol=1e-14)
    np.testing.assert_allclose(measured.covariance, instance.moments.covariance, atol=1e-13)
    np.testing.assert_array_equal(fixed_instance().targets, instance.targets)


def test_fixed_first_client_leans_as_rotated():
    covariance = fixed_instance().moments.covariance[0]
    leading = np.linalg.eigh(covariance)[1][:, -1]
    assert np.rad2deg(np.arctan2(leading[1], leading[0])) % 180 == pytest.approx(140.0)


@pytest.mark.parametrize(("targets", "width"), SELECTION_SIZES)
def test_selection_instances(targets, width):
    clients = selection_instances(np.random.default_rng(1), targets, width, 16)
    sample = Sample.from_targets(clients.targets)
    assert clients.targets.shape == (16, targets, 64)
    np.testing.assert_allclose(sample.covariance, clients.covariance, atol=1e-13)
    eigenvalues = np.linalg.eigvalsh(clients.covariance)
    singular = np.linalg.svd(clients.broadcast, compute_uv=False)
    assert clients.broadcast.shape == (16, targets, width)
    assert 2 <= eigenvalues.min() <= eigenvalues.max() <= 5
    assert 0.7 <= singular.min() <= singular.max() <= 1.5
    assert clients.penalty == UNIT


@pytest.mark.parametrize(("targets", "clients"), BARYCENTER_SIZES)
def test_barycenter_instances(targets, clients):
    instance = barycenter_instances(np.random.default_rng(2), targets, clients, 5)
    assert instance.targets.shape == (5, clients, targets, 2 * targets)
    assert instance.head.shape == (5, targets, 2 * targets)
    np.testing.assert_allclose(
        Sample.from_targets(instance.targets).covariance, instance.moments.covariance, atol=1e-12
    )
    np.testing.assert_allclose(Sample.from_targets(instance.targets).mean, instance.moments.mean, atol=1e-13)
    eigenvalues = np.linalg.eigvalsh(phi(instance.moments.covariance, instance.penalty))
    assert 0.4 - 1e-12 <= eigenvalues.min() <= eigenvalues.max() <= 4.0 + 1e-12
    first, second = instance.moments.covariance[:, 0], instance.moments.covariance[:, 1]
    assert (np.abs(first @ second - second @ first).max(axis=(-1, -2)) > 1e-3).all()
    np.testing.assert_allclose(instance.moments.client_weights.sum(axis=-1), 1.0, rtol=1e-15)


def test_gap_instances_cycle_through_the_sizes():
    suite = gap_instances(np.random.default_rng(3))
    assert sum(len(moments.mean) for moments in suite) == 512
    assert [len(moments.mean) for moments in suite] == [43] * 8 + [42] * 4
    assert [(moments.mean.shape[2], moments.mean.shape[1]) for moments in suite] == list(GAP_SIZES)
    assert all(Activity.from_covariance(moments.covariance, WEAK).active.all() for moments in suite)


def test_margin_sweep_stays_above_its_margin():
    margin = 1.2 * WEAK.threshold
    moments = gap_moments(np.random.default_rng(4), 3, 4, 64, (margin, 3.0))
    assert np.linalg.eigvalsh(moments.covariance).min() > margin


def test_scaling_means_keeps_all_but_their_separation():
    moments = sweep_moments(np.random.default_rng(55))
    wide, equal = scale_means(moments, 3.0), scale_means(moments, 0.0)
    np.testing.assert_allclose(wide.offset, 3 * moments.offset, atol=1e-14)
    np.testing.assert_allclose(wide.pooled.mean, moments.pooled.mean, atol=1e-14)
    np.testing.assert_array_equal(wide.client_weights, moments.client_weights)
    assert np.abs(explain(predict(equal, WEAK)).traces[0]) < 1e-13


def test_scaling_covariances_keeps_their_average():
    moments = sweep_moments(np.random.default_rng(55))
    np.testing.assert_allclose(
        scale_covariances(moments, 0.4).pooled.within, moments.pooled.within, atol=1e-14
    )
    np.testing.assert_allclose(scale_covariances(moments, 1.0).covariance, moments.covariance, atol=1e-15)
    gap = explain(predict(scale_covariances(moments, 0.0), WEAK))
    assert np.abs(gap.traces[1:]).max() < 2e-14


def test_sweep_weights_lie_within_a_factor_of_three():
    weights = np.array([sweep_moments(np.random.default_rng(seed)).client_weights for seed in range(55, 63)])
    assert (weights.max(axis=-1) / weights.min(axis=-1)).max() < 3


def test_random_bases_are_orthogonal_and_haar():
    bases = random_orthogonal(np.random.default_rng(6), (40000,), 2)
    np.testing.assert_allclose(
        bases @ np.swapaxes(bases, -1, -2), np.broadcast_to(np.eye(2), bases.shape), atol=1e-14
    )
    # Under Haar measure every entry is symmetric about 0; the Householder QR alone fixes signs.
    assert np.abs(bases.mean(axis=0)).max() < 0.02
    np.testing.assert_allclose((bases**2).mean(axis=0), 0.5, atol=0.01)
    assert np.linalg.det(bases).mean() == pytest.approx(0.0, abs=0.02)


def test_the_generator_decides_everything():
    for build in (
        lambda rng: selection_instances(rng, 2, 4, 2).targets,
        lambda rng: barycenter_instances(rng, 2, 3, 2).targets,
        lambda rng: gap_moments(rng, 2, 3, 2).covariance,
    ):
        first, again, other = (build(np.random.default_rng(seed)) for seed in (1, 1, 2))
        np.testing.assert_array_equal(first, again)
        assert np.abs(first - other).max() > 1e-3
