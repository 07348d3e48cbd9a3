"""The explorer in a browser: its numbers, what drags and keys do, files, links and layouts."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from fedgram import Moments, Penalty, intervals, predict
from fedgram.display.explorer.page import describe_data
from fedgram.display.explorer.presets import presets
from tests.helpers.explorer import READ, check_problem, moments_of, random_problem


def test_examples_equal_python(page):
    for given in presets():
        check_problem(page, given)


@pytest.mark.slow
def test_random_problems_equal_python(page):
    rng = np.random.default_rng(20261117)
    active = [check_problem(page, random_problem(rng)) for _ in range(50)]
    assert active.count(False) >= 4  # clipped clients are among them


def test_numbers_do_not_depend_on_what_was_shown_before(page):
    """A warm start saves rounds and changes no digit that matters."""
    given = presets()[-1]
    page.evaluate("(given) => explorer.open(given)", given)
    cold = page.evaluate(READ)["barycenter"]
    warm = page.evaluate(
        """() => {
      const { state } = explorer;
      const before = state.moments;
      state.moments = { ...before, clients: before.clients.map((client, m) =>
        m > 0 ? client : { ...client, covariance: client.covariance.map((value) => 1.3 * value) }) };
      explorer.render();
      state.moments = before;
      explorer.render();
      return Array.from(explorer.result.barycenter.gram);
    }"""
    )
    np.testing.assert_allclose(warm, cold, rtol=1e-12)


@pytest.mark.parametrize(
    ("variances", "weights", "penalty"),
    [
        ([[1e-3, 1.0], [1e-3, 2.0]], None, Penalty(0.1, 0.1)),  # no client is active along a target
        ([[1.0, 1e-3], [1e-3, 2.0]], [1.0, 1e-17], Penalty(0.1, 0.1)),  # only a weightless one is
        ([[0.0, 1.0], [0.0, 1.0]], None, Penalty(1e-9, 1e-9)),  # a variance of zero
        ([[1.0, 1e-6], [1e-6, 1.0]], None, Penalty(0.9, 0.9)),  # the pooled data are not
    ],
)
def test_an_undefined_limit_is_explained_in_pythons_words(page, variances, weights, penalty):
    covariance = np.array(variances)[:, :, None] * np.eye(2)
    moments = Moments([9, 9], np.zeros((2, 2)), covariance, client_weights=weights)
    with pytest.raises(ValueError, match=r"active|rounding") as raised:
        predict(moments, penalty)
    page.evaluate("(given) => explorer.open(given)", describe_data(moments, penalty))
    assert page.evaluate(READ) == {"error": str(raised.value)}
    assert page.inner_text(".headline") == str(raised.value)
    assert page.is_disabled("text=Play")
    assert page.is_hidden(".bars")


def next_frame(page):
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def state_of(page):
    """Return the page's state once what was asked for is drawn, so that its texts agree with it."""
    next_frame(page)
    return page.evaluate(
        """() => ({
      mean: explorer.state.moments.clients.map((client) => Array.from(client.mean)),
      covariance: explorer.state.moments.clients.map((client) => Array.from(client.covariance)),
      names: explorer.state.moments.clients.map((client) => client.name),
      start: Array.from(explorer.state.start), selected: explorer.state.selected,
      position: explorer.state.position, unit: explorer.targetPanel.frame.unit,
    })"""
    )


def drag(page, selector, dx, dy, at=(0.5, 0.5)):
    """Drag a node by pixels; a coarse path, so that frames in between are drawn."""
    box = page.locator(selector).bounding_box()
    x, y = box["x"] + at[0] * box["width"], box["y"] + at[1] * box["height"]
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + dx / 2, y + dy / 2)
    page.mouse.move(x + dx, y + dy)
    page.mouse.up()


def client(number):
    return f".targets .clients .client:nth-child({number})"


def mean(number):
    return f".targets .means .mean:nth-child({number})"


def test_dragging_a_client_moves_its_mean_and_nothing_else(page):
    before = state_of(page)
    drag(page, mean(2), 40, -30)
    after = state_of(page)
    moved = np.subtract(after["mean"], before["mean"])
    np.testing.assert_allclose(moved[1], np.multiply(before["unit"], [40, 30]), rtol=1e-6)
    np.testing.assert_array_equal(moved[[0, 2]], 0)
    assert after["covariance"] == before["covariance"]
    assert after["selected"] == 1
    assert "changed" in page.locator("select.preset option:checked").inner_text()


def test_handles_stretch_and_turn_the_covariance(page):
    def eigen():
        return np.linalg.eigh(np.reshape(state_of(page)["covariance"][0], (2, 2)))

    values, basis = eigen()
    page.evaluate("explorer.targetPanel.handles.nodes[0].node.id = 'stretch'")
    page.evaluate("explorer.targetPanel.handles.turn.id = 'turn'")
    drag(page, "#stretch", 20, 20)
    stretched, same = eigen()
    np.testing.assert_allclose(np.abs(same), np.abs(basis), atol=1e-6)  # along its own axis
    assert stretched[0] == pytest.approx(values[0])
    assert stretched[1] > 1.2 * values[1]
    drag(page, "#turn", -60, 10)
    turned, other = eigen()
    np.testing.assert_allclose(turned, stretched, rtol=1e-9)
    assert abs(other[:, 1] @ same[:, 1]) < 0.999


def test_dragging_the_start_changes_the_start_only(page):
    before = state_of(page)
    page.evaluate("explorer.gramPanel.handles.nodes[0].node.id = 'start'")
    drag(page, "#start .knob", 5, 20)
    after = state_of(page)
    assert after["start"] != before["start"]
    assert (after["mean"], after["covariance"]) == (before["mean"], before["covariance"])
    assert np.linalg.eigvalsh(np.reshape(after["start"], (2, 2)))[0] > 0


def test_the_keyboard_does_what_the_pointer_does(page):
    before = state_of(page)
    page.focus(client(1))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("+")
    page.keyboard.press("]")
    after = state_of(page)
    moved = np.subtract(after["mean"], before["mean"])[0]
    np.testing.assert_allclose(moved, np.multiply(before["unit"], [8, 40]), rtol=1e-6)
    values = [np.linalg.eigvalsh(np.reshape(each["covariance"][0], (2, 2))) for each in (before, after)]
    np.testing.assert_allclose(values[1], 1.05**2 * values[0], rtol=1e-9)
    page.keyboard.press("Delete")
    assert state_of(page)["names"] == ["B", "C"]
    page.keyboard.press("Delete")  # two are the least
    assert state_of(page)["names"] == ["B", "C"]
    assert page.inner_text(".message span") == "A federation needs at least two clients."


def test_clients_are_added_removed_and_edited(page):
    page.click("text=Add client")
    assert state_of(page)["names"] == ["A", "B", "C", "client 4"]
    page.fill("[aria-label=Name]", "north")
    page.keyboard.press("Enter")
    page.uncheck(".check input")
    page.fill("[aria-label=Weight]", "512")
    page.keyboard.press("Tab")
    assert state_of(page)["names"][3] == "north"
    next_frame(page)
    weights = page.evaluate("Array.from(explorer.result.pooled.weights)")
    np.testing.assert_allclose(weights, [0.2, 0.2, 0.2, 0.4])
    page.fill("[aria-label=Rows]", "2")
    page.keyboard.press("Tab")
    assert "at least 3" in page.inner_text(".message span")
    page.click("text=Remove")
    assert state_of(page)["names"] == ["A", "B", "C"]


def test_a_covariance_that_is_none_is_refused(page):
    page.click("text=Mean and covariance as numbers")
    before = state_of(page)
    page.fill("[aria-label='Covariance of north and east']", "99")
    page.keyboard.press("Tab")
    assert "negative eigenvalue" in page.inner_text(".message span")
    assert state_of(page) == before
    page.fill("[aria-label='Mean of east']", "1.5")
    page.keyboard.press("Tab")
    assert state_of(page)["mean"][0] == [1.5, -2.2]
    page.click("text=Mean and covariance as numbers")


def test_rounds_step_play_and_reset(page):
    for _ in range(3):
        page.click("text=Step")
    page.wait_for_function("explorer.state.position === 3 && explorer.heads.length === 4")
    given = presets()[0]
    expected = predict(moments_of(given), Penalty(0.1, 0.1)).trajectory(np.reshape(given["start"], (2, 2)), 3)
    np.testing.assert_allclose(page.evaluate(READ)["last"], expected[-1].ravel(), rtol=1e-9)
    assert page.inner_text(".round").startswith("Round 3: ")
    page.click("text=Reset")
    page.wait_for_function("explorer.state.position === 0")
    page.click("text=Play")
    page.wait_for_function("explorer.state.position >= 1")
    page.click("text=Pause")


def test_the_correction_closes_the_gap(page):
    page.fill("[aria-label='Correction, as a number']", "1")
    page.keyboard.press("Tab")
    page.wait_for_function("explorer.result.strength === 1")
    assert page.evaluate("explorer.result.gap.relative") < 1e-12
    assert "ends where centralized training ends" in page.inner_text(".headline")
    page.fill("[aria-label='Feature penalty, as a number']", "-1")
    page.keyboard.press("Tab")
    assert "must be a positive number" in page.inner_text(".message span")
    page.locator("[aria-label='Head penalty']").fill("-2")
    assert page.evaluate("explorer.state.penalty.head") == 0.01


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "'bad.json' is not complete JSON."),
        ("{}", "its format is not 'fedgram-moments/1'"),
        (None, "The covariance of client 'B' has a negative eigenvalue."),
    ],
)
def test_a_bad_import_shows_one_sentence_and_changes_nothing(page, content, message):
    if content is None:
        document = json.loads(json.dumps(presets()[0]["document"]))
        document["clients"][1]["covariance"] = [[1.0, 3.0], [3.0, 1.0]]
        content = json.dumps(document)
    before = page.evaluate(READ), state_of(page)
    files = {"name": "bad.json", "mimeType": "application/json", "buffer": content.encode()}
    page.set_input_files("input[type=file]", files=[files])
    page.wait_for_selector(".message.error")
    assert message in page.inner_text(".message span")
    assert (page.evaluate(READ), state_of(page)) == before


def test_moments_are_imported_and_exported(page, tmp_path):
    moments = Moments([30, 40], [[0.1, 1.0], [1.0, 0.3]], np.stack([np.eye(2), np.diag([2.0, 1 / 3])]))
    moments = moments.weighted([0.25, 0.75])
    moments.save(tmp_path / "given.json")
    page.set_input_files("input[type=file]", tmp_path / "given.json")
    page.wait_for_function("explorer.state.name === 'given.json'")
    with page.expect_download() as download:
        page.click("text=Export")
    download.value.save_as(tmp_path / "moments.json")
    assert Moments.load(tmp_path / "moments.json").document() == moments.document()


def test_a_link_restores_everything(opened, page):
    drag(page, mean(3), -25, 10)
    page.evaluate("explorer.setStrength(0.25)")
    page.click("text=Step")
    page.wait_for_function("location.hash.startsWith('#state=') && explorer.writeHash() === undefined")
    before = page.evaluate(READ)
    link = page.url
    page.evaluate("explorer.open(explorer.presets[3]); explorer.writeHash()")
    page.evaluate("(hash) => { location.hash = hash; }", link.split("#")[1])
    page.wait_for_function("explorer.state.strength === 0.25")
    after = page.evaluate(READ)
    np.testing.assert_allclose(after.pop("barycenter"), before.pop("barycenter"), rtol=1e-12)
    assert (after["grams"], after["start"], after["notes"]) == (
        before["grams"],
        before["start"],
        before["notes"],
    )
    page.evaluate("location.hash = '#state=nonsense'")
    page.wait_for_selector(".message.error")
    assert "link is damaged" in page.inner_text(".message span")


def test_the_picture_is_a_complete_svg_file(page, tmp_path):
    with page.expect_download() as download:
        page.click("text=SVG")
    download.value.save_as(tmp_path / "explorer.svg")
    root = ElementTree.parse(tmp_path / "explorer.svg").getroot()
    text = "".join(root.itertext())
    assert "Federated averaging ends 58% away from centralized training." in text
    assert "λ_H = 0.1" in text
    assert len(list(root.iter("{http://www.w3.org/2000/svg}ellipse"))) >= 12
    assert not any("handle" in (node.get("class") or "") for node in root.iter())


def test_inactive_clients_are_hatched_with_the_reason(page):
    given = next(each for each in presets() if each["id"] == "threshold")
    page.evaluate("(given) => explorer.open(given)", given)
    hatched = page.evaluate(
        "Array.from(document.querySelectorAll('.targets .hatch'), (node) => node.getAttribute('visibility'))"
    )
    assert hatched == ["hidden", "hidden", "visible"]
    (reason, _) = predict(moments_of(given), Penalty(0.3, 0.3)).notes
    assert reason in page.inner_text(".notes")
    assert reason in page.locator(client(3)).get_attribute("aria-label")


def test_any_two_directions_can_be_shown(page):
    rng = np.random.default_rng(4)
    root = rng.standard_normal((3, 4, 4))
    moments = Moments(
        [50] * 3, rng.standard_normal((3, 4)), root @ root.swapaxes(-1, -2), targets=tuple("wxyz")
    )
    page.evaluate("(given) => explorer.open(given)", describe_data(moments, Penalty(0.1, 0.1)))
    page.select_option("[aria-label=Horizontal]", "gap1")
    page.select_option("[aria-label=Vertical]", "typed")
    page.fill("[aria-label='Loadings 2']", "0, 0, 1, -1")
    page.keyboard.press("Enter")
    page.wait_for_function("explorer.targetPanel.yLabel.textContent.includes('y')")
    u, v = page.evaluate("explorer.state.plane.directions.map((each) => Array.from(each))")
    gap = np.reshape(page.evaluate("Array.from(explorer.result.gap.total)"), (4, 4))
    assert u @ gap @ u == pytest.approx(np.linalg.eigvalsh(gap)[-1])
    assert np.dot(u, v) == pytest.approx(0)
    before = state_of(page)
    drag(page, mean(1), 20, 0)
    moved = np.subtract(state_of(page)["mean"], before["mean"])[0]
    np.testing.assert_allclose(moved, 20 * before["unit"][0] * np.array(u), rtol=1e-6)
    page.fill("[aria-label='Loadings 2']", "0, 1")
    page.keyboard.press("Enter")
    assert "must have 4 numbers" in page.inner_text(".message span")


def test_one_target_gets_a_bar_per_client(page):
    moments = Moments([50, 60], [[0.0], [1.0]], [[[1.0]], [[4.0]]])
    page.evaluate("(given) => explorer.open(given)", describe_data(moments, Penalty(0.1, 0.1)))
    before = state_of(page)
    drag(page, mean(1), 30, 30)
    assert state_of(page)["mean"][0][0] == pytest.approx(30 * before["unit"][0])


def test_intervals_appear_and_shrink_with_more_rows(page):
    def width(rows):
        page.evaluate(
            """(rows) => {
          const { moments } = explorer.state;
          const clients = moments.clients.map((client) => ({ ...client, count: rows, weight: rows }));
          explorer.state.moments = { ...moments, clients };
          explorer.change();
          explorer.settle();
        }""",
            rows,
        )
        page.wait_for_function("explorer.intervals !== null")
        low, high = page.evaluate("explorer.intervals.relative")
        assert low < page.evaluate("explorer.result.gap.relative") < high
        return high - low

    # A hundred times the rows: a tenth of the width.
    assert width(60) == pytest.approx(10 * width(6000), rel=0.25)
    assert "95% sampling interval" in page.inner_text(".summary")
    assert page.locator(".bars .whisker").first.is_visible()


def test_nothing_is_fetched(opened, page):
    assert {url.split("#")[0] for url in opened.asked} <= {opened.url, "data:,"} | {
        url for url in opened.asked if url.startswith("blob:")
    }


@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.slow
def test_layouts_do_not_overflow(browser, explorer_file, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    for preset in presets():
        page.goto(f"{explorer_file.as_uri()}#preset={preset['id']}")
        page.wait_for_function("(id) => explorer.state.preset === id", arg=preset["id"])
        next_frame(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
    background = page.evaluate("getComputedStyle(explorer.root).backgroundColor")
    assert background == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 28)"}[scheme]
    context.close()


@pytest.mark.slow
def test_the_widget_renders_and_reports_changes(browser):
    widgets = pytest.importorskip("fedgram.display.explorer.widget", exc_type=ValueError)
    page = browser.new_page()
    widget = widgets.ExplorerWidget()
    page.set_content("<div id=cell style='width: 700px'></div>")
    setup = """
      const values = SETUP;
      const listeners = [];
      window.model = {
        get: (name) => values[name], set: (name, value) => { values[name] = value; }, off: () => {},
        on: (name, listener) => listeners.push(listener),
        save_changes: () => { window.saved = values.state; },
        push: (state) => { values.state = state; listeners.forEach((listener) => listener()); },
      };
      window.stop = render({ model, el: document.getElementById("cell") });
    """.replace("SETUP", json.dumps({"presets": widget.presets, "state": widget.state}))
    page.add_script_tag(type="module", content=widgets.bundle() + widgets.RENDER + setup)
    page.click("text=Add client")
    page.wait_for_function("window.saved && window.saved.document.clients.length === 4")
    page.evaluate("(state) => model.push(state)", presets()[3])
    page.wait_for_function("document.querySelectorAll('.sites tbody tr').length === 4")
    assert "31%" in page.inner_text(".headline")
    page.evaluate("window.stop()")
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("key", ["paper", "beijing"])
def test_intervals_agree_with_python(page, key):
    """Both bootstraps draw differently; their ends agree up to the noise of 400 draws."""
    given = next(each for each in presets() if each["id"] == key)
    expected = intervals(predict(moments_of(given), Penalty(given["features"], given["head"])))
    page.evaluate("(given) => explorer.open(given)", given)
    page.wait_for_function("explorer.intervals !== null")
    shown = page.evaluate("explorer.intervals")
    ends = np.array([shown["relative"], *shown["traces"]])
    truth = np.array([expected.relative, *expected.traces])
    assert (np.abs(ends - truth) <= 0.15 * np.diff(truth)).all()
