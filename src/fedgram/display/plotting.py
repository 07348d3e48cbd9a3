"""What all figures have in common: colours, curves with a band, and how they become files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.theory.geometry import psd

SUFFIXES = (".png", ".svg", ".pdf")
BLUE, ORANGE, GREEN, RED, VIOLET = "#2f6db5", "#e08a1e", "#1b7f4d", "#c0392b", "#7d5ba6"
GREY, PALE, INK = "#8a929b", "#9aa3ad", "#22252a"
PALETTE = (BLUE, ORANGE, GREEN, RED, VIOLET, GREY, INK)  # for things in no order
TERM_COLOURS = (BLUE, ORANGE, GREEN)  # mean, covariance, averaging: the same in every figure


def pyplot() -> Any:
    """matplotlib's pyplot for drawing to files, or a sentence that says how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "Drawing needs matplotlib: install it with pip install 'fedgram[paper]'.", field="figure"
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def figure_suffix(path: str | Path) -> str:
    """The suffix of a figure's file, without its dot; refuses what is not drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"The figure '{path}' must end in {', '.join(SUFFIXES)}.", field="figure")
    return suffix[1:]


def render(figure: Any, suffix: str = "png", dpi: int = 160, **keywords: Any) -> bytes:
    """The content of a file of a figure, which is closed."""
    content = BytesIO()
    # Without a creation date the same data gives the same file.
    metadata = {"CreationDate": None} if suffix == "pdf" else None
    figure.savefig(content, dpi=dpi, format=suffix, metadata=metadata, **keywords)
    pyplot().close(figure)
    return content.getvalue()


def ellipse(gram: Array, points: int = 181) -> Array:
    """Outline {G^(1/2) u : |u| = 1} of a Gram matrix (2, 2): (2, points)."""
    angle = np.linspace(0.0, 2 * np.pi, points)
    return psd.sqrt(gram) @ np.stack([np.cos(angle), np.sin(angle)])


def mean_band(axis: Any, x: Array, samples: Array, colour: Any, **keywords: Any) -> None:
    """Mean curve with a band of one sample deviation, for a log axis: samples (len(x), n)."""
    mean = samples.mean(axis=1)
    if samples.shape[1] > 1:
        deviation = samples.std(axis=1, ddof=1)
        low = np.maximum(mean - deviation, 0.1 * mean)  # a log axis has no place for what is below zero
        axis.fill_between(x, low, mean + deviation, color=colour, alpha=0.18, lw=0)
    axis.plot(x, mean, color=colour, **keywords)
