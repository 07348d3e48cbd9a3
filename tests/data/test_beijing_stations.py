"""beijing-stations: the embedded rows of 12 stations."""

import hashlib
from importlib.resources import files

import numpy as np
import pytest

from fedgram import InputError
from fedgram.data.datasets import registry
from fedgram.data.datasets.dataset import Options
from fedgram.data.datasets.loaders import beijing_stations


@pytest.fixture(scope="module")
def problem():
    return registry.load("beijing-stations")


def test_every_station_has_its_rows(problem):
    assert problem.kind == "REAL"
    assert len(problem.clients) == 12
    assert {len(split) for split in problem.train.values()} == {300}
    assert {len(split) for split in problem.test.values()} == {200}
    assert problem.train["Huairou"].inputs.shape == (300, 8)


def test_training_rows_are_standardized_together(problem):
    targets = np.concatenate([split.targets for split in problem.train.values()])
    np.testing.assert_allclose(targets.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(targets.std(axis=0), 1, rtol=1e-12)
    inputs = np.concatenate([split.inputs for split in problem.train.values()])
    np.testing.assert_allclose(inputs.astype(float).std(axis=0), 1, rtol=1e-6)


def test_units_can_be_restored(problem):
    mean, deviation = problem.provenance["mean_and_deviation"]["PM2.5"]
    values = problem.train["Aotizhongxin"].targets[:, 0] * deviation + mean
    assert values[0] == pytest.approx(254.0)  # the first row of the file


def test_the_file_is_small_and_attributed():
    folder = files("fedgram.data.datasets") / "embedded"
    content = (folder / beijing_stations.FILE).read_bytes()
    assert len(content) <= 200_000
    assert hashlib.sha256(content).hexdigest().startswith("98ccbc44c2f0f4ff")
    attribution = (folder / "ATTRIBUTION.md").read_text()
    assert all(name in attribution for name in ("CC BY 4.0", "Chen", "Zhang", "501"))


def test_there_is_no_larger_set():
    with pytest.raises(InputError, match="'beijing-stations' has no larger training set"):
        registry.load("beijing-stations", options=Options(larger=True))
