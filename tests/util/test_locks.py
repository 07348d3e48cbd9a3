"""Locks of folders: one writer at a time, freed however the process ends, and no files left behind."""

import errno
import signal
import subprocess
import sys
import threading
import time

import pytest

from fedgram import InputError
from fedgram._util.locks import lock_folders, wait_for_lock

HOLD = """
import sys, time
from pathlib import Path
from fedgram._util.locks import lock_folders
with lock_folders([Path(sys.argv[1])]):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_another_process_is_refused_until_the_first_one_is_killed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(InputError) as refused, lock_folders([tmp_path]):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert refused.value.message == (
        f"Another process writes to '{tmp_path}'. Wait for it, or choose another folder."
    )
    assert refused.value.field == str(tmp_path)
    with lock_folders([tmp_path]):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert not list(tmp_path.iterdir())


def test_new_folders_are_removed_if_nothing_was_written(tmp_path):
    empty, used = tmp_path / "a" / "b", tmp_path / "c"
    with lock_folders([empty, used]):
        (used / "file").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["c", "file"]


def test_an_error_frees_the_folders(tmp_path):
    with pytest.raises(ZeroDivisionError), lock_folders([tmp_path]):
        raise ZeroDivisionError
    with lock_folders([tmp_path]):
        pass


def test_waiting_writers_take_turns(tmp_path):
    """Files vanish and appear while others wait for them, so that this would mix two writers up."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count():
        for _ in range(3):
            with wait_for_lock(tmp_path):
                value = int(counter.read_text())
                time.sleep(0.005)
                counter.write_text(str(value + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read_text() == "12"
    assert [path.name for path in tmp_path.iterdir()] == ["counter"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    sentence = rf"Cannot write to '{tmp_path / 'file' / 'a'}': Not a directory\. Choose another folder\."
    with pytest.raises(InputError, match=sentence), lock_folders([tmp_path / "file" / "a"]):
        pass


def test_without_locks_in_the_file_system_nobody_is_refused(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with lock_folders([tmp_path]), lock_folders([tmp_path]):
        pass
    assert not list(tmp_path.iterdir())
