"""λ_H and λ_W differ here. In the paper they never do, so its numbers cannot tell them apart."""

import numpy as np
import pytest

from fedgram.theory.correct import correct
from fedgram.theory.geometry import psd
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import local_optimum, phi, predict
from fedgram.ufm.finite import ProfiledUpdate, newton
from fedgram.ufm.instances import barycenter_instances
from fedgram.ufm.joint import Joint, Sample
from fedgram.ufm.profiled import Profiled
from fedgram.ufm.rounds import proximal, run_rounds
from fedgram.ufm.solvers import lbfgs
from tests.helpers.unconstrained import displacement

PENALTIES = [Penalty(features=0.6, head=0.05), Penalty(features=0.05, head=0.6)]


def instance():
    return barycenter_instances(np.random.default_rng(7), targets=3, clients=3, instances=1)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_training_all_variables_ends_at_phi(penalty):
    drawn = instance()
    sample, head = drawn.targets[0, 0], drawn.head[0]
    loss = Joint(Sample.from_targets(sample).compress(), penalty, head)
    found = lbfgs(loss, loss.start(head))
    covariance = np.cov(sample, bias=True)
    assert psd.relative_error(psd.gram(found.head), phi(covariance, penalty)) < 1e-6
    assert loss.value(found.point) == pytest.approx(local_optimum(covariance, penalty), rel=1e-9)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_proximal_rounds_end_at_the_barycenter(penalty):
    drawn = instance()
    moments, head = drawn.moments, drawn.head[0]
    covariance, weights = moments.covariance[0], moments.client_weights[0]
    clients = [Profiled(each, penalty, head) for each in covariance]
    expected = predict(moments, penalty)
    run = run_rounds(head, proximal(clients, expected.grams[0], 1e-6), weights, 12)
    assert psd.relative_error(run.grams[-1], expected.barycenter.gram[0]) < 1e-4
    assert psd.relative_error(run.grams[-1], expected.centralized[0]) > 1e-2


@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_correction_gives_the_centralized_objective(penalty):
    drawn = instance()
    correction, head = correct(drawn.moments, penalty), drawn.head[0]
    pooled = Profiled(drawn.moments.pooled.covariance[0], penalty, head)
    for m, covariance in enumerate(drawn.moments.covariance[0]):
        own = Profiled(covariance, penalty, head)
        point = own.start(head)
        assert own.value(point) + correction.value(drawn.head)[0, m] == pytest.approx(pooled.value(point))
        corrected = own.gradient(point) + own.start(correction.gradient(drawn.head)[0, m])
        np.testing.assert_allclose(corrected, pooled.gradient(point), atol=1e-12)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_finite_steps_move_the_fixed_point_as_predicted(penalty):
    moments = instance().moments
    covariance, weights = moments.covariance[0], moments.client_weights[0]
    rate, steps = 1e-4, 3
    found = newton(ProfiledUpdate(covariance, weights, penalty, np.array(rate), steps))
    moved = found.gram - phi(moments.pooled.within[0], penalty)
    predicted = rate * (steps - 1) * displacement(covariance, weights, penalty)
    assert psd.relative_error(moved, predicted) < 1e-2
