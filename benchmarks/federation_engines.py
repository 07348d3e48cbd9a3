"""Run fedgram and Flower's FedAvg on the same rows: in this process, simulated, and deployed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from fedgram._util.files import read_json
from fedgram.flower.deployment import LocalFederation, write_app
from fedgram.flower.sites_file import SitesConfig, load_clients
from fedgram.runs.train_config import TrainConfig
from fedgram.training import train

APPS = Path(__file__).parent / "federation_apps"
DATASET = "swimmer-mini"
SETTINGS = {"rounds": 3, "epochs": 1, "batch": 64, "features": 32}
ROUND = re.compile(r"Round \d+ of|\[ROUND \d+/")
"""Log lines that fedgram writes at the end of a round, and Flower at its start."""
IN_PROCESS, SIMULATION, DEPLOYMENT = "in-process", "simulation", "deployment"


@dataclass(frozen=True)
class Cost:
    """Cost of one round: median seconds, CPU seconds of all processes, and bytes of all messages.

    CPU seconds are None but for a deployment, bytes are None in this process.
    """

    seconds: float
    cpu: float | None = None
    bytes: float | None = None


def measure_in_process(clients: int, folder: Path) -> Cost:
    """Train all clients as one stack, as `fedgram train` does."""
    (run,) = train(
        load_clients(DATASET, clients), "resmlp-small", ["proximal"], [0], TrainConfig(**SETTINGS),
        folder=folder, device="cpu",
    )  # fmt: skip
    return Cost(float(np.median(run.account.seconds)))


def measure_fedgram(clients: int, folder: Path, engine: str, **settings: object) -> Cost:
    """Run fedgram's apps on an engine."""
    sites = SitesConfig.from_dataset(DATASET, clients).with_settings(
        **SETTINGS, **settings, backbone="resmlp-small", procedure="proximal", out=str(folder / "runs"),
        reply_timeout=3600.0,
    )  # fmt: skip
    nodes = {site: sites.node_config(site) | {"device": "cpu"} for site in sites.nodes}
    return _run("fedgram", sites.run_config, nodes, folder, engine)


def measure_fedavg(clients: int, folder: Path, engine: str) -> Cost:
    """Run Flower's FedAvg of all layers on an engine."""
    problem = load_clients(DATASET, clients)
    rows = folder / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    for number, client in enumerate(problem.clients):
        own, test = problem.train[client], problem.test[client]
        np.savez(
            rows / f"{number}.npz", inputs=own.inputs, targets=own.targets, test_inputs=test.inputs,
            test_targets=test.targets,
        )  # fmt: skip
    sizes = {"inputs": own.inputs.shape[1], "targets": own.targets.shape[1], "clients": clients}
    config = SETTINGS | sizes | {"rows": str(rows), "learning-rate": TrainConfig().learning_rate}
    nodes = {f"client {number + 1}": {"partition-id": number} for number in range(clients)}
    return _run("fedavg", config, nodes, folder, engine)


def _run(app: str, config: Mapping, nodes: Mapping[str, Mapping], folder: Path, engine: str) -> Cost:
    result = folder / "result.json"
    written = write_app(folder / "app", {**config, "result": str(result)})
    shutil.copy(APPS / "counted_grid.py", written / "counted_grid.py")
    shutil.copy(APPS / f"{app}_app.py", written / "federation.py")
    is_simulation, spent = engine == SIMULATION, []

    def note_round(line: str) -> None:
        if ROUND.match(line):
            spent.append(_count_cpu_seconds(federation))

    with LocalFederation(folder / "federation", len(nodes), is_simulation=is_simulation) as federation:
        for name, node in () if is_simulation else nodes.items():
            federation.start_node(name, node)
        federation.wait_for_nodes()
        options = ("--federation-config", f"num-supernodes={len(nodes)}") if is_simulation else ()
        log = federation.run_app(written, *options, on_line=note_round)
    if not result.exists():
        raise RuntimeError("\n".join(line.text for line in log))
    cost = read_json(result)
    # Ray's workers come and go, so their CPU time is not known.
    cpu = None if is_simulation else (spent[-1] - spent[0]) / (len(spent) - 1)
    return Cost(float(np.median(cost["seconds"])), cpu, float(np.median(cost["bytes"])))


def _count_cpu_seconds(federation: LocalFederation) -> float:
    """Add up the CPU time of all programs and of their children, running or ended."""
    total = 0.0
    for each in federation.processes.running.values():
        root = psutil.Process(each.pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
