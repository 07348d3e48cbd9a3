"""The explorer's file, examples and command, without a browser."""

import doctest
import json
import re
from importlib.resources import files

import numpy as np
import pytest

from fedgram import InputError, Moments, Penalty, explain, predict
from fedgram.display.explorer import page as explorer
from fedgram.display.explorer.presets import presets
from tests.helpers.command import fedgram
from tests.helpers.explorer import moments_of

MODULES = {name: (files("fedgram.display.explorer") / f"{name}.mjs").read_text() for name in explorer.MODULES}


def explained(key):
    preset = next(each for each in presets() if each["id"] == key)
    moments = moments_of(preset)
    prediction = predict(moments, Penalty(preset["features"], preset["head"]))
    return moments, prediction, explain(prediction)


def test_the_page_is_one_small_file_without_links():
    content = explorer.explorer_page()
    assert len(content.encode()) < 300_000
    links = re.findall(r"(?:src|href)=[\"']?([^\"'\s>]+)", content)
    assert set(links) == {"data:,"}
    assert not re.search(
        r"\bfetch\(|XMLHttpRequest|\bimport\(|^import |@import|url\(http", content, flags=re.MULTILINE
    )


def test_modules_define_each_name_once_and_import_what_exists():
    defined = [
        name
        for text in MODULES.values()
        for name in re.findall(r"^(?:export )?(?:const|let|class|function) (\w+)", text, flags=re.MULTILINE)
    ]
    assert len(defined) == len(set(defined))
    for name, text in MODULES.items():
        for source in re.findall(r'from "\./(\w+)\.mjs"', text):
            assert explorer.MODULES.index(source) < explorer.MODULES.index(name)
    assert "import {" not in explorer.bundle()


def test_a_name_cannot_end_the_script():
    moments = Moments([9, 9], [[0.0], [1.0]], [[[1.0]], [[1.0]]], clients=("</script><b>", "b"))
    content = explorer.explorer_page(explorer.describe_data(moments, name="<i>"))
    assert content.count("</script>") == 2
    assert "<title>fedgram explorer: &lt;i></title>" in content


def test_examples_show_what_they_promise():
    assert explained("paper")[2].relative == pytest.approx(0.578, abs=2e-3)
    np.testing.assert_allclose(explained("equal-means")[2].traces[0], 0, atol=1e-12)
    np.testing.assert_allclose(explained("equal-covariances")[2].traces[1:], 0, atol=1e-12)
    moments, prediction, _ = explained("commuting")
    roots = np.sqrt(np.einsum("mii->mi", prediction.grams))
    np.testing.assert_allclose(np.diag(prediction.barycenter.gram), (moments.client_weights @ roots) ** 2)
    assert explained("threshold")[1].activity.active.tolist() == [True, True, False]
    assert explained("outlier")[2].client_shares.argmax() == 11


def test_the_beijing_example_has_moments_in_micrograms():
    moments = explained("beijing")[0]
    assert len(moments.clients) == 12
    assert set(moments.count) == {300}
    assert (moments.mean > 20).all()  # standardized means would be near 0
    assert (moments.mean < 150).all()


def test_the_command_writes_the_data_first(tmp_path):
    moments = Moments([30, 40], [[0.0, 1.0], [1.0, 0.0]], np.stack([np.eye(2), 2 * np.eye(2)]))
    moments.save(tmp_path / "moments.json")
    done = fedgram("explore", "moments.json", "--lambda-h", "0.2", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"Wrote explorer\.html \(\d+ kB\)\. Open it in a browser\.\n", done.stdout)
    options = re.search(r'id="options">(.*?)</script>', (tmp_path / "explorer.html").read_text())[1]
    data = json.loads(options)["initial"]
    assert (data["name"], data["features"], data["head"]) == ("moments.json", 0.2, 0.01)
    assert data["document"] == moments.document()


def test_the_command_needs_no_data(tmp_path):
    done = fedgram("explore", "-o", "page.html", cwd=tmp_path)
    assert done.returncode == 0
    assert '"initial":null' in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("targets", "clients", "output", "message"),
    [
        (2, 3, "page.txt", "must end in .html: 'page.txt'"),
        (7, 3, "page.html", "shows at most 6 targets, but there are 7"),
        (1, 61, "page.html", "shows at most 60 clients, but there are 61"),
        (1, 1, "page.html", "needs at least two clients"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, targets, clients, output, message):
    covariance = np.broadcast_to(np.eye(targets), (clients, targets, targets))
    Moments(np.full(clients, 99), np.zeros((clients, targets)), covariance).save(tmp_path / "moments.json")
    done = fedgram("explore", "moments.json", "-o", output, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / output).exists()


@pytest.mark.parametrize(
    "flag",
    [
        ["--client", "site"], ["--site", "a"], ["--targets", "y"], ["--where", "a > 0"], ["--drop-missing"],
        ["--weights", "equal"],
    ],
)  # fmt: skip
def test_flags_for_data_need_data(tmp_path, flag):
    done = fedgram("explore", *flag, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"fedgram: {flag[0]} applies to data, but no file was given. Add one.\n"
    assert list(tmp_path.iterdir()) == []


def test_open_starts_the_browser(tmp_path, monkeypatch):
    launched = []
    monkeypatch.setattr("typer.launch", launched.append)
    assert fedgram("explore", "--open", cwd=tmp_path).returncode == 0
    assert launched == [(tmp_path / "explorer.html").resolve().as_uri()]


def test_data_descriptions_check_their_input():
    with pytest.raises(InputError, match="expects Moments"):
        explorer.describe_data("moments")


def test_the_widget_gives_back_its_moments():
    widgets = pytest.importorskip("fedgram.display.explorer.widget", exc_type=InputError)
    moments = Moments([30, 40], [[0.0], [1.0]], [[[1.0]], [[2.0]]], ("a", "b"), ("y",), [0.3, 0.7])
    widget = widgets.ExplorerWidget(moments, Penalty(0.1, 0.2), 0.5)
    assert widget.moments.document() == moments.document()
    assert (widget.penalty, widget.strength) == (Penalty(0.1, 0.2), 0.5)
    widget.show(moments.weighted(None))
    assert widget.moments.is_weighted_by_rows
    assert widgets.ExplorerWidget().moments.clients == ("A", "B", "C")
    assert doctest.testmod(widgets).failed == 0


def test_docstring_examples_run():
    found = doctest.testmod(explorer)
    assert found.attempted
    assert not found.failed
