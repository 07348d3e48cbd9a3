"""The wheel installs and runs outside the repository, and its types hold under mypy --strict."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import numpy as np

from fedgram import Moments, Penalty, correct, explain, predict

rng = np.random.default_rng(0)
rows = {"a": rng.standard_normal((50, 2)), "b": rng.standard_normal((60, 2)) + 1}
moments = Moments.from_arrays(rows)
prediction = predict(moments, Penalty(features=0.1, head=0.1))
print(f"{explain(prediction).relative:.2f}", correct(moments).strength)
"""


@pytest.mark.slow
def test_the_wheel_works_outside_the_repository(tmp_path):
    def run(*command):
        done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "build", "--wheel", "-o", tmp_path, ROOT)
    venv.create(tmp_path / "venv", with_pip=True)
    (wheel,) = tmp_path.glob("*.whl")
    run(tmp_path / "venv/bin/python", "-m", "pip", "install", "-c", ROOT / "constraints.txt", wheel, "mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    assert run(tmp_path / "venv/bin/python", "program.py") == "0.13 1.0\n"
    run(tmp_path / "venv/bin/mypy", "--strict", "program.py")
    assert run(tmp_path / "venv/bin/fedgram", "--version").startswith("fedgram 0.")
    example = ROOT / "examples" / "three_sites.csv"
    said = run(
        tmp_path / "venv/bin/fedgram", "explain", example, "--client", "site", "--targets", "east,north"
    )
    assert "54%" in said
