"""Cost of a round on Flower next to its FedAvg, errors under a bad client, limits of honest ones.

    python benchmarks/federation.py [--clients 4,16,64] [--engines all] [--docs docs/benchmarks.md]

The rows are swimmer-mini (GENERATED), split over the clients; the network is `resmlp-small`. Results are kept
in `federation_results.json`; a rerun measures only what is missing. A deployment starts a process per client
and message: 64 clients need more than two cores.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import federation_honest_clients as honest_clients
from benchmark_pages import replace_between
from federation_bad_clients import ATTACKS, CLIENTS, DRAWS, ROUNDS, RULES, measure_errors
from federation_engines import (
    DEPLOYMENT,
    IN_PROCESS,
    SETTINGS,
    SIMULATION,
    Cost,
    measure_fedavg,
    measure_fedgram,
    measure_in_process,
)
from federation_honest_clients import PROBLEMS
from fedgram._util.files import read_json, write_json

STORED = Path(__file__).with_name("federation_results.json")
FEDGRAM, FEDAVG, SECURE = "fedgram", "Flower's FedAvg", "fedgram, secure sums"
TARGET = 1.2
"""Largest ratio of fedgram's seconds per round to those of FedAvg, deployed."""

Measure = Callable[[int, Path], Cost]
ROWS: dict[tuple[str, str], Measure] = {
    (FEDGRAM, IN_PROCESS): measure_in_process,
    (FEDGRAM, SIMULATION): partial(measure_fedgram, engine=SIMULATION),
    (FEDAVG, SIMULATION): partial(measure_fedavg, engine=SIMULATION),
    (FEDGRAM, DEPLOYMENT): partial(measure_fedgram, engine=DEPLOYMENT),
    (FEDAVG, DEPLOYMENT): partial(measure_fedavg, engine=DEPLOYMENT),
}
ROWS |= {
    (SECURE, engine): partial(measure_fedgram, engine=engine, secure=True)
    for engine in (SIMULATION, DEPLOYMENT)
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", default="4,16,64", help="numbers of clients")
    parser.add_argument("--engines", default="all", help=f"of {IN_PROCESS},{SIMULATION},{DEPLOYMENT}")
    parser.add_argument("-o", "--output", type=Path, default=STORED, help="JSON file of all results")
    parser.add_argument("--docs", type=Path, help="page whose tables to replace")
    options = parser.parse_args()
    results = read_json(options.output) if options.output.exists() else {"costs": {}}
    for clients in map(int, filter(None, options.clients.split(","))):
        for (name, engine), measure in ROWS.items():
            key = f"{name} | {engine} | {clients}"
            if key in results["costs"] or options.engines not in ("all", engine):
                continue
            with tempfile.TemporaryDirectory() as folder:
                results["costs"][key] = asdict(measure(clients, Path(folder)))
            write_json(options.output, results)
            print(key, results["costs"][key], flush=True)
    if results.get("errors", {}).keys() != ATTACKS.keys():
        results["errors"] = measure_errors()
        write_json(options.output, results)
    for name, load in PROBLEMS.items():
        if name not in results.setdefault("honest", {}):
            found = honest_clients.measure_problem(load())
            results["honest"][name] = {procedure: asdict(each) for procedure, each in found.items()}
            write_json(options.output, results)
    tables = markdown(results)
    print(tables)
    if options.docs:
        replace_between(options.docs, "federation", tables)


def markdown(results: dict) -> str:
    """Format the costs by number of clients, the ratio of both deployments, and the errors."""
    costs = {tuple(key.split(" | ")): Cost(**value) for key, value in results["costs"].items()}
    numbers = sorted({int(clients) for *_, clients in costs})
    lines = [
        f"Seconds of a round (median of at least {SETTINGS['rounds'] - 1}), CPU seconds of all its "
        "processes, and KiB of all its messages:",
        "",
        "| | engine | " + " | ".join(f"{each} clients: s | CPU s | KiB" for each in numbers) + " |",
        "| --- | --- |" + len(numbers) * " --- | --- | --- |",
    ]
    for name, engine in sorted(ROWS, key=lambda row: (IN_PROCESS, SIMULATION, DEPLOYMENT).index(row[1])):
        cells = [_format_cost(costs.get((name, engine, str(each)))) for each in numbers]
        lines.append(f"| {name} | {engine} | " + " | ".join(cells) + " |")
    for each in numbers:
        ours, theirs = (costs.get((name, DEPLOYMENT, str(each))) for name in (FEDGRAM, FEDAVG))
        if ours and theirs:
            ratios = f"{ours.seconds / theirs.seconds:.2f}, in CPU time {ours.cpu / theirs.cpu:.2f}"
            lines += [
                "",
                f"- fedgram / FedAvg, deployed, {each} clients: {ratios} (target: at most {TARGET:g})",
            ]
    lines += [
        "",
        f"Relative distance of the head's Gram to the honest clients' G_⋆ after {ROUNDS} rounds (exact "
        f"model, {CLIENTS} equal clients, one of them bad; median of {DRAWS} draws). fedgram's server checks "
        "every reply ('mean, checked'); the other columns average all replies:",
        "",
    ]
    columns = ["mean, checked", *RULES]
    lines += [f"| bad client | {' | '.join(columns)} |", "| --- |" + len(columns) * " --- |"]
    for attack in ATTACKS:
        errors = [results["errors"][attack][name] for name in columns]
        cells = ["NaN" if error is None else f"{error:.1e}" for error in errors]
        lines.append(f"| {attack} | {' | '.join(cells)} |")
    lines += ["", "### Honest clients and the limits", "", *honest_clients.markdown(results["honest"])]
    return "\n".join(lines) + "\n"


def _format_cost(cost: Cost | None) -> str:
    if cost is None:
        return "not measured | | "
    cpu = "" if cost.cpu is None else f"{cost.cpu:.3g}"
    size = "" if cost.bytes is None else f"{cost.bytes / 1024:.1f}"
    return f"{cost.seconds:.3g} | {cpu} | {size}"


if __name__ == "__main__":
    main()
