"""What several test files ask for."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run: a change is judged by what it changes, not by what was drawn that day.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def shared_data():
    """The folder with published files, for tests that need real ones."""
    if "FEDGRAM_DATA" not in os.environ:
        pytest.skip("FEDGRAM_DATA names no folder with the published files.")
    return Path(os.environ["FEDGRAM_DATA"])
