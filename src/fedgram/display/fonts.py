"""Fonts for characters that the default font lacks, such as those of Chinese names."""

from __future__ import annotations

import logging
from typing import Any

from fedgram._util.text import quote_list

LOG = logging.getLogger(__name__)
PLACEHOLDER = "Last Resort"  # matplotlib's font of boxes has every character


def add_fonts(figure: Any) -> None:
    """Let all texts of a figure fall back on installed fonts, and name characters that no font has."""
    from matplotlib import font_manager
    from matplotlib.text import Text

    texts = figure.findobj(Text)
    default = font_manager.get_font(font_manager.findfont(font_manager.FontProperties())).get_charmap()
    missing = {c for text in texts for c in text.get_text() if c.isprintable() and ord(c) not in default}
    added = []
    for font in font_manager.fontManager.ttflist if missing else ():
        if font.weight != 400 or font.style != "normal" or PLACEHOLDER in font.name:
            continue
        if found := missing.intersection(map(chr, font_manager.get_font(font.fname).get_charmap())):
            added.append(font.name)
            missing -= found
    for text in texts if added else ():
        text.set_fontfamily([*text.get_fontfamily(), *added])
    if missing:
        LOG.warning(
            "No installed font has the characters %s; the figure shows boxes instead.",
            quote_list(sorted(missing)),
        )
