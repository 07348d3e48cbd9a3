"""Time the way from a table of six stations to predictions and a report, command by command.

Run: python benchmarks/journey.py
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers.journey import travel, write_sites

ROWS = 300  # per station
BUDGET = ("--backbone", "wide-deep-64", "--rounds", "15")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sites(folder, ROWS)

        def run(*arguments: object) -> str:
            command = [sys.executable, "-m", "fedgram", *map(str, arguments)]
            return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout

        print(f"{'command':<10}{'seconds':>9}{'CPU s':>8}")
        first, spent = time.perf_counter(), _cpu_seconds()
        start, used = first, spent
        for command, _ in travel(folder, run, *BUDGET):
            now, spent = time.perf_counter(), _cpu_seconds()
            print(f"{command:<10}{now - start:>9.1f}{spent - used:>8.1f}", flush=True)
            start, used = now, spent
        print(
            f"{'in all':<10}{start - first:>9.1f}   report: {(folder / 'report.html').stat().st_size:,} bytes"
        )


def _cpu_seconds() -> float:
    """CPU time of the finished commands."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
