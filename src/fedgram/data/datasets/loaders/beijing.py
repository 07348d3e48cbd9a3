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
from fedgram.data.datasets.dataset import (
    Dataset,
    Download,
    Options,
    find_files,
    make_provenance,
    translate_read_errors,
)
from fedgram.data.datasets.preprocessing import TABULAR_CLIENTS, reject_larger, standardize
from fedgram.data.problem import Problem, Split
from fedgram.data.splits import split_by_projection

NAME = "beijing"
INPUTS = ("PM10", "TEMP", "PRES", "DEWP", "RAIN", "WSPM", "month", "hour")
TARGETS = ("PM2.5", "NO2")
STATIONS = (
    "Aotizhongxin", "Changping", "Dingling", "Dongsi", "Guanyuan", "Gucheng",
    "Huairou", "Nongzhanguan", "Shunyi", "Tiantan", "Wanliu", "Wanshouxigong",
)  # fmt: skip
TRAIN_ROWS, TEST_ROWS = 9_000, 3_000

UCI_ZIP = "beijing+multi+site+air+quality+data.zip"
PERIOD = "20130301-20170228"
# Unpacked files come before archives.
FORMS = (f"PRSA_Data_*_{PERIOD}.csv", UCI_ZIP, f"*PRSA*_Data_{PERIOD}.zip", f"*PRSA*_Data_{PERIOD}.tar.xz")
_STATION_FILE = re.compile(rf"PRSA_Data_(\w+)_{PERIOD}\.csv")
_STATION_ZIP = re.compile(rf"PRSA\w*_Data_{PERIOD}\.zip")


def find(folder: Path, options: Options) -> Sequence[Path]:
    """Find the CSV files, or the first archive of them."""
    what = "the 12 PRSA_Data CSV files, or an archive of them"
    found = find_files(folder, FORMS, NAME, what, missing=UCI_ZIP)
    return found if found[0].suffix == ".csv" else found[:1]


def load(files: Sequence[Path], options: Options) -> Problem:
    """Load 9,000 training and 3,000 test rows of 4 clients: inputs (N, 8) float32, targets (N, 2) float64."""
    reject_larger(NAME, options)
    rows = read_complete_rows(files)
    wanted = TRAIN_ROWS + TEST_ROWS
    if len(rows) < wanted:
        raise InputError(
            f"The dataset '{NAME}' needs {wanted:,} complete rows, but its files have {len(rows):,}.",
            field="rows",
        )
    drawn = rows[np.random.default_rng(options.seed).permutation(len(rows))[:wanted]]
    scaled, statistics = standardize(drawn, TRAIN_ROWS, (*TARGETS, *INPUTS))
    targets, inputs = np.split(scaled, [len(TARGETS)], axis=1)
    split = Split(inputs.astype(np.float32), targets)
    splits = split_by_projection(
        split.take(slice(TRAIN_ROWS)), split.take(slice(TRAIN_ROWS, None)), TABULAR_CLIENTS
    )
    provenance = make_provenance(files, options, complete_rows=len(rows), **statistics)
    return Problem(NAME, "REAL", *splits, TARGETS, provenance)


def read_complete_rows(files: Sequence[Path]) -> Array:
    """Read the complete rows of all stations in order of name: targets and inputs, (N, 10)."""
    stations = {name: text for path in files for name, text in _read_stations(path)}
    missing = sorted(set(STATIONS) - set(stations))
    if missing:
        raise InputError(
            f"'{files[0]}' has {len(stations)} of the 12 stations, but not {missing[0]}. Run 'fedgram data "
            f"fetch {NAME}'.",
            field=missing[0],
        )
    rows = np.concatenate([_parse_station(stations[name], name) for name in STATIONS])
    return rows[np.isfinite(rows).all(axis=1)]


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
            raise InputError(
                f"The file of station {station} has no column '{name}'.",
                field=name,
            )
    columns = [header.index(name) for name in (*TARGETS, *INPUTS)]
    if not body.strip():
        return np.empty((0, len(columns)))
    try:
        lines = io.StringIO(body.replace(b",NA", b",nan").decode())
        return np.loadtxt(lines, delimiter=",", usecols=columns, quotechar='"', ndmin=2)
    except ValueError as error:
        raise InputError(f"The file of station {station} is damaged: {error}", field=station) from None


DATASETS = (
    Dataset(
        name=NAME,
        kind="REAL",
        title="Beijing Multi-Site Air Quality",
        license="CC BY 4.0",
        citation="Zhang et al., Cautionary tales on air-quality improvement in Beijing, Proc. R. Soc. A 473, "
        "2017; Chen, UCI Machine Learning Repository, 2017, doi:10.24432/C5RK5G",
        published="https://archive.ics.uci.edu/dataset/501",
        find=find,
        load=load,
        downloads=(
            Download(
                f"https://archive.ics.uci.edu/static/public/501/{UCI_ZIP}",
                UCI_ZIP,
                # UCI publishes no checksum; independent projects have recorded this one.
                "sha256:b04da438b2f331ac0ffd45aebdfec0d20d2367feb5f6948c4b1f7ce1191e33c4",
            ),
        ),
    ),
)
