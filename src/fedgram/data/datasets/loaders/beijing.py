"""Beijing Multi-Site Air Quality: PM2.5 and NO2 from PM10, weather and time.

UCI 501, CC BY 4.0. The published form is 12 CSV files, one per station, of 35,064 hourly rows. They are read
from a folder, from UCI's zip (which contains a zip of the CSV files), from the inner zip, or from a tar.xz.

Choices that the paper does not state:
- Rows: 9,000 training rows drawn without replacement from the 404,671 complete rows with `Options.seed`. All
  training seeds share them.
- Test rows: the paper has none. We draw 3,000 more; each goes to the client with the nearest interval of
  training targets.
- Scaling: inputs and targets are standardized by the training rows; the partition uses the scaled targets.
  Month and hour are numbers.
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.datasets.dataset import Dataset, Options, make_provenance, translate_read_errors
from fedgram.data.datasets.preprocessing import TABULAR_CLIENTS, standardize
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.data.splits import split_by_projection

INPUTS = ("PM10", "TEMP", "PRES", "DEWP", "RAIN", "WSPM", "month", "hour")
TARGETS = ("PM2.5", "NO2")
STATIONS = (
    "Aotizhongxin", "Changping", "Dingling", "Dongsi", "Guanyuan", "Gucheng",
    "Huairou", "Nongzhanguan", "Shunyi", "Tiantan", "Wanliu", "Wanshouxigong",
)  # fmt: skip
TRAIN_ROWS, TEST_ROWS = 9_000, 3_000
PERIOD = "20130301-20170228"
_STATION_FILE = re.compile(rf"PRSA_Data_(\w+)_{PERIOD}\.csv")
_STATION_ZIP = re.compile(rf"PRSA\w*_Data_{PERIOD}\.zip")


def load(dataset: Dataset, files: Sequence[Path], options: Options) -> Problem:
    """Load 9,000 training and 3,000 test rows of 4 clients: inputs (N, 8) float32, targets (N, 2) float64."""
    rows, wanted = read_complete_rows(files), TRAIN_ROWS + TEST_ROWS
    if len(rows) < wanted:
        needs = f"The dataset '{dataset.name}' needs {wanted:,} complete rows"
        raise InputError(f"{needs}, but its files have {len(rows):,}.", field="rows")
    drawn = rows[np.random.default_rng(options.seed).permutation(len(rows))[:wanted]]
    scaled, statistics = standardize(drawn, TRAIN_ROWS, (*TARGETS, *INPUTS))
    targets, inputs = np.split(scaled, [len(TARGETS)], axis=1)
    split = Split(inputs.astype(np.float32), targets)
    train, test = split.take(slice(TRAIN_ROWS)), split.take(slice(TRAIN_ROWS, None))
    provenance = make_provenance(files, options, complete_rows=len(rows), **statistics)
    splits = split_by_projection(train, test, TABULAR_CLIENTS)
    return Problem(dataset.name, dataset.kind, *splits, TARGETS, provenance)


def read_complete_rows(files: Sequence[Path]) -> Array:
    """Read the complete rows of all stations in order of name: targets and inputs, (N, 10)."""
    rows = np.concatenate([_parse_station(text, name) for name, text in read_stations(files).items()])
    return rows[np.isfinite(rows).all(axis=1)]


def read_stations(files: Sequence[Path]) -> dict[str, bytes]:
    """Read the CSV text of all stations, in order of name."""
    stations = {name: text for path in files for name, text in _read_stations(path)}
    missing = sorted(set(STATIONS) - set(stations))
    if missing:
        message = f"'{files[0]}' has {len(stations)} of the 12 stations, but not {missing[0]}."
        raise InputError(f"{message} Run 'fedgram data fetch beijing'.", field=missing[0])
    return {name: stations[name] for name in STATIONS}


def _read_stations(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and CSV text of each station in a CSV file or an archive."""
    with translate_read_errors(path, "the published tables"), path.open("rb") as file:
        for name, text in _read_members(file, path.name):
            if match := _STATION_FILE.fullmatch(name):
                yield match[1], text


def _read_members(file: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files in a zip, a nested zip or a tar.xz, or of the file itself."""
    if name.endswith(".zip"):
        with zipfile.ZipFile(file) as archive:
            for member in archive.namelist():
                base = member.rpartition("/")[2]
                if _STATION_ZIP.fullmatch(base):
                    yield from _read_members(io.BytesIO(archive.read(member)), base)
                elif _STATION_FILE.fullmatch(base):
                    yield base, archive.read(member)
    elif name.endswith(".tar.xz"):
        with tarfile.open(fileobj=file) as tar:
            for entry in tar:
                content = tar.extractfile(entry)
                if content is not None:
                    yield entry.name.rpartition("/")[2], content.read()
    else:
        yield name, file.read()


def _parse_station(text: bytes, station: str) -> Array:
    """Parse the ten columns of one station's CSV text, (N, 10), with NaN for a missing value."""
    head, _, body = text.partition(b"\n")
    header = [name.strip('"\r ') for name in head.decode("utf-8", "replace").split(",")]
    for name in (*TARGETS, *INPUTS):
        if name not in header:
            raise InputError(f"The file of station {station} has no column '{name}'.", field=name)
    columns = [header.index(name) for name in (*TARGETS, *INPUTS)]
    if not body.strip():
        return np.empty((0, len(columns)))
    try:
        lines = io.StringIO(body.replace(b",NA", b",nan").decode())
        return np.loadtxt(lines, delimiter=",", usecols=columns, quotechar='"', ndmin=2)
    except ValueError as error:
        raise InputError(f"The file of station {station} is damaged: {error}", field=station) from None
