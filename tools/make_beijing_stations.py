"""Draw the embedded dataset beijing-stations from the published Beijing Multi-Site Air-Quality files.

    python tools/make_beijing_stations.py FOLDER src/fedgram/data/datasets/embedded/beijing_stations.csv.gz

FOLDER holds the 12 files PRSA_Data_<Station>_20130301-20170228.csv (UCI 501, CC BY 4.0). Of each station 300
complete rows before 2016-03-01 and 200 after it are drawn with seed 0 and written in the order of time.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
import pandas as pd

COLUMNS = ["PM10", "TEMP", "PRES", "DEWP", "RAIN", "WSPM", "month", "hour", "PM2.5", "NO2"]
TRAIN_ROWS, TEST_ROWS = 300, 200
TEST_START = pd.Timestamp("2016-03-01")


def draw(path: Path, rng: np.random.Generator) -> pd.DataFrame:
    """Draw complete rows of one station."""
    table = pd.read_csv(path)
    time = pd.to_datetime(table[["year", "month", "day", "hour"]])
    table = table.assign(time=time).dropna(subset=COLUMNS)
    is_test = table["time"] >= TEST_START
    chosen = [
        part.iloc[np.sort(rng.permutation(len(part))[:count])]
        for part, count in ((table[~is_test], TRAIN_ROWS), (table[is_test], TEST_ROWS))
    ]
    drawn = pd.concat(chosen)
    return drawn.assign(time=drawn["time"].dt.strftime("%Y-%m-%d %H:00"))[["station", "time", *COLUMNS]]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    stations = [draw(path, rng) for path in sorted(arguments.folder.glob("PRSA_Data_*.csv"))]
    text = pd.concat(stations).to_csv(index=False, float_format="%.6g")
    # No time stamp in the header, so that the same rows give the same bytes.
    arguments.output.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
