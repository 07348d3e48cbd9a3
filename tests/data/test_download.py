"""Downloads from a server on this machine: whole, resumed, cut, damaged, refused."""

import hashlib
import io
import socket
import sys
import threading
import warnings
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

pytest.importorskip("pooch", reason="Fetching needs pooch: pip install 'fedgram[data]'.")

from fedgram import InputError
from fedgram.data.datasets import registry
from fedgram.data.datasets.dataset import Download, Options
from fedgram.data.datasets.download import fetch
from tests.helpers import published_files as published

CONTENT = np.random.default_rng(0).bytes(3_000_000)
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves one file under every address, as its attributes say, and notes what it was asked and answered.

    Requests are noted by their range and the encodings that they take, answers by their status.
    """

    daemon_threads = True
    content, version, version_header = CONTENT, '"1"', "ETag"
    ranges, keeps_to_ranges, tells_length = True, True, True
    cut_after = None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.encodings, self.answers = [], [], []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        server.requests.append(asked)
        server.encodings.append(self.headers["Accept-Encoding"])
        if self.path != "/file.bin":
            self.send_error(404)
            return
        same = self.headers["If-Range"] == server.version
        goes_on = server.ranges and server.keeps_to_ranges and asked and same
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if goes_on else 0
        server.answers.append(206 if goes_on else 200)
        self.send_response(server.answers[-1])
        if server.ranges:
            self.send_header("Accept-Ranges", "bytes")
            self.send_header(server.version_header, server.version)
        if server.tells_length:
            self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        try:
            self.wfile.write(server.content[start : server.cut_after])
        except ConnectionError:  # the client has seen enough of this answer
            self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join(timeout=5)


def dataset(server, checksum=SHA256, url=None):
    download = Download(url or server.url, "folder/file.bin", checksum)
    return replace(registry.dataset("beijing"), name="toy", downloads=(download,))


def fetched(server, folder, **settings):
    return fetch(dataset(server, **settings), folder, license_accepted=True, allow_insecure=True)


def left(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("checksum", [SHA256, MD5, None])
def test_a_file_arrives_whole_and_is_not_fetched_twice(server, tmp_path, checksum):
    heard = []
    (path,) = fetch(
        dataset(server, checksum), tmp_path, license_accepted=True, allow_insecure=True,
        on_bytes=lambda *news: heard.append(news),
    )  # fmt: skip
    assert path == tmp_path / "folder" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == ["file.bin"]
    assert heard[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert [received for _, received, _ in heard] == sorted(received for _, received, _ in heard)
    fetched(server, tmp_path, checksum=checksum)
    assert len(server.requests) == 1
    assert server.encodings == ["identity"]


@pytest.mark.parametrize("header", ["ETag", "Last-Modified"])
def test_a_cut_download_goes_on_where_it_stopped(server, tmp_path, header):
    server.cut_after, server.version_header = 2_000_000, header
    with pytest.raises(
        InputError, match=r"stopped after [\d,]+ of 3,000,000 bytes. Fetch it again to resume"
    ):
        fetched(server, tmp_path)
    assert not (tmp_path / "folder/file.bin").exists()
    (part,) = (tmp_path / "folder").iterdir()
    assert part.name.startswith(".file.bin.")
    held = part.stat().st_size
    assert 0 < held <= 2_000_000
    server.cut_after = None
    (path,) = fetched(server, tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.requests[-1] == f"bytes={held}-"
    assert server.answers[-1] == 206
    assert left(tmp_path) == ["file.bin"]


def test_a_server_that_sends_the_whole_where_the_rest_was_asked_for(server, tmp_path):
    server.cut_after, server.keeps_to_ranges = 2_000_000, False
    with pytest.raises(InputError, match="stopped"):
        fetched(server, tmp_path)
    server.cut_after = None
    assert fetched(server, tmp_path)[0].read_bytes() == CONTENT
    assert server.requests[-1] is not None


def test_a_server_that_does_not_answer_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("fedgram.data.datasets.download.TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file.bin"
        with pytest.raises(InputError, match=r"Cannot reach .* \(ReadTimeout\)"):
            fetched(None, tmp_path, url=url)


def test_a_part_that_is_complete_is_not_fetched_again(server, tmp_path):
    server.cut_after = 1_500_000
    with pytest.raises(InputError, match="stopped"):
        fetched(server, tmp_path)
    (part,) = (tmp_path / "folder").iterdir()
    part.write_bytes(CONTENT)
    fetched(server, tmp_path)
    assert left(tmp_path) == ["file.bin"]
    assert server.requests == [None, None]


@pytest.mark.parametrize("without", [{"ranges": False}, {"version": 'W/"1"'}, {"version": ""}])
def test_a_cut_download_that_cannot_go_on_leaves_nothing(server, tmp_path, without):
    vars(server).update(without, cut_after=2_000_000)
    with pytest.raises(InputError, match="again from the start, as the server cannot resume"):
        fetched(server, tmp_path)
    assert left(tmp_path) == []
    server.cut_after = None
    assert fetched(server, tmp_path)[0].read_bytes() == CONTENT


def test_what_a_killed_process_left_of_a_download_that_cannot_go_on_is_removed(server, tmp_path):
    server.ranges = False
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / ".file.bin.whole.part").write_bytes(b"left")
    assert fetched(server, tmp_path)[0].read_bytes() == CONTENT
    assert server.requests == [None]


def test_a_file_that_changed_meanwhile_is_fetched_from_its_beginning(server, tmp_path):
    server.cut_after = 2_000_000
    with pytest.raises(InputError, match="stopped"):
        fetched(server, tmp_path, checksum=None)
    server.content, server.version, server.cut_after = CONTENT[::-1], '"2"', None
    (path,) = fetched(server, tmp_path, checksum=None)
    assert path.read_bytes() == CONTENT[::-1]
    assert left(tmp_path) == ["file.bin"]


def test_a_server_that_tells_no_length_is_read_to_its_end(server, tmp_path):
    server.tells_length = False
    assert fetched(server, tmp_path)[0].read_bytes() == CONTENT


@pytest.mark.parametrize("checksum", [SHA256, MD5])
def test_a_damaged_download_leaves_nothing(server, tmp_path, checksum):
    server.content = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(InputError, match=r"is not the published file: its checksum is not "):
        fetched(server, tmp_path, checksum=checksum)
    assert left(tmp_path) == []


def test_a_damaged_download_keeps_the_file_that_was_there(server, tmp_path):
    path = tmp_path / "folder/file.bin"
    path.parent.mkdir()
    path.write_bytes(b"an older one")
    server.content = CONTENT[:-1]
    with pytest.raises(InputError, match="not the published file"):
        fetched(server, tmp_path)
    assert path.read_bytes() == b"an older one"
    server.content = CONTENT
    assert fetched(server, tmp_path)[0].read_bytes() == CONTENT


def test_servers_that_refuse_or_are_away_are_named(server, tmp_path):
    with pytest.raises(InputError, match=r"answered '404 Not Found' for .*/other"):
        fetched(server, tmp_path, url=server.url.replace("file.bin", "other"))
    with pytest.raises(InputError, match=r"Cannot reach http://127\.0\.0\.1:1/x"):
        fetched(server, tmp_path, url="http://127.0.0.1:1/x")
    assert left(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "folder").touch()
    with pytest.raises(InputError, match=r"Cannot write '.*folder/file\.bin'"):
        fetched(server, tmp_path)


def test_nothing_is_asked_before_the_license_is_accepted(server, tmp_path):
    with pytest.raises(InputError, match=r"Accept the license of 'toy' first: CC BY 4\.0"):
        fetch(dataset(server), tmp_path, license_accepted=False)
    assert server.requests == []


def test_datasets_without_an_address_say_what_to_do(tmp_path):
    rollouts = registry.dataset("hopper-rollouts")
    with pytest.raises(InputError, match=r"cannot be fetched\. Roll out your own policy"):
        fetch(rollouts, tmp_path, license_accepted=True)
    with pytest.raises(InputError, match="'gaussian' needs no files"):
        fetch(registry.dataset("gaussian"), tmp_path, license_accepted=True)


def test_a_file_without_checksum_is_refused_unless_the_user_insists(server, tmp_path):
    entry = dataset(server, checksum=None)
    with pytest.raises(InputError, match=r"has no published checksum and comes unencrypted, .* --insecure"):
        fetch(entry, tmp_path, license_accepted=True)
    assert server.requests == []
    assert fetch(entry, tmp_path, license_accepted=True, allow_insecure=True)[0].read_bytes() == CONTENT


def test_fetching_without_pooch_says_how_to_get_it(server, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(InputError, match=r"Fetching needs pooch: pip install 'fedgram\[data\]'"):
        fetched(server, tmp_path)


def test_what_was_fetched_can_be_loaded(server, tmp_path):
    server.content = published.uci_bundle(published.beijing_tables())
    entry = registry.dataset("beijing")
    local = replace(entry.downloads[0], url=server.url, checksum=None)
    paths = fetch(replace(entry, downloads=(local,)), tmp_path, license_accepted=True, allow_insecure=True)
    assert list(entry.find(tmp_path, Options())) == paths
    assert len(registry.load("beijing", tmp_path).clients) == 4


# The command


@pytest.fixture
def command(server, monkeypatch):
    """`fedgram data fetch`, for a dataset on our server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what typer uses of click
        from fedgram.cli import data
    entry = replace(dataset(server), forms=("folder/file.bin",))
    monkeypatch.setattr(registry, "dataset", lambda name: entry)
    return data


def test_the_command_shows_the_license_and_fetches(command, tmp_path, capsys):
    command.fetch("toy", tmp_path, accept_license=True)
    printed = capsys.readouterr().out
    assert "License: CC BY 4.0" in printed
    assert "folder/file.bin: 3 MB" in printed


def test_the_command_needs_a_person_or_a_flag(command, server, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(InputError, match="Pass --accept-license"):
        command.fetch("toy", tmp_path, accept_license=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(command.typer, "confirm", lambda question: False)
    with pytest.raises(InputError, match="Accept the license of"):
        command.fetch("toy", tmp_path, accept_license=False)
    assert server.requests == []
    monkeypatch.setattr(command.typer, "confirm", lambda question: True)
    command.fetch("toy", tmp_path, accept_license=False)
    assert left(tmp_path) == ["file.bin"]
