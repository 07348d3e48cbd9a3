"""From a table of six sites to a trained model and its report, with the command line alone."""

from __future__ import annotations

import csv
import gzip
import shlex
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

SITES = ("Aotizhongxin", "Changping", "Dingling", "Huairou", "Shunyi", "Wanliu")
TARGETS = ("PM2.5", "NO2")
INPUTS = ("PM10", "TEMP", "PRES", "DEWP", "RAIN", "WSPM", "month", "hour")
NEXT_YEAR = "2016-03-01"  # rows from then on are new
Run = Callable[..., str]
"""From the arguments of `fedgram` to what it prints."""


def write_sites(folder: Path, rows: int) -> None:
    """Write bundled rows of six stations, at most `rows` each: sites.csv until a day, new.csv after it."""
    path = files("fedgram.data.datasets") / "embedded" / "beijing_stations.csv.gz"
    with gzip.open(str(path), "rt", newline="") as file:
        table = [row for row in csv.DictReader(file) if row["station"] in SITES]
    for name, is_new in (("sites.csv", False), ("new.csv", True)):
        kept = [row for row in table if (row["time"] >= NEXT_YEAR) == is_new]
        kept = [row for site in SITES for row in [each for each in kept if each["station"] == site][:rows]]
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(kept)


def travel(folder: Path, run: Run, *budget: str) -> Iterator[tuple[str, str]]:
    """Run the commands one after the other, and yield the name and output of each.

    budget: flags of `fedgram advise` for network, rounds and epochs. Training repeats the command that
    `advise` prints.
    """
    columns = ("--client", "station", "--targets", ",".join(TARGETS))
    yield "explain", run("explain", "sites.csv", *columns, "--time", "time", "--units", "µg/m³")
    yield "explore", run("explore", "sites.csv", *columns, "-o", "explorer.html")
    inputs = ("--inputs", ",".join(INPUTS), "--time", "time", "--units", "µg/m³")
    advice = run("advise", "sites.csv", *columns, *inputs, *budget, "--all")
    yield "advise", advice
    yield "train", run(*find_command(advice), "--out", "runs", "--device", "cpu")
    (manifest,) = (folder / "runs").rglob("manifest.json")
    trained = manifest.parent.relative_to(folder)
    yield "predict", run("runs", "predict", trained, "new.csv", "--client", "station", "-o", "predicted.csv")
    yield "report", run("report", "--runs", "runs", "-o", "report.html")


def find_command(advice: str) -> list[str]:
    """Arguments of the command that `fedgram advise` prints, without its first word."""
    words = shlex.split(advice[advice.index("fedgram train") :])
    return words[1:]
