"""A federation over TLS: a SuperLink and three SuperNodes, one of which is killed and restarted."""

import datetime
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedgram.runs import Runs
from fedgram.runs.measure import measure

pytestmark = pytest.mark.slow

APP = Path(__file__).parents[2] / "examples" / "flower"
SITES = ("coast", "ridge", "valley")
BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def write_certificate(folder: Path) -> None:
    """Write a self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "server.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    (folder / "server.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))


@contextmanager
def process(folder: Path, name: str, *command: str):
    """Run a Flower program with its own home and log; kill it at the end."""
    home = folder / f"home-{name}"
    home.mkdir(exist_ok=True)
    environment = os.environ | QUIET | {"FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}
    with (folder / f"{name}.log").open("a") as log:
        running = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]], cwd=folder, env=environment, stdout=log, stderr=log
        )
        try:
            yield running
        finally:
            running.kill()
            running.wait()


def write_tables(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for m, name in enumerate(SITES):
        inputs = rng.standard_normal((80, 3))
        rows = np.hstack([inputs, np.tanh(inputs[:, :2]) + 0.3 * m])
        np.savetxt(folder / f"{name}.csv", rows, delimiter=",", header="a,b,c,y1,y2", comments="")


def wait_for(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timeout after {seconds} s"
        time.sleep(0.5)


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_federation_over_tls_survives_a_killed_node(tmp_path):
    write_certificate(tmp_path)
    write_tables(tmp_path)
    shutil.copytree(APP, tmp_path / "app")
    port, *node_ports = free_ports(1 + len(SITES))
    address = f"127.0.0.1:{port}"
    home = tmp_path / "home-run"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "sites"\n[superlink.sites]\naddress = "{address}"\n'
        f'root-certificates = "{tmp_path / "server.pem"}"\n'
    )
    secure = (
        "--ssl-ca-certfile", "server.pem", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"
    )  # fmt: skip

    def node(name: str):
        config = f"table='{tmp_path / name}.csv' site='{name}' folder='{tmp_path / 'private'}' device='cpu'"
        return process(
            tmp_path, name, "flower-supernode", "--superlink", address, "--root-certificates", "server.pem",
            "--host", "127.0.0.1", "--port", str(node_ports[SITES.index(name)]), "--node-config", config,
        )  # fmt: skip

    out = tmp_path / "runs"
    with ExitStack() as running:
        running.enter_context(
            process(tmp_path, "link", "flower-superlink", "--host", "127.0.0.1", "--port", str(port), *secure)
        )
        wait_for(lambda: is_listening(port), 120)
        for name in SITES[:2]:
            running.enter_context(node(name))
        with node("valley"):
            # The targets have no noise, so solved returns converge within three rounds.
            settings = (
                f"out='{out}' kind='GENERATED' procedure='solved+corrected+offset' rounds=3 epochs=5 "
                "reply-timeout=240.0"
            )
            run = running.enter_context(
                process(tmp_path, "run", "flwr", "run", "app", "sites", "--stream", "--run-config", settings)
            )
            wait_for(lambda: list(out.rglob("round-01.safetensors")), 240)
        running.enter_context(node("valley"))
        wait_for(lambda: run.poll() is not None, 800)
    log = (tmp_path / "run.log").read_text()
    (stored,) = Runs(out).require()
    assert stored.complete, log
    assert stored.setup.data.clients == SITES
    assert "Client 'valley' did not reply in round 2; using its last head." in log
    assert "Round 2 of 3: 2 of 3 clients replied" in log
    assert "Round 3 of 3: 3 of 3 clients replied" in log
    assert measure(stored).target_error[-1] < 0.05
