"""Colors, curves of seeds, and rendering for all figures."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import escape_text
from fedgram.display.fonts import add_fonts
from fedgram.theory.geometry import psd

SUFFIXES = (".png", ".svg", ".pdf")
BLUE, ORANGE, GREEN, RED, VIOLET = "#2f6db5", "#e08a1e", "#1b7f4d", "#c0392b", "#7d5ba6"
GREY, PALE, INK = "#8a929b", "#9aa3ad", "#22252a"
PALETTE = (BLUE, ORANGE, GREEN, RED, VIOLET, GREY, INK)  # for unordered categories
TERM_COLORS = (BLUE, ORANGE, GREEN)  # mean, covariance, averaging


def pyplot(*, is_file_only: bool = True) -> Any:
    """Import matplotlib's pyplot, with the file-only backend or with the caller's."""
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "Drawing needs matplotlib. Install it with pip install 'fedgram[paper]'.", field="figure"
        ) from None
    if is_file_only:
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def new_axes(width: float, height: float, panels: int = 1) -> Any:
    """Return the Axes of a new figure of this size in inches, or an array of them, one below the other."""
    plt = pyplot(is_file_only=False)
    return plt.subplots(panels, figsize=(width, height), layout="constrained")[1]


def figure_suffix(path: str | Path) -> str:
    """Return the suffix of a figure file without its dot, if that format is supported."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        *others, last = SUFFIXES
        raise InputError(f"The figure '{path}' must end in {', '.join(others)} or {last}.", field="figure")
    return suffix[1:]


def escape_label(text: str) -> str:
    """Escape a name for a label: $ starts a formula in matplotlib, and some characters have no glyph."""
    return escape_text(text).replace("$", r"\$")


def render(figure: Any, suffix: str = "png", dpi: int = 160, *, tight: bool = False) -> bytes:
    """Render a figure to the bytes of a file, and close it; tight: include what is outside its edges."""
    content = BytesIO()
    figure.set_dpi(dpi)
    add_fonts(figure)
    # Without a creation date, equal data give equal files.
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+")  # of every character and draw; add_fonts names them
        # `savefig` draws a figure twice if it has a layout, or if it is to find the tight box.
        _lay_out(figure)
        box = figure.get_tightbbox().padded(0.1) if tight else None
        figure.savefig(content, dpi=dpi, format=suffix, metadata=undated.get(suffix), bbox_inches=box)
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


def draw_seeds(
    axis: Any, x: Array, samples: Array, color: Any, runs: Sequence[str] = (), **keywords: Any
) -> None:
    """Draw a curve for each column of samples (len(x), n); several are thin, and their median is thicker.

    runs: names of the runs, one for each column (see `tag_runs`).
    """
    curves = samples.T
    if len(curves) > 1:
        (median,) = axis.plot(x, np.median(samples, axis=1), color=color, **keywords)
        tag_runs(median, runs)
        keywords = keywords | {"lw": 0.6, "alpha": 0.55, "marker": "", "label": None}
    for number, curve in enumerate(curves):
        (line,) = axis.plot(x, curve, color=color, **keywords)
        tag_runs(line, runs[number : number + 1])


def tag_runs(artist: Any, runs: Sequence[str]) -> None:
    """Name the runs that an artist shows: an SVG file keeps them as the id of its element."""
    if runs:
        artist.set_gid("_".join(("runs", *runs)))
