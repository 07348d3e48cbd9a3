"""Private moments in the explorer: what it refuses, shows and exports."""

import json

import numpy as np
import pytest

from fedgram import AccuracyError, InputError, Moments, predict
from fedgram.display.explorer.page import describe_data
from fedgram.theory.noise import noise_intervals
from fedgram.theory.privacy import Privacy
from tests.display.test_explorer_browser import next_frame
from tests.helpers.command import fedgram


def private(noise, **changes):
    privacy = Privacy(epsilon=0.5, delta=1e-6, bounds=[[-4.0, 4.0], [-4.0, 4.0]], noise=noise)
    covariance = np.array([[[1.0, 0.3], [0.3, 0.8]], [[0.6, -0.2], [-0.2, 1.4]], [[1.2, 0.0], [0.0, 0.7]]])
    given = {"count": [5000] * 3, "mean": [[-1.0, 0.0], [0.5, 0.5], [0.5, -0.5]], "covariance": covariance}
    return Moments(**(given | changes), privacy=(privacy, privacy, None))


# A small variance ratio, and a gap that draws of the noise move by more than half of it.
REFUSED = {
    "ratio": private(400.0),
    "gap": private(11.0, count=[800] * 3, mean=np.zeros((3, 2)), covariance=[np.diag([0.6, 0.5])] * 3),
}


@pytest.mark.parametrize("moments", REFUSED.values(), ids=REFUSED)
def test_noise_that_decides_is_refused_as_by_predict(tmp_path, moments):
    moments.save(tmp_path / "moments.json")
    done = fedgram("explore", "moments.json", cwd=tmp_path)
    assert done.returncode == 1
    assert "The privacy noise decides the answer" in done.stderr
    assert done.stderr == fedgram("predict", "moments.json", cwd=tmp_path).stderr
    assert not (tmp_path / "explorer.html").exists()
    with pytest.raises(AccuracyError, match="privacy noise decides"):
        describe_data(moments)


def open_unchecked(page, moments):
    """Open moments as an imported file is, which Python has not checked."""
    page.evaluate("(document) => explorer.open({ document })", moments.document())


@pytest.mark.parametrize("moments", REFUSED.values(), ids=REFUSED)
def test_the_page_refuses_what_it_imports(page, moments):
    open_unchecked(page, moments)
    page.wait_for_function(
        "document.querySelector('.headline').innerText.includes('The privacy noise decides')"
    )
    assert page.inner_text(".summary") == "The page does not answer from these moments."
    next_frame(page)
    assert page.is_hidden(".gap")
    assert page.is_hidden(".sites")
    assert page.evaluate("explorer.gramPanel.band.getAttribute('visibility')") == "hidden"


def test_the_page_shows_the_interval_of_the_noise(page):
    moments = private(20.0)
    expected = noise_intervals(predict(moments)).relative
    page.evaluate("(given) => explorer.open(given)", describe_data(moments))
    page.wait_for_function("explorer.intervals !== null")
    found = np.array(page.evaluate("explorer.intervals.relative"))
    assert (np.abs(found - expected) <= 0.15 * np.ptp(expected)).all()
    page.wait_for_function("document.querySelector('.summary').innerText.includes('Privacy noise alone')")
    assert "sampling interval" not in page.inner_text(".summary")
    assert "privacy noise" in page.inner_text(".gap .hint")
    assert page.inner_text(".notes").startswith("The moments of 2 of 3 clients are private (epsilon 0.5).")


def export(page, tmp_path):
    with page.expect_download() as download:
        page.click("text=Export")
    download.value.save_as(tmp_path / "moments.json")
    return [
        client.get("privacy") for client in json.loads((tmp_path / "moments.json").read_text())["clients"]
    ]


def test_export_and_links_keep_privacy_of_untouched_clients(page, tmp_path):
    moments = private(20.0)
    released = moments.privacy[0].document()
    page.evaluate("(given) => explorer.open(given)", describe_data(moments))
    page.fill("[aria-label=Name]", "renamed")
    page.press("[aria-label=Name]", "Enter")
    assert export(page, tmp_path) == [released, released, None]
    page.focus(".client")
    page.keyboard.press("ArrowRight")
    assert export(page, tmp_path) == [None, released, None]


@pytest.mark.parametrize("noise", [-1, None, "9"])
def test_privacy_that_is_not_valid_is_refused(page, noise):
    document = private(20.0).document()
    document["clients"][0]["privacy"]["noise"] = noise
    page.evaluate("(document) => explorer.attempt(() => explorer.open({ document }))", document)
    assert "The privacy of client 'client 1' is not valid." in page.inner_text(".message")


def test_the_widget_keeps_privacy():
    widgets = pytest.importorskip("fedgram.display.explorer.widget", exc_type=InputError)
    moments = private(20.0)
    assert widgets.ExplorerWidget(moments).moments.document() == moments.document()
