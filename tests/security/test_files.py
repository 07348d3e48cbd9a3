"""Files at server and sites: private, whole or absent, and refused by name when damaged."""

import doctest
import json
import re
import stat
from dataclasses import replace

import numpy as np
import pytest

from fedgram import InputError
from fedgram.flower.client_state import ClientStore
from fedgram.flower.identity import SiteKey
from fedgram.runs import Runs, audit, signatures
from fedgram.runs.audit import FIRST, AuditLog, hash_line, read_audit
from fedgram.runs.check import check_folder
from fedgram.runs.measure import measure
from fedgram.runs.store import read_run
from fedgram.runs.tensor_files import read_arrays, write_arrays
from tests.helpers.command import fedgram
from tests.helpers.scripted_sites import NAN, ScriptedGrid, set_array


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return the folder of a finished run with one refused reply; tests must not change it."""
    grid = ScriptedGrid(tmp_path_factory.mktemp("server"), rounds=2)
    grid.ridge.changes["train"] = lambda payload: (
        set_array("head", NAN)(payload) if payload.metadata["round"] == 2 else payload
    )
    return grid.serve().folder


@pytest.fixture
def copy(server, tmp_path):
    """Return a copy of the folder of a finished run."""
    for path in server.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / path.name).chmod(0o600)
    return tmp_path


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_of_server_and_sites_are_private(server, tmp_path):
    ClientStore(tmp_path).write_round(1, "request", {"head": np.eye(2)}, 0.0)
    SiteKey.load(tmp_path / "oslo.key")
    AuditLog.open(tmp_path / "audit.jsonl").append("start")
    files = [*server.iterdir(), *tmp_path.iterdir()]
    assert {mode(path) for path in files} == {0o600}
    assert len(files) > 8


NAMES = (
    "manifest.json", "moments.json", "round-00.safetensors", "round-01.safetensors", "round-02.safetensors",
    "federation.safetensors", "audit.jsonl",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_flipped_byte_is_found_and_named(copy, name):
    path, rng = copy / name, np.random.default_rng(0)
    content = path.read_bytes()
    for place in rng.integers(len(content), size=12):
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.integers(7)
        path.write_bytes(damaged)
        problems = check_folder(copy).problems
        assert problems, (place, content[place - 8 : place + 8])
        assert name in " ".join(problems)
    path.write_bytes(content)
    assert check_folder(copy).problems == ()


@pytest.mark.parametrize("name", ["moments.json", "round-00.safetensors", "round-02.safetensors"])
def test_damaged_run_is_not_measured(copy, name):
    path = copy / name
    content = bytearray(path.read_bytes())
    place = content.rindex(b"\x3f") if name.endswith("s") else content.rindex(b".") + 1
    content[place] ^= 1
    path.write_bytes(content)
    (run,) = Runs(copy).require()
    with pytest.raises(InputError, match=f"{name}' is damaged: its checksum is wrong"):
        measure(run)


def test_swapped_and_missing_files_are_found(copy):
    (copy / "round-02.safetensors").write_bytes((copy / "round-01.safetensors").read_bytes())
    (copy / "round-00.safetensors").unlink()
    problems = " ".join(check_folder(copy).problems)
    assert "round-02.safetensors' is not the file that the manifest names" in problems
    assert "round-00.safetensors' is missing" in problems


def test_run_without_its_manifest_is_found(copy, tmp_path):
    (copy / "manifest.json").unlink()
    missing = f"'{copy / 'manifest.json'}' is missing."
    assert check_folder(copy).problems == (missing,)
    with pytest.raises(InputError, match=re.escape(f"{missing} Restore the file")):
        Runs(copy).require()


def test_rounds_of_a_site_need_no_manifest(tmp_path):
    ClientStore(tmp_path).write_round(1, "request", {"head": np.eye(2)}, 0.0)
    assert check_folder(tmp_path).problems == ()


def test_server_does_not_resume_from_damaged_state(tmp_path):
    grid = ScriptedGrid(tmp_path, rounds=2)
    grid.silent = lambda site, kind, n: kind == "train" and n == 2
    with pytest.raises(InputError, match="No client replied in round 2"):
        grid.serve()
    (state,) = tmp_path.rglob("federation.safetensors")
    content = bytearray(state.read_bytes())
    content[-3] ^= 4
    state.write_bytes(content)
    with pytest.raises(InputError, match=r"federation\.safetensors' is damaged: its checksum is wrong"):
        grid.serve()


@pytest.mark.parametrize("suffix", ["tmp", "draft"])  # earlier versions wrote .draft
def test_server_removes_what_a_killed_one_left(tmp_path, suffix):
    grid = ScriptedGrid(tmp_path, rounds=1)
    folder = grid.serve().folder
    left = folder / f".round-07.safetensors.0123abcd.{suffix}"
    left.write_bytes(b"half")
    assert any("temporary file of a killed process" in note for note in check_folder(folder).notes)
    grid.serve()
    assert not left.exists()


def test_site_refuses_its_damaged_round(tmp_path):
    store = ClientStore(tmp_path)
    store.write_round(1, "request", {"private.x": np.arange(100.0)}, 0.0)
    path = tmp_path / "round-01.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"round-01.* is damaged: .* Delete it, and the site resumes"):
        store.read_round(1, "request")


def test_damaged_key_is_named(tmp_path):
    path = tmp_path / "oslo.key"
    assert SiteKey.load(path).public == SiteKey.load(path).public
    path.write_text("not a key")
    with pytest.raises(InputError, match=r"oslo\.key' is not a site key\. Restore it from a backup"):
        SiteKey.load(path)


def test_folder_that_others_can_read_is_noted(copy):
    (copy / "moments.json").chmod(0o644)
    (copy / "manifest.json").chmod(0o644)
    (note,) = check_folder(copy).notes
    assert "manifest.json' has mode 0644, so other users may read it" in note


def test_file_of_an_earlier_version_has_no_checksum(tmp_path):
    import safetensors.numpy

    safetensors.numpy.save_file({"head": np.eye(2)}, tmp_path / "a.safetensors", {"federation": "id"})
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.safetensors")["head"], np.eye(2))
    safetensors.numpy.save_file({"head": np.eye(2)}, tmp_path / "a.safetensors", {"sha25": 64 * "0"})
    with pytest.raises(InputError, match="is damaged"):
        read_arrays(tmp_path / "a.safetensors")


def test_empty_folder_has_nothing_to_check(tmp_path):
    with pytest.raises(InputError, match="No runs or arrays found in"):
        check_folder(tmp_path)


# The audit log


def lines_of(folder) -> list[bytes]:
    return (folder / "audit.jsonl").read_bytes().splitlines(keepends=True)


def test_audit_tells_who_was_refused_and_why(server):
    summary = read_audit(server / "audit.jsonl")
    assert summary.replies["coast", "accepted"] == 4
    assert summary.replies["ridge", "accepted"] == 2
    (refusal,) = summary.refusals
    assert (refusal["client"], refusal["round"]) == ("ridge", 2)
    assert refusal["reason"] == "'head' has a value that is not finite"
    assert {"start", "introduction", "request", "reply", "round"} == {
        json.loads(line)["event"] for line in lines_of(server)
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:3] + lines[4:],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines[:5], lines[5].replace(b"accepted", b"refused"), *lines[6:]],
        lambda lines: lines[:-4],
        lambda lines: [*lines, b"{}\n"],
        lambda lines: [*lines[:-1], lines[-1][:-10]],
        lambda lines: [],
    ],
    ids=["removed", "swapped", "changed", "cut", "added", "incomplete", "emptied"],
)
def test_changed_audit_log_is_found(copy, change):
    (copy / "audit.jsonl").write_bytes(b"".join(change(lines_of(copy))))
    code, _, err = fedgram("runs", "audit", copy)
    assert code == 2
    assert "audit.jsonl' was changed" in err


def rechain(entries: list[dict]) -> bytes:
    """Write lines whose hashes fit, as someone who changes the whole log would."""
    last, content = FIRST, b""
    for entry in entries:
        line = json.dumps(entry | {"previous": last}).encode() + b"\n"
        last, content = hash_line(line), content + line
    return content


@pytest.mark.parametrize("event", ["reply", "introduction"])
@pytest.mark.parametrize("field", ["reply", "signature", "client"])
def test_rewritten_log_lacks_the_signatures_of_sites(copy, event, field):
    """Hashes can be computed again, but only a site can sign a reply in its name."""
    entries = [json.loads(line) for line in lines_of(copy)]
    signed = next(each for each in entries if each["event"] == event and "signature" in each)
    signed[field] = {"client": "valley"}.get(field, 64 * "0")
    (copy / "federation.safetensors").unlink()  # its state names the last line
    (copy / "audit.jsonl").write_bytes(rechain(entries))
    code, _, err = fedgram("runs", "audit", copy)
    assert code == 2
    assert re.search(r"the signature in line \d+ is not by the key of client '\w+'", err)


def test_examples_run():
    assert [doctest.testmod(module).failed for module in (audit, signatures)] == [0, 0]


def test_signatures_are_not_verified_without_their_library(server, monkeypatch):
    monkeypatch.setattr("fedgram.runs.audit.can_verify", lambda: False)
    assert list(json.loads(fedgram("runs", "audit", server, "--json").stdout)) == ["audits"]
    assert "signatures: not verified" in fedgram("runs", "audit", server).stdout
    assert read_audit(server / "audit.jsonl").signatures is None


def test_replaced_audit_log_lacks_a_line_that_was_noted(copy):
    noted = read_audit(copy / "audit.jsonl").last
    (copy / "audit.jsonl").unlink()
    (copy / "federation.safetensors").unlink()
    AuditLog.open(copy / "audit.jsonl").append("start")
    assert fedgram("runs", "audit", copy).returncode == 0
    assert fedgram("runs", "audit", copy, "--last", noted).returncode == 2


def test_server_continues_an_intact_log_only(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditLog.open(path)
    log.append("start")
    anchor = log.last
    path.write_bytes(path.read_bytes() + b'{"previous": "cut by a cra')
    resumed = AuditLog.open(path, anchor)
    assert read_audit(path, anchor).last == resumed.last != anchor
    path.unlink()
    with pytest.raises(InputError, match=r"Cannot read '.*audit\.jsonl'"):
        AuditLog.open(path, anchor)
    assert AuditLog.open(path, FIRST).last == FIRST


def test_commands_show_what_they_verified(server, tmp_path):
    code, out, err = fedgram("runs", "check", server)
    assert (code, out) == (0, "")
    assert err == f"Verified 6 files in '{server}'.\n"
    assert json.loads(fedgram("runs", "check", server, "--json").stdout)["problems"] == []
    code, out, _ = fedgram("runs", "audit", server)
    assert code == 0
    assert "chained; valid signatures: 3 of introductions, 10 of replies; last " in out
    assert "  replies of ridge: 2 accepted, 1 refused" in out
    assert "refused ridge, round 2: 'head' has a value that is not finite" in out
    (audit,) = json.loads(fedgram("runs", "audit", server, "--json").stdout)["audits"]
    assert audit["replies"]["ridge"] == {"accepted": 2, "refused": 1}
    write_arrays(tmp_path / "a.safetensors", {"a": np.ones(3)})
    assert "No audit log found" in fedgram("runs", "audit", tmp_path).stderr


@pytest.fixture
def suspended(tmp_path):
    """Return the folder of a run that stopped after round 1 of 3, with 'ridge' suspended in round 1."""
    grid = ScriptedGrid(tmp_path / "suspended", **{"max-rejections": 1})
    grid.ridge.changes["train"] = set_array("head", NAN)
    grid.silent = lambda site, kind, n: kind == "train" and n == 2
    with pytest.raises(InputError, match="No client replied in round 2"):
        grid.serve()
    (path,) = (tmp_path / "suspended").rglob("manifest.json")
    return path.parent


def test_a_suspended_site_is_readmitted(suspended):
    code, out, err = fedgram("runs", "readmit", suspended, "ridge")
    assert (code, out, err) == (0, "", "The server readmits 'ridge' before its next round.\n")
    also = ", also with another key and other rows"
    assert also in fedgram("runs", "readmit", suspended, "coast", "--new-key").stderr
    assert json.loads((suspended / "readmit.json").read_text()) == {"ridge": False, "coast": True}


def test_readmission_says_why_a_site_has_nothing_to_come_back_to(suspended, copy):
    def refuse(folder, site, *flags):
        code, _, err = fedgram("runs", "readmit", folder, site, *flags)
        assert code == 2
        return err

    assert "The run has no site 'rigde', only coast, ridge, valley" in refuse(suspended, "rigde")
    assert "is not the folder of a Flower run" in refuse(suspended.parent, "ridge")
    assert f"Site 'coast' is not suspended in '{suspended}'. Pass --new-key" in refuse(suspended, "coast")
    for flags in [], ["--new-key"]:
        assert f"The run in '{copy}' is finished. 'ridge' can take part in a new run" in refuse(
            copy, "ridge", *flags
        )
    run = read_run(copy)
    replace(run, account=replace(run.account, stopped="every client diverged in round 2")).save()
    assert f"The run in '{copy}' was stopped: every client diverged in round 2. 'ridge'" in refuse(
        copy, "ridge"
    )
    (copy / "manifest.json").unlink()
    assert f"The federation in '{copy}' has not begun, so no site is suspended" in refuse(copy, "ridge")
    assert not list(suspended.parent.rglob("readmit.json"))
