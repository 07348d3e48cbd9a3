"""Small files in the form in which datasets are published, for the tests of their loaders."""

import io
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from fedgram.data.datasets.loaders.beijing import STATIONS

BEIJING_HEADER = (
    '"No","year","month","day","hour","PM2.5","PM10","SO2","NO2","CO","O3",'
    '"TEMP","PRES","DEWP","RAIN","wd","WSPM","station"'
)


def station_file(station):
    return f"PRSA_Data_{station}_20130301-20170228.csv"


def beijing_tables(rows=1050):
    """CSV text by file name, byte for byte as UCI has it: quotes, NA, CRLF. One row in 50 lacks its PM2.5."""
    rng = np.random.default_rng(0)
    files = {}
    for station in STATIONS:
        pollution = rng.gamma(2, 40, rows)
        lines = [BEIJING_HEADER]
        for row in range(rows):
            pm25 = "NA" if row % 50 == 7 else f"{pollution[row]:.0f}"
            no2, pm10 = 20 + 0.5 * pollution[row] + rng.uniform(0, 30), pollution[row] + rng.uniform(0, 60)
            weather = f"{rng.normal(13, 11):.1f},{rng.normal(1010, 10):.1f},{rng.normal(2, 13):.1f}"
            rain, wind = rng.exponential(0.1), rng.gamma(2, 0.9)
            lines.append(
                f"{row + 1},2013,{1 + row % 12},1,{row % 24},{pm25},{pm10:.3f},NA,{no2:.1f},300,NA,"
                f'{weather},{rain:.1f},"NNW",{wind:.1f},"{station}"'
            )
        files[station_file(station)] = ("\r\n".join(lines) + "\r\n").encode()
    return files


def write_folder(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text)


def zipped(files, inside=""):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(inside + name, text)
    return content.getvalue()


def uci_bundle(files):
    """What UCI serves: a zip with the zip of the tables, and tables of other datasets."""
    inner = zipped(files, inside="PRSA_Data_20130301-20170228/")
    return zipped({"PRSA2017_Data_20130301-20170228.zip": inner, "data.csv": b"a,b\n1,2\n", "test.csv": b""})


def tar_xz(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz", preset=1) as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return content.getvalue()


def episodes(observations, actions, lengths=(1000,) * 6, seed=0):
    """Transitions whose actions follow from the observations, in episodes of these lengths."""
    rng = np.random.default_rng(seed)
    policy = rng.standard_normal((observations, actions)) / observations**0.5
    seen = [rng.standard_normal((length, observations)).astype(np.float32) for length in lengths]
    return [(rows, np.tanh(rows @ policy).astype(np.float32)) for rows in seen]


def write_episodes(path, pairs, names=("continuous_observations", "continuous_actions")):
    path.parent.mkdir(parents=True, exist_ok=True)
    nested = pa.list_(pa.list_(pa.float32()))
    columns = [pa.array([pair[i].tolist() for pair in pairs], nested) for i in (0, 1)]
    rewards = pa.array([[1.0] * len(pair[1]) for pair in pairs], pa.list_(pa.float32()))
    parquet.write_table(pa.table([*columns, rewards], names=[*names, "rewards"]), path)
