"""A federation over TLS with node authentication, in which one site is killed and restarted."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedgram.flower.deployment import LocalFederation
from fedgram.runs import Runs
from fedgram.runs.measure import measure

pytestmark = pytest.mark.slow

APP = Path(__file__).parents[2] / "examples" / "flower"
SITES = ("coast", "ridge", "valley")


def write_tables(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for m, name in enumerate(SITES):
        inputs = rng.standard_normal((80, 3))
        rows = np.hstack([inputs, np.tanh(inputs[:, :2]) + 0.3 * m])
        np.savetxt(folder / f"{name}.csv", rows, delimiter=",", header="a,b,c,y1,y2", comments="")


def test_federation_over_tls_survives_a_killed_node(tmp_path):
    write_tables(tmp_path)
    shutil.copytree(APP, tmp_path / "app")
    out = tmp_path / "runs"
    # The targets have no noise, so solved returns converge within three rounds.
    settings = (
        f"out='{out}' kind='GENERATED' procedure='solved+corrected+offset' rounds=3 epochs=5 "
        "reply-timeout=240.0"
    )
    with LocalFederation(tmp_path / "federation", len(SITES)) as federation:

        def start(name: str) -> None:
            config = {"table": str(tmp_path / f"{name}.csv"), "folder": str(tmp_path / "private")}
            federation.start_node(name, config | {"site": name, "device": "cpu"})

        def restart_valley_after_round_1(line: str) -> None:
            """Kill the node and its training; a new key lets it come back before the old connection ends."""
            if line.startswith("Round 1 of 3"):
                federation.stop_node("valley", grace=0)
                start("valley")

        for name in SITES:
            start(name)
        federation.wait_for_nodes()
        log = federation.run_app(
            tmp_path / "app", "--run-config", settings, on_line=restart_valley_after_round_1
        )
    text = "\n".join(line.text for line in log)
    (stored,) = Runs(out).require()
    assert stored.complete, text
    assert stored.setup.data.clients == SITES
    assert "Client 'valley' did not reply in round 2; using its last head." in text
    assert "Round 2 of 3: 2 of 3 clients replied" in text
    assert "Round 3 of 3: 3 of 3 clients replied" in text
    assert measure(stored).target_error[-1] < 0.05
