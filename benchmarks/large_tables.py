"""Large tables: what fewer rounds and larger minibatches cost in accuracy, and how long `advise` takes.

    python benchmarks/large_tables.py --data-dir DATA [--problems flights,diamonds] [--sizes ""]
    python benchmarks/large_tables.py --tables --docs docs/benchmarks.md

Errors: REAL problems of `sites.py` with more rows, and two more tables, seed 0. Each is trained with the plan
of small tables and with that of its size. Times: `fedgram advise` on GENERATED tables, in a process of its
own, with peak memory. Results are kept in a JSON file; a rerun computes only what is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import site_problems
from benchmark_pages import markdown_table, read_results, replace_between, write_results
from fedgram.training.site_learning import count_training_rows, plans
from site_fedgram import auto_rows, to_problem
from site_results import ALONE
from site_tables import Table

STORED = Path(__file__).with_name("large_tables_results.json")
STATIONS = {"beijing": 8_000}
"""Rows of a station before the last year."""
TABLES = {
    "flights": replace(site_problems.TABLES["flights"], most=6_000),
    "diamonds": Table(
        "ggplot2", "diamonds", "color", ("price",), ("carat", "depth", "table", "x", "y", "z"),
        ("cut", "clarity"),
    ),
    "birthdays": Table(
        "mosaicData", "Birthdays", "state", ("births",), ("year", "month", "day"), ("wday",), most=2_000
    ),
}  # fmt: skip
ROWS = {"alone": ALONE, "FedAvg": "FedAvg", "auto": "auto"}
SIZES = ((100_000, 30), (1_000_000, 300))
PARTS = ("read, recommended model", "shared head", "pooled", "intervals")
NUMBERS, LEVELS = 7, "abcde"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    known = (*STATIONS, *TABLES)
    parser.add_argument("--data-dir", type=Path, help="folder of the dataset 'beijing'")
    parser.add_argument("--problems", default=",".join(known), help=f"of {','.join(known)}")
    parser.add_argument("--sizes", default=",".join(f"{rows}x{sites}" for rows, sites in SIZES))
    parser.add_argument("--tables", action="store_true", help="show stored results, compute nothing")
    parser.add_argument("-o", "--output", type=Path, default=STORED, help="JSON file of all results")
    parser.add_argument("--docs", type=Path, help="page whose tables to replace")
    options = parser.parse_args()
    results = read_results(options.output) if options.output.exists() else {"errors": {}, "times": {}}
    for kind, names in {"errors": options.problems, "times": options.sizes}.items():
        for name in names.split(",") if names and not options.tables else ():
            if name not in results[kind]:
                found = measure_errors(name, options.data_dir) if kind == "errors" else measure_times(name)
                results[kind][name] = found
                write_results(results, options.output)
                print(name, found, file=sys.stderr, flush=True)
    for name, text in tables(results).items():
        print(f"{name}\n\n{text}")
        if options.docs:
            replace_between(options.docs, name, text)


def measure_errors(name: str, data_dir: Path | None) -> dict[str, Any]:
    """Return test errors and CPU seconds with the plan of small tables and with that of this size."""
    site_problems.STATION_ROWS.update(STATIONS)
    site_problems.TABLES.update(TABLES)
    loaded = site_problems.load(name, 0, data_dir)
    problem = to_problem(loaded)
    rows = count_training_rows(problem)
    found: dict[str, Any] = {"sites": len(problem.clients), "rows": rows, "plans": {}}
    for which, (plan, *_) in {"small": plans(), "large": plans(rows)}.items():
        started = time.process_time()
        measured = auto_rows(loaded, 0, plan=plan)
        errors = {label: round(measured[row].test_mse, 6) for label, row in ROWS.items()}
        found["plans"][which] = {
            "rounds": plan.config.rounds, "batch": plan.config.batch, "errors": errors,
            "seconds": round(time.process_time() - started, 1),
        }  # fmt: skip
    return found


def measure_times(name: str) -> dict[str, Any]:
    """Return seconds and peak GiB of `fedgram advise` on a table of `rows`x`sites`."""
    rows, sites = map(int, name.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.csv"
        generate(path, rows, sites)
        inputs = [*(f"x{d}" for d in range(NUMBERS)), "kind"]
        command = [
            sys.executable, "-m", "fedgram", "advise", str(path), "--client", "site",
            "--inputs", ",".join(inputs), "--targets", "y1,y2",
        ]  # fmt: skip
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        lines = [(time.perf_counter() - started, line) for line in process.stdout]
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError("".join(line for _, line in lines))
    ends = [(seconds, match[1]) for seconds, line in lines if (match := re.match(r"trained .*?, (.*)", line))]
    return {
        "seconds": round(lines[-1][0], 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "gib": round(usage.ru_maxrss / 2**20, 2),
        "until": {label: round(seconds, 1) for seconds, label in ends},
    }


def generate(path: Path, rows: int, sites: int) -> None:
    """Write sites with intercepts and slopes of their own, curved effects, a category and noise."""
    import pandas as pd

    rng = np.random.default_rng(0)
    site, level = rng.integers(sites, size=rows), rng.integers(len(LEVELS), size=rows)
    x = rng.standard_normal((rows, NUMBERS)) + 0.3 * rng.standard_normal((sites, NUMBERS))[site]
    slopes = 0.3 * rng.standard_normal((sites, NUMBERS))[site]
    first = np.sin(2 * x[:, 0]) * x[:, 1] + np.abs(x[:, 2]) + rng.standard_normal(len(LEVELS))[level]
    first += (slopes * x).sum(axis=1)
    second = np.cos(x[:, 4] + x[:, 5]) + 0.3 * x[:, 6] ** 2 - 0.3 * first
    targets = np.stack([first, second], axis=1) + 0.5 * rng.standard_normal((sites, 2))[site]
    targets += 0.7 * rng.standard_normal((rows, 2))
    frame = pd.DataFrame(x.round(4), columns=[f"x{d}" for d in range(NUMBERS)])
    frame["kind"] = np.array(list(LEVELS))[level]
    frame[["y1", "y2"]] = targets.round(4)
    frame.insert(0, "site", [f"site {m:03}" for m in site])
    frame.to_csv(path, index=False)


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Tables of the page, by name."""
    headings = ("problem", "sites", "training rows", "rounds", *ROWS, "CPU seconds")
    errors = [
        (name, str(found["sites"]), f"{found['rows']:,}", *_compare(*found["plans"].values()))
        for name, found in results["errors"].items()
    ]
    times = [
        (f"{rows:,}", f"{sites:,}", *_format_times(found))
        for name, found in results["times"].items()
        for rows, sites in [map(int, name.split("x"))]
    ]
    return {
        "large errors": markdown_table(headings, errors),
        "large times": markdown_table(("rows", "sites", *PARTS, "in all", "CPU minutes", "peak GiB"), times),
    }


def _format_times(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Format the minutes of the parts and of the whole command, its CPU minutes and its memory."""
    ends = [0.0, *found["until"].values(), found["seconds"]]
    seconds = [*np.diff(ends), found["seconds"], found["cpu_seconds"]]
    return *(f"{each / 60:.1f}" for each in seconds), f"{found['gib']:.1f}"


def _compare(small: Mapping[str, Any], large: Mapping[str, Any]) -> tuple[str, ...]:
    """Format what both plans have, 'small → large'."""
    errors = (f"{small['errors'][label]:.4f} → {large['errors'][label]:.4f}" for label in ROWS)
    rounds, seconds = (
        f"{small['rounds']} → {large['rounds']}",
        f"{small['seconds']:.0f} → {large['seconds']:.0f}",
    )
    return rounds, *errors, seconds


if __name__ == "__main__":
    main()
