"""Command line; importing the command modules registers their commands."""

from fedgram.cli import advise, data, explore, federate, reproduce, runs, theory, train
from fedgram.cli.app import main

__all__ = ["advise", "data", "explore", "federate", "main", "reproduce", "runs", "theory", "train"]
