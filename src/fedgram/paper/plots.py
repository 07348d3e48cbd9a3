"""Style and shared curves of all figures of the report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import GREY

TERM_MARKERS = ("o", "s", "^")
TERM_NAMES = (r"$\mathcal{M}_\mu$", r"$\mathcal{M}_\Sigma$", r"$\mathcal{M}_A$")

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


def draw_range_band(
    axis: Any, x: Iterable[float], samples: Iterable[Array], color: Any, **keywords: Any
) -> None:
    """Draw medians with a band from minimum to maximum: samples (n,) for each x, skipped if n = 0."""
    drawn = [(place, values) for place, values in zip(x, samples, strict=True) if values.size]
    if drawn:
        places, kept = zip(*drawn, strict=True)
        low, high = [values.min() for values in kept], [values.max() for values in kept]
        axis.fill_between(places, low, high, color=color, alpha=0.18, lw=0)
        axis.plot(places, [np.median(values) for values in kept], color=color, **keywords)


def mark_not_run(axis: Any, *, shared: bool = True) -> None:
    """Write 'not run' into an empty panel; without shared axes it loses its ticks."""
    axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", va="center", color=GREY)
    axis.tick_params(left=False, bottom=False, which="both")
    if not shared:
        axis.set(xticks=[], yticks=[])
