"""A Flower federation on this machine: TLS, node authentication, one process per site.

`LocalFederation` starts a SuperLink and SuperNodes and waits until each of them is ready. `federate` runs the
server app on them, or on Flower's simulation engine, and returns the stored run.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from io import SEEK_CUR
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self
from urllib.error import URLError
from urllib.request import urlopen

import tomli_w
import torch

from fedgram._util.errors import InputError
from fedgram._util.locks import lock_folders
from fedgram._util.text import dropped_rows_message
from fedgram.flower.app import STARTED
from fedgram.flower.certificates import LOCALHOST, write_certificate, write_node_key
from fedgram.flower.client_state import folder_name
from fedgram.flower.config import FederationConfig
from fedgram.flower.processes import ANSI, GRACE, Processes, interrupt_on_termination
from fedgram.flower.secure_server import check_secure
from fedgram.flower.site import Site
from fedgram.flower.sites_file import SitesConfig, read_site
from fedgram.nets.model import draw_example
from fedgram.runs import Runs, StoredRun
from fedgram.runs.secure_record import SecureRecord
from fedgram.training.devices import resolve_device

START_TIMEOUT = 120.0
"""Seconds until a SuperLink or a SuperNode must be ready; on two busy cores it took 4 to 15 s."""
MOST_RESTARTS = 3
"""Restarts of a SuperNode in a run: one that cannot run would end again and again."""
CONNECTION = "local"
"""Name of the SuperLink in Flower's configuration file."""
LINK, RUN, COMMAND = "superlink", "run", "command"
"""Names of the programs that are not sites: the server, the run, and other `flwr` commands."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # fedgram is already installed
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # keep the GPUs of actors that ask for none
}
APP = """from fedgram.flower import client_app, server_app

server = server_app()
client = client_app()
"""
"""The app's module. Flower looks for plain assignments."""
LOG_LINE = re.compile(r"(INFO|WARNING|ERROR)\s*:\s*(.*)")
FINISHED = "Run finished."
"""Start of the server app's last line."""


class LogLine(NamedTuple):
    """A line of a run's log; the level is empty if the line has none."""

    level: str
    text: str


OnLine = Callable[[str], None]


def ignore_line(line: str) -> None:
    """Show nothing of a log."""


class LocalFederation:
    """A SuperLink on this machine; leaving the context stops it and everything that it started.

    Parameters
    ----------
    folder : Path
        Keys, certificates, Flower's files and the logs of all programs.
    sites : int
        Number of sites that share this machine's cores.
    is_simulation : bool
        Run all sites in Flower's simulation engine instead of SuperNodes.
    """

    def __init__(self, folder: Path, sites: int, *, is_simulation: bool = False) -> None:
        self.folder, self.is_simulation = folder, is_simulation
        # Sites train at the same time. With the threads of all cores each, they slow each other down.
        self.threads = max(1, torch.get_num_threads() // sites)
        self.processes = Processes(folder, QUIET)
        self.port = find_free_port()
        self.node_configs: dict[str, Mapping[str, Any]] = {}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate = write_certificate(self.folder)
        connection = {"address": self.address, "root-certificates": str(self.certificate.public)}
        config = tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: connection}})
        (self._make_home(COMMAND) / "config.toml").write_text(config, encoding="utf-8")
        with ExitStack() as stack:
            stack.enter_context(self.processes)
            self._start_link()
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.processes.__exit__(*error)

    @property
    def address(self) -> str:
        """Host and port of the SuperLink."""
        return f"{LOCALHOST}:{self.port}"

    def start_node(self, site: str, node_config: Mapping[str, Any]) -> None:
        """Register a new key and start a SuperNode with it; `wait_for_nodes` waits until it is connected."""
        self.node_configs[site] = node_config
        self.processes.log(_program_name(site)).write_bytes(b"")  # tells whether this process is connected
        self._launch_node(site)

    def _launch_node(self, site: str) -> None:
        name = _program_name(site)
        key = write_node_key(self.folder, name)
        self.run_flwr("supernode", "register", str(key.public), CONNECTION)
        config = self.folder / f"{name}.toml"
        config.write_text(tomli_w.dumps(dict(self.node_configs[site])), encoding="utf-8")
        self._start(
            name, "flower-supernode", "--superlink", self.address, "--root-certificates",
            str(self.certificate.public), "--auth-supernode-private-key", str(key.private), "--host",
            LOCALHOST, "--port", str(find_free_port()), "--node-config", str(config), home=name,
            OMP_NUM_THREADS=str(self.threads),
        )  # fmt: skip

    def _restart_ended_nodes(self, restarts: Counter[str], on_line: OnLine) -> None:
        """Restart ended SuperNodes with new keys: Flower refuses an old one until heartbeats are missed."""
        for site in self.node_configs:
            name = _program_name(site)
            if name not in self.processes.running or not self.processes.has_ended(name):
                continue
            if restarts[site] == MOST_RESTARTS:
                raise InputError(
                    f"The SuperNode of site '{site}' ended {MOST_RESTARTS + 1} times. Its log is "
                    f"'{self.processes.log(name)}'.",
                    field="sites",
                )
            restarts[site] += 1
            on_line(f"The SuperNode of site '{site}' ended; starting it again.")
            self.stop_node(site)
            self._launch_node(site)

    def stop_node(self, site: str, *, grace: float = GRACE) -> None:
        """Stop a SuperNode and what it started; without grace it is killed, as in a crash."""
        self.processes.stop(_program_name(site), grace=grace)

    def wait_for_nodes(self) -> None:
        """Wait until every SuperNode is connected."""
        for name in self.processes.running:
            if name not in (LINK, RUN, COMMAND):
                is_connected = partial(self._has_logged, name, b"SuperNode ID:")
                self.processes.wait_until(is_connected, f"the SuperNode '{name}'", START_TIMEOUT)

    def run_flwr(self, *command: str) -> str:
        """Run a `flwr` command to its end; return its output."""
        log = self.processes.log(COMMAND)
        log.write_bytes(b"")
        self._start(COMMAND, "flwr", *command, home=COMMAND)
        has_ended = partial(self.processes.has_ended, COMMAND)
        self.processes.wait_until(has_ended, f"'flwr {command[0]}'", START_TIMEOUT, needs=[LINK])
        code, output = self.processes.running[COMMAND].returncode, log.read_text(errors="replace")
        self.processes.stop(COMMAND)
        if code:
            raise InputError(
                f"'flwr {' '.join(command[:2])}' failed: {ANSI.sub('', output).strip()}", field="flwr"
            )
        return output

    def run_app(self, app: Path, *options: str, on_line: OnLine = ignore_line) -> list[LogLine]:
        """Run an app to its end; return its log, and pass what the app itself logs to `on_line`.

        SuperNodes that end are started again.
        """
        self.processes.log(RUN).write_bytes(b"")
        self._start(RUN, "flwr", "run", str(app), CONNECTION, "--stream", *options, home=COMMAND)
        lines: list[LogLine] = []
        restarts: Counter[str] = Counter()
        with self.processes.log(RUN).open("rb") as log:

            def read_lines() -> bool:
                has_ended = self.processes.has_ended(RUN)  # before reading, so that nothing is left unread
                for line in _read_complete_lines(log, has_ended):
                    if line.level in ("INFO", "WARNING") and line.text and _has_started(lines):
                        on_line(line.text)
                    lines.append(line)
                if not has_ended:
                    self._restart_ended_nodes(restarts, on_line)
                return has_ended

            self.processes.wait_until(read_lines, "the run", float("inf"), needs=[LINK])
        self.processes.stop(RUN)
        return lines

    def _start_link(self) -> None:
        certificate, key = map(str, self.certificate)
        mode = ["--simulation"] if self.is_simulation else ["--enable-supernode-auth"]
        self._start(
            LINK, "flower-superlink", "--host", LOCALHOST, "--port", str(self.port), "--ssl-ca-certfile",
            certificate, "--ssl-certfile", certificate, "--ssl-keyfile", key, *mode, home=LINK,
        )  # fmt: skip
        context = ssl.create_default_context(cafile=certificate)
        self.processes.wait_until(
            lambda: _is_healthy(f"https://{self.address}/health", context), "the SuperLink", START_TIMEOUT
        )

    def _start(self, name: str, *command: str, home: str, **environment: str) -> None:
        environment |= {"FLWR_HOME": str(self._make_home(home))}
        self.processes.start(name, *command, environment=environment)

    def _make_home(self, name: str) -> Path:
        """Create a folder for a program's Flower files; two programs must not unpack one app together."""
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _has_logged(self, name: str, text: bytes) -> bool:
        return text in self.processes.log(name).read_bytes()


def federate(
    sites: SitesConfig,
    *,
    is_simulation: bool = False,
    on_line: OnLine = ignore_line,
) -> StoredRun | SecureRecord:
    """Run a federation on this machine, and stop everything that it started.

    Parameters
    ----------
    sites : SitesConfig
        Its run config names the folder `out` of the runs. Logs and keys go to `out`/federation.
    is_simulation : bool
        Run all sites in Flower's simulation engine, which needs Ray, instead of one SuperNode per site.
    on_line : callable, optional
        Receives the lines of the server's log when they arrive.

    Returns
    -------
    StoredRun, or SecureRecord with secure = true
        A second call with the same settings resumes a run that was stopped.

    Raises
    ------
    InputError
        With the server's reason if the run fails.
    """
    if is_simulation and find_spec("ray") is None:
        raise InputError('Ray is not installed. Run: pip install "fedgram[simulation]".', field="ray")
    out = Path(str(sites.run_config.get("out", "runs"))).absolute()
    sites = sites.with_settings(out=str(out)).with_summaries()
    config = FederationConfig.from_run_config(sites.run_config)
    if config.secure:
        check_secure(config)
    dropped = 0
    for name in sites.nodes:  # bad settings and tables are refused before anything starts
        rows = read_site(sites.node_config(name), sites.run_config)
        # These check targets, backbone and device as the site will.
        _ = rows.hold_out_validation(config.validation_fraction).moments
        draw_example(rows.backbone, rows.train, config.settings.features)
        resolve_device(rows.device)
        _check_folder(rows)
        dropped += rows.dropped_rows
    if dropped:
        on_line(dropped_rows_message(dropped))
    folder, number = out / "federation", len(sites.nodes)
    # A second command in the same folder would replace the keys and logs of this one.
    with interrupt_on_termination(), ExitStack() as stack:
        stack.enter_context(lock_folders([folder]))
        what = "a simulation of" if is_simulation else "a SuperLink and"
        on_line(f"Starting {what} {number} sites to train '{config.run.procedure.name}'.")
        federation = stack.enter_context(LocalFederation(folder, number, is_simulation=is_simulation))
        app = write_app(folder / "app", sites.run_config)
        if is_simulation:
            options = ["--federation-config", f"num-supernodes={number}"]
        else:
            options = []
            for site in sites.nodes:
                federation.start_node(site, sites.node_config(site))
            federation.wait_for_nodes()
            on_line(f"All {number} sites are connected.")
        lines = federation.run_app(app, *options, on_line=on_line)
    run = _load_run(config)
    has_finished = any(line.text.startswith(FINISHED) for line in lines)
    if run is None or not has_finished:  # a server that refuses other settings leaves a finished run alone
        raise InputError(_find_reason(lines, folder), field="run")
    return run


def _check_folder(site: Site) -> None:
    """Reject a private folder that is a file, or below one."""
    for path in (site.own_folder, *site.own_folder.parents):
        if path.exists() and not path.is_dir():
            raise InputError(
                f"The private folder of site '{site.name}' cannot be made: '{path}' is a file. Use another "
                "'folder'.",
                client=site.name,
                field="folder",
            )


def _load_run(config: FederationConfig) -> StoredRun | SecureRecord | None:
    runs, name = Runs(config.out), (config.name, config.backbone, config.run)
    return SecureRecord.load(runs.folder(*name)) if config.secure else runs.load(*name)


def write_app(folder: Path, run_config: Mapping[str, Any]) -> Path:
    """Write a Flower app with this run config."""
    folder.mkdir(parents=True, exist_ok=True)
    app = {
        "publisher": "fedgram",
        "components": {"serverapp": "federation:server", "clientapp": "federation:client"},
        "config": dict(run_config),
    }
    project = {"name": "fedgram-federation", "version": "1.0.0", "description": "", "license": "Apache-2.0"}
    build = {"requires": ["hatchling"], "build-backend": "hatchling.build"}
    document = {"build-system": build, "project": project, "tool": {"flwr": {"app": app}}}
    (folder / "pyproject.toml").write_text(tomli_w.dumps(document), encoding="utf-8")
    (folder / "federation.py").write_text(APP, encoding="utf-8")
    return folder


def find_free_port() -> int:
    """Find a port that no program listens on."""
    with socket.socket() as found:
        found.bind((LOCALHOST, 0))
        return int(found.getsockname()[1])


def _program_name(site: str) -> str:
    return f"site-{folder_name(site)}"


def _is_healthy(url: str, context: ssl.SSLContext) -> bool:
    with suppress(URLError, OSError), urlopen(url, timeout=5, context=context) as response:
        return bool(response.status == 200)
    return False


def _read_complete_lines(log: BinaryIO, is_last: bool) -> Iterator[LogLine]:
    """Read the lines that are complete, without Flower's colors."""
    while content := log.readline():
        if not content.endswith(b"\n") and not is_last:
            log.seek(-len(content), SEEK_CUR)
            return
        text = ANSI.sub("", content.decode(errors="replace")).rstrip()
        found = LOG_LINE.match(text)
        yield LogLine(found[1], found[2]) if found else LogLine("", text)


def _has_started(lines: list[LogLine]) -> bool:
    return any(line.text == STARTED for line in lines)


def _find_reason(lines: list[LogLine], folder: Path) -> str:
    """Return the first error of the server app, or all that Flower wrote if the app did not start."""
    errors = [line.text for line in lines if line.level == "ERROR"]
    if errors and _has_started(lines):
        return errors[0]
    return (
        f"The run did not finish: {' '.join(line.text for line in lines).strip()} The logs are in '{folder}'."
    )
