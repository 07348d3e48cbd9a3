"""Names in figures whose characters the default font lacks."""

import logging

import pytest
from matplotlib import pyplot as plt

from fedgram.display import plotting
from tests.helpers.command import fedgram

CIRCLED = "\u24b6\u24b7"  # in the STIX font of matplotlib, not in DejaVu Sans
CHINESE = "\u5317\u4eac"


def draw(label):
    figure, axis = plt.subplots(figsize=(2, 2), layout="constrained")
    axis.set_yticks([0.0], [label])
    return figure


def test_characters_come_from_another_installed_font(caplog):
    figure = draw(f"site {CIRCLED}")
    families = [text.get_fontfamily() for text in figure.axes[0].get_yticklabels()]
    plotting.render(figure)
    assert not caplog.records
    assert families == [["sans-serif"]]
    (label,) = figure.axes[0].get_yticklabels()
    first, *others = label.get_fontfamily()
    assert first == "sans-serif"
    assert others


def test_ordinary_names_keep_the_font(caplog):
    figure = draw("Zürich µg/m³\n$x_1$")
    plotting.render(figure)
    assert not caplog.records
    assert figure.axes[0].get_yticklabels()[0].get_fontfamily() == ["sans-serif"]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_characters_without_a_font_are_named_once(suffix, caplog, monkeypatch):
    from matplotlib import font_manager

    fonts = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)  # other machines may have Chinese fonts
    with caplog.at_level(logging.WARNING):
        plotting.render(draw(CHINESE), suffix)
    (record,) = caplog.records
    assert record.getMessage() == (
        "No installed font has the characters '\u4eac', '\u5317'; the figure shows boxes instead."
    )


def test_the_command_draws_names_of_any_script(tmp_path):
    rows = [f"{site},{value}" for site in (CHINESE, CIRCLED) for value in range(len(site), 9)]
    (tmp_path / "rows.csv").write_text("\n".join(["site,y", *rows]), encoding="utf-8")
    done = fedgram("explain", "rows.csv", "--client", "site", "--targets", "y", "--resamples", "0",
                   "--figure", "gap.png", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "gap.png").stat().st_size > 5_000
