"""Training that is stopped during a round resumes to the same numbers."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fedgram.runs import Runs
from tests.helpers.command import fedgram

pytestmark = pytest.mark.slow

COMMAND = (
    "train", "swimmer-mini", "--backbone", "resmlp-small", "--features", "8", "--rounds", "3", "--epochs",
    "6", "--device", "cpu", "--precision", "fp64", "--out",
)  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert fedgram(*COMMAND, folder).returncode == 0
    (run,) = Runs(folder).require()
    return run


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGKILL"])
@pytest.mark.parametrize("rounds", [0, 1], ids=["before a round", "during a round"])
def test_stopped_training_resumes_to_the_same_numbers(tmp_path, undisturbed, name, rounds):
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgram", *COMMAND, tmp_path],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob(f"round-{rounds:02d}.safetensors")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(getattr(signal, name))
    assert process.wait(60) != 0
    assert all(stopped.account.rounds < 3 for stopped in Runs(tmp_path))  # none if it had no manifest yet
    assert fedgram(*COMMAND, tmp_path).returncode == 0
    (run,) = Runs(tmp_path).require()
    for one, other in zip(run.rounds(), undisturbed.rounds(), strict=True):
        np.testing.assert_array_equal(one.head, other.head)
