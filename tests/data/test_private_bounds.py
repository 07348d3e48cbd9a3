"""Private bounds: near the rows' spread, refused with few rows, and no more than ε in an audit."""

import doctest

import numpy as np
import pytest
from scipy import stats

from fedgram import InputError, Moments
from fedgram.data import private_bounds as module
from fedgram.data.private_bounds import (
    MAD_TO_DEVIATION,
    REPLACED,
    WIDTH,
    build_mechanism,
    list_candidates,
    private_bounds,
)
from fedgram.data.private_moments import BOUNDS_SHARE, calibrate_noise, private_moments
from tests.helpers.command import fedgram

EPSILON = 1.0


def test_bounds_are_at_four_standard_deviations():
    mean, deviation = np.array([0.0, 1000.0]), np.array([0.01, 20.0])
    rows = np.random.default_rng(0).normal(mean, deviation, (20_000, 2))
    bounds = private_bounds(rows, EPSILON)
    np.testing.assert_allclose(bounds.mean(axis=1), mean, atol=0.6 * deviation.max())
    np.testing.assert_allclose((bounds[:, 1] - bounds[:, 0]) / 2, WIDTH * deviation, rtol=0.2)


def test_without_privacy_the_bounds_are_those_of_the_medians():
    rows = np.random.default_rng(1).exponential(3.0, (501, 1))
    (low, high), center = private_bounds(rows, 1e6)[0], np.median(rows)
    half = WIDTH * MAD_TO_DEVIATION * np.median(np.abs(rows - center))
    np.testing.assert_allclose([low, high], [center - half, center + half], rtol=0.05, atol=0.1)


def test_few_rows_are_refused_before_anything_is_released(monkeypatch):
    monkeypatch.setattr(module, "draw_median", None)
    rows = np.random.default_rng(0).standard_normal((400, 2))
    with pytest.raises(InputError, match=r"2 targets need 948 rows with their part 0\.2 of epsilon"):
        private_moments({"oslo": rows}, bounds="private", epsilon=EPSILON, delta=1e-6)


@pytest.mark.parametrize(("kind", "bounds"), [("rain", (-6e-3, 6e-3)), ("constant", (10.0, 20.0))])
def test_bounds_that_leave_out_many_rows_are_refused(monkeypatch, kind, bounds):
    """A median deviation of 0 is drawn as any small number; these are typical bounds then."""
    rng = np.random.default_rng(0)
    rain = rng.exponential(8.0, 20_000) * (rng.random(20_000) > 0.6)
    rows = {"rain": rain, "constant": np.full(20_000, 5.0)}[kind]
    monkeypatch.setattr(f"{private_moments.__module__}.private_bounds", lambda *_: np.array([bounds]))
    with pytest.raises(InputError, match="leave out many rows of client 'oslo'"):
        private_moments({"oslo": rows[:, None]}, bounds="private", epsilon=EPSILON, delta=1e-6)


def test_bounds_and_moments_share_epsilon():
    rng = np.random.default_rng(0)
    rows = {"oslo": rng.normal(5, 2, (3000, 1)), "rome": rng.normal(-50, 10, (3000, 1))}
    private = private_moments(rows, bounds="private", epsilon=EPSILON, delta=1e-6)
    exact = Moments.from_arrays(rows)
    oslo, rome = private.privacy
    assert oslo.epsilon == EPSILON
    assert oslo.noise == rome.noise == calibrate_noise((1 - BOUNDS_SHARE) * EPSILON, 1e-6, 1)
    assert (oslo.bounds != rome.bounds).all()  # each client's own rows
    np.testing.assert_allclose(private.mean, exact.mean, atol=1.0)
    np.testing.assert_allclose(private.covariance, exact.covariance, rtol=0.3)


def test_command_estimates_bounds(tmp_path):
    rows = np.random.default_rng(0).normal(40, 12, (4000, 1))
    np.savetxt(tmp_path / "oslo.csv", rows, header="pm", comments="")
    arguments = ("moments", tmp_path / "oslo.csv", "--site", "oslo", "--targets", "pm", "--epsilon", "1")
    code, _, err = fedgram(*arguments, "--delta", "1e-6", "--bounds", "private", "-o", tmp_path / "oslo.json")
    assert code == 0, err
    (privacy,) = Moments.load(tmp_path / "oslo.json").privacy
    assert -60 < privacy.bounds[0, 0] < privacy.bounds[0, 1] < 140
    assert "or 'private'" in fedgram(*arguments, "--delta", "1e-6", "--bounds", "privat").stderr


def test_stated_loss_is_that_of_the_library():
    for count in (2, 3, 100):
        assert build_mechanism(count, list_candidates(), 0.3).map(d_in=REPLACED) <= 0.3 * (1 + 1e-9)


@pytest.mark.slow
def test_the_audit_finds_no_more_than_epsilon_and_catches_twice_the_loss():
    """A row changes sides, so that one candidate gains what the other loses; 1 is rarely drawn."""
    candidates, releases = (-1.0, 1.0), 8000

    def audited_epsilon(epsilon):
        mechanism = build_mechanism(8, candidates, epsilon)
        low, high = 4 * [-2.0] + 4 * [0.0], 3 * [-2.0] + 4 * [0.0] + [2.0]
        hits = [sum(mechanism(rows) == 1.0 for _ in range(releases)) for rows in (high, low)]
        least = stats.beta.ppf(5e-4, hits[0], releases - hits[0] + 1)
        most = stats.beta.ppf(1 - 5e-4, hits[1] + 1, releases - hits[1])
        return np.log(least / most)

    assert 0.5 * EPSILON < audited_epsilon(EPSILON) <= EPSILON
    assert audited_epsilon(2 * EPSILON) > EPSILON


def test_examples_run():
    assert doctest.testmod(module).failed == 0
