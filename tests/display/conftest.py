"""A browser with the explorer's page, for all tests of a file."""

from types import SimpleNamespace

import pytest

from fedgram.display.explorer.page import write_explorer
from tests.helpers.browser import open_browser


@pytest.fixture(scope="module")
def browser():
    with open_browser() as started:
        yield started


@pytest.fixture(scope="module")
def explorer_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    write_explorer(path)
    return path


@pytest.fixture(scope="module")
def opened(browser, explorer_file):
    """The page from disk, with all it said on the console and all it asked the network for."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(explorer_file.as_uri())
    yield SimpleNamespace(page=page, said=said, asked=asked, url=explorer_file.as_uri())
    context.close()


@pytest.fixture
def page(opened):
    """The page with the paper's instance, as it opens."""
    opened.page.evaluate("explorer.open(explorer.presets[0])")
    yield opened.page
    assert opened.said == []
