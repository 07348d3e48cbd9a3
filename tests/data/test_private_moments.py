"""Private moments: sensitivity, calibration, an empirical audit, and what the noise does to the gap."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedgram import AccuracyError, InputError, Moments, explain, predict
from fedgram.data import private_moments as module
from fedgram.data.private_moments import (
    add_noise_to_sums,
    calibrate_noise,
    largest_norm,
    map_rows,
    private_moments,
    sensitivity,
)
from fedgram.display.analysis import analyze_gap
from fedgram.display.prediction_json import explanation_document
from fedgram.theory.noise import check_noise, noise_intervals
from fedgram.theory.privacy import MEAN_WEIGHT, Privacy
from tests.helpers.command import fedgram

EPSILON, DELTA = 1.0, 1e-2  # a large delta, because an audit cannot see a small one
TARGETS = 2


def released(mapped):
    """What a row adds to the released sums, as a vector."""
    return np.concatenate([MEAN_WEIGHT * mapped, np.outer(mapped, mapped).ravel()])


@settings(max_examples=50)
@given(st.integers(1, 6), st.integers(0, 2**32))
def test_no_pair_of_rows_exceeds_the_sensitivity(targets, seed):
    rng = np.random.default_rng(seed)
    privacy = Privacy(1.0, 0.1, np.tile([-1.0, 1.0], (targets, 1)), 0.0)
    first, second = map_rows(10 ** rng.uniform(-1, 1) * rng.standard_normal((2, targets)), privacy)
    assert np.linalg.norm(released(first) - released(second)) <= sensitivity(targets) * (1 + 1e-12)


def worst_rows():
    """Two rows in the ball that reach the sensitivity: ‖y‖ = ‖z‖ = R and yᵀz = -1/8."""
    norm = largest_norm(TARGETS)
    cosine = -(MEAN_WEIGHT**2) / 2 / norm
    return np.sqrt(norm) * np.array([[1.0, 0.0], [cosine, np.sqrt(1 - cosine**2)]])


def test_the_sensitivity_is_reached():
    first, second = worst_rows()
    assert np.linalg.norm(released(first) - released(second)) == pytest.approx(sensitivity(TARGETS))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (1.0, 1e-6), (8.0, 1e-3)])
def test_the_noise_is_that_of_the_analytic_gaussian_mechanism(epsilon, delta):
    """Balle and Wang's formula for δ at the calibrated noise; no smaller noise is allowed."""
    ratio = sensitivity(3) / calibrate_noise(epsilon, delta, 3)
    tails = stats.norm.cdf(ratio / 2 - epsilon / ratio), stats.norm.cdf(-ratio / 2 - epsilon / ratio)
    assert tails[0] - np.exp(epsilon) * tails[1] == pytest.approx(delta, rel=1e-3)


def audited_epsilon(noise, releases, confidence=0.999):
    """Lower confidence bound on ε from releases of two datasets that differ in one row.

    The attacker knows both datasets and decides by the likelihood ratio. For every threshold,
    P(first) ≤ e^ε P(second) + δ; Clopper-Pearson bounds both probabilities. The threshold is chosen on the
    first half of the releases.
    """
    first, second = worst_rows()
    common = np.zeros((20, TARGETS))
    direction = released(first) - released(second)

    def scores(row):
        rows = np.vstack([common, row])
        sums = (add_noise_to_sums(rows, noise) for _ in range(releases))
        return np.array([direction @ np.concatenate([MEAN_WEIGHT * one, two.ravel()]) for one, two in sums])

    here, there = scores(first), scores(second)
    half = releases // 2
    thresholds = np.quantile(here[:half], np.linspace(0.05, 0.95, 19))

    def bound(mine, others, threshold):
        hits, misses = int((mine > threshold).sum()), int((others > threshold).sum())
        low = stats.beta.ppf((1 - confidence) / 2, hits, len(mine) - hits + 1) if hits else 0.0
        high = stats.beta.ppf(1 - (1 - confidence) / 2, misses + 1, len(others) - misses)
        return np.log(max(low - DELTA, 1e-12) / high)

    best = max(thresholds, key=lambda each: bound(here[:half], there[:half], each))
    return bound(here[half:], there[half:], best)


@pytest.mark.slow
def test_the_audit_finds_no_more_than_epsilon_and_catches_half_the_noise():
    noise = calibrate_noise(EPSILON, DELTA, TARGETS)
    assert 0.5 * EPSILON < audited_epsilon(noise, 20_000) <= EPSILON
    assert audited_epsilon(noise / 2, 20_000) > EPSILON


def normal_sites(rows, seed=0, sites=4):
    rng = np.random.default_rng(seed)
    mixing = np.eye(2) + 0.15 * rng.standard_normal((sites, 2, 2))
    return {f"site {m}": rng.standard_normal((rows, 2)) @ mixing[m] + 0.4 * m for m in range(sites)}


def release(rows):
    return private_moments(rows, bounds=(-4, 5), epsilon=1.0, delta=1e-6)


def test_without_noise_the_moments_are_those_of_the_rows(monkeypatch):
    monkeypatch.setattr(module, "calibrate_noise", lambda *given: 0.0)
    rows = normal_sites(300)
    found, exact = release(rows), Moments.from_arrays(rows)
    np.testing.assert_allclose(found.mean, exact.mean, atol=0.02)  # a few rows are outside the ball
    np.testing.assert_allclose(found.covariance, exact.covariance, atol=0.05)


ROWS = np.random.default_rng(0).uniform(-1, 1, (50, 2))


@pytest.mark.parametrize(
    ("targets", "names", "message"),
    [
        ({}, (), "There are no clients"),
        ({"a": ROWS[:, 0]}, (), r"Targets of client 'a' must have shape \(rows, targets\), not \(50,\)"),
        ({"a": ROWS, "b": ROWS[:, :1]}, (), "All clients must have the same number of targets"),
        (
            {"a": np.where(ROWS[3, 1] == ROWS, np.nan, ROWS)},
            (),
            "'a' has a target that is not finite, in row 4",
        ),
        ({"a": ROWS, " a": ROWS}, (), "client names"),
        ({"a": ROWS}, "dose", "There are 2 targets but 1 target names"),
    ],
)
def test_rows_are_checked_before_anything_is_released(monkeypatch, targets, names, message):
    monkeypatch.setattr(module, "_release", None)
    with pytest.raises(InputError, match=message):
        private_moments(targets, bounds=(-1, 1), epsilon=1.0, delta=1e-6, target_names=names)


def test_one_target_may_be_named_by_a_text():
    rows = {"a": ROWS[:, :1]}
    released = private_moments(rows, bounds=(-1, 1), epsilon=1.0, delta=1e-6, target_names="dose")
    assert released.targets == ("dose",)


def test_released_covariances_are_semidefinite_and_every_release_differs():
    rows = normal_sites(30)
    first, second = release(rows), release(rows)
    assert (np.linalg.eigvalsh(first.covariance) >= -1e-12).all()
    assert (first.mean != second.mean).all()


@pytest.mark.slow
def test_noise_intervals_contain_the_gap_of_the_rows():
    hits = 0
    for seed in range(20):
        rows = normal_sites(2000, seed)
        low, high = noise_intervals(predict(release(rows)), draws=200).relative
        hits += low <= predict(Moments.from_arrays(rows)).relative_gap <= high
    assert hits >= 16  # 95 % of 20 is 19


def test_a_gap_that_noise_decides_is_refused():
    prediction = predict(release(normal_sites(500)))
    with pytest.raises(AccuracyError, match="privacy noise decides"):
        check_noise(prediction, noise_intervals(prediction, draws=100))
    many = predict(release(normal_sites(10_000)))
    check_noise(many, noise_intervals(many, draws=100))


def test_moments_without_privacy_have_no_noise():
    assert noise_intervals(predict(Moments.from_arrays(normal_sites(50)))) is None


def test_privacy_survives_files_scaling_and_merging(tmp_path):
    rows = normal_sites(500)
    found = release({"a": rows["site 0"]})
    found.save(tmp_path / "a.json")
    loaded = Moments.load(tmp_path / "a.json")
    assert loaded.privacy[0].document() == found.privacy[0].document()
    assert loaded.scaled([2.0, 4.0]).privacy[0].bounds.tolist() == [[-2.0, 2.5], [-1.0, 1.25]]
    plain = Moments.from_arrays({"b": rows["site 1"]})
    assert loaded.merged(plain).privacy == (loaded.privacy[0], None)
    with pytest.raises(InputError, match="occurs twice"):
        loaded.merged(found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"bounds": [3.0, 1.0]}, "below its high bound"),
        ({"bounds": [0.0, np.inf]}, "finite"),
    ],
)
def test_bad_settings_are_refused(changes, said):
    given = {"bounds": (-5, 7), "epsilon": 1.0, "delta": 1e-6} | changes
    with pytest.raises(InputError, match=said):
        private_moments(normal_sites(50), **given)


@pytest.mark.parametrize(
    "privacy", [3, {"epsilon": 1.0}, {"epsilon": 1.0, "delta": 0.1, "bounds": [], "noise": 1}]
)
def test_a_file_with_bad_privacy_is_refused(tmp_path, privacy):
    path = tmp_path / "a.json"
    document = release({"a": normal_sites(50)["site 0"]}).document()
    document["clients"][0]["privacy"] = privacy
    path.write_text(json.dumps(document))
    with pytest.raises(InputError):
        Moments.load(path)


def write_tables(folder, rows):
    for name, values in normal_sites(rows).items():
        np.savetxt(folder / f"{name}.csv", values, delimiter=",", header="u,v", comments="")
    return sorted(folder.glob("*.csv"))


PRIVATE = ("--epsilon", "2", "--delta", "1e-6", "--bounds", "-4:5")


def test_the_command_releases_and_explains_private_moments(tmp_path):
    for path in write_tables(tmp_path, 4000)[:2]:
        fedgram("moments", str(path), "--site", path.stem, "--targets", "u,v", *PRIVATE, "-o", f"{path}.json")
    files = [str(path) for path in sorted(tmp_path.glob("*.json"))]
    text = fedgram("explain", *files).stdout
    said = " ".join(text.split())
    assert "Privacy noise (epsilon 2) alone leaves" in said
    assert "Sampling and clipping at the bounds add to this." in said


def test_the_document_has_the_intervals_of_the_noise():
    prediction = predict(release(normal_sites(10_000)))
    noise = noise_intervals(prediction, draws=100)
    found = explanation_document(replace(analyze_gap(explain(prediction)), noise=noise))["noise"]
    assert found["relative"] == noise.relative.tolist()
    assert found["averaging"] == noise.traces[2].tolist()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--epsilon", "2"), "need --epsilon, --delta and --bounds"),
        ((*PRIVATE[:-1], "7"), "Invalid --bounds"),
        ((*PRIVATE[:-1], "0:1,0:2,0:3"), "--bounds has 3 pairs for 2 targets"),
        ((*PRIVATE, "--robust"), "come from the rows"),
    ],
)
def test_the_command_refuses_bad_options(tmp_path, flags, said):
    path = write_tables(tmp_path, 60)[0]
    found = fedgram("moments", path, "--site", "a", "--targets", "u,v", *flags)
    assert found.returncode == 2
    assert said in " ".join(found.stderr.split())


def test_more_rows_than_are_read_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgram.data.tables.read_sample.MAX_ROWS", 40)
    path = write_tables(tmp_path, 60)[0]
    found = fedgram("moments", path, "--site", "a", "--targets", "u,v", *PRIVATE)
    assert found.returncode == 2
    assert "at most 40 rows" in found.stderr


@pytest.mark.parametrize(
    ("bounds", "epsilon", "message"),
    [
        ([(0, 1)] * 3, 1.0, r"bounds has shape \(3, 2\)"),
        ("foo", 1.0, "bounds must be numbers or 'private', not 'foo'"),
        ([(0, 1), (0, "high")], 1.0, "bounds must be an array of real numbers"),
        ([(0, 1), (0,)], 1.0, "bounds must be an array of real numbers"),
        ((0, 1), 1e-300, "need infinite noise"),
    ],
)
def test_bounds_that_are_not_valid_and_infinite_noise_are_refused(bounds, epsilon, message):
    with pytest.raises(InputError, match=message):
        private_moments({"oslo": np.zeros((50, 2))}, bounds=bounds, epsilon=epsilon, delta=1e-6)
