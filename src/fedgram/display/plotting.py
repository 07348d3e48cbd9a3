"""Colors, curves with a band, and rendering for all figures."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import escape_text
from fedgram.theory.geometry import psd

SUFFIXES = (".png", ".svg", ".pdf")
BLUE, ORANGE, GREEN, RED, VIOLET = "#2f6db5", "#e08a1e", "#1b7f4d", "#c0392b", "#7d5ba6"
GREY, PALE, INK = "#8a929b", "#9aa3ad", "#22252a"
PALETTE = (BLUE, ORANGE, GREEN, RED, VIOLET, GREY, INK)  # for unordered categories
TERM_COLORS = (BLUE, ORANGE, GREEN)  # mean, covariance, averaging


def pyplot() -> Any:
    """Import matplotlib's pyplot with the file-only backend."""
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "Drawing needs matplotlib. Install it with pip install 'fedgram[paper]'.", field="figure"
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def figure_suffix(path: str | Path) -> str:
    """Return the suffix of a figure file without its dot, if that format is supported."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"The figure '{path}' must end in {', '.join(SUFFIXES)}.", field="figure")
    return suffix[1:]


def escape_label(text: str) -> str:
    """Escape a name for a label: $ starts a formula in matplotlib, and some characters have no glyph."""
    return escape_text(text).replace("$", r"\$")


def render(figure: Any, suffix: str = "png", dpi: int = 160, *, tight: bool = False) -> bytes:
    """Render a figure to the bytes of a file, and close it; tight: include what is outside its edges."""
    content = BytesIO()
    figure.set_dpi(dpi)
    # `savefig` draws a figure twice if it has a layout, or if it is to find the tight box.
    _lay_out(figure)
    box = figure.get_tightbbox().padded(0.1) if tight else None
    # Without a creation date, equal data give equal files.
    metadata = {"CreationDate": None} if suffix == "pdf" else None
    figure.savefig(content, dpi=dpi, format=suffix, metadata=metadata, bbox_inches=box)
    pyplot().close(figure)
    return content.getvalue()


def _lay_out(figure: Any) -> None:
    """Place the panels, then drop the layout."""
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        with pyplot().rc_context({"figure.constrained_layout.use": False, "figure.autolayout": False}):
            figure.set_layout_engine(None)


def ellipse(gram: Array, points: int = 181) -> Array:
    """Return the outline {G^(1/2) u : |u| = 1} of a Gram matrix (2, 2), shape (2, points)."""
    angle = np.linspace(0.0, 2 * np.pi, points)
    return psd.sqrt(gram) @ np.stack([np.cos(angle), np.sin(angle)])


def mean_band(axis: Any, x: Array, samples: Array, color: Any, **keywords: Any) -> None:
    """Draw the mean of samples (len(x), n) with a band of one standard deviation, for a log axis."""
    mean = samples.mean(axis=1)
    if samples.shape[1] > 1:
        deviation = samples.std(axis=1, ddof=1)
        low = np.maximum(mean - deviation, 0.1 * mean)  # a log axis cannot show values below zero
        axis.fill_between(x, low, mean + deviation, color=color, alpha=0.18, lw=0)
    axis.plot(x, mean, color=color, **keywords)
