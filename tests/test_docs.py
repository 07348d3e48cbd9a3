"""The README and the tutorial do what they say, and the file map is complete."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


PAGES = ("README.md", "docs/tutorial.md", "docs/data.md", "docs/training.md", "docs/flower.md")


@pytest.mark.parametrize("page", PAGES)
def test_code_blocks_run(page, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert "58%" in capsys.readouterr().out or page != "README.md"


def test_the_file_map_is_up_to_date():
    path = ROOT / "tools" / "file_map.py"
    spec = importlib.util.spec_from_file_location("file_map", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    readme = (ROOT / "README.md").read_text()
    assert tool.with_map(readme) == readme, "run python tools/file_map.py"
    assert "`src/fedgram/predict.py`" in readme


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
