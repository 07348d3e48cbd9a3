"""What tests of Flower federations share: settings, procedures, and the in-process reference of tables."""

from pathlib import Path

import numpy as np
import pandas as pd
import psutil

from fedgram.data.encoding import Encoding
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.data.tables.read_rows import TableSpec, read_splits
from fedgram.flower import client_app
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import GridTransport
from fedgram.flower.server import run_server
from fedgram.flower.sites_file import SitesConfig
from fedgram.runs import StoredRun
from tests.helpers.flower_grid import MemoryGrid

SITES = ("coast", "ridge", "valley")
SETTINGS = {"rounds": 3, "epochs": 2, "batch": 16, "features": 6, "precision": "fp64"}
HEAD_SHARING = (
    "ordinary",
    "proximal+corrected",
    "solved+corrected+offset",
    "aligned+private",
    "centered+corrected+independent",
)


def read_standardized(path, spec: TableSpec) -> Problem:
    """Read a table and standardize it in one process, as `fedgram advise` does."""
    train, test, _ = read_splits(str(path), spec, 0, np.float64)
    return standardize(Problem("table", "GENERATED", train, test, tuple(spec.targets)))


def standardize(problem: Problem) -> Problem:
    """Standardize inputs and targets of a problem with pooled moments."""
    inputs, targets = (
        [f"{letter}{number}" for number in range(getattr(first, part).shape[1])]
        for first in [next(iter(problem.train.values()))]
        for letter, part in (("x", "inputs"), ("y", "targets"))
    )

    def columns(split: Split) -> dict:
        values = np.hstack([split.inputs, split.targets]).T
        return dict(zip([*inputs, *targets], values, strict=True))

    tables = {site: columns(split) for site, split in problem.train.items()}
    encoding = Encoding.fit(tables, inputs=inputs, targets=targets)

    def encode(part: dict[str, Split]) -> dict[str, Split]:
        return {
            site: Split(
                encoding.encode_inputs(columns(split), site), encoding.encode_targets(columns(split), site)
            )
            for site, split in part.items()
        }

    return Problem(
        problem.name, problem.kind, encode(problem.train), encode(problem.test), problem.target_names,
        validation=encode(problem.validation),
    )  # fmt: skip


def write_sites(folder: Path, rows: pd.DataFrame, sites_file: str) -> Path:
    """Write the rows of all sites, and the `sites.toml` that names them; return the table."""
    rows.to_csv(folder / "all.csv", index=False)
    (folder / "sites.toml").write_text(sites_file)
    return folder / "all.csv"


def run_sites(table: Path, **settings) -> StoredRun:
    """Run the federation of `write_sites` in this process; private folders are next to the table."""
    sites = SitesConfig.read(table.with_name("sites.toml")).with_settings(
        out=str(table.with_name("server")), backbone="resmlp-small", **settings
    ).with_summaries()  # fmt: skip
    private = str(table.with_name("private"))
    nodes = {
        number: {**sites.node_config(name), "device": "cpu", "folder": private}
        for number, name in enumerate(sites.nodes, start=7)
    }
    grid = MemoryGrid(client_app(), SETTINGS | {"reply-timeout": 1e-3} | sites.run_config, nodes)
    return run_server(GridTransport(grid, 0.0), FederationConfig.from_run_config(grid.config))


def is_running(program: str, process: psutil.Process) -> bool:
    """Whether a process runs a program."""
    try:
        return program in " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return False
