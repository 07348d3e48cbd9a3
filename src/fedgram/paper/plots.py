"""Style and shared curves of all figures of the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import GREY

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
TERM_MARKERS = ("o", "s", "^")
# A letter of Unicode: the calligraphic one of formulas is in no font of a browser.
TERM_NAMES = (r"$ℳ_\mu$", r"$ℳ_\Sigma$", "$ℳ_A$")

SVG_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: a third of the size, and a page can color and search it
    "svg.hashsalt": "fedgram",  # equal figures have equal files
}
SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # saves the search for a place above ticks, a tenth of the time of a figure
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
    **SVG_SETTINGS,
}


def make_panels(rows: int, columns: int, size: tuple[float, float], **keywords: Any) -> tuple[Any, Any]:
    """Make a figure of a size in inches and a flat array of its panels."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, **keywords)
    return figure, np.atleast_1d(axes).ravel()


def shades(color_map: str, count: int) -> list[Any]:
    """Colors of an ordered family of curves; none is too pale to see."""
    import matplotlib

    return list(matplotlib.colormaps[color_map](np.linspace(0.15, 0.85, count)))


def draw_median_band(axis: Any, x: Array, samples: Array, color: Any, **keywords: Any) -> None:
    """Draw the median with its interquartile band: samples (len(x), n)."""
    low, middle, high = np.quantile(samples, (0.25, 0.5, 0.75), axis=1)
    axis.fill_between(x, low, high, color=color, alpha=0.18, lw=0)
    axis.plot(x, middle, color=color, **keywords)


def draw_guide(
    axis: Any, x: Array | list[float], through: tuple[float, float], slope: float, **keywords: Any
) -> None:
    """Draw a straight line of a log-log slope through a point."""
    values = through[1] * (np.asarray(x) / through[0]) ** slope
    axis.plot(x, values, **({"color": GREY, "ls": ":", "lw": 1.0} | keywords))


def log_slope(x: Array, y: Array) -> float:
    """Least-squares slope of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def label_powers(axis: Any) -> None:
    """Label the decades of logarithmic axes in plain text: formulas take most of the time of a figure."""
    from matplotlib.ticker import LogFormatter

    for scale in (axis.xaxis, axis.yaxis):
        if isinstance(scale.get_major_formatter(), LogFormatter) and scale.get_scale() == "log":
            scale.set_major_formatter(format_power)


def format_power(value: float, _place: int | None = None) -> str:
    """Format a power of ten: 10⁻³; other numbers with three digits.

    >>> format_power(1e-3), format_power(0.2)
    ('10⁻³', '0.2')
    """
    exponent = np.log10(value) if value > 0 else np.inf
    if not np.isclose(exponent, np.round(exponent)):
        return f"{value:.3g}"
    return "10" + f"{round(exponent)}".translate(SUPERSCRIPTS)
