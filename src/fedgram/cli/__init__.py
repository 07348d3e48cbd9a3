"""Command line; importing the command modules registers their commands."""

from fedgram.cli import data, explore, reproduce, runs, theory, train
from fedgram.cli.app import main

__all__ = ["data", "explore", "main", "reproduce", "runs", "theory", "train"]
