"""Client moments of a Parquet table: fedgram against the pandas a person would write.

    python benchmarks/moments.py [--rows 50000000] [--folder .] [--repeat 3] [--json moments_results.json]
    python benchmarks/moments.py --tables [--docs docs/benchmarks.md]

Every run has a process of its own. Seconds are those of the call alone, imports left out, the best of the
repeats; memory is the peak of the whole process. "Times faster" is against the fastest pandas.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmark_pages import add_options, finish, markdown_table, read_results

STORED = Path(__file__).with_name("moments_results.json")
HEADINGS = ("", "seconds", "peak GiB", "times faster", "largest relative difference")
CLIENTS, TARGETS, CHUNK = 100, ["a", "b", "c"], 1_000_000

Result = tuple[np.ndarray, np.ndarray, np.ndarray]  # count (M,), mean (M, C), covariance (M, C, C)


def generate(path: Path, rows: int) -> None:
    """Write normal targets whose means differ by a few standard deviations between the clients."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    names = pa.array([f"client {m:02d}" for m in range(CLIENTS)])
    means = rng.normal(50.0, 3.0, (CLIENTS, len(TARGETS)))
    columns = [("client", pa.string()), *((name, pa.float64()) for name in TARGETS)]
    with pq.ParquetWriter(path, pa.schema(columns)) as writer:
        for start in range(0, rows, CHUNK):
            client = rng.integers(CLIENTS, size=min(CHUNK, rows - start))
            values = means[client] + rng.normal(size=(len(client), len(TARGETS)))
            writer.write_table(pa.table([names.take(pa.array(client)), *values.T], schema=pa.schema(columns)))


def fedgram(path: str) -> Result:
    from fedgram.data.tables.read_moments import read_moments

    moments = read_moments(path, client="client", targets=TARGETS)
    return moments.count, moments.mean, moments.covariance


def fedgram_two_passes(path: str) -> Result:
    """What clients far apart cost: a tighter limit makes the same data need the second pass."""
    from fedgram.data.tables import read_moments

    read_moments.MAX_SHIFT = 1e-3
    return fedgram(path)


def pandas_groupby(path: str) -> Result:
    import pandas as pd

    return _grouped(pd.read_parquet(path).groupby("client")[TARGETS])


def pandas_category(path: str) -> Result:
    import pandas as pd

    frame = pd.read_parquet(path)
    frame["client"] = frame["client"].astype("category")
    return _grouped(frame.groupby("client", observed=True)[TARGETS])


def pandas_loop(path: str) -> Result:
    import pandas as pd

    groups = [group for _, group in pd.read_parquet(path).groupby("client")[TARGETS]]
    means, covariances = [group.mean() for group in groups], [group.cov(ddof=0) for group in groups]
    return np.array([len(group) for group in groups]), np.array(means), np.array(covariances)


def _grouped(groups) -> Result:
    covariance = groups.cov(ddof=0).to_numpy().reshape(-1, len(TARGETS), len(TARGETS))
    return groups.size().to_numpy(), groups.mean().to_numpy(), covariance


METHODS = {
    "fedgram": fedgram,
    "fedgram, two passes (clients far apart)": fedgram_two_passes,
    "pandas, groupby": pandas_groupby,
    "pandas, groupby on a categorical": pandas_category,
    "pandas, loop over clients": pandas_loop,
}


def measure(method: str, path: str, output: str) -> None:
    """Run one method in this process, and save its result and seconds."""
    for module in (
        ("pandas", "pyarrow.parquet")
        if method.startswith("pandas")
        else ("duckdb", "fedgram.data.tables.read_moments")
    ):
        importlib.import_module(module)
    start = time.perf_counter()
    count, mean, covariance = METHODS[method](path)
    seconds = time.perf_counter() - start
    np.savez(output, count=count, mean=mean, covariance=covariance, seconds=seconds)


def run(method: str, path: Path, output: Path) -> tuple[float, float, Result]:
    """Seconds, peak memory in GiB and result of one method in a process of its own."""
    child = subprocess.Popen([sys.executable, __file__, "--measure", method, str(path), str(output)])
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{method} failed with status {child.returncode}.")
    saved = np.load(output)
    kibibytes = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return float(saved["seconds"]), kibibytes / 2**20, (saved["count"], saved["mean"], saved["covariance"])


def difference(result: Result, reference: Result) -> float:
    """Largest difference of a client's moment, relative to the norm of that moment."""
    pairs = [(x.reshape(CLIENTS, -1), y.reshape(CLIENTS, -1)) for x, y in zip(result, reference, strict=True)]
    norm = np.linalg.norm
    return max(float((norm(x - y, axis=1) / norm(y, axis=1)).max()) for x, y in pairs)


def compare(path: Path, repeat: int) -> list[dict[str, Any]]:
    """Seconds, peak memory and difference from the fastest pandas of every method."""
    # Round after round, so that a busy spell of the machine does not hit one method alone.
    runs = [{name: run(name, path, path.with_suffix(".npz")) for name in METHODS} for _ in range(repeat)]
    seconds = {name: min(each[name][0] for each in runs) for name in METHODS}
    reference = fastest_pandas(seconds)
    return [
        {
            "method": name,
            "seconds": seconds[name],
            "gib": max(each[name][1] for each in runs),
            "difference": difference(runs[0][name][2], runs[0][reference][2]),
        }
        for name in METHODS
    ]


def fastest_pandas(seconds: dict[str, float]) -> str:
    return min((name for name in seconds if name.startswith("pandas")), key=seconds.__getitem__)


def tables(results: dict[str, Any]) -> dict[str, str]:
    """Table of the page, by name."""
    seconds = {row["method"]: row["seconds"] for row in results["methods"]}
    least = seconds[fastest_pandas(seconds)]
    rows = [
        (
            row["method"],
            f"{row['seconds']:.2f}",
            f"{row['gib']:.2f}",
            f"{least / row['seconds']:.1f}",
            f"{row['difference']:.0e}" if row["difference"] else "0",
        )
        for row in results["methods"]
    ]
    what = (
        f"{results['rows']:,} rows, {len(TARGETS)} targets, {CLIENTS} clients in Parquet "
        f"({results['gib']:.2f} GiB, GENERATED), {results['processors']} processors, "
        f"best of {results['repeat']}."
    )
    return {"moments": f"{what}\n\n{markdown_table(HEADINGS, rows)}"}


def measure_all(rows: int, folder: Path | None, repeat: int) -> dict[str, Any]:
    """Generate the table, and run every method on it."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = Path(name, "moments.parquet")
        generate(path, rows)
        size = path.stat().st_size / 2**30
        methods = compare(path, repeat)
    return {"rows": rows, "gib": size, "processors": os.cpu_count(), "repeat": repeat, "methods": methods}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument(
        "--folder", type=Path, help="where to write the table; a temporary folder if left out"
    )
    parser.add_argument("--repeat", type=int, default=3)
    add_options(parser, STORED)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return
    results = (
        read_results(STORED) if options.tables else measure_all(options.rows, options.folder, options.repeat)
    )
    print(tables(results)["moments"])
    finish(results, tables, options)


if __name__ == "__main__":
    main()
