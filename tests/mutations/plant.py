"""Plant an error in a copy of the package, and run the check that must notice it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fedgram

ROOT = Path(__file__).parents[2]
PACKAGE = Path(fedgram.__file__).parent


def plant(mutation, folder):
    """Copy the package into a folder, with one error; compiled files of the other modules stay valid."""
    shutil.copytree(PACKAGE, folder / "fedgram")
    path = folder / "fedgram" / mutation.file
    source = path.read_text()
    if source.count(mutation.before) != 1:
        raise ValueError(f"'{mutation.name}': the text to replace must occur once in '{mutation.file}'.")
    path.write_text(source.replace(mutation.before, mutation.after))


def notices(check, folder=None):
    """Whether a check fails: with the package in a folder, or with the one that is installed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if folder is not None:
        environment["PYTHONPATH"] = str(folder)
    if check.startswith("tests/"):
        pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n0", check]
        ended = subprocess.run(pytest, cwd=ROOT, env=environment, capture_output=True, text=True)
        if ended.returncode not in (0, 1):  # 1: a test failed; others: none ran
            raise RuntimeError(f"'{check}' did not run:\n{ended.stdout}{ended.stderr}")
        return ended.returncode == 1
    experiment, claim = check.split(": ")
    command = [sys.executable, "-m", "tests.mutations.missed_claims", experiment]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"'{experiment}' did not run:\n{ended.stderr}")
    return claim in ended.stdout.split()
