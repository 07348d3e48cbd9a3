"""`fedgram federate`: sites.toml, the processes of a local federation, and the command itself."""

import logging
import os
import re
import signal
import ssl
import stat
import subprocess
import sys
import time
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from fedgram import read_moments
from fedgram._util.errors import InputError
from fedgram._util.locks import lock_folders
from fedgram.data.tables.read_rows import TableSpec, read_table
from fedgram.flower import Site, deployment, server_app
from fedgram.flower.app import STARTED
from fedgram.flower.certificates import write_certificate, write_node_key
from fedgram.flower.config import FederationConfig
from fedgram.flower.deployment import MOST_RESTARTS, LocalFederation, LogLine, federate, write_app
from fedgram.flower.processes import Processes, interrupt_on_termination
from fedgram.flower.server import ALREADY_FINISHED
from fedgram.flower.sites_file import SitesConfig, load_clients, read_site
from fedgram.runs.advice import AUTO
from fedgram.runs.train_config import TrainConfig
from fedgram.training import train
from tests.helpers.command import fedgram
from tests.helpers.federations import is_running, read_standardized

ROWS = {"coast": 40, "ridge": 30, "new york": 25}


@pytest.fixture
def tables(tmp_path) -> Path:
    """Write one table for all sites, one for the coast alone, and a sites.toml file that uses both."""
    rng = np.random.default_rng(0)
    lines = {name: rng.standard_normal((rows, 4)) + m for m, (name, rows) in enumerate(ROWS.items())}
    text = {name: [",".join(map(repr, row.tolist())) for row in rows] for name, rows in lines.items()}
    every = [f"{name},{line}" for name, rows in text.items() for line in rows]
    (tmp_path / "all.csv").write_text("\n".join(["town,a,b,y1,y2", *every]))
    (tmp_path / "coast.csv").write_text("\n".join(["a,b,y1,y2", *text["coast"]]))
    (tmp_path / "sites.toml").write_text(
        'name = "towns"\nkind = "GENERATED"\ninputs = ["a", "b"]\ntargets = ["y1", "y2"]\nrounds = 2\n'
        'epochs = 2\nfeatures = 6\nprecision = "fp64"\nbackbone = "resmlp-small"\ndevice = "cpu"\n'
        '[sites.coast]\ntable = "coast.csv"\n'
        '[sites.ridge]\ntable = "all.csv"\ncolumn = "town"\n'
        '[sites.york]\ntable = "all.csv"\ncolumn = "town"\nvalue = "new york"\n'
    )
    return tmp_path


def test_sites_file_names_the_rows_of_every_site(tables):
    sites = SitesConfig.read(tables / "sites.toml").with_settings(out=str(tables), rounds=None, seed=3)
    settings = FederationConfig.from_run_config(sites.run_config)
    assert (settings.name, settings.clients, settings.run.seed) == ("towns", 3, 3)
    assert settings.row_selection["inputs"] == ["a", "b"]
    together = read_table(str(tables / "all.csv"), TableSpec("town", ["a", "b"], ["y1", "y2"]), seed=0)
    for name, town in {"coast": "coast", "ridge": "ridge", "york": "new york"}.items():
        site = read_site(sites.node_config(name), sites.run_config)
        assert site.folder == str(tables / "private")
        assert len(site.train) == round(0.8 * ROWS[town])
        if name == town:  # the name draws the test rows
            np.testing.assert_array_equal(site.train.inputs.astype(np.float32), together.train[town].inputs)
            np.testing.assert_array_equal(site.test.targets, together.test[town].targets)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("inputs =", "input ="), "Unknown key in '.*sites.toml': 'input'. Use 'inputs'"),
        (('table = "coast.csv"', ""), r"\[sites.coast\] of '.*' needs a table. Add table = "),
        (('table = "coast.csv"', "table = 3"), r"\[sites.coast\] of '.*' needs a table"),
        (('table = "coast.csv"', 'table = "coast.csv"\nfolder = 3'), "Invalid 'folder' of .*: 3. Use a path"),
        (('value = "new york"', 'value = ["new york"]'), r"Invalid 'value' of \[sites.york\] .* Use text"),
        (('column = "town"\nvalue', "value"), r"\[sites.york\] of '.*' has a value, but no column"),
        (
            ('column = "town"', 'column = ["town"]'),
            r"Invalid 'column' of \[sites.ridge\] .* Use text in quotes",
        ),
        (("rounds = 2", "clients = 2"), "'clients' of '.*' applies to a dataset"),
        (("rounds = 2", 'dataset = "swimmer-mini"'), "'sites' has no effect next to 'dataset'"),
        (("column =", "colum ="), r"Unknown key in \[sites.ridge\] of '.*': 'colum'. Use 'column'"),
        (("[sites.", "[site."), "Unknown key in '.*': 'site'. Use 'sites'"),
        (("[sites.", "[sites.coast."), "needs at least two sites"),
        (("rounds = 2", "rounds = "), "Cannot parse '.*sites.toml' as TOML"),
        (("rounds = 2", "quarantine = 2"), "Unknown key in '.*': 'quarantine'. Known keys are "),
    ],
)
def test_mistakes_in_a_sites_file_are_named(tables, change, words):
    path = tables / "sites.toml"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match=words):
        SitesConfig.read(path)
    assert fedgram("federate", path).returncode == 2


@pytest.mark.parametrize(
    ("line", "options", "expected"),
    [
        ("", (), AUTO),
        ('procedure = "aligned"\n', (), "aligned"),
        ("", ("--procedure", "proximal"), "proximal"),
    ],
)
def test_recommended_procedure_is_the_default(tables, monkeypatch, line, options, expected):
    found = []

    def refuse(sites, **others):
        found.append(sites.run_config["procedure"])
        raise InputError("enough")

    monkeypatch.setattr(deployment, "federate", refuse)
    path = tables / "sites.toml"
    path.write_text(line + path.read_text())
    assert fedgram("federate", path, *options).returncode == 2
    assert found == [expected]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"new york"', '"New Yrok"'), "No row has the value 'New Yrok' in the column 'town' of "),
        (('"new york"', "5"), "which has 'coast', 'new york', 'ridge'. Correct 'value' (default: the site's"),
        (('"town"', '"twon"'), "No column 'twon' in "),
        (("sites.york", 'sites."ridge "'), "The site names 'ridge', 'ridge ' in "),
    ],
)  # fmt: skip
def test_rows_that_do_not_exist_are_named(tables, change, words):
    path = tables / "sites.toml"
    path.write_text(path.read_text().replace(*change))
    code, _, err = fedgram("federate", path, "--out", tables / "runs")
    assert code == 2
    assert words in err
    assert "condition" not in err


@pytest.mark.parametrize(
    ("values", "value"),
    [
        ([3.0, 4.0], 3),  # advise calls it '3', too
        ([3, 4], 3.0),
        ([True, False], "True"),
        (["True", "no"], "True"),
        (["2020-1-1", "2020-1-2"], "2020-1-1"),
        (["oslo\t", "bergen"], "oslo"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_site_is_found_by_the_name_that_training_gives_it(tmp_path, values, value, suffix):
    if suffix == "csv" and values[0] == 3.0:
        values = [int(each) for each in values]  # '3.0' is another text than '3'
    rows = pd.DataFrame({"site": values * 20, "x": np.arange(40.0), "y": np.arange(40.0) % 7})
    rows.to_csv(tmp_path / "t.csv", index=False)
    rows.to_parquet(tmp_path / "t.parquet")
    nodes = {"table": str(tmp_path / f"t.{suffix}"), "site": "here", "column": "site", "value": value}
    site = Site.from_config(nodes, {"inputs": "x", "targets": "y", "test-fraction": 0.0})
    np.testing.assert_array_equal(site.train.inputs[:, 0], np.arange(0.0, 40, 2))
    clients = read_moments(nodes["table"], client="site", targets=["y"]).clients
    assert str(value).removesuffix(".0") in clients


def test_names_that_differ_by_blanks_are_refused_as_in_training(tables):
    text = (tables / "all.csv").read_text().replace("ridge,", "ridge ,", 1)
    (tables / "all.csv").write_text(text)
    code, _, err = fedgram("federate", tables / "sites.toml", "--out", tables / "runs")
    assert code == 2
    assert "The client names 'ridge', 'ridge ' in the column 'town' of " in err


def test_blanks_around_names_of_sites_do_not_count(tables):
    path = tables / "sites.toml"
    plain = SitesConfig.read(path)
    (tables / "all.csv").write_text((tables / "all.csv").read_text().replace("ridge,", "ridge ,"))
    path.write_text(path.read_text().replace("[sites.ridge]", '[sites." ridge"]'))
    site = read_site(SitesConfig.read(path).node_config(" ridge"), plain.run_config)
    assert (site.name, len(site.train)) == ("ridge", round(0.8 * ROWS["ridge"]))


def test_missing_table_starts_nothing(tables, monkeypatch):
    monkeypatch.setattr(deployment, "LocalFederation", None)
    (tables / "all.csv").unlink()
    code, _, err = fedgram("federate", tables / "sites.toml", "--out", tables / "runs")
    assert code == 2
    assert re.search(r"No such file or folder: '.*all\.csv'", err)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["1,2,3,4"], r"Client 'coast' has 1 row, but it needs at least 3"),
        ([f"{n},{n * n},{n % 3},7" for n in range(30)], r"Target 'y2' is constant at client 'coast'"),
    ],
)
def test_site_without_a_covariance_starts_nothing(tables, monkeypatch, rows, words):
    monkeypatch.setattr(deployment, "LocalFederation", None)
    (tables / "coast.csv").write_text("\n".join(["a,b,y1,y2", *rows]))
    code, _, err = fedgram("federate", tables / "sites.toml", "--out", tables / "runs")
    assert code == 2
    assert re.search(words, err)


def test_secure_run_that_needs_more_than_totals_starts_nothing(tables, monkeypatch):
    monkeypatch.setattr(deployment, "LocalFederation", None)
    sites = SitesConfig.read(tables / "sites.toml").with_settings(out=str(tables / "runs"), secure=True)
    with pytest.raises(InputError, match="aggregation = 'trimmed' needs every client's return"):
        federate(sites.with_settings(aggregation="trimmed"))


def test_second_federation_in_the_same_folder_starts_nothing(tables, monkeypatch):
    monkeypatch.setattr(deployment, "LocalFederation", None)
    sites = SitesConfig.read(tables / "sites.toml").with_settings(out=str(tables / "runs"))
    lines: list[str] = []
    with (
        lock_folders([tables / "runs" / "federation"]),
        pytest.raises(InputError, match=r"Another process writes to '.*federation'"),
    ):
        federate(sites, on_line=lines.append)
    assert not lines


def test_missing_sites_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read '.*sites\.toml': No such file"):
        SitesConfig.read(tmp_path / "sites.toml")


def test_rows_are_split_over_another_number_of_sites():
    own, more = SitesConfig.from_dataset("swimmer-mini"), SitesConfig.from_dataset("swimmer-mini", 16)
    assert (len(own.nodes), len(more.nodes)) == (4, 16)
    assert FederationConfig.from_run_config(more.run_config).row_selection == {
        "clients": 16, "dataset": "swimmer-mini",
    }  # fmt: skip
    sites = [read_site(more.node_config(name), more.run_config) for name in more.nodes]
    assert [len(site.train) for site in sites] == 16 * [250]
    original = load_clients("swimmer-mini")
    assert sum(len(site.test) for site in sites) == sum(map(len, original.test.values()))
    assert sites[0].targets == original.target_names
    with pytest.raises(InputError, match=r"the dataset 'swimmer-mini': 'oslo'\. Use one of 'client 1', "):
        read_site({"site": "oslo"}, own.run_config)


def test_sites_file_may_name_a_dataset(tmp_path):
    (tmp_path / "sites.toml").write_text('dataset = "swimmer-mini"\nclients = 8\nlambda-h = 0.1\n')
    sites = SitesConfig.read(tmp_path / "sites.toml")
    assert len(sites.nodes) == 8
    assert sites.run_config["lambda-h"] == 0.1
    assert sites.run_config["kind"] == "GENERATED"


@pytest.mark.parametrize("clients", ['"4"', "2.5", "1"])
def test_the_number_of_sites_must_be_a_whole_number(tmp_path, clients):
    (tmp_path / "sites.toml").write_text(f'dataset = "swimmer-mini"\nclients = {clients}\n')
    with pytest.raises(InputError, match=r"Invalid 'clients' in the run config: .* at least 2"):
        SitesConfig.read(tmp_path / "sites.toml")


@pytest.mark.parametrize(
    "line", ['table = "a.csv"', 'inputs = ["a"]', "test-fraction = 0.5", 'time = "t"', 'column = "town"']
)
def test_keys_of_tables_are_refused_next_to_a_dataset(tmp_path, line):
    (tmp_path / "sites.toml").write_text(f'dataset = "swimmer-mini"\n{line}\n')
    with pytest.raises(InputError, match=rf"'{line.split()[0]}' has no effect next to 'dataset'"):
        SitesConfig.read(tmp_path / "sites.toml")


def test_sites_of_a_dataset_have_the_folder_and_device_of_the_file(tmp_path):
    (tmp_path / "sites.toml").write_text('dataset = "swimmer-mini"\nfolder = "kept"\ndevice = "cpu"\n')
    sites = SitesConfig.read(tmp_path / "sites.toml")
    for name in sites.nodes:
        site = read_site(sites.node_config(name), sites.run_config)
        assert (site.folder, site.device) == (str(tmp_path / "kept"), "cpu")


@pytest.mark.parametrize("second", ['table="all.csv"\ncolumn="town"', 'table="../{folder}/all.csv"'])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_site_with_the_rows_of_another_is_refused(tables, second, is_reversed):
    sections = ['[sites.oslo]\ntable="all.csv"', f"[sites.coast]\n{second.format(folder=tables.name)}"]
    ordered = sections[::-1] if is_reversed else sections
    (tables / "sites.toml").write_text("\n".join(['inputs="a"', 'targets="y1"', *ordered]))
    with pytest.raises(InputError, match=r"Sites '.*' and '.*' of '.*' have the same rows"):
        SitesConfig.read(tables / "sites.toml")


def test_sites_with_the_same_rows_are_refused(tables):
    path = tables / "sites.toml"
    for shared in ("", 'column = "town"\nvalue = "coast"\n'):
        path.write_text(f'inputs="a"\ntargets="y1"\ntable="all.csv"\n{shared}[sites.oslo]\n[sites.bergen]\n')
        with pytest.raises(InputError, match=r"'oslo' and 'bergen' of '.*' have the same rows"):
            SitesConfig.read(path)


def test_a_byte_order_mark_does_not_count(tables):
    path = tables / "sites.toml"
    plain = SitesConfig.read(path)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert SitesConfig.read(path) == plain


@pytest.mark.parametrize(
    ("change", "words"),
    [(("resmlp-small", "resmlp-smal"), "did you mean 'resmlp-small'"), (('"cpu"', '"xpu"'), "'xpu'")],
)
def test_unknown_backbones_and_devices_start_nothing(tables, monkeypatch, change, words):
    monkeypatch.setattr(deployment, "LocalFederation", None)
    path = tables / "sites.toml"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match=words):
        federate(SitesConfig.read(path).with_settings(out=str(tables / "runs")))


def test_a_private_folder_that_is_a_file_starts_nothing(tables, monkeypatch):
    monkeypatch.setattr(deployment, "LocalFederation", None)
    path = tables / "sites.toml"
    path.write_text(
        path.read_text().replace('table = "coast.csv"', 'table = "coast.csv"\nfolder = "all.csv"')
    )
    with pytest.raises(
        InputError, match=r"The private folder of site 'coast' cannot be made: '.*all.csv' is a"
    ):
        federate(SitesConfig.read(path).with_settings(out=str(tables / "runs")))


def test_numbers_that_flower_cannot_send_are_refused(tables):
    sites = SitesConfig.read(tables / "sites.toml").with_settings(seed=2**63)
    with pytest.raises(
        InputError, match=r"'seed' in the run config is 9223372036854775808. Use a number below"
    ):
        FederationConfig.from_run_config(sites.run_config)


def test_the_help_tells_how_training_differs_from_advise():
    said = " ".join(fedgram("federate", "--help").stdout.split())
    assert "'fedgram advise' recommends for noisy data. It trains fewer, longer rounds" in said
    assert "Communication rounds. Default: 4." in said
    assert "Local epochs per round. Default: 20." in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Pass either a sites.toml file or --dataset."),
        (("sites.toml", "--dataset", "swimmer-mini"), "Pass either a sites.toml file or --dataset."),
        (("sites.toml", "--clients", "4"), "--clients applies to --dataset"),
        (("--dataset", "swimmer-mimi"), "did you mean 'swimmer-mini'?"),
        (("--dataset", "swimmer-mini", "--procedure", "proximall"), "procedure"),
        (("--dataset", "swimmer-mini", "--rounds", "0"), "rounds must be positive"),
        (("--dataset", "swimmer-mini", "--clients", "0"), "The number of clients must be at least 1, not 0."),
        (
            ("--dataset", "swimmer-mini", "--clients", "-1"),
            "The number of clients must be at least 1, not -1",
        ),
    ],
)
def test_mistakes_in_the_command_start_nothing(arguments, words, monkeypatch):
    monkeypatch.setattr(deployment, "LocalFederation", None)
    code, _, err = fedgram("federate", *arguments)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


def test_command_shows_the_log_and_the_comparison(tmp_path, monkeypatch):
    """Without processes: the federation is replaced by a server in this process."""
    from tests.helpers.scripted_sites import ScriptedGrid

    def run(sites, *, is_simulation, on_line):
        assert is_simulation
        assert sites.run_config["rounds"] == 2
        on_line("Round 2 of 2")
        return ScriptedGrid(tmp_path, rounds=2).serve()

    monkeypatch.setattr(deployment, "federate", run)
    code, out, err = fedgram("federate", "--dataset", "swimmer-mini", "--rounds", "2", "--simulate")
    assert code == 0
    assert "Round 2 of 2" in err
    assert "predicted gap" in out
    assert "Run: " in out


# Processes

# A program that ignores SIGTERM and has a child in a session of its own, as Flower's programs do.
STUBBORN = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True); "
    "print('ready', flush=True); time.sleep(60)"
)


def start_stubborn(processes: Processes) -> list[psutil.Process]:
    processes.start("stubborn", "python", "-c", STUBBORN)
    processes.wait_until(lambda: b"ready" in processes.log("stubborn").read_bytes(), "the program", 20)
    root = psutil.Process(processes.running["stubborn"].pid)
    return [root, *root.children(recursive=True)]


def test_nothing_is_left_running_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Processes.stop, "__kwdefaults__", {"grace": 0.2})
    family = []

    def fail() -> None:
        with Processes(tmp_path, {}) as processes:
            family.extend(start_stubborn(processes))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert len(family) == 2
    assert not any(process.is_running() for process in family)


def test_children_of_a_killed_program_are_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(Processes.stop, "__kwdefaults__", {"grace": 0.2})
    with Processes(tmp_path, {}) as processes:
        root, child = start_stubborn(processes)
        root.kill()
        root.wait(5)
        assert child.is_running()
    assert not child.is_running()


def test_program_that_ends_early_is_named(tmp_path):
    with Processes(tmp_path, {}) as processes:
        processes.start("sick", "python", "-c", r"raise SystemExit('\x1b[91mthe port\x1b[0m is taken')")
        with pytest.raises(InputError, match=r"'sick' ended while waiting for x: the port is taken"):
            processes.wait_until(lambda: False, "x", 20)
        with pytest.raises(InputError, match=r"Timeout after 0 s while waiting for x"):
            processes.wait_until(lambda: False, "x", 0.0, needs=[])


def test_ended_supernode_is_started_again_a_few_times(tmp_path, monkeypatch):
    """Without Flower: a SuperNode is a program that ends at once."""

    def launch(self: LocalFederation, site: str) -> None:
        self.processes.start(f"site-{site}", "python", "-c", "raise SystemExit('killed')")
        self.processes.running[f"site-{site}"].wait(20)

    monkeypatch.setattr(LocalFederation, "_launch_node", launch)
    federation, lines, restarts = LocalFederation(tmp_path, 1), [], Counter()
    with federation.processes:
        federation.start_node("oslo", {})
        for _ in range(MOST_RESTARTS):
            federation._restart_ended_nodes(restarts, lines.append)
        with pytest.raises(InputError, match=r"The SuperNode of site 'oslo' ended 4 times\. Its log is"):
            federation._restart_ended_nodes(restarts, lines.append)
        federation.stop_node("oslo")
        federation._restart_ended_nodes(restarts, lines.append)  # stopped on purpose
        assert federation.processes.log("site-oslo").read_text() == 4 * "killed\n"
    assert lines == MOST_RESTARTS * ["The SuperNode of site 'oslo' ended; starting it again."]


def test_sites_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 6)
    monkeypatch.setattr(LocalFederation, "run_flwr", lambda self, *command: "")
    monkeypatch.setattr(
        Processes, "start", lambda self, name, *command, environment: threads.append(environment)
    )
    for sites, expected in ((1, "6"), (4, "1"), (9, "1"), (2, "3")):
        threads: list[dict[str, str]] = []
        federation = LocalFederation(tmp_path, sites)
        federation.certificate = write_certificate(tmp_path)
        federation.start_node("oslo", {})
        (environment,) = threads
        assert environment["OMP_NUM_THREADS"] == expected


def test_termination_interrupts():
    def terminate() -> None:
        with interrupt_on_termination():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        terminate()
    assert signal.getsignal(signal.SIGTERM) is before


def test_certificate_and_keys(tmp_path):
    certificate, key = write_certificate(tmp_path), write_node_key(tmp_path, "oslo")
    context = ssl.create_default_context(cafile=certificate.public)
    context.load_cert_chain(*certificate)
    assert key.public.read_text().startswith("ecdsa-sha2-nistp384 ")
    for files in (certificate, key):
        assert stat.S_IMODE(files.private.stat().st_mode) == 0o600


def test_app_has_the_run_config(tmp_path):
    import tomllib

    config = {"name": 'a "quoted" \\ name', "rounds": 2, "lambda-h": 0.1, "targets": '"y,1",y2'}
    app = write_app(tmp_path / "app", config)
    assert tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"] == config


def test_log_is_read_line_by_line():
    content = b"\x1b[92mINFO \x1b[0m:      Round 1\nno level\n\x1b[91mERROR \x1b[0m:     half"
    lines = list(deployment._read_complete_lines(BytesIO(content), False))
    assert lines == [LogLine("INFO", "Round 1"), LogLine("", "no level")]
    assert list(deployment._read_complete_lines(BytesIO(content), True))[-1] == LogLine("ERROR", "half")


def test_reason_of_a_failed_run_is_the_server_s_sentence(tmp_path):
    started = LogLine("INFO", STARTED)
    lines = [started, LogLine("ERROR", "Two nodes have one name."), LogLine("ERROR", "Exit Code: 200")]
    assert deployment._find_reason(lines, tmp_path) == "Two nodes have one name."
    assert "The run did not finish: Error: port" in deployment._find_reason(
        [LogLine("", "Error: port")], tmp_path
    )


def test_server_app_logs_a_sentence_instead_of_a_traceback(caplog):
    server_app()
    log = logging.getLogger("flwr")
    try:
        FederationConfig.from_run_config({"clients": 1})
    except InputError as error:
        log.error("%s raised an exception", "ServerApp", exc_info=error)  # as Flower does
    (record,) = caplog.records
    assert record.getMessage().startswith("Invalid 'clients' in the run config: 1.")
    assert record.exc_info is None
    log.error("Another", exc_info=ValueError("x"))
    assert caplog.records[-1].exc_info is not None


# The real thing


def find_family() -> list[psutil.Process]:
    """List the descendants of this process."""
    return psutil.Process().children(recursive=True)


@pytest.mark.slow
def test_federation_on_this_machine_matches_the_trainer(tables):
    before = set(find_family())
    sites = SitesConfig.read(tables / "sites.toml").with_settings(
        out=str(tables / "runs"), reply_timeout=240.0
    )
    lines: list[str] = []
    run = federate(sites, on_line=lines.append)
    assert lines[1] == "All 3 sites are connected."
    assert lines[2].startswith("Round 1 of 2: 3 of 3 clients replied")
    assert not set(find_family()) - before
    (tables / "all.csv").write_text((tables / "all.csv").read_text().replace("new york", "york"))
    together = read_standardized(tables / "all.csv", TableSpec("town", ["a", "b"], ["y1", "y2"]))
    settings = TrainConfig(rounds=2, epochs=2, features=6, precision="fp64")
    (reference,) = train(
        together, "resmlp-small", ["ordinary"], [0], settings, folder=tables / "stack", device="cpu"
    )
    for one, other in zip(run.rounds(), reference.rounds(), strict=True):
        np.testing.assert_allclose(one.head, other.head, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(one.test_mse, other.test_mse, rtol=1e-8)
    (tables / "all.csv").write_text((tables / "all.csv").read_text().replace("york", "new york"))
    lines.clear()
    federate(sites, on_line=lines.append)  # Flower installs the app once; the log is shown every time
    assert lines[2] == ALREADY_FINISHED
    with pytest.raises(InputError, match=r"was made with other settings: .*epochs is 2 there and 3 here"):
        federate(sites.with_settings(epochs=3))
    assert not set(find_family()) - before


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["Ctrl-C", "SIGTERM", "SIGKILL"]
)
def test_stopped_command_leaves_no_process(tmp_path, number):
    arguments = ("federate", "--dataset", "swimmer-mini", "--clients", "2", "--out", tmp_path)
    command = subprocess.Popen(
        [sys.executable, "-m", "fedgram", *arguments], stderr=subprocess.PIPE, start_new_session=True
    )
    root, seen = psutil.Process(command.pid), set()
    deadline = time.monotonic() + 120
    while not any(is_running("flower-supernode", each) for each in seen):
        seen |= set(root.children(recursive=True))
        assert time.monotonic() < deadline
        time.sleep(0.2)
    command.send_signal(number)
    _, err = command.communicate(timeout=60)
    assert len(seen) > 2
    if number == signal.SIGKILL:
        _, left = psutil.wait_procs(seen, 30)
        assert not left
        return
    assert command.returncode == 130
    assert b"Run the same command to continue" in err
    assert not any(each.is_running() for each in seen)
