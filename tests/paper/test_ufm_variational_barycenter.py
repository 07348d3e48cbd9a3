"""Barycenters by minimization against a closed form and against the recursion."""

import numpy as np

from fedgram.paper.ufm.variational_barycenter import variational_barycenter
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import barycenter
from tests.helpers.instances import covariances


def test_barycenter_of_commuting_grams_is_the_mean_of_their_roots():
    values, weights = np.array([[0.2, 3.0], [1.7, 0.4], [0.9, 0.8]]), np.array([0.2, 0.5, 0.3])
    found = variational_barycenter(np.array([np.diag(each) for each in values]), weights)
    np.testing.assert_allclose(found, np.diag((weights @ np.sqrt(values)) ** 2), atol=1e-15)


def test_barycenter_agrees_with_the_recursion():
    rng = np.random.default_rng(0)
    for clients in (2, 5):
        grams, weights = covariances(rng, clients, size=2), rng.dirichlet(np.full(clients, 2.0))
        limit = barycenter(grams, weights).gram
        assert psd.relative_error(variational_barycenter(grams, weights), limit) < 1e-14
