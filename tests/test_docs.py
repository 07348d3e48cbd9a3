"""The README and the tutorial do what they say, and the file map is complete."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_code_blocks_run(page, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert "58%" in capsys.readouterr().out or page != "README.md"


def test_the_file_map_names_every_file():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    readme = (ROOT / "README.md").read_text()
    missing = [
        path
        for path in listed.split()
        if path.endswith(".py") and not path.endswith("__init__.py") and f"`{path}`" not in readme
    ]
    assert missing == []


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
