"""Flower's simulation: a node's number selects its site, and the numbers are those of the trainer."""

from pathlib import Path

import numpy as np
import pytest

from fedgram._util.errors import InputError
from fedgram.data.tables.read_rows import TableSpec
from fedgram.flower import client_app
from fedgram.flower.config import FederationConfig
from fedgram.flower.deployment import LocalFederation, federate, write_app
from fedgram.flower.messages import GridTransport
from fedgram.flower.server import run_server
from fedgram.flower.sites_file import SitesConfig
from fedgram.runs import Runs
from fedgram.runs.procedure import Procedure
from fedgram.runs.train_config import TrainConfig
from fedgram.training import train
from tests.helpers.federations import HEAD_SHARING, SETTINGS, SITES, read_standardized
from tests.helpers.flower_grid import MemoryGrid

SHORT = SETTINGS | {"rounds": 2}
PROCEDURES = (*HEAD_SHARING, "full-model")


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    """Write one table of three sites, and a sites.toml file for it."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    lines = ["site,a,b,c,y1,y2"]
    for m, name in enumerate(SITES):
        inputs = rng.standard_normal((60 + m, 3))
        rows = np.hstack([inputs, np.tanh(inputs[:, :2]) + 0.3 * m])
        lines += [f"{name}," + ",".join(map(repr, row.tolist())) for row in rows]
    (folder / "rows.csv").write_text("\n".join(lines))
    sites = "".join(f"[sites.{name}]\n" for name in SITES)
    (folder / "sites.toml").write_text(
        'kind = "GENERATED"\ninputs = ["a", "b", "c"]\ntargets = ["y1", "y2"]\nbackbone = "resmlp-small"\n'
        f'precision = "fp64"\ntable = "rows.csv"\ncolumn = "site"\ndevice = "cpu"\n{sites}'
    )
    return folder


def run_config(tables: Path, out: Path, **others) -> dict:
    """Return the run config of an app whose simulated nodes read sites.toml."""
    sites = SitesConfig.read(tables / "sites.toml")
    return sites.run_config | SHORT | {"out": str(out), "reply-timeout": 1e-3} | others


def train_alone(tables: Path, folder: Path, procedures, **others) -> dict:
    problem = read_standardized(tables / "rows.csv", TableSpec("site", ["a", "b", "c"], ["y1", "y2"]))
    settings = TrainConfig(**SHORT | others)
    runs = train(problem, "resmlp-small", procedures, [0], settings, folder=folder, device="cpu")
    return {run.setup.procedure.name: run for run in runs}


def assert_same_rounds(run, reference) -> None:
    assert run.complete
    for one, other in zip(run.rounds(), reference.rounds(), strict=True):
        for name, value in vars(one).items():
            np.testing.assert_allclose(value, vars(other)[name], rtol=1e-10, atol=1e-10, err_msg=name)


def simulated_grid(config: dict, nodes: int = 3) -> MemoryGrid:
    """Build nodes with the config that the simulation engine gives them."""
    configs = {11 + m: {"partition-id": m, "num-partitions": nodes} for m in range(nodes)}
    return MemoryGrid(client_app(), config, configs)


def serve(grid: MemoryGrid):
    settings = FederationConfig.from_run_config(grid.config)
    return run_server(GridTransport(grid, settings.reply_timeout), settings)


def test_simulated_nodes_train_like_the_stack(tables, tmp_path):
    procedure, short = "proximal+corrected", {"rounds": 1, "epochs": 1}
    run = serve(simulated_grid(run_config(tables, tmp_path, procedure=procedure, **short)))
    assert run.setup.data.clients == SITES
    assert_same_rounds(run, *train_alone(tables, tmp_path / "stack", [procedure], **short).values())
    assert {path.name for path in (tmp_path / "private").iterdir() if path.is_dir()} == set(SITES)


@pytest.mark.parametrize(
    ("nodes", "changes", "words"),
    [
        (3, {"sites": ""}, "has no 'site' and 'table' in its node config.*'sites' in the run config of a"),
        (4, {}, "rejected the 'query' message: see the log of site 'at node 14'"),
        (3, {"sites": "/nowhere/sites.toml"}, "rejected the 'query' message: see the log of site 'at node"),
    ],
    ids=["no sites", "too many nodes", "no file"],
)
def test_mistakes_in_a_simulation_are_named(tables, tmp_path, nodes, changes, words):
    with pytest.raises(InputError, match=words):
        serve(simulated_grid(run_config(tables, tmp_path, clients=4, **changes), nodes))


def test_missing_ray_is_named(tables, monkeypatch):
    monkeypatch.setattr("fedgram.flower.deployment.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'Ray is not installed. Run: pip install "fedgram\[simulation\]"'):
        federate(SitesConfig.read(tables / "sites.toml"), is_simulation=True)


@pytest.mark.slow
def test_simulation_engine_matches_the_trainer(tables, tmp_path):
    """One SuperLink runs all procedures, one after another."""
    pytest.importorskip("ray")
    out = tmp_path / "runs"
    with LocalFederation(tmp_path / "federation", 3, is_simulation=True) as federation:
        for number, procedure in enumerate(PROCEDURES):
            config = run_config(tables, out, procedure=procedure, **{"reply-timeout": 240.0})
            app = write_app(tmp_path / f"app-{number}", config)
            log = federation.run_app(app, "--federation-config", "num-supernodes=3")
            assert len(Runs(out).require()) == number + 1, log
    references = train_alone(tables, tmp_path / "stack", PROCEDURES)
    runs = {run.setup.procedure.name: run for run in Runs(out).require()}
    for procedure in PROCEDURES:
        name = Procedure.parse(procedure).name
        assert_same_rounds(runs[name], references[name])
