"""The command line. Importing the command modules registers their commands."""

from fedgram.cli import reproduce, theory
from fedgram.cli.app import main

__all__ = ["main", "reproduce", "theory"]
