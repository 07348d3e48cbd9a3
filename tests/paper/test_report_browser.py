"""The report of the committed results in a real browser."""

import json
from pathlib import Path

import pytest

from fedgram.paper.report.page import write_report
from fedgram.theory.moments import Moments
from tests.helpers.browser import open_browser
from tests.helpers.small_runs import exact_run

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "results"
OWN = ("ordinary", "proximal")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page with the committed results and four runs of the reader."""
    folder = tmp_path_factory.mktemp("report")
    for procedure in OWN:
        for seed in range(2):
            exact_run(folder / "runs", procedure, rounds=3, seed=seed)
    write_report(RESULTS, folder / "report.html", folder / "runs")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as found:
        yield found


@pytest.fixture
def open_page(browser, report):
    """Open the page in a window of some size; at the end no script may have failed."""
    errors = []
    pages = []

    def open_it(width=1200, scheme="light", address=""):
        page = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce"
        ).new_page()
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda asked: pages.append(asked.url))
        page.goto(f"{report.as_uri()}{address}")
        return page

    yield open_it
    assert not errors
    assert all(url.startswith(("file:", "data:")) for url in pages)


def test_the_page_is_small(report):
    assert report.stat().st_size < 2_000_000


@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_overflows_even_if_everything_is_open(open_page, width):
    page = open_page(width)
    page.evaluate("document.querySelectorAll('main details').forEach((each) => (each.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    letters = page.locator(".opening svg text")
    smallest = min(letters.evaluate_all("found => found.map((each) => each.getBoundingClientRect().height)"))
    assert smallest >= 7.5


def test_the_readers_runs_open_the_page_then_the_story_of_the_paper(open_page):
    page = open_page()
    assert page.locator("h1").all_text_contents() == ["Trained runs"]
    assert page.locator("#story .story li").count() == 5
    assert page.locator("#story .opening svg").count() == 2
    sections = page.locator("main > section").evaluate_all("found => found.map((each) => each.id)")
    assert sections == ["training", "story", "networks", "beyond", "claims", "explore", "not-run", "runs"]
    assert page.locator(".chapter[open]").count() == 0
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).position") == "sticky"


def test_an_address_opens_the_folded_chapter(open_page):
    page = open_page(address="#dnn-rho")
    assert page.locator("#dnn-rho").evaluate("each => each.open")


def test_hovering_shows_the_numbers_of_a_run(open_page, report):
    page = open_page()
    data = json.loads(page.locator("#data").text_content())
    rows = {row[0]: dict(zip(data["columns"], row, strict=True)) for row in data["runs"]}
    marker = page.locator("#story .opening [data-runs]").first
    run = rows[marker.get_attribute("data-runs")]
    marker.scroll_into_view_if_needed()
    box = marker.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    said = page.locator("#tip").text_content()
    assert f"{run['setting']}, {run['procedure']}, seed {run['seed']}" in said
    assert f"error {run['error']}" in said
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()


def test_every_marker_names_runs_of_the_page(open_page):
    page = open_page()
    named = page.locator("[data-runs]").evaluate_all("found => found.map((each) => each.dataset.runs)")
    known = set(page.evaluate("[...runs.keys()]"))
    missing = [each for each in named if not set(each.split()) <= known]
    assert missing == []


@pytest.mark.parametrize(
    ("title", "value"), [("Settings", "Hopper"), ("Procedures", "ordinary"), ("Seeds", "0")]
)
def test_settings_procedures_and_seeds_can_be_filtered(open_page, title, value):
    page = open_page()
    name = {"Settings": "setting", "Procedures": "procedure", "Seeds": "seed"}[title]
    page.locator("#filters summary", has_text=title).click()
    page.locator(f'#filters input[name={name}][value="{value}"]').uncheck()
    values = f"found => found.map((each) => runsOf(each).map((run) => String(run.{name})))"
    hidden = page.locator("[data-runs].off").evaluate_all(values)
    shown = page.locator("[data-runs]:not(.off)").evaluate_all(values)
    assert hidden
    assert all(set(each) == {value} for each in hidden)
    assert all(set(each) != {value} for each in shown)
    total, left = len(page.evaluate("[...runs]")), page.locator("#count").text_content()
    assert 0 < int(left.split()[0]) < total
    page.locator(f'#filters input[name={name}][value="{value}"]').check()
    assert page.locator(".off").count() == 0


def test_claims_sort_by_verdict_and_deviation_and_filter_by_verdict(open_page):
    page = open_page()
    rows = page.locator("table.claims tbody tr")

    def keys(column):
        cells = rows.locator(f"td:nth-child({column})")
        return cells.evaluate_all("found => found.map((each) => each.dataset.key)")

    page.locator("table.claims th button", has_text="verdict").click()
    assert [int(key) for key in keys(7)] == sorted(int(key) for key in keys(7))
    header = page.locator("table.claims th", has_text="deviation")
    for direction, reverse in (("ascending", False), ("descending", True)):
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == direction
        found = [float(key) for key in keys(5) if key]
        assert found == sorted(found, reverse=reverse)
        assert keys(5)[-1] == ""  # statements have no deviation
    page.locator("#verdicts button[value=miss]").click()
    visible = [each for each in rows.all() if each.is_visible()]
    assert visible
    assert {each.get_attribute("class") for each in visible} == {"miss"}


def test_the_explorer_opens_with_the_moments_of_each_setting(open_page):
    page = open_page()
    buttons = page.locator("#explored button")
    assert buttons.count() >= 6
    for number in range(3):  # the reader's runs first
        name = buttons.nth(number).text_content()
        buttons.nth(number).click()
        assert page.evaluate("explorer.state.name") == name
    moments = Moments.load(RESULTS / "paper" / "results" / "moments-swimmer-rollouts.json")
    assert "Swimmer" in name
    means = page.evaluate("explorer.state.moments.clients.map((each) => [...each.mean])")
    assert means == moments.mean.tolist()


def test_dark_mode_follows_the_system_and_the_button(open_page):
    page = open_page(scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.click("#theme")
    light = page.evaluate(background)
    assert (dark, light) == ("rgb(18, 22, 28)", "rgb(255, 255, 255)")
    text = "getComputedStyle(document.querySelector('figure svg text')).fill"
    assert page.evaluate(text) == "rgb(34, 37, 42)"


def test_the_table_of_runs_is_filtered_too(open_page):
    page = open_page()
    page.locator("#runs summary").click()
    rows = page.locator("#runs tbody tr")
    assert rows.count() == len(page.evaluate("[...runs]"))
    page.locator("#filters summary", has_text="Settings").click()
    page.locator("#filters fieldset[aria-label=Settings] button").click()
    assert not any(each.is_visible() for each in rows.all()[:20])
