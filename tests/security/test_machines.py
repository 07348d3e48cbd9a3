"""Machines that fail: full disks, killed SuperLinks, closed pipes, old locales."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedgram import Moments
from fedgram._util.errors import InputError
from fedgram.data.split import Split
from fedgram.flower import Site, client_app
from fedgram.flower.config import FederationConfig
from fedgram.flower.deployment import federate
from fedgram.flower.messages import GridTransport
from fedgram.flower.server import run_server
from fedgram.flower.sites_file import SitesConfig
from fedgram.runs import Runs
from tests.helpers.federations import SETTINGS, SITES, is_running
from tests.helpers.flower_grid import MemoryGrid
from tests.helpers.scripted_sites import ScriptedGrid, targets


def fill_disk(monkeypatch, is_full):
    """Let renames to a path fail, as they do on a full disk, where `is_full(path)`."""
    real = os.replace

    def replace(temporary, path):
        if is_full(Path(path)):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(temporary, path)

    monkeypatch.setattr(os, "replace", replace)


@pytest.mark.parametrize(
    "name",
    [
        "federation.safetensors",
        pytest.param("manifest.json", marks=pytest.mark.slow),
        pytest.param("round-02.safetensors", marks=pytest.mark.slow),
    ],
)
def test_full_disk_at_the_server_ends_the_run_with_a_sentence_and_is_resumed(tmp_path, monkeypatch, name):
    whole = ScriptedGrid(tmp_path / "whole", rounds=2).serve()
    grid, writes = ScriptedGrid(tmp_path / "full", rounds=2), []

    def is_full(path):
        writes.append(path.name)
        return path.name == name and "round-01.safetensors" in writes and "round-02.safetensors" in writes

    with monkeypatch.context() as patch:
        fill_disk(patch, is_full)
        with pytest.raises(InputError, match="No space left on device"):
            grid.serve()
    run = grid.serve()
    assert run.complete
    for one, other in zip(run.rounds(), whole.rounds(), strict=True):
        np.testing.assert_array_equal(one.head, other.head)


def test_full_disk_at_a_site_leaves_it_absent(tmp_path, monkeypatch, caplog):
    rows, inputs = targets(), np.random.default_rng(0).standard_normal((80, 3)).astype(np.float32)

    def site(context):
        name = str(context.node_config["site"])
        return Site(name, Split(inputs, rows[name]), backbone="resmlp-small", folder=tmp_path / "private",
                    device="cpu")  # fmt: skip

    config = {"clients": 3, "procedure": "proximal", "reply-timeout": 1e-3, "out": str(tmp_path / "server")}
    config |= SETTINGS | {"rounds": 2, "epochs": 1}
    grid = MemoryGrid(client_app(site), config, {m: {"site": name} for m, name in enumerate(SITES, start=11)})
    with monkeypatch.context() as patch:
        fill_disk(patch, lambda path: "ridge" in path.parts and path.name == "round-02.safetensors")
        run = run_server(GridTransport(grid, 0.0), FederationConfig.from_run_config(config))
    assert run.complete
    assert "No space left on device" in caplog.text  # in the site's log
    assert "Client 'ridge' did not reply in round 2; using its last head." in caplog.text
    assert not list((tmp_path / "private").rglob(".*.tmp"))


@pytest.mark.parametrize("command", [("data", "list"), ("--help",)], ids=" ".join)
@pytest.mark.slow
def test_closed_pipe_is_no_error(command):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "fedgram", *command], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_names_that_the_locale_lacks_are_escaped(tmp_path):
    path = tmp_path / "zürich.json"
    Moments(
        count=[50, 60], mean=[[0.0], [1.0]], covariance=[[[1.0]], [[2.0]]], clients=("Zürich", "Τρίπολη"),
        targets=("PM₂",),
    ).save(path)  # fmt: skip
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "fedgram", "explain", str(path)]
    done = subprocess.run(command, env=os.environ | plain, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    done.stdout.decode("ascii")


@pytest.mark.slow
def test_killed_superlink_ends_the_command_and_the_run_is_resumed(tmp_path):
    """The SuperLink is killed after the first round; the same command trains the second."""
    lines = []
    sites = SitesConfig.from_dataset("swimmer-mini", 2).with_settings(
        out=str(tmp_path), procedure="proximal", rounds=2, epochs=1, features=6, backbone="resmlp-small",
        reply_timeout=240.0,
    )  # fmt: skip

    def kill_link(line):
        lines.append(line)
        if line.startswith("Round 1 of 2"):
            family = psutil.Process().children(recursive=True)
            link, *_ = (each for each in family if is_running("flower-superlink", each))
            link.kill()

    with pytest.raises(InputError, match=r"'superlink' ended while waiting for the run|did not finish"):
        federate(sites, on_line=kill_link)
    (stopped,) = Runs(tmp_path).require()
    assert stopped.account.rounds == 1
    lines.clear()
    run = federate(sites, on_line=lines.append)
    assert run.complete
    assert "Resuming after round 1 of 2." in lines
