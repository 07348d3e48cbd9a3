"""Beijing Multi-Site Air Quality: PM2.5 and NO2 from PM10, weather, month and hour (UCI 501, CC BY 4.0).

The published form is 12 CSV files, one for each station, of 35,064 hourly rows. They are read from a folder,
from the zip that UCI serves (which holds the zip of the CSV files) or the zip inside it, or from a tar.xz.

What the paper does not state, and what we do:
- Which rows: of the 404,671 rows that have all ten values, 9,000 training rows drawn uniformly without
  replacement, from `Options.seed`. The same rows serve every training seed.
- Test rows: the paper has none. We draw 3,000 more in the same way, and give each to the client whose
  interval of training targets is nearest.
- Scaling: targets, and inputs as well, less the mean and over the standard deviation of the 9,000 training
  rows, each column by itself; the partition is made from the scaled targets. Month and hour are numbers
  like the others.
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
from fedgram.data.datasets.dataset import Dataset, Download, Options, provenance, readable, require
from fedgram.data.datasets.preprocessing import refuse_larger, split_by_projection, statistics
from fedgram.data.problem import Problem, Split

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
# A folder of CSV files goes before an archive, for who has unpacked one; each may lie in a folder of its own.
FORMS = (f"PRSA_Data_*_{PERIOD}.csv", UCI_ZIP, f"*PRSA*_Data_{PERIOD}.zip", f"*PRSA*_Data_{PERIOD}.tar.xz")
_STATION_FILE = re.compile(rf"PRSA_Data_(\w+)_{PERIOD}\.csv")
_STATION_ZIP = re.compile(rf"PRSA\w*_Data_{PERIOD}\.zip")


def find(folder: Path, options: Options) -> Sequence[Path]:
    """The CSV files, or the first archive of them, in the data directory or a folder in it."""
    for form in FORMS:
        found = sorted(folder.glob(form)) or sorted(folder.glob(f"*/{form}"))
        if found:
            return found if form.endswith(".csv") else found[:1]
    return [require(folder / UCI_ZIP, NAME, "the 12 PRSA_Data CSV files, or an archive of them")]


def load(files: Sequence[Path], options: Options) -> Problem:
    """9,000 training and 3,000 test rows of 4 clients: inputs (N, 8) float32, targets (N, 2) float64."""
    refuse_larger(NAME, options)
    rows = complete_rows(files)
    train, test = _sampled(rows, options.seed)
    mean, scale = statistics(train, (*TARGETS, *INPUTS))
    trained, tested = split_by_projection(_split((train - mean) / scale), _split((test - mean) / scale))
    made = provenance(
        files,
        options,
        complete_rows=len(rows),
        mean=dict(zip((*TARGETS, *INPUTS), mean.tolist(), strict=True)),
        scale=dict(zip((*TARGETS, *INPUTS), scale.tolist(), strict=True)),
    )
    return Problem(NAME, "REAL", trained, tested, TARGETS, made)


def complete_rows(files: Sequence[Path]) -> Array:
    """Rows of all stations, in order of name, that lack no value: targets and inputs, (N, 10)."""
    stations = {name: text for path in files for name, text in _stations(path)}
    missing = sorted(set(STATIONS) - set(stations))
    if missing:
        raise InputError(
            f"'{files[0]}' has the files of {len(stations)} of the 12 stations, and none of {missing[0]}; "
            f"'fedgram data fetch {NAME}' gets them all.",
            field=missing[0],
        )
    rows = np.concatenate([_table(stations[name], name) for name in STATIONS])
    return rows[np.isfinite(rows).all(axis=1)]


def _stations(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and CSV text of each station in a CSV file or an archive."""
    with readable(path, "the published tables"), path.open("rb") as file:
        for name, text in _members(file, path.name):
            if match := _STATION_FILE.fullmatch(name):
                yield match[1], text


def _members(file: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    """Name, without its folder, and content of all files in a zip, the zip in a zip, a tar.xz, or itself."""
    if name.endswith(".zip"):
        with zipfile.ZipFile(file) as archive:
            for member in archive.namelist():
                base = member.rpartition("/")[2]
                if _STATION_ZIP.fullmatch(base):
                    yield from _members(io.BytesIO(archive.read(member)), base)
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


def _table(text: bytes, station: str) -> Array:
    """The ten columns of one station's CSV text, (N, 10), with NaN for a missing value."""
    head, _, body = text.partition(b"\n")
    header = [name.strip('"\r ') for name in head.decode("utf-8", "replace").split(",")]
    for name in (*TARGETS, *INPUTS):
        if name not in header:
            raise InputError(
                f"The file of station {station} has no column '{name}', so it is not the published table.",
                field=name,
            )
    columns = [header.index(name) for name in (*TARGETS, *INPUTS)]
    if not body.strip():
        return np.empty((0, len(columns)))
    try:
        lines = io.StringIO(body.replace(b",NA", b",nan").decode())
        return np.loadtxt(lines, delimiter=",", usecols=columns, quotechar='"', ndmin=2)
    except ValueError as error:
        raise InputError(
            f"The file of station {station} is not as published: {error}", field=station
        ) from None


def _sampled(rows: Array, seed: int) -> tuple[Array, Array]:
    """Training and test rows, drawn without replacement."""
    wanted = TRAIN_ROWS + TEST_ROWS
    if len(rows) < wanted:
        raise InputError(
            f"The dataset '{NAME}' needs {wanted:,} complete rows, but its files have {len(rows):,}.",
            field="rows",
        )
    drawn = rows[np.random.default_rng(seed).permutation(len(rows))[:wanted]]
    return drawn[:TRAIN_ROWS], drawn[TRAIN_ROWS:]


def _split(rows: Array) -> Split:
    targets, inputs = np.split(rows, [len(TARGETS)], axis=1)
    return Split(inputs.astype(np.float32), targets)


DATASETS = (
    Dataset(
        name=NAME,
        kind="REAL",
        title="Beijing Multi-Site Air Quality",
        licence="CC BY 4.0",
        citation="Zhang et al., Cautionary tales on air-quality improvement in Beijing, Proc. R. Soc. A 473, "
        "2017; Chen, UCI Machine Learning Repository, 2017, doi:10.24432/C5RK5G",
        published="https://archive.ics.uci.edu/dataset/501",
        find=find,
        load=load,
        downloads=(
            Download(
                f"https://archive.ics.uci.edu/static/public/501/{UCI_ZIP}",
                UCI_ZIP,
                # UCI prints no checksum; this is the one that independent projects have recorded.
                "sha256:b04da438b2f331ac0ffd45aebdfec0d20d2367feb5f6948c4b1f7ce1191e33c4",
            ),
        ),
    ),
)
