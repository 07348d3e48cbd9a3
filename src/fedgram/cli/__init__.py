"""Command line; importing the command modules registers their commands."""

from fedgram.cli import data, reproduce, runs, theory, train
from fedgram.cli.app import main

__all__ = ["data", "main", "reproduce", "runs", "theory", "train"]
