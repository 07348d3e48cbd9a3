"""MkDocs events: gallery pages, executed code, formulas, and the explorer that pages embed."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from execute import execute_page
from formulas import convert_formulas, link_citations
from gallery import read_script
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedgram.display.explorer.page import explorer_page

ROOT = Path(__file__).parents[2]
# Pages in the root of the repository, where GitHub expects them.
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "REPRODUCTION.md")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and files that are made from others."""
    files.append(File.generated(config, "assets/explorer.html", content=explorer_page()))
    for name in ROOT_PAGES:
        markdown = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name.lower(), content=markdown))
    for path in sorted((ROOT / "docs" / "gallery").glob("*.py")):
        files.append(File.generated(config, f"gallery/{path.stem}.md", content=read_script(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Link to the site's copies of root pages, and execute the code of a page."""
    source = PurePosixPath(page.file.src_uri)
    for name in ROOT_PAGES:
        markdown = markdown.replace(f"../{name}", name.lower())
    executed = execute_page(markdown, source.stem)
    for name, content in executed.pictures.items():
        files.append(File.generated(config, str(source.parent / name), content=content))
    return executed.markdown


def on_page_content(html: str, page: Page, config: Any, files: Files) -> str:
    """Render formulas and link citations of equations."""
    theory = files.get_file_from_path("theory.md")
    address = "" if page.file is theory else theory.page.file.url_relative_to(page.file)
    return link_citations(convert_formulas(html), address)
