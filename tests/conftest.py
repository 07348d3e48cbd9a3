"""What several test files ask for."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from fedgram import Moments, Penalty, predict

# The same examples in every run: a change is judged by what it changes, not by what was drawn that day.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure(config):
    """Compile the small solver once: workers then load it from the disk cache instead of 10 s each."""
    if config.getoption("numprocesses", None):  # the process that starts workers; these have none
        predict(Moments([9, 9], np.eye(2), np.stack([np.eye(2)] * 2)), Penalty(0.1, 0.1))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Leave imported modules out of garbage collections: they are a million objects, at 0.2 s a time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def shared_data():
    """The folder with published files, for tests that need real ones."""
    if "FEDGRAM_DATA" not in os.environ:
        pytest.skip("FEDGRAM_DATA names no folder with the published files.")
    return Path(os.environ["FEDGRAM_DATA"])
