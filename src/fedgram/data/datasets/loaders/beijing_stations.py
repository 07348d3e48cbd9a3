"""beijing-stations: PM2.5 and NO2 at 12 stations, a REAL sample embedded in the package.

Every station is a client, with 300 training rows before 2016-03-01 and 200 test rows after it. Inputs and
targets are standardized by the mean and standard deviation of all training rows, which are in the provenance.
`tools/make_beijing_stations.py` drew the rows; `embedded/ATTRIBUTION.md` names their authors. The seed has no
effect.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from importlib.resources import files as resources
from pathlib import Path

import numpy as np

from fedgram.data.datasets.dataset import Dataset, Options, make_provenance
from fedgram.data.datasets.loaders.beijing import INPUTS, TARGETS
from fedgram.data.problem import Problem
from fedgram.data.split import Split

FILE = "beijing_stations.csv.gz"
TEST_START = "2016-03-01"


def load(dataset: Dataset, files: Sequence[Path], options: Options) -> Problem:
    """Load 3,600 training and 2,400 test rows of 12 clients: inputs (N, 8) float32, targets (N, 2).

    Rows of a client are in order of time.
    """
    packed = (resources("fedgram.data.datasets") / "embedded" / FILE).read_bytes()
    rows = list(csv.DictReader(gzip.decompress(packed).decode().splitlines()))
    stations = np.array([row["station"] for row in rows])
    is_test = np.array([row["time"] >= TEST_START for row in rows])
    values = np.array([[float(row[name]) for name in (*INPUTS, *TARGETS)] for row in rows])
    mean, deviation = values[~is_test].mean(axis=0), values[~is_test].std(axis=0)
    scaled = (values - mean) / deviation

    def split(part: np.ndarray) -> dict[str, Split]:
        inputs, targets = scaled[:, : len(INPUTS)].astype(np.float32), scaled[:, len(INPUTS) :]
        return {
            str(name): Split(inputs[part & (stations == name)], targets[part & (stations == name)])
            for name in np.unique(stations)
        }

    columns = dict(zip((*INPUTS, *TARGETS), zip(mean.tolist(), deviation.tolist(), strict=True), strict=True))
    provenance = make_provenance((), options, embedded=FILE, mean_and_deviation=columns, time="time")
    return Problem(dataset.name, dataset.kind, split(~is_test), split(is_test), TARGETS, provenance)
