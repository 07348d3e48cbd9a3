"""Stored runs: configuration, records of rounds, measurement, comparison."""

from fedgram.runs.manifest import Account, Setup
from fedgram.runs.store import Runs, StoredRun

__all__ = ["Account", "Runs", "Setup", "StoredRun"]
