"""The built documentation: pages, links and formulas, in files and in Chromium."""

import functools
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.helpers.browser import open_browser

ROOT = Path(__file__).parents[1]
PHONE = {"width": 390, "height": 844}

pytestmark = pytest.mark.slow


class PageParser(HTMLParser):
    """Collect the links, anchors and formulas of a page, and the text outside code."""

    def __init__(self):
        super().__init__()
        self.links, self.anchors, self.tags, self.text, self._hidden = [], set(), [], [], 0

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self._hidden += tag in ("code", "script", "style")
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        self.links += [given[key] for key in ("href", "src") if given.get(key)]

    def handle_endtag(self, tag):
        self._hidden -= tag in ("code", "script", "style")

    def handle_data(self, data):
        if not self._hidden:
            self.text.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site strictly; this executes all code of all pages."""
    pytest.importorskip("mkdocs", reason="The extra 'docs' is not installed.")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    found = {}
    for path in sorted(site.rglob("*.html")):
        found[path] = PageParser()
        found[path].feed(path.read_text())
    return found


@pytest.fixture(scope="module")
def address(site):
    with serve(site) as address:
        yield address


@contextmanager
def serve(folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def is_local(url, address):
    return url.startswith((address, "data:", "blob:"))


def test_the_site_has_its_pages(site):
    expected = ["index", "federate", "explain", "correct", "training", "flower", "limits", "theory"]
    expected += ["api/theory", "gallery/index", "gallery/stations", "assets/explorer", "changelog"]
    assert [name for name in expected if not (site / f"{name}.html").exists()] == []


def test_every_link_leads_to_a_page_and_an_anchor(site, pages):
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute
            continue
        for link in page.links:
            target, anchor = urldefrag(unquote(link))
            if target.startswith(("http:", "https:", "mailto:", "data:")):
                continue
            file = (path.parent / target).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            # what follows # on the explorer's page is its state
            has_anchors = file in pages and file != site / "assets" / "explorer.html"
            if not file.exists() or (anchor and has_anchors and anchor not in pages[file].anchors):
                broken.append(f"{path.relative_to(site)} -> {link}")
    assert broken == []


def test_formulas_are_converted(site, pages):
    assert pages[site / "theory.html"].tags.count("math") > 50
    for path, page in pages.items():
        text = "".join(page.text)
        assert "$$" not in text, path
        assert "\\(" not in text, path


def test_pages_open_without_errors_and_fit_a_phone(site, pages, address):
    problems = []
    with open_browser() as browser:
        page = browser.new_page(viewport=PHONE)
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("response", lambda response: response.status < 400 or problems.append(response.url))
        page.on("request", lambda request: is_local(request.url, address) or problems.append(request.url))
        for path in pages:
            name = path.relative_to(site).as_posix()
            if name == "404.html":
                continue
            page.goto(f"{address}/{name}")
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > PHONE["width"]:
                problems.append(f"{name} is {width} px wide")
    assert problems == []


def test_the_home_page_embeds_the_explorer(address):
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1300, "height": 1000}, color_scheme="dark")
        page.goto(f"{address}/index.html")
        assert "Federated regression" in page.locator("h1").inner_text()
        explorer = page.frame_locator(".explorer iframe")
        explorer.get_by_text("Federated averaging ends 58% away").first.wait_for()
        themed = explorer.locator(".fedgram-explorer")
        assert themed.get_attribute("data-theme") == "dark"
        page.get_by_title("Switch to light mode").click()
        assert themed.get_attribute("data-theme") == "light"


def test_formulas_have_a_size_and_a_number(address):
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        page.goto(f"{address}/api/theory.html")
        page.locator("a[href$='theory.html#eq-10']").first.click()
        equation = page.locator("#eq-10")
        box = equation.locator("math").bounding_box()
        assert box["width"] > 200
        assert box["height"] > 25
        assert equation.locator(".number").inner_text() == "(10)"


def test_search_finds_a_page(address):
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        page.goto(f"{address}/index.html")
        page.get_by_role("textbox", name="Search").fill("barycenter")
        page.locator(".md-search-result__item").first.wait_for()
        assert page.locator(".md-search-result__item").count() > 2
