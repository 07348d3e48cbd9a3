"""swimmer-mini: the rows in the package, and what is true of them."""

from importlib.resources import files

import numpy as np
import pytest

from fedgram import InputError, Penalty
from fedgram.data.datasets import registry
from fedgram.data.datasets.dataset import Options
from fedgram.data.datasets.loaders import swimmer_mini
from fedgram.theory.predict import predict


@pytest.fixture(scope="module")
def problem():
    return registry.dataset("swimmer-mini").load((), Options())


def test_rows_and_clients(problem):
    assert problem.kind == "GENERATED"
    assert {len(split) for split in problem.train.values()} == {1_000}
    assert len(problem.clients) == 4
    assert sum(len(split) for split in problem.test.values()) == 1_000
    first = problem.train["client 1"]
    assert (first.inputs.shape, first.inputs.dtype) == ((1_000, 8), np.float32)
    assert (first.targets.shape, first.targets.dtype) == ((1_000, 2), np.float64)


def test_the_last_episode_tests(problem):
    with np.load(str(files("fedgram.data.datasets") / "embedded" / swimmer_mini.FILE)) as arrays:
        *trained, tested = arrays["observations"]
    for splits, episodes in ((problem.train, trained), (problem.test, [tested])):
        rows = np.concatenate([split.inputs for split in splits.values()])
        assert {row.tobytes() for row in rows} == {row.tobytes() for row in np.concatenate(episodes)}


def test_every_client_is_fully_active(problem):
    prediction = predict(problem.moments, Penalty(0.01, 0.01))
    assert prediction.activity.eigenvalue.min() > 50 * prediction.activity.threshold
    assert 0.1 < prediction.relative_gap < 1


def test_actions_are_a_function_of_observations_but_for_the_noise(problem):
    """The policy is tanh(K o): where its action is far from ±1, K is found by least squares."""
    rows = list(problem.train.values())
    observations = np.concatenate([split.inputs for split in rows]).astype(np.float64)
    actions = np.concatenate([split.targets for split in rows])
    gain = np.zeros((8, 2))
    for _ in range(20):  # Gauss-Newton
        fitted = np.tanh(observations @ gain)
        for c in range(2):
            slope = (1 - fitted[:, c] ** 2)[:, None] * observations
            gain[:, c] += np.linalg.lstsq(slope, actions[:, c] - fitted[:, c], rcond=None)[0]
    noise = actions - np.tanh(observations @ gain)
    np.testing.assert_allclose(noise.std(axis=0), 0.1, rtol=0.05)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.05


def test_the_policy_swims(problem):
    assert min(problem.provenance["returns"]) > 300


def test_episodes_are_consecutive_states():
    """Each observation is a state of one swimmer: angles go on by their velocities times the time step."""
    with np.load(str(files("fedgram.data.datasets") / "embedded" / swimmer_mini.FILE)) as arrays:
        observations = arrays["observations"].astype(np.float64)
    assert observations.shape == (5, 1000, 8)
    angles, velocities = observations[..., :3], observations[..., 5:]
    step = 0.04  # four steps of 0.01 s to an action
    expected = step * (velocities[:, 1:] + velocities[:, :-1]) / 2
    np.testing.assert_allclose(np.diff(angles, axis=1), expected, atol=0.05)


def test_the_file_is_small():
    assert len((files("fedgram.data.datasets") / "embedded" / swimmer_mini.FILE).read_bytes()) < 300_000


def test_there_is_no_larger_variant():
    with pytest.raises(InputError, match="'swimmer-mini' has no larger training set"):
        registry.dataset("swimmer-mini").load((), Options(larger=True))
