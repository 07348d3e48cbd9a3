"""An experiment small enough to interrupt: its parts count how often they ran."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np

from fedgram.paper.ufm.experiment import Experiment
from fedgram.paper.ufm.runner import THREADS


def counted(log: str, start: int):
    """Three numbers, and a line in the log."""
    with Path(log).open("a") as file:
        file.write(f"{start}\n")
    return {"x": np.arange(start, start + 3.0), "name": np.array(["a", "b", "c"])}


def told(log: str):
    """What this process was told about threads, in the log."""
    Path(log).write_text(" ".join(os.environ[name] for name in THREADS))
    return counted(os.devnull, 0)


def interrupting(log: str, start: int, parent: int):
    """Send the parent Ctrl-C, then linger."""
    os.kill(parent, signal.SIGINT)
    time.sleep(60)
    return counted(log, start)


def draw(results):
    """One line."""
    from fedgram.paper.plots import make_panels

    figure, axes = make_panels(1, 1, (2, 2))
    axes[0].plot(next(iter(results.values()))["x"])
    return figure


def toy(log, parts=("one", "two"), **changed):
    """The experiment, logging to a file; `changed` replaces parts by name."""
    plain = {name: partial(counted, log=str(log), start=number) for number, name in enumerate(parts)}
    return Experiment(
        "toy", "Toy", "nowhere", "nothing", lambda scale: plain | changed, lambda results: {}, draw
    )
