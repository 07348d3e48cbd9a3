"""Results on disk: what made each run, what every round left, and where a stopped stack goes on."""

from fedgram.runs.manifest import Account, Setup
from fedgram.runs.store import Runs, StoredRun

__all__ = ["Account", "Runs", "Setup", "StoredRun"]
