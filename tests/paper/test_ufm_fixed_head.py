"""Bias and features at a fixed head by least squares."""

import numpy as np
import pytest

from fedgram.paper.ufm.fixed_head import fit_bias_and_features
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import conditional_solution
from fedgram.ufm.joint import Joint, Sample

PENALTY = Penalty(features=0.3, head=2.0)


@pytest.mark.parametrize("width", [2, 5])
def test_one_client_has_the_solution_of_section_4_1(width):
    rng = np.random.default_rng(width)
    head, targets = rng.standard_normal((2, width)), rng.standard_normal((2, 7))
    bias, features = fit_bias_and_features(head, targets, np.full(7, 1 / 7), PENALTY)
    for found, expected in zip((bias, features), conditional_solution(head, targets, PENALTY), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-13)


def test_the_gradients_of_weighted_clients_vanish_in_their_sum():
    """Eq. (2): each H_m is optimal at the common bias, whose gradients sum to zero with weights p_m."""
    rng = np.random.default_rng(0)
    head, weights = rng.standard_normal((2, 3)), np.array([0.2, 0.8])
    targets = rng.standard_normal((2, 2, 6))
    rows = np.repeat(weights, 6) / 6
    bias, features = fit_bias_and_features(head, np.hstack(list(targets)), rows, PENALTY)
    total = np.zeros(2)
    for weight, each, own in zip(weights, targets, np.hsplit(features, 2), strict=True):
        loss = Joint(Sample.from_targets(each), PENALTY, head)
        _, by_bias, by_features = loss.split(loss.gradient(loss.join(head, bias, own)))
        np.testing.assert_allclose(by_features, 0, atol=1e-14)
        total += weight * by_bias
    np.testing.assert_allclose(total, 0, atol=1e-14)
