"""Code blocks in the documentation run, links work."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/explorer.md",
    "docs/data.md",
    "docs/training.md",
    "docs/flower.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_code_blocks_run(page, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert "58%" in capsys.readouterr().out or page != "README.md"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= 8192


def test_the_architecture_page_names_every_package():
    page = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "fedgram"
    for package in (path.parent.relative_to(source) for path in source.rglob("__init__.py")):
        assert package.name in page, package


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
